"""The picture of the README is drawn from what the benchmarks measured."""

import importlib.util
import itertools
import re
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def benchmark(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_and_engine_has_its_bars():
    drawing = benchmark("picture")
    rows = {"eager": {"step_ms": 2.0, "compiling_s": 0.0}, "torch.compile": {"step_ms": 1.0, "compiling_s": 9.0}}
    text = drawing.picture({"models": {"gpt": rows, "a<b": rows}, "environment": {"torch": "2.13", "cores": 2}})
    drawn = xml.etree.ElementTree.fromstring(text)
    bars = [part for part in drawn.iter() if part.tag.endswith("rect") and part.get("height") == str(drawing.BAR)]
    assert len(bars) == 2 * 2 * 2  # models, engines, halves
    said = [part.text for part in drawn.iter() if part.tag.endswith("text")]
    assert {"gpt", "a<b", "2.0 ms", "9.00 s", "torch.compile"} <= set(said)


def test_no_words_of_the_legend_lie_on_others():
    drawing = benchmark("picture")
    engines = re.findall(r'^    "(.+)": Engine', (ROOT / "benchmarks" / "step.py").read_text(), re.MULTILINE)
    assert len(engines) > drawing.PER_ROW
    rows = {engine: {"step_ms": 1.0, "compiling_s": 0.0} for engine in engines}
    text = drawing.picture({"models": {"gpt": rows}, "environment": {"torch": "2.13.0+cpu", "cores": 64}})
    below = [part for part in xml.etree.ElementTree.fromstring(text).iter() if part.get("class") == "small"]
    spans = []
    for part in below[-len(engines) - 1:]:  # the engines, and what was measured where
        width = 6.8 * len(part.text)  # of letters of 12 px, on average
        start = float(part.get("x")) - (width if part.get("text-anchor") == "end" else 0)
        assert start >= 0 and start + width <= drawing.WIDTH
        spans.append((float(part.get("y")), start, start + width, part.text))
    for (y, _, end, text), (next_y, start, _, behind) in itertools.pairwise(sorted(spans)):
        assert y != next_y or end < start, f"{text!r} runs into {behind!r}"
