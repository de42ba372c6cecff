"""Writes docs/conformance.md from what slow tests found: ``make conformance``.

    python tests/conformance_report.py FOLDER_OF_FINDINGS docs/conformance.md

The findings are those of test_native_opinfo.py and, in ``sizes``, of test_dynamic_sweep.py. A part of the document
that there are no findings for stays as it is, and so does what is written by hand.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import torch
from op_samples import SKIPPED, SWEEP, UNDEFINED, name_of
from size_sweeping import KINDS

from bothways.lower.ir.lowerings import LOWERINGS

COUNTS = ("met", "left", "left_though_plain")


def load(folder):
    """The findings of each dtype, put together."""
    found = defaultdict(lambda: {"cases": 0, **{name: Counter() for name in COUNTS}, "failed": {}, "not_run": {}})
    for path in sorted(Path(folder).glob("*.json")):
        facts = json.loads(path.read_text())
        own = found[path.stem.split("-")[0]]
        own["cases"] += facts["cases"]
        for name in (*COUNTS, "failed", "not_run"):
            own[name].update(facts[name])
    return found


def listed(names):
    """Names as a paragraph."""
    return ", ".join(f"`{name.removeprefix('aten.').removesuffix('.default')}`" for name in sorted(names)) or "none"


def report(found):
    at_most = ", ".join(f"{count} ({name_of(dtype)})" for dtype, count in SWEEP.items())
    met, left, plain = ({**sum((facts[name] for facts in found.values()), Counter())} for name in COUNTS)
    failed = {name for facts in found.values() for name in facts["failed"]}
    not_run = {name for facts in found.values() for name in facts["not_run"]}
    rows_there_are = {str(target) for target in LOWERINGS}
    # Calls whose results are not used are dropped, lowered or not.
    never = {name for name in met if name not in rows_there_are or left.get(name, 0) >= met[name]}
    sometimes = {name for name in met if plain.get(name, 0)} - never
    always = set(met) - never - sometimes
    unmet = rows_there_are - set(met)
    rows = [f"| {dtype} | {facts['cases']} | {len(facts['failed'])} |" for dtype, facts in sorted(found.items())]
    total = sum(facts["cases"] for facts in found.values())
    return "\n".join([
        "# Conformance of the native backend",
        "",
        "Written by `make conformance`; do not edit. PyTorch's own samples of its operations (OpInfo) run as eager",
        "runs them and as kernels, with their gradients. A result conforms when its shape, strides and dtype are",
        "eager's (or what PyTorch's fake tensors foretold, where those are wrong) and its values are eager's too,",
        "within the tolerances of PyTorch's own tests, or are off from those in double precision by no more than 4",
        "times eager's error there, twice eager's largest in the tensor and 16 units in the last place together.",
        f"PyTorch {torch.__version__.split('+')[0]}, CPU.",
        "",
        f"Of each operation at most {at_most} samples run. Left out: {listed(SKIPPED)} and what begins like these, and",
        f"what gives memory that was never written to: {listed(UNDEFINED)}.",
        "",
        "| dtype | samples, each forward and backward | operations that fail |",
        "| --- | --- | --- |",
        *rows,
        f"| together | {total} | {len(failed)} |",
        "",
        f"**Failing**: {listed(failed)}.",
        "",
        f"The samples are made of {len(met)} ATen operations:",
        "",
        f"- {len(always)} have a lowering that took every sample but those with tensors that are empty, or of a dtype",
        "  that kernels do not compute in;",
        f"- {len(sometimes)} have one that leaves some arguments to ATen;",
        f"- {len(never)} run as calls of ATen, between kernels.",
        "",
        "## Always lowered",
        "",
        listed(always),
        "",
        "## Lowered, but for some arguments",
        "",
        listed(sometimes),
        "",
        "## Left to ATen",
        "",
        listed(never),
        "",
        "## Lowerings that no sample reaches",
        "",
        f"{listed(unmet)}",
        "",
        "## Samples that are not compiled",
        "",
        "Some or all samples of these need data while they are traced, or do not run in eager either:",
        "",
        listed(not_run),
        "",
    ])  # fmt: skip


def load_sizes(folder):
    """Operation -> (kind, detail), for each backend."""
    found = defaultdict(dict)
    for path in sorted((Path(folder) / "sizes").glob("*.json")):
        found[path.stem.rpartition("-")[0]].update(json.loads(path.read_text()))
    return found


def sizes_report(found):
    names = {(backend, kind): [] for backend in found for kind in KINDS}
    for backend, facts in found.items():
        for name, (kind, _) in facts.items():
            names[backend, kind].append(name)

    def share(backend):
        served = sum(len(names[backend, kind]) for kind in ("dynamic", "decided", "specialises"))
        return f"{100 * len(names[backend, 'specialises']) / max(served, 1):.1f}%"

    def everywhere(kind):
        return sorted({name for backend in found for name in names[backend, kind]})

    backends = [backend for backend in ("eager", "aot_eager", "native") if backend in found]
    rows = [
        f"| {kind} | {meaning} | {' | '.join(str(len(names[backend, kind])) for backend in backends)} |"
        for kind, meaning in KINDS.items()
    ]
    data = [
        name for name in everywhere("breaks") if any("dynamic_shape" in facts[name][1] for facts in found.values())
    ]
    return "\n".join([
        SIZES.strip(),
        "",
        "Written by `make conformance`; do not edit. A sample of each operation is called four times, each time with",
        "two of its sizes larger, wherever these occur; results and gradients are compared with eager's.",
        "",
        f"| | | {' | '.join(backends)} |",
        f"| --- | --- | {' | '.join('---' for _ in backends)} |",
        *rows,
        f"| share | of the first three, those that specialise | {' | '.join(map(share, backends))} |",
        "",
        f"**Specialising**: {listed(everywhere('specialises'))}.",
        "",
        f"**Decided by sizes**: {listed(everywhere('decided'))}.",
        "",
        f"**Depending on data**: {listed(data)}.",
        "",
        f"**Breaking for another reason**: {listed(set(everywhere('breaks')) - set(data))}.",
        "",
        f"**Without variants**: {listed(everywhere('no variants'))}.",
        "",
    ])  # fmt: skip


NATIVE = "# Conformance of the native backend\n"
SIZES = "# Operations whose sizes change\n"
BY_HAND = "# Conformance with PyTorch's own tests of its compiler\n"


def kept(text: str) -> dict[str, str]:
    """The parts of the document as they are."""
    places = sorted((text.index(mark), mark) for mark in (NATIVE, SIZES, BY_HAND) if mark in text)
    ends = [place for place, _ in places[1:]] + [len(text)]
    return {mark: text[place:end].rstrip() + "\n" for (place, mark), end in zip(places, ends, strict=True)}


if __name__ == "__main__":
    document = Path(sys.argv[2])
    parts = kept(document.read_text() if document.exists() else "")
    if native := load(sys.argv[1]):
        parts[NATIVE] = report(native)
    if sizes := load_sizes(sys.argv[1]):
        parts[SIZES] = sizes_report(sizes)
    document.write_text("\n".join(parts[mark] for mark in (NATIVE, SIZES, BY_HAND) if mark in parts))
