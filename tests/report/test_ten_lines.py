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
    assert lines["graphs"].startswith("1 graph:") and lines["next"] == "nothing to do"
    assert lines["compiled"].startswith("in ") and "capture" in lines["compiled"]


def test_a_break_says_where_why_and_what_to_do():
    def breaks(x):
        y = x + 1
        return y * float(y.sum())

    explanation = bothways.explain(breaks)(X)
    lines = lines_of(explanation)
    place = f"test_ten_lines.py:{breaks.__code__.co_firstlineno + 2}"
    assert f"not captured whole: {place}" in lines[""]
    assert lines["next"].startswith("Return the number")


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
    assert str(explanation.breaks) == "none: everything is captured"
    assert explanation.kernels[0].name.startswith("kernel_") and "reads " in str(explanation.kernels)
    assert sum(value.size for value in explanation.memory) > 0 and "float32[300, 300]" in str(explanation.memory)
    assert explanation.details.startswith("test_the_parts") and "Guards:" in explanation.details


def test_a_function_at_its_limit_says_so():
    def chooses(x, name):
        return x * 2 if name == "twice" else x * 3

    compiled = bothways.compile(chooses)
    with bothways.config.patch(recompile_limit=3), pytest.warns(bothways.errors.RecompileLimitWarning):
        for number in range(6):
            compiled(X, f"name {number}")
    lines = lines_of(bothways.explain(compiled))
    assert lines[""].endswith("captured whole; other calls are plain Python from now on")
    assert lines["graphs"].endswith("in 3 programs")
    assert lines["again"].startswith("recompiled 2 times; last because this guard failed: L['name'] == 'name 1'")
    assert lines["plain"].startswith("test_a_function_at_its_limit_says_so") and "other calls" not in lines["next"]


def test_a_prompt_shows_the_lines_and_a_list_of_compilations_their_titles():
    def f(x):
        return x * 2

    compiled = bothways.compile(f)
    compiled(X), compiled(torch.ones(7))
    explanation = bothways.explain(compiled)
    assert repr(explanation) == str(explanation)
    assert repr(bothways.profile()) == str(bothways.profile())
    name, [first, second] = f.__qualname__, bothways.history(compiled)
    titles = [f"<compilation {one.number} of {name}: a program>" for one in (first, second)]
    assert repr(bothways.history(compiled)) == f"[{', '.join(titles)}]" and str(first).startswith(titles[0][1:-1])


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


def test_making_the_state_of_an_optimizer_is_no_break():
    """Training steps are captured whole from the second call on, and that is what people are told."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    @bothways.compile(fullgraph=True)
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(X)
    lines = lines_of(bothways.explain(step))
    assert lines[""].endswith("step: plain Python so far, the next call is captured: an AdamW makes its state")
    assert "the next step is captured" in lines["next"]
    step(X)
    explanation = bothways.explain(step)
    lines = lines_of(explanation)
    assert lines[""].endswith("step: captured whole; the first call was plain Python: an AdamW makes its state")
    assert "plain" not in lines
    assert [(found.code, found.of_first_call) for found in explanation.breaks] == [("lazy_state", True)]


def test_finding_the_sizes_of_a_lazy_module_is_no_break():
    compiled = bothways.compile(torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU()))
    compiled(X)
    assert "plain Python so far, the next call is captured: a LazyLinear" in lines_of(bothways.explain(compiled))[""]
    compiled(X)
    lines = lines_of(bothways.explain(compiled))
    assert "captured whole; the first call was plain Python: a LazyLinear" in lines[""] and "plain" not in lines


def test_a_break_that_stays_is_told_before_one_of_the_first_call():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([weight])

    @bothways.compile
    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        optimizer.step()
        print(end="")
        return loss.detach() + 1

    for _ in range(3):
        step(X)
    first = lines_of(bothways.explain(step))[""]
    assert "not captured whole" in first and "print() writes output" in first and "more break" not in first
