"""What a break says to people: the reason in words they know, and a hint that fits that very reason."""

import copy
import logging
import math
import random
import sys
import weakref

import numpy
import pytest
import torch

import bothways
from bothways.errors import Break
from bothways.hints import FINER, HINTS, hint_for
from bothways.torch_compat.said import known_as, said

X = torch.ones(4)


class Thing:
    pass


def prints(x):
    print(end="")
    return x + 1


def logs(x):
    logging.getLogger("bothways.tests.hints").info("%s", "here")
    return x + 1


def logs_a_tensor(x):
    LOG.warning("%s", x)
    return x + 1


def asks_for_equality(x):
    return x + 1 if torch.equal(x, x) else x


def makes_nested(x):
    return torch.nested.nested_tensor([x, x])


def chooses(x):
    return x * random.choice([1, 2, 3])


def computes_with_numpy(x):
    return x * float(numpy.empty(1)[0] * 0 + 1)


def draws_with_numpy(x):
    return x * (numpy.random.rand() * 0 + 1)


def asks_for_its_names(x):
    return x * len(locals())


def asks_for_its_frame(x):
    return x * len(sys._getframe().f_locals)


def transforms(x):
    return torch.func.linearize(lambda row: row * 2, x)[0]


LINE_SEARCH = torch.optim.LBFGS([torch.zeros(3, requires_grad=True)])


def searches_along_lines(x):
    return LINE_SEARCH.step(lambda: x.sum())


def differentiates(x):
    w = torch.ones(4, requires_grad=True)
    return torch.autograd.grad((w * x).sum(), w, torch.ones(2), is_grads_batched=True)[0]


def seeds(x):
    torch.manual_seed(0)
    return x + 1


def adds_a_thing(x):
    try:
        return torch.add(x, Thing())
    except TypeError:
        return x


def copies(x):
    return copy.deepcopy(x)


def asks_for_an_address(x):
    return (x + 1, id(x + 1))[0]


def decides_by_chance(x):
    return x + 1 if random.random() < 2 else x


def formats(x):
    return x, f"{x}"


def checkpoints(x):
    return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True)


def becomes_an_array(x):
    return x * float(x.numpy()[0])


def looks_for_an_element(x):
    return x + 1 if 3 in x else x


def compares(x):
    return x + 1 if x.equal(x) else x


def looks_at_memory(x):
    return x + 1 if x.data_ptr() else x


def calls_numpy(x):
    return x * float(numpy.linspace(0, 1, 3)[1])


def refers_weakly(x):
    y = x + 1
    return weakref.ref(y)() is y


def makes_a_generator(x):
    return x + torch.Generator().initial_seed() * 0


def is_close(x):
    return x + 1 if torch.allclose(x, x) else x


def becomes_sparse(x):
    return x.to_sparse().to_dense()


def drops_a_generator(x):
    def numbers():
        try:
            yield x + 1
        finally:
            print(end="")

    return next(numbers())


def is_a_generator(x):
    yield x + 1


def writes_to_an_expanded_tensor(x):
    try:
        x[:1].expand(4).add_(1)
    except RuntimeError:
        pass
    return x + 1


LOG = logging.getLogger("bothways.tests.hints")
NUMPY = "NumPy runs as plain Python: use functions of torch, or do that part outside the compiled function."
LAYOUT = "Sparse, quantized and nested tensors run as plain Python; make and use them outside the compiled function."
DRAW = "Draw the number outside the compiled function and pass it in"

# The program, the reason it gives, and what it is told to do.
TOLD = {
    prints: (
        "[call_unknown] print() writes output (builtin: print)",
        "Print outside the compiled function; or use logging, which is captured for constants and numbers.",
    ),
    logs: (
        "[call_unknown] logging.getLogger is not looked into",
        "Get loggers at module level; their messages are captured.",
    ),
    logs_a_tensor: (
        "[call_unknown] a message is logged whose parts are not constants",
        "Log or warn with constants and numbers only (x.item() instead of x), or do it outside.",
    ),
    asks_for_equality: (
        "[call_unknown] cannot call the built-in 'torch.equal'",
        "(x == y).all() says the same and stays a tensor.",
    ),
    makes_nested: ("[call_unknown] torch.nested.nested_tensor is not looked into", LAYOUT),
    chooses: (
        "[call_unknown] random.Random.choice is not looked into",
        f"{DRAW}; random(), randint() and the like are captured.",
    ),
    computes_with_numpy: ("[call_unknown] cannot call the built-in 'numpy.empty'", NUMPY),
    asks_for_its_names: (
        "[call_unknown] locals() is not supported (builtin: locals)",
        "Keep code that looks at frames, or creates code, out of the compiled function.",
    ),
    asks_for_its_frame: (
        "[call_unknown] cannot call the built-in 'sys._getframe'",
        "Keep code that looks at frames, or creates code, out of the compiled function.",
    ),
    transforms: (
        "[call_unknown] torch.func.linearize is not looked into",
        "This function runs as plain Python, between two graphs; grad, vjp, jvp, jacrev, jacfwd and vmap are captured.",
    ),
    searches_along_lines: (
        "[closure] LBFGS decides by losses and gradients how often it calls its closure",
        "There is nothing to do: the closure is compiled, and the optimizer calls it as often as it needs to.",
    ),
    differentiates: (
        "[backward] torch.autograd.grad is called in a way that is not captured",
        "Compute everything the backward reaches inside the function, or call backward() outside, where it is compiled "
        "as well. Here PyTorch's engine runs it, between two graphs.",
    ),
    seeds: ("[call_unknown] torch.random.manual_seed is not looked into", "Seed outside the compiled function."),
    adds_a_thing: (
        "[call_unknown] a tensor operation cannot take a Thing",
        "Give operations tensors and constants: take them out of the object first.",
    ),
    checkpoints: (
        "[call_unknown] checkpoint is captured with use_reentrant=False and without context_fn",
        "Pass use_reentrant=False: the gradients are the same, and it can be captured.",
    ),
    copies: ("[call_unknown] a tensor is deep-copied", "Copy a tensor with clone()."),
    asks_for_an_address: (
        "[call_unknown] id() of a torch.float32 tensor of shape (4,)",
        "Compare with `is`, or call id() outside the compiled function.",
    ),
    decides_by_chance: (
        "[tensor_value] a decision depends on a random number, known only when it runs",
        f"{DRAW}, or draw it with torch.rand and choose with torch.where.",
    ),
    formats: (
        "[tensor_value] a tensor is formatted as text",
        "Print and format tensors outside the compiled function.",
    ),
    becomes_an_array: ("[tensor_value] Tensor.numpy reads the tensor's data", NUMPY),
    looks_for_an_element: (
        "[tensor_value] looking for an element reads the tensor's data",
        "(x == value).any() says the same and stays a tensor.",
    ),
    compares: (
        "[tensor_value] Tensor.equal reads the tensor's data",
        "(x == y).all() says the same and stays a tensor.",
    ),
    looks_at_memory: (
        "[tensor_value] Tensor.data_ptr reads the tensor's data",
        "Look at a tensor's memory outside the compiled function.",
    ),
    calls_numpy: ("[call_unknown] cannot call the built-in 'numpy.linspace'", NUMPY),
    refers_weakly: (
        "[object_unknown] a weak reference is made to a torch.float32 tensor of shape (4,)",
        "Make the weak reference outside the compiled function.",
    ),
    makes_a_generator: (
        "[object_unknown] a torch._C.Generator is made, and only C code knows what it holds",
        "Make the object outside the compiled function and pass it in.",
    ),
    is_close: (
        "[dynamic_shape] allclose needs the data of its arguments: what it gives depends on data",
        "torch.isclose(x, y).all() says the same and stays a tensor.",
    ),
    becomes_sparse: ("[tensor_subclass] to_sparse gives a tensor of a special layout", LAYOUT),
    drops_a_generator: (
        "[generator_escapes] a generator with a cleanup of its own is dropped before its end",
        "Consume the generator to its end, or close() it outside.",
    ),
    is_a_generator: (
        "[generator_escapes] the function is a generator",
        "Generator functions run as plain Python; compile what they call, or a function that consumes them.",
    ),
    writes_to_an_expanded_tensor: (
        "[mutation_unknown] add_ writes to elements that share their memory",
        "Write to a copy: x.clone(), or x.contiguous() of an expanded tensor.",
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("function", TOLD, ids=lambda function: function.__name__)
def test_the_reason_and_the_hint(function):
    compiled = bothways.compile(function, backend="eager")
    compiled(X.clone())
    first = bothways.explain(compiled).breaks[0]
    assert (f"[{first.code}] {first.reason}", first.hint) == TOLD[function]
    assert f"hint: {first.hint}" in str(first)


def test_an_object_whose_call_is_written_in_c_is_a_break_and_no_endless_capture():
    compiled = bothways.compile(draws_with_numpy, backend="eager")
    for _ in range(5):
        torch.testing.assert_close(compiled(X), X)
    explanation = bothways.explain(compiled)
    assert "too_deep" not in [found.code for found in explanation.breaks]
    assert explanation.graph_count >= 1


# Rows for what only some versions of PyTorch, or programs of another kind, meet: an example of the reason.
WITHOUT_PROGRAM = {
    "tensor_value": ["a decision depends on a number read from a tensor, known only when it runs"],
    "object_unknown": [
        "<the iterator of the loop at line 3> is a map, and only C code knows what it holds",
        "L['a'] is a numpy.ndarray, and only C code knows what it holds",
        "L['f'] is a _io.TextIOWrapper, and only C code knows what it holds",
        "autograd refuses L['x']: a view was changed",
        "L['module'] is a ScriptModule",
    ],
    "dynamic_shape": ["f needs the data of its arguments: it has no kernel for tensors without data"],
    "too_deep": ["the capture ran out of stack"],
    "value_changes": [
        "each turn of a loop asks a list for another element",
        "L['p'] has to be known here, and is another number at each call",
    ],
    "mutation_unknown": ["zero_ may fail, and what was changed before it could not be put back"],
}


def test_every_finer_hint_is_for_some_reason():
    reasons = [(code, reason) for code, texts in WITHOUT_PROGRAM.items() for reason in texts]
    for told, _ in TOLD.values():
        code, _, reason = told.removeprefix("[").partition("] ")
        reasons.append((code, reason))
    given = {hint_for(code, reason) for code, reason in reasons}
    assert {hint for _, _, hint in FINER} <= given


def test_any_other_reason_has_the_hint_of_its_code():
    for code, hint in HINTS.items():
        assert hint_for(code, "something else") == Break(code, "something else").hint == hint


# What PyTorch says


def test_the_page_about_data_that_is_not_allocated_is_one_line():
    error = RuntimeError(
        "The tensor has a non-zero number of elements, but its data is not allocated yet.\n"
        "If you're using torch.compile/export/fx, it is likely that we are erroneously tracing into a custom kernel.\n"
        "If you're using Caffe2, Caffe2 uses a lazy allocation, so you will need to call mutable_data()."
    )
    assert said(error) == "its kernel reads data, which capture does not have"


def test_other_errors_keep_their_first_line():
    assert said(ValueError("wrong\nException raised from somewhere (most recent call first):")) == "ValueError: wrong"
    assert said(ValueError()) == "ValueError"
    assert said(NotImplementedError("how much a mask selects depends on its elements")) == (
        "how much a mask selects depends on its elements"
    )
    assert len(said(ValueError("x" * 1000))) < 400
    assert known_as("getitem") == "indexing" and known_as("relu") == "relu"


# What a break leaves on the stack


def guards(function, *inputs):
    """The guards of a function after some calls, and those that failed."""
    compiled = bothways.compile(function, backend="eager")
    for x in inputs:
        torch.testing.assert_close(compiled(x), function(x))
    explanation = bothways.explain(compiled)
    texts = [*explanation.recompilations, *(check.text for check in explanation.guards)]
    assert "stack_" not in "".join([*texts, *(found.reason for found in explanation.breaks)])
    return texts


def first_line(function):
    return function.__code__.co_firstlineno


def test_the_iterator_and_the_element_of_a_loop():
    class Turns:
        """An iterator that is not a builtin one."""

        def __init__(self, count):
            self.count = count

        def __iter__(self):
            return self

        def __next__(self):
            if not self.count:
                raise StopIteration
            self.count -= 1
            return float(self.count)

    def function(x):
        for scale in Turns(3):
            x = x * scale + 1
            bothways.graph_break()
        return x

    line = first_line(function) + 1
    assert any(f"<the iterator of the loop at line {line}>" in text for text in guards(function, X, X + 1))


def test_what_a_line_has_computed_before_the_break():
    def function(x):
        return x * 2 + math.cosh((x + 1).sum().item()) * 3

    line = first_line(function) + 1
    assert any(f"<value 2 that line {line} has computed>" in text for text in guards(function, X, X + 1, X + 2))


def test_the_end_of_a_with_block():
    class Block:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

    def function(x):
        with Block():
            x = x + 1
            bothways.graph_break()
            x = x * 2
        return x

    assert any("<the end of a with block>" in text for text in guards(function, X, X + 1))
