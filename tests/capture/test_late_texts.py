"""Text of numbers that are read from tensors, or change, and is only handed on: it is made when the graph has run."""

import logging

import pytest
import torch
from agreeing import agree

import bothways

BACKENDS = ["eager", "aot_eager", "native"]
LOGGER = logging.getLogger("tests.late_texts")


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        found = (record.getMessage(), record.levelname, record.pathname, record.funcName, record.lineno)
        self.records.append((*found, getattr(record, "rank", None)))


def literals(x, n, log):
    log.append(f"step {n}: {x.mean().item():.3f}, {x.mean():.2e}, {x.sum().item()!r:>12} {{braces}}")
    return x + 1


def by_percent(x, n, log):
    log.append("%d: %.3f %s" % (n, x.sum().item(), "a"))  # noqa: UP031
    return "%5.1f%%" % (x.mean().item() * 100)  # noqa: UP031


def by_method(x, n, log):
    return "{1} {0:.2f} {1:03d}".format(x.sum().item(), n)


def joined(x, n, log):
    return ", ".join(f"{name}={value:.2f}" for name, value in {"loss": x.sum().item(), "step": n}.items())


def added(x, n, log):
    text = "a" + f"{n}"
    text += f"{x.sum().item():.1f}"
    return str(x.sum().item()) + "|" + text, repr(text)


def compared(x, n, log):
    return f"{x.sum().item() > 0.5}", f"{x.argmax().item()}"


def in_containers(x, n, log):
    losses = [x.sum().item(), x.mean().item()]
    log.append(f"{losses} {(n,)} {dict(step=n, losses=[losses[0], 'none'])!r:>60}")
    losses[0] = n  # behind the text
    log.append("run {}: {!r:>20} {[1]:.2f}".format([n], {"losses": losses}, losses))  # noqa: UP032
    return str(losses), repr([n, None]), "%s %r" % (losses, {"n": n})  # noqa: UP031


def counted_in_a_list(x, n, log, runs=[0]):  # noqa: B006
    runs[:] = [n]
    runs[0] += 1
    log.append("run {}:".format(runs))  # noqa: UP032
    runs[0] += 1
    return x + 1


def before_a_change(x, n, log):
    total = x.sum()
    text = f"{total:.2f}"
    total.add_(5)
    return text, f"{total:.2f}"


UNCOUNTED = (compared, before_a_change)  # which do not look at the number of the call


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [literals, by_percent, by_method, joined, added, compared, in_containers, counted_in_a_list, before_a_change],
    ids=lambda one: one.__name__,
)
def test_text_that_is_handed_on_breaks_nothing(program, backend):
    def observe(function, call):
        log = []
        scale, n = call
        return {"result": function(torch.arange(4.0) * scale, n, log), "log": log}

    calls = [(0.25, 3), (0.25, 3), (1.5, 4), (-2.0, 5), (7.0, 6)]
    agree(program, observe, *calls, backend=backend, fullgraph=True, programs=1 if program in UNCOUNTED else 2)


def test_what_has_to_know_the_text_breaks_there():
    def program(x, table):
        table[f"{x.sum().item():.1f}"] = 1
        return len(f"{x.mean().item()}"), x * 2

    with pytest.raises(bothways.errors.Unsupported, match="tensor_value"):
        bothways.compile(program, fullgraph=True)(torch.ones(2), {})

    def observe(function, scale):
        table = {}
        return {"result": function(torch.ones(2) * scale, table), "table": table}

    agree(program, observe, 1.0, 1.0, 3.5)


def test_a_name_with_a_number_that_changes():
    def program(x, n, table):
        table[f"step {n}"] = n
        text = f"step {n}"
        found = text == "step 4", "step 4" == text, text != f"step {n}", text in ("step 5",), text < "step 4"
        return x * n, sorted(table), found, text * 2, text[-1], text.upper(), "p {}" "%s" % text  # noqa: UP031

    def observe(function, n):
        table = {}
        return {"result": function(torch.ones(2), n, table), "table": table}

    for fullgraph in (False, True):
        agree(program, observe, 2, 3, 4, 5, 3, fullgraph=fullgraph)


@pytest.mark.parametrize("spec", ["d", "c", "x", "q"])
def test_formatting_that_fails_for_some_numbers_is_pythons(spec):
    """A whole number is no float, and a character no number below nothing."""

    def program(x, n):
        return x + 1, format(n, spec), "%d" % x.sum().item()  # noqa: UP031

    def observe(function, call):
        value, n = call
        try:
            return {"result": function(torch.full((2,), value), n)}
        except (ValueError, OverflowError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    infinity = float("inf")
    agree(program, observe, (1.0, 65), (2.0, 66), (2.0, 67), (2.0, -1), (infinity, 68), (float("nan"), 69))


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_logged_as_coming_from_their_lines(backend):
    def inner(x):
        LOGGER.info(f"inner {x.sum():.1f}", stacklevel=2)

    def program(x, n):
        LOGGER.info("step %d: %.3f", n, x.mean().item())
        LOGGER.warning("constant", extra={"rank": 3})
        LOGGER.log(logging.ERROR, f"{x.sum().item():.1f}")
        LOGGER.debug("dropped %s", n)
        inner(x)
        return x + 1

    def observe(function, call):
        handler = Kept()
        LOGGER.addHandler(handler)
        try:
            return {"result": function(torch.ones(2) * call[0], call[1]), "records": handler.records}
        finally:
            LOGGER.removeHandler(handler)

    LOGGER.setLevel(logging.INFO)
    try:
        agree(program, observe, (1.0, 2), (1.0, 2), (2.0, 3), (3.0, 4), backend=backend, fullgraph=True, programs=2)
    finally:
        LOGGER.setLevel(logging.NOTSET)
