"""The picture of the README is drawn from what the benchmarks measured."""

import importlib.util
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_model_and_engine_has_its_bars():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "benchmarks" / "picture.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    rows = {"eager": {"step_ms": 2.0, "compiling_s": 0.0}, "torch.compile": {"step_ms": 1.0, "compiling_s": 9.0}}
    text = drawing.picture({"models": {"gpt": rows, "a<b": rows}, "environment": {"torch": "2.13", "cores": 2}})
    drawn = xml.etree.ElementTree.fromstring(text)
    bars = [part for part in drawn.iter() if part.tag.endswith("rect") and part.get("height") == str(drawing.BAR)]
    assert len(bars) == 2 * 2 * 2  # models, engines, halves
    said = [part.text for part in drawn.iter() if part.tag.endswith("text")]
    assert {"gpt", "a<b", "2.0 ms", "9.00 s", "torch.compile"} <= set(said)
