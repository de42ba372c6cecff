"""Views that autograd does not let be changed: one of several, one taken without gradients, one of a custom function.

Eager's error comes at the operation that changes such a view, or uses one whose base was changed, and what came before
it has happened. A compiled function gives such views out as what they are, over breaks and to its callers.
"""

import operator

import pytest
import torch
from agreeing import agree

import bothways
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.view(2, 2)


class FlatAndRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1), x[0]

    @staticmethod
    def backward(ctx, grad, other):
        return grad.view(2, 2)


def without_grad(take):
    def taken(*args, **kwargs):
        with torch.no_grad():
            return take(*args, **kwargs)

    return taken


# How a view of a 2 by 2 tensor is taken that is not to be changed.
VIEWS = {
    "unbind": lambda base: base.unbind(0)[0],
    "split": lambda base: base.split(1)[1],
    "split with sizes": lambda base: base.split_with_sizes([1, 1])[0],
    "chunk": lambda base: base.chunk(2)[0],
    "tensor_split": lambda base: base.tensor_split(2)[1],
    "hsplit": lambda base: base.hsplit(2)[0],
    "vsplit": lambda base: base.vsplit(2)[0],
    "a view of one of several": lambda base: base.unbind(0)[0].view(-1)[:1],
    "without gradients": without_grad(lambda base: base[0]),
    "several without gradients": without_grad(lambda base: base.unbind(0)[1]),
    "custom": Flat.apply,
    "custom, several": lambda base: FlatAndRow.apply(base)[0],
}
# Such as may be changed.
OPEN = {
    "an ordinary view": lambda base: base[0],
    "detached": lambda base: base.unbind(0)[0].detach(),
    "data": lambda base: base.unbind(0)[0].data,
}
# What shares memory and does not say so.
SECRET = {
    "unsafe_split": lambda base: base.unsafe_split(1)[0],
    "unsafe_chunk": lambda base: base.unsafe_chunk(2)[0],
    "unsafe_split_with_sizes": lambda base: torch.unsafe_split_with_sizes(base, [1, 1])[0],
    "an operation by its name": lambda base: torch.ops.aten.unsafe_split.Tensor(base, 1)[0],
}
# Who looks at the view afterwards.
CHANGES = {
    "the view": lambda base, view: view.add_(1),
    "by an operator": lambda base, view: view.__iadd__(1),
    "by an index": lambda base, view: view.__setitem__(0, 3.0),
    "copied to": lambda base, view: view.copy_(view.detach() * 2),
    "in a list": lambda base, view: torch._foreach_mul_([view], 2),
    "in place, by a keyword": lambda base, view: torch.nn.functional.relu(view, inplace=True),
    "the base": lambda base, view: base.mul_(2),
    "without gradients": without_grad(lambda view: view.add_(1)),
}
LEAVES = {"itself": lambda x: x, "a view of it": lambda x: x.view(-1), "one of several": lambda x: x.unbind(0)[0]}


def outcome(function):
    """What a call gives or raises, the gradients, and what it has done to its arguments."""
    x = torch.tensor([[0.5, 1.0], [1.5, 2.0]], requires_grad=True)
    y = torch.tensor([[1.0, -1.0], [2.0, 3.0]])
    shown = []
    try:
        results = function(x, y)
        shown.append([result.detach().clone() for result in results])
        sum(result.sum() for result in results).backward()
    except RuntimeError as error:
        shown.append(str(error))
    return [*shown, x.detach().clone(), x.grad, y.clone()]


def refusals_agree(program, backend):
    observe = lambda function, _: {"results or the error, arguments and gradients": outcome(function)}
    agree(program, observe, "first", "again", backend=backend, within={"kernels_for_small_graphs": True})


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [*VIEWS, *OPEN, *SECRET])
def test_a_change_in_the_function_is_refused_or_done(name, change, backend):
    take, change_it = (VIEWS | OPEN | SECRET)[name], CHANGES[change]

    def program(x, y):
        y.add_(1)
        base = x * 3 + 1
        view = take(base)
        if change == "without gradients":
            change_it(view)
        else:
            change_it(base, view)
        y.mul_(2)
        return base.sin() * y.clone(), view * 3

    refusals_agree(program, backend)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kept", [True, False], ids=["base kept", "base forgotten"])
@pytest.mark.parametrize("name", [*VIEWS, *OPEN, *SECRET])
def test_a_change_after_a_break_is_refused_or_done(name, kept, backend):
    take = (VIEWS | OPEN | SECRET)[name]

    def program(x, y):
        base = x * y + 1
        view = take(base)
        other = base if kept else x
        bothways.graph_break()
        view += 1
        return other.sin(), view * 3

    refusals_agree(program, backend)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*VIEWS, *OPEN])
def test_the_caller_is_refused_as_well(name, backend):
    take = (VIEWS | OPEN)[name]

    def program(x, y):
        return (take((x * y + 1).sin()),)

    compiled = bothways.compile(program, backend=backend)

    def plain_caller(x, y):
        (view,) = program(x, y)
        view += x.sum()
        return (view * 2,)

    def caller(x, y):
        (view,) = compiled(x, y)
        view += x.sum()
        return (view * 2,)

    with bothways.config.patch(kernels_for_small_graphs=True):
        for _ in range(2):
            assert difference(outcome(plain_caller), outcome(caller)) is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs", [True, False], ids=["no_grad block", "no gradients behind it"])
def test_a_view_of_what_has_no_gradient_may_not_get_one(needs, backend):
    def program(x, y):
        if needs:
            with torch.no_grad():
                view = (x * 3 + 1)[0]
        else:
            view = (x.detach() * 3 + 1).unbind(0)[0]
        bothways.graph_break()
        view += x[0]
        return (view.sin() * 2,)

    refusals_agree(program, backend)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["unbind", "custom", "custom, several"])
@pytest.mark.parametrize("question", ["is_leaf", "grad_fn", "grad", "output_nr", "retain_grad", "register_hook"])
def test_a_view_whose_base_was_changed_is_not_told_about(question, name, backend):
    def program(x, y):
        y.add_(1)
        base = x * y
        view = VIEWS[name](base).view(-1)
        base += 1
        try:
            found = getattr(view, question)
            found = found(print) if question == "register_hook" else found() if callable(found) else found
            y.mul_(3)
        except RuntimeError:
            y.mul_(5)
        return (base * y,)

    refusals_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_whose_base_was_changed_is_returned(backend):
    def program(x, y):
        base = x * y
        view = base.unbind(0)[1]
        base += 1
        return base.sin(), view

    refusals_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_error_is_caught_in_a_loop_over_the_views(backend):
    def program(x, y):
        base = x * y
        for row in base.unbind(0):
            try:
                row += 1
            except RuntimeError as error:
                y.add_(len(str(error)))
        return (base * y,)

    refusals_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_that_needs_a_gradient_is_not_changed(name, backend):
    take = LEAVES[name]

    def program(x, y):
        y.add_(1)
        take(x).add_(1)
        y.mul_(2)
        return (x * y,)

    refusals_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beside", [True, False], ids=["beside others", "alone"])
def test_what_is_computed_from_a_view_taken_without_gradients_needs_one_that_leads_nowhere(beside, backend):
    def program(x, y):
        base = x * y
        with torch.no_grad():
            view = base.view(-1)
        return (view.sum().sin() * 2, base.sum()) if beside else (view.sum().sin() * 2,)

    refusals_agree(program, backend)
    x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    with bothways.config.patch(kernels_for_small_graphs=True):
        results = program(x, y), bothways.compile(program, backend=backend)(x, y)
    assert [result.requires_grad for result in results[0]] == [result.requires_grad for result in results[1]]


# What changes a base, or a view of it, so that autograd refuses its views from then on.
WRITES = {
    "the base": lambda base, view: base.mul_(2),
    "the base, by an operator": lambda base, view: operator.iadd(base, 1),
    "the base, in a list": lambda base, view: torch._foreach_add_([base], 1.0),
    "the base, as what an operation writes to": lambda base, view: without_grad(torch.neg)(base.detach(), out=base),
    "the view, without gradients": lambda base, view: without_grad(torch.Tensor.add_)(view, 1),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("late", [False, True], ids=["read before", "read after"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["unbind", "a view of one of several", "without gradients", "custom", "detached"])
def test_what_uses_a_view_after_a_break_and_a_change_raises_where_it_is_caught(name, write, late, backend):
    take = (VIEWS | OPEN)[name]

    def program(x, y):
        base = x * y + 1
        view = take(base)
        bothways.graph_break()
        before = torch.zeros(()) if late else view.detach().sum()
        WRITES[write](base, view)
        try:
            after = view.sum() * 2
        except RuntimeError:
            y.mul_(3)
            after = x.sum()
        return (before + after,)

    refusals_agree(program, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_made_for_an_ordinary_view_is_not_used_for_one_of_several(backend):
    def program(base, view, y):
        base += 1
        try:
            return (base.sum() + view.sum() * 2) * y.sum()
        except RuntimeError:
            return y.mul_(3).sum() + base.sum()

    compiled = bothways.compile(program, backend=backend)
    for take in (lambda base: base[0], lambda base: base[0], lambda base: base.unbind(0)[0], lambda base: base[0]):
        results = []
        for function in (program, compiled):
            x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2)
            base = x * 2
            result = function(base, take(base), y)
            result.backward()
            results.append([result.detach(), x.grad, y])
        assert difference(*results) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_uses_a_view_whose_base_was_changed_raises_at_its_line(backend):
    """Also where the shape of what it would give is known at once: after the effects of the lines before it."""
    seen = []

    def program(x):
        base = x * 1
        view = base.chunk(2)[0]
        base.mul_(2)
        seen.append("before")
        return view * 2  # the line

    def observe(function, size):
        seen.clear()
        with pytest.raises(RuntimeError, match="base or another view") as caught:
            function(torch.ones(size, size, requires_grad=True))
        lines = [str(entry.statement) for entry in caught.traceback if entry.name == "program"]
        return {"error": str(caught.value), "lines": lines[-1:], "seen": list(seen)}

    agree(program, observe, 2, 4, 4, 6, 5, backend=backend)


# Changes of what was computed from such a view, and lies apart from it; and one that is none.
APART = {
    "not in place": lambda x, w: torch.nn.functional.relu(x, inplace=False),
    "an activation": lambda x, w: torch.nn.functional.relu(x @ w, inplace=True),
    "a method": lambda x, w: torch.nn.functional.linear(x, w).add_(1),
    "a part": lambda x, w: torch.cat([x, x]).view(-1)[1:].mul_(2),
    "by an index": lambda x, w: operator.setitem(x.softmax(-1), 0, 1.0),
}
# Changes of the view, which only look as if they were of something new.
WITHIN = {
    "the same": lambda x, w: x.contiguous().add_(1),
    "in another shape": lambda x, w: torch.nn.functional.relu(x.reshape(-1), inplace=True),
    "a dropout of nothing": lambda x, w: torch.nn.functional.dropout(x, 0.5, False).mul_(2),
    "turned meanwhile": lambda x, w: (x.view(-1), x.t_())[0].add_(1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("take", ["split", "without gradients"])
@pytest.mark.parametrize("change", APART | WITHIN)
def test_what_is_computed_from_such_a_view_may_be_changed(change, take, backend):
    def program(x, w):
        return (APART | WITHIN)[change](x, w), x + 1

    def observe(function, call):
        base = torch.linspace(-1, 1, 18).view(2, 3, 3)
        x = base.split(1)[1].squeeze(0) if take == "split" else without_grad(lambda: base[call])()
        result = function(x, torch.linspace(0, 2, 9).view(3, 3))
        return {"result": result, "base": base}

    agree(program, observe, 0, 0, 1, backend=backend, fullgraph=change in APART)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["used", "handled", "given back"])
def test_behind_a_backward_of_the_function_s_own(how, backend):
    def program(x):
        weight = (x.detach() * 3).requires_grad_()
        (gradient,) = torch.autograd.grad((weight * weight).sum(), weight)
        base = x.sum() * torch.ones(2)
        view = base.split(1)[-1]
        base += 1
        if how == "given back":
            return base, view, gradient
        try:
            return base + view.sum(), gradient
        except RuntimeError as error:
            if how == "used":
                raise
            return str(error)[:60], base, gradient

    def observe(function, call):
        x = torch.full((3,), call, requires_grad=True)
        try:
            result = function(x)
        except RuntimeError as error:
            return {"raised": str(error)}
        seen = {"results": [str(one) if isinstance(one, str) else one.shape for one in result]}
        try:
            return seen | {"base": result[-2].exp(), "used": result[1] * 2}
        except RuntimeError as error:
            return seen | {"refused": str(error)[:60]}

    agree(program, observe, 1.0, 1.0, 2.0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "use",
    [
        lambda view: view.data.mul_(2),
        lambda view: view.data.masked_fill_(view > 0, -2),
        lambda view: view.data.add(1),
        lambda view: view > 0,
    ],
)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_what_needs_no_history_of_a_view_whose_base_got_one_is_done(name, given, use, backend):
    def program(x, weight):
        base = x if given else x * 1
        view = VIEWS[name](base)
        base.addcmul_(weight, weight)
        return use(view), base * 2

    def observe(function, _):
        weight = torch.full((2, 2), 2.0, requires_grad=True)
        try:
            used, doubled = function(torch.ones(2, 2), weight)
        except RuntimeError as error:
            return {"raised": str(error).partition("[")[0]}
        return {"used": used.detach(), "gradient": torch.autograd.grad(doubled.sum(), weight)}

    agree(program, observe, 1, 2, backend=backend, within={"kernels_for_small_graphs": True})
