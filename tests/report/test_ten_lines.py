"""What ``print(explain(f)(x))`` begins with: ten lines; and the parts that can be asked for."""

import pytest
import torch

import bothways

X = torch.arange(4.0)


def lines_of(explanation):
    """Title -> text of the lines; the first line has none."""
    first, *rest = str(explanation).split("\n")
    return {"": first, **{line.split()[0]: " ".join(line.split()[1:]) for line in rest}}


def test_a_function_that_is_captured_whole():
    lines = lines_of(bothways.explain(lambda x: x * 2 + 1)(X))
    assert lines[""].endswith("<lambda>: captured whole")
    assert lines["graphs"].startswith("1 graph:") and lines["next"] == "nothing has to be done"
    assert lines["compiled"].startswith("in ") and "capture" in lines["compiled"]


def test_a_break_says_where_why_and_what_to_do():
    def breaks(x):
        y = x + 1
        return y * float(y.sum())

    explanation = bothways.explain(breaks)(X)
    lines = lines_of(explanation)
    place = f"test_ten_lines.py:{breaks.__code__.co_firstlineno + 2}"
    assert f"not captured whole: {place}" in lines[""]
    assert lines["next"].startswith("Keep the value a tensor")


def test_there_are_ten_at_most_and_none_is_long():
    def busy(x, n):
        y = (x * n).sin()
        print(end="")
        return (y * y).sum()

    compiled = bothways.compile(busy)
    x = torch.randn(300, 300, requires_grad=True)
    for n in range(5):
        compiled(x[: 100 + n], float(n)).backward()
    text = str(bothways.explain(compiled))
    assert len(text.split("\n")) <= 10 and max(map(len, text.split("\n"))) <= 150
    lines = lines_of(bothways.explain(compiled))
    assert {"graphs", "kernels", "guards", "compiled", "again", "next", "more"} <= lines.keys()


def test_the_parts_are_there_to_be_read_and_to_be_printed():
    def f(x):
        return (x.sin() * 2).relu().sum()

    compiled = bothways.compile(f)
    compiled(torch.randn(300, 300, requires_grad=True)).backward()
    explanation = bothways.explain(compiled)
    assert "sin" in str(explanation.graph) and "relu" in str(explanation.graph)
    assert "L['x'].dtype is torch.float32" in str(explanation.guards)
    assert "void kernel_0" in str(explanation.code) and "def run(" in str(explanation.code)
    assert str(explanation.breaks) == "none: all of it is captured"
    assert explanation.kernels[0].name.startswith("kernel_") and "reads " in str(explanation.kernels)
    assert sum(value.size for value in explanation.memory) > 0 and "float32[300, 300]" in str(explanation.memory)
    assert explanation.details.startswith("test_the_parts") and "Guards:" in explanation.details


def test_a_notebook_shows_the_lines_and_the_page():
    shown = bothways.explain(lambda x: x * 2)(X)._repr_html_()
    assert "&lt;lambda&gt;: captured whole" in shown.partition("</pre>")[0] and "<iframe srcdoc=" in shown
    assert "<script" not in shown.replace("&lt;script", "")


@pytest.mark.parametrize("call", [False, True])
def test_a_function_that_is_not_compiled_has_the_same_text_in_all_lengths(call):
    @bothways.disable
    def plain(x):
        return x

    explanation = bothways.explain(plain)(X) if call else bothways.explain(plain)
    assert explanation.details == str(explanation) and "is not compiled" in str(explanation)
