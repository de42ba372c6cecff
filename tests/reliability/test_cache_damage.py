"""Entries of the cache that are not what they should be, though their checksums are right: dropped, and made again."""

import json
import shutil
import warnings

import pytest
import torch
from agreeing import agree
from cache_work import counted_work

from bothways.building import build as building
from bothways.building import toolchain
from bothways.cache.disk import CHECKSUMS, checksums, is_key
from bothways.errors import KernelWarning, warn_once
from bothways.lower.host.text import FACTS, PYTHON


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache in which all is well."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("filled") / "cache"
        patch.setenv("BOTHWAYS_CACHE_DIR", str(folder))
        check()
    return folder


@pytest.fixture(autouse=True)
def root(filled, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(filled, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def work(monkeypatch):
    return counted_work(monkeypatch)


def model(x, w):
    return (x @ w).sin().cumsum(0) * 2, x.clone().add_(1)


def train(function):
    """Outputs and gradients, in a process that has nothing but the cache."""
    building._loaded.clear()
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    outputs = function(x, w)
    torch.autograd.backward([output.sum() for output in outputs])
    return [*outputs, x.grad, w.grad]


def check(function=model):
    agree(function, lambda run, _: {"results and gradients": train(run)}, 1, 2, backend="native", fullgraph=True)


def rewrite(entry, name, change):
    """Change a file, and the checksums with it, as only a bug of ours would."""
    (entry / name).write_bytes(change((entry / name).read_bytes()))
    files = {path.name: path.read_bytes() for path in sorted(entry.iterdir()) if path.name != CHECKSUMS}
    (entry / CHECKSUMS).write_bytes(checksums(entry.name, files))


def entries(root, name, wanted=""):
    """The entries with a file, whose content has a word."""
    found = [path for path in root.iterdir() if is_key(path.name) and (path / name).exists()]
    return [path for path in found if wanted in (path / name).read_text(errors="replace")]


def changed(**values):
    """A change of facts: values by name, where a name with dots leads inside; ``...`` takes one away."""

    def change(content):
        facts = json.loads(content)
        for name, value in values.items():
            *way, last = name.split("__")
            place = facts
            for step in way:
                place = place.get(step, {})
            if value is ...:
                place.pop(last, None)
            elif last in place:
                place[last] = value(place[last]) if callable(value) else value
        return json.dumps(facts).encode()

    return change


def replaced(old, new):
    return lambda content: content.replace(old.encode(), new.encode())


ANY_FACTS = {
    "no JSON": lambda content: b"boom",
    "no text": lambda content: b"\xff\xfe\x00",
    "nothing": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "null": lambda content: b"null",
    "a number": lambda content: b"3",
    "a text": lambda content: b'"program"',
    "a list": lambda content: b"[]",
    "an empty dictionary": lambda content: b"{}",
    "deep": lambda content: b"[" * 100000,
}

FACTS_OF_FUNCTIONS = {
    "no program": changed(program=...),
    "a program that is a number": changed(program=3),
    "a program that is a path": changed(program="../../elsewhere"),
    "a program that is not there": changed(program="0" * 64),
    "no facts": changed(facts=...),
    "facts that are a list": changed(facts=lambda facts: [*facts]),
    "one fact too few": changed(facts__is_random=...),
    "one fact too many": changed(facts=lambda facts: facts | {"more": 1} if facts else facts),
    "no outputs": changed(facts__outputs=[]),
    "an output too many": changed(facts__outputs=lambda outputs: [*outputs, None]),
    "outputs that are no results": changed(facts__outputs=lambda outputs: [["result", 99] for _ in outputs]),
    "outputs of another kind": changed(facts__outputs=lambda outputs: [["elsewhere", 0] for _ in outputs]),
    "outputs that are before the first": changed(facts__outputs=lambda outputs: [["input", -1] for _ in outputs]),
    "outputs that are numbers": changed(facts__outputs=lambda outputs: [1 for _ in outputs]),
    "results too many": changed(facts__differentiable=lambda values: [*values, True]),
    "results that are numbers": changed(facts__differentiable=lambda values: [1 for _ in values]),
    "leads too few": changed(facts__leads=[]),
    "a lead to an input that is not there": changed(facts__leads=lambda leads: [1 << 60 for _ in leads]),
    "a piece without inputs": changed(facts__pieces=lambda pieces: [*pieces, 1]),
    "a piece behind no result": changed(facts__pieces=lambda pieces: [1 << 60, 1]),
    "a backward that is a word": changed(facts__has_backward="yes"),
    "inputs that are not there": changed(facts__needed_inputs=[0, 1, 2, 3]),
    "an input that is read twice": changed(facts__read_inputs=[0, 0]),
    "an input that is True": changed(facts__read_inputs=[True]),
    "an input that is changed and not there": changed(facts__changed=[7]),
    "a saved value too many": changed(facts__saved_positions=lambda values: [*values, 1]),
    "a saved value before the first": changed(facts__saved_positions=lambda values: [-1 for _ in values]),
    "groups of nothing": lambda content: b'{"groups": []}',
    "groups of one": lambda content: b'{"groups": [[0, 1]]}',
    "groups that lack an output": lambda content: b'{"groups": [[0], []]}',
    "groups with an output twice": lambda content: b'{"groups": [[0], [0]]}',
    "groups with outputs that are not there": lambda content: b'{"groups": [[0], [1], [2]]}',
    "groups of texts": lambda content: b'{"groups": ["01"]}',
}

FACTS_OF_PROGRAMS = {
    "no names": changed(names=...),
    "names that are a list": changed(names=[]),
    "a name that is a number": changed(names=lambda names: dict.fromkeys(names, 3)),
    "a name that is no expression": changed(names=lambda names: dict.fromkeys(names, "1 +")),
    "a name of nothing": changed(names=lambda names: dict.fromkeys(names, "torch.no_such_function")),
    "names too few": changed(names={}),
    "functions too few": changed(functions={}),
    "functions with too many arguments": changed(functions=lambda found: {name: found[name] + "p" for name in found}),
    "functions with arguments of no kind": changed(functions=lambda found: {name: "x" for name in found}),
    "functions that are not there": changed(functions=lambda found: {f"{name}0": found[name] for name in found}),
    "no tensors": changed(new={}),
    "tensors that are a list": changed(new=[]),
    "a tensor too few": changed(new=lambda new: {name: rows[1:] for name, rows in new.items()}),
    "tensors that are numbers": changed(new=lambda new: {name: [3 for _ in rows] for name, rows in new.items()}),
    "tensors of no kind": changed(new=lambda new: {name: ["nothing 4" for _ in rows] for name, rows in new.items()}),
    "tensors of numbers": changed(new=lambda new: {name: ["bool _3" for _ in rows] for name, rows in new.items()}),
    "a library that is a number": changed(library=3),
    "a library that is a path": changed(library="../../elsewhere"),
    "a library that is not there": changed(library="0" * 64),
    "a name for people that is none": changed(name=None),
    "a flag that is a number": changed(takes_list=1),
    "the other flag": changed(takes_list=lambda flag: not flag),
    "one fact too many": lambda content: json.dumps(json.loads(content) | {"more": 1}).encode(),
}

PROGRAMS = {
    "no Python": lambda content: b"boom(",
    "no text": lambda content: b"\xff\xfe",
    "nothing": lambda content: b"",
    "no function": lambda content: b"x = 1\n",
    "half": lambda content: content[: len(content) // 2],
    "an input too many": replaced("def run(", "def run(more, "),
    "a result too many": replaced("return (", "return (None, "),
    "no result": lambda content: content[: content.rindex(b"return")] + b"return ()\n",
    "what is no tuple": lambda content: content[: content.rindex(b"return")] + b"return None\n",
    "a name it has not": replaced("return (", "unheard_of()\n    return ("),
}


@pytest.mark.parametrize("damage", ANY_FACTS)
def test_facts_that_are_none_are_made_again(damage, root, work):
    check_damage(root, work, FACTS, "", ANY_FACTS[damage])


@pytest.mark.parametrize("damage", FACTS_OF_FUNCTIONS)
def test_facts_that_are_not_of_this_function_are_made_again(damage, root, work):
    check_damage(root, work, FACTS, '"program": "', FACTS_OF_FUNCTIONS[damage])


@pytest.mark.parametrize("damage", FACTS_OF_PROGRAMS)
def test_facts_that_are_of_no_program_are_made_again(damage, root, work):
    check_damage(root, work, FACTS, '"looks_at_grad_mode"', FACTS_OF_PROGRAMS[damage])


@pytest.mark.parametrize("damage", PROGRAMS)
def test_programs_that_are_none_are_made_again(damage, root, work):
    check_damage(root, work, PYTHON, "", PROGRAMS[damage])


def check_damage(root, work, name, wanted, change):
    found = entries(root, name, wanted)
    before = [(entry / name).read_bytes() for entry in found]
    for entry in found:
        rewrite(entry, name, change)
    assert [(entry / name).read_bytes() for entry in found] != before
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        check()
    assert work != []
    work.clear()
    check()
    assert work == []


COUNT = len(toolchain.FEATURES)
NUMBERS = (["9"] * COUNT, ["-1", *["0"] * (COUNT - 1)], ["1.5", *["0"] * (COUNT - 1)], ["0"] * (COUNT + 1), ["0"] * 5)
OPTIONS = [b"", b"boom", b"0", b"\xff", *(" ".join(numbers).encode() for numbers in NUMBERS)]


@pytest.mark.parametrize("content", OPTIONS)
def test_options_of_a_compiler_that_are_none_are_the_best(content, root):
    best = building.toolchain()
    cache = building.open_cache()
    building._remember(cache, best, (0, 1, *(0,) * (COUNT - 2)))
    [entry] = entries(root, building.OPTIONS)
    rewrite(entry, building.OPTIONS, lambda _: content)
    building._options.clear()
    assert building.working_tools(cache) == best and not entry.exists()
    building._options.clear()


def test_what_is_well_is_not_made_again(work):
    check()
    assert work == []


def test_an_entry_under_the_name_of_another_is_none(root, work):
    [one, other, *_], aside = entries(root, FACTS, '"program": "'), root / "aside"
    one.rename(aside), other.rename(one), aside.rename(other)
    check()
    assert work != []


# What people asked to read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a file stands there", "below a file", "only for reading"])
def test_a_folder_for_people_that_cannot_be_written_is_one_warning(kind, tmp_path, monkeypatch):
    place = tmp_path / "dump"
    if kind == "only for reading":
        place = tmp_path / "missing"
        place.symlink_to("/proc/self/no-such-folder")
    else:
        place.write_text("")
        place = place / "below" if kind == "below a file" else place
    monkeypatch.setenv("BOTHWAYS_DUMP", str(place))
    for function in (model, lambda x, w: (x * 3, w * 4)):  # what is in the cache, and what is not
        warn_once.cache_clear()
        with pytest.warns(KernelWarning, match="BOTHWAYS_DUMP is ignored: ") as seen:
            check(function)
        assert len([warning for warning in seen if warning.category is KernelWarning]) == 1


def test_names_that_are_no_text_are_written_for_people(tmp_path, monkeypatch):
    from bothways.lower.dialects.c.dialect import C
    from bothways.lower.host.listing import listing
    from bothways.record.dump import dump

    monkeypatch.setenv("BOTHWAYS_DUMP", str(tmp_path / "caf\udce9"))
    kernels, python = "// /caf\udce9.py\n", "def run():  # caf\udce9\n    pass\n"
    dump("forward", lambda stem: listing(stem, kernels, python, {}, C()))
    assert len(list((tmp_path / "caf\udce9").iterdir())) == 2
