"""The contract of ``torch.autograd.Function`` inside compiled functions: ctx, marks, results, and how it is called.

Each program is run plainly and compiled, with its backward: results, gradients, effects and exceptions are the same.
"""

import pytest
import torch
from custom_functions import BACKENDS, agree, inputs, node_of, observed
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

import bothways
from bothways.testing import CompileCounter, RecordGraphs, difference

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


# ctx


class SavesTwice(Function):
    """The last call of save_for_backward counts; it takes inputs, results, other tensors and None."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        out = x * y
        ctx.save_for_backward(x, out, torch.ones(3), None, y.detach() + 1)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, out, ones, nothing, shifted = ctx.saved_tensors
        assert nothing is None
        return grad * out * ones, grad * x * shifted


def test_save_for_backward_keeps_what_its_last_call_was_given(backend):
    compiled = agree(lambda x, y: SavesTwice.apply(x, y * 2), backend, lambda: inputs((2, 3), (2, 3)))
    assert not node_of(compiled).opaque


class Structures(Function):
    """Tensors and nested Python structures as attributes of ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        ctx.nested = {"factors": [1, 2, (3, 4)], "shape": tuple(x.shape), "tensors": [x.sin(), {"cos": x.cos()}]}
        ctx.name = "structures"
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert ctx.name == "structures" and ctx.nested["shape"] == grad.shape
        total = grad * ctx.x * ctx.nested["tensors"][0] * ctx.nested["tensors"][1]["cos"]
        for factor in (*ctx.nested["factors"][:2], *ctx.nested["factors"][2]):
            total = total * factor + total
        return total


def test_attributes_of_ctx_hold_tensors_and_nested_structures(backend):
    compiled = agree(lambda x: Structures.apply(x).sin(), backend)
    assert not node_of(compiled).opaque


def test_a_size_kept_on_ctx_is_that_of_the_call(backend):
    class TimesRows(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.rows = x.size(0)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.rows

    def program(x):
        return TimesRows.apply(x)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for rows in (2, 5, 2):
        make_args = lambda rows=rows: inputs((rows, 3))  # noqa: E731
        assert difference(observed(program, make_args, []), observed(compiled, make_args, [])) is None


class Asks(Function):
    @staticmethod
    def forward(ctx, x, y, factor):
        SEEN.append(("forward", ctx.needs_input_grad, x.requires_grad, torch.is_grad_enabled()))
        return x * y * factor

    @staticmethod
    def backward(ctx, grad):
        SEEN.append(("backward", ctx.needs_input_grad))
        return grad * 2 if ctx.needs_input_grad[0] else None, grad * 3 if ctx.needs_input_grad[1] else None, None


SEEN = []


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True), (False, False)])
def test_needs_input_grad_tells_which_inputs_do_with_grad_mode_off_too(backend, needed, mode):
    def program(x, y):
        with mode():
            return Asks.apply(x, y, 2)

    def make_args():
        return [value.detach().requires_grad_(wanted) for value, wanted in zip(inputs((3,), (3,)), needed, strict=True)]

    agree(program, backend, make_args, seen=SEEN)


class Skips(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        for_x = grad * y if ctx.needs_input_grad[0] else None
        for_y = grad * x if ctx.needs_input_grad[1] else None
        return for_x, for_y


def test_a_backward_computes_only_what_is_needed(backend):
    compiled = agree(lambda x: Skips.apply(x, torch.ones(3)), backend)
    assert not node_of(compiled).opaque


def test_a_forward_that_asks_for_requires_grad_gets_the_inputs_own(backend):
    class Branches(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if x.requires_grad and not (x * 1).requires_grad else x.sum()

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    agree(lambda x: Branches.apply(x), backend)
    agree(lambda x: Branches.apply(x * 2), backend)
    agree(lambda x: Branches.apply(x), backend, lambda: [torch.ones(2, 3)])


# Marks.


@pytest.mark.parametrize("order", ["mark first", "save first"])
def test_non_differentiable_results_may_be_marked_before_and_after_saving(backend, order):
    class Mask(Function):
        @staticmethod
        def forward(ctx, x):
            mask, count = x > 1, x.floor()
            if order == "mark first":
                ctx.mark_non_differentiable(mask, count)
            ctx.save_for_backward(mask, count)
            if order != "mark first":
                ctx.mark_non_differentiable(mask, count)
            return x * mask, mask, count

        @staticmethod
        def backward(ctx, grad, *others):
            mask, _ = ctx.saved_tensors
            assert all(not other.any() for other in others) or True
            return grad * mask

    def program(x):
        y, mask, count = Mask.apply(x * 2)
        return y, mask, count, mask.requires_grad, count.requires_grad, (y * count).sin()

    agree(program, backend, fullgraph=False)


def test_an_input_that_is_marked_non_differentiable_and_returned(backend):
    class Through(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad

    agree(lambda x: (Through.apply(x), x * 2), backend)
    agree(lambda x: (Through.apply(x * 1), x * 2), backend)
    agree(lambda x: Through.apply(x), backend, lambda: [torch.ones(1)])


class AddOne(Function):
    @staticmethod
    def forward(ctx, x, y=None):
        ctx.mark_dirty(x)
        x.add_(1 if y is None else y)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, grad * 5


def test_an_input_marked_dirty_is_the_result_itself(backend):
    def program(x, y):
        a = x * 2
        b = AddOne.apply(a, y)
        return a is b, a * 3, b

    agree(program, backend, lambda: inputs((3,), (3,)))


def test_a_tensor_without_history_gets_one_when_it_is_marked_dirty(backend):
    def program(x):
        a = torch.zeros(2, 3)
        before = a.requires_grad
        b = AddOne.apply(a, x)
        return before, a.requires_grad, a is b, b * 2

    agree(program, backend)


def test_an_argument_without_gradient_is_changed_in_place(backend):
    def program(x):
        return AddOne.apply(x).sin()

    def run(function):
        x = torch.ones(3)
        return function(x), x

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        assert difference(run(program), run(compiled)) is None


def test_a_leaf_marked_dirty_raises_as_in_eager(backend):
    agree(lambda x: AddOne.apply(x), backend)


def test_a_dirty_tensor_that_is_not_returned_raises_as_in_eager(backend):
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1) * 2

        @staticmethod
        def backward(ctx, grad):
            return grad

    agree(lambda x: Keeps.apply(x * 1), backend)


def test_a_forward_that_changes_its_input_is_not_run_twice_when_a_later_operation_fails(backend):
    def program(x, index):
        y = AddOne.apply(x)
        return y[index]

    compiled = bothways.compile(program, backend=backend)
    assert compiled(torch.zeros(3), torch.tensor([1])) == 1
    for function in (program, compiled):
        x = torch.zeros(3)
        with pytest.raises(IndexError):
            function(x, torch.tensor([9]))
        assert x.max() <= 1


class Quiet(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        total = None
        for grad, factor in ((first, 2), (second, 3)):
            if grad is not None:
                total = grad * factor if total is None else total + grad * factor
        return total


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_that_autograd_does_not_give_are_none_unless_materialized(backend, used):
    compiled = agree(lambda x: [Quiet.apply(x.sin())[index] for index in used], backend)
    assert not node_of(compiled).opaque


def test_what_a_backward_does_when_a_gradient_is_missing_happens_each_time(backend):
    class Notes(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, first, second):
            if second is None:
                SEEN.append("no second gradient")
                return first * 2
            return first * 2 + second * 3

    agree(lambda x: Notes.apply(x)[0], backend, seen=SEEN)


def test_once_differentiable_backwards_refuse_a_second_derivative(backend):
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @once_differentiable
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 * x

    def program(x):
        return Square.apply(x)

    agree(program, backend)
    complaints = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        x, weight = inputs((3,), (3,))
        (gradient,) = torch.autograd.grad(function(x), x, weight, create_graph=True)
        with pytest.raises(RuntimeError) as caught:
            gradient.sum().backward()
        complaints.append(str(caught.value))
    assert complaints[0] == complaints[1]


# Results.


def test_results_that_are_no_tensors_are_passed_on(backend):
    class Mixed(Function):
        @staticmethod
        def forward(ctx, x, label):
            return x * 2, 5, None, label, x.shape, torch.float32

        @staticmethod
        def backward(ctx, grad, *others):
            assert others == (None,) * 5
            return grad * 3, None

    agree(lambda x: Mixed.apply(x, "label"), backend)


@pytest.mark.parametrize("result", [None, 3, "text"])
def test_the_only_result_may_be_no_tensor(backend, result):
    class Constant(Function):
        @staticmethod
        def forward(ctx, x):
            return result

        @staticmethod
        def backward(ctx, grad):
            return None

    agree(lambda x: (Constant.apply(x), x * 2), backend)


def test_a_tuple_of_one_stays_a_tuple(backend):
    class One(Function):
        @staticmethod
        def forward(ctx, x):
            return (x * 2,)

        @staticmethod
        def backward(ctx, grad):
            return (grad * 3,)

    agree(lambda x: One.apply(x), backend)


class Reverse(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


def test_a_returned_input_is_a_view_with_the_users_gradient(backend):
    def program(x):
        y = Reverse.apply(x)
        z = Reverse.apply(x * 2)
        return y, y is x, z, Reverse.apply(Reverse.apply(z)).sin()

    agree(program, backend)
    agree(lambda x: Reverse.apply(x).sum(), backend)
    agree(lambda x: Reverse.apply(x), backend, lambda: [torch.ones(2)])


def test_results_that_are_views_of_inputs_or_of_each_other(backend):
    class Rows(Function):
        @staticmethod
        def forward(ctx, x):
            doubled = x * 2
            return x[0], doubled[0], doubled[1]

        @staticmethod
        def backward(ctx, a, b, c):
            return torch.stack([a * 3 + b * 5, c * 7])

    agree(lambda x: Rows.apply(x), backend)
    agree(lambda x: [value * 2 for value in Rows.apply(x.cos())], backend)


def test_a_tensor_that_is_returned_twice_runs_as_python(backend):
    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, first, second):
            return first + second

    agree(lambda x: Twice.apply(x)[0], backend, fullgraph=False, captures=None)


def test_a_result_of_integers_needs_no_gradient(backend):
    class Round(Function):
        @staticmethod
        def forward(ctx, x):
            return x.long(), x * 2

        @staticmethod
        def backward(ctx, first, second):
            return second * 3

    agree(lambda x: Round.apply(x * 3), backend)


# How it is called.


def test_a_function_is_found_through_instances_modules_and_containers(backend):
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.apply_function = Reverse.apply
            self.table = {"reverse": Reverse.apply, "functions": [Skips.apply]}

        def forward(self, x):
            x = self.apply_function(x * 2)
            x = self.table["reverse"](x)
            return self.table["functions"][0](x, x.sin())

    holder = Holder()
    agree(lambda x: holder(x), backend)
    agree(lambda x: GLOBAL_APPLY(x), backend)


GLOBAL_APPLY = Structures.apply


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_instance_has_apply_and_cannot_be_called(backend):
    agree(lambda x: Reverse().apply(x), backend)
    agree(lambda x: Reverse()(x), backend, fullgraph=False)


def test_class_methods_and_inheritance(backend):
    class Base(Function):
        factor = 2

        @classmethod
        def forward(cls, ctx, x):
            ctx.save_for_backward(x)
            return cls.combine(x) * cls.factor

        @classmethod
        def backward(cls, ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x

        @staticmethod
        def combine(x):
            return x + x

    class Derived(Base):
        factor = 5

        @staticmethod
        def combine(x):
            return Base.combine(x).sin()

    agree(lambda x: Base.apply(x) + Derived.apply(x), backend)
    compiled = bothways.compile(lambda x: Derived.apply(x), backend=backend, fullgraph=True)
    first = compiled(torch.ones(2))
    Derived.factor = 10
    assert torch.equal(compiled(torch.ones(2)), first * 2)


def test_apply_may_be_overridden(backend):
    class Checked(Function):
        @classmethod
        def apply(cls, x, *, factor=2):
            return super().apply(x * factor)

        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

    agree(lambda x: Checked.apply(x) + Checked.apply(x, factor=7), backend)


class WithDefaults(Function):
    @staticmethod
    def forward(x, factor=0.5, shift=None):
        return x * factor if shift is None else x * factor + shift

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, factor, shift = inputs
        ctx.save_for_backward(x, shift, output)
        ctx.factor = factor

    @staticmethod
    def backward(ctx, grad):
        x, shift, output = ctx.saved_tensors
        assert len(ctx.needs_input_grad) == 3
        return grad * ctx.factor * x * output, None, None if shift is None else grad * 3


def test_setup_context_sees_defaults_and_keywords(backend):
    compiled = agree(lambda x, y: WithDefaults.apply(x), backend, lambda: inputs((3,), (3,)))
    assert not node_of(compiled).opaque
    agree(lambda x, y: WithDefaults.apply(x, 3.0), backend, lambda: inputs((3,), (3,)))
    agree(lambda x, y: WithDefaults.apply(x, shift=y), backend, lambda: inputs((3,), (3,)))


def test_a_decorated_forward_with_defaults_and_setup_context(backend):
    class Decorated(Function):
        @staticmethod
        @torch.no_grad()
        def forward(x, factor=2.0):
            return x * factor

        setup_context = staticmethod(lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]))

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None

    agree(lambda x: Decorated.apply(x, 3.0), backend)
    agree(lambda x: Decorated.apply(x), backend, fullgraph=False, captures=None)


def test_keywords_without_setup_context_raise_as_in_eager(backend):
    agree(lambda x: Skips.apply(x, y=x), backend)


def test_defaults_of_forward_are_used(backend):
    class Shifted(Function):
        @staticmethod
        def forward(ctx, x, amount=0.25, mode="add"):
            return x + amount if mode == "add" else x - amount

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None, None

    def program(x):
        return Shifted.apply(x), Shifted.apply(x, 2), Shifted.apply(x, 2, "subtract")

    def run(function):
        return observed(function, inputs, [])

    assert difference(run(program), run(bothways.compile(program, backend=backend))) is None


def test_the_vjp_spelling_of_backward(backend):
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vjp(ctx, grad):
            return grad * 7

    agree(lambda x: Doubled.apply(x), backend)


def test_rules_for_vmap_and_jvp_are_kept(backend):
    class Cube(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

        @staticmethod
        def jvp(ctx, tangent):  # not the real one, so that it can be told from what PyTorch would work out itself
            return tangent * 100

    compiled = agree(lambda x: Cube.apply(x), backend)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert torch.equal(forward_ad.unpack_dual(compiled(dual)).tangent, torch.full((2,), 100.0))
    batched = bothways.compile(lambda x: torch.func.vmap(Cube.apply)(x), backend=backend)
    x = torch.rand(2, 3)
    assert torch.equal(batched(x), torch.func.vmap(Cube.apply)(x))


def test_a_vmap_rule_of_its_own(backend):
    class Double(Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad * 5

        @staticmethod
        def vmap(info, in_dims, x):
            SEEN.append(info.batch_size)
            return Double.apply(x), in_dims[0]

    agree(lambda x: Double.apply(x), backend, seen=SEEN)
    agree(lambda x: torch.func.vmap(Double.apply)(x), backend, seen=SEEN, fullgraph=False, captures=None)


def test_inference_mode(backend):
    def program(x):
        return Skips.apply(x, x.sin()), AddOne.apply(x * 2)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    with torch.inference_mode():
        x = torch.ones(3)
        assert difference(program(x), compiled(x)) is None


def test_random_numbers_are_the_same_in_both_bodies(backend):
    class Noise(Function):
        @staticmethod
        def forward(ctx, x):
            noise = torch.rand_like(x)
            ctx.save_for_backward(noise, x)
            return x**2 * noise

        @staticmethod
        def backward(ctx, grad):
            noise, x = ctx.saved_tensors
            return 2 * x * grad * noise * torch.rand(3)

    def run(function):
        torch.manual_seed(3)
        (x,) = inputs()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * torch.rand(3)).sum(), x)
        return first, second, torch.rand(1)

    def program(x):
        return Noise.apply(x) * torch.rand(3)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        assert difference(run(program), run(compiled)) is None


def test_custom_fwd_and_custom_bwd(backend):
    class Product(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad.mm(b.t()), a.t().mm(grad)

    def outside(a, b):
        return Product.apply(a, b)

    def inside(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Product.apply(a, b)

    agree(outside, backend, lambda: inputs((3, 3), (3, 3)))
    agree(inside, backend, lambda: inputs((3, 3), (3, 3)))


def test_a_function_allowed_in_the_graph_is_not_looked_into(backend):
    class Allowed(Function):
        @staticmethod
        def forward(ctx, x):
            bothways.graph_break()
            ctx.rows = x.size(0)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            bothways.graph_break()
            return grad * ctx.rows

    bothways.allow_in_graph(Allowed)
    agree(lambda x: Allowed.apply(x.sin()), backend)


def test_one_function_inside_another(backend):
    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            y = Skips.apply(x, x.sin())
            ctx.save_for_backward(x, y)
            return Reverse.apply(y)

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return Skips.apply(grad, x) + Reverse.apply(y)

    agree(lambda x: Outer.apply(x).cos(), backend)


def test_a_body_that_is_compiled_by_itself_takes_the_real_ctx(backend):
    counter = CompileCounter()

    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            result = x + x
            ctx.save_for_backward(result)
            ctx.factor = 3
            return result

        @staticmethod
        @bothways.compile(backend=counter, fullgraph=True)
        def backward(ctx, grad):
            (result,) = ctx.saved_tensors
            return grad * result.sin() * ctx.factor if ctx.needs_input_grad[0] else None

    (x,) = inputs()
    for _ in range(2):
        x.grad = None
        Doubled.apply(x).sum().backward()
        assert difference(x.grad, 3 * (x + x).sin()) is None
    assert (counter.frame_count, counter.op_count) == (1, 3)
    agree(lambda x: Doubled.apply(x), backend)


def test_a_forward_that_is_compiled_by_itself_fills_the_real_ctx(backend):
    class Doubled(Function):
        @staticmethod
        @bothways.compile(backend=backend, fullgraph=True)
        def forward(ctx, x):
            ctx.save_for_backward(x.sin())
            ctx.rows = x.shape[0]
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * ctx.rows

    (x,) = inputs()
    for _ in range(2):
        x.grad = None
        Doubled.apply(x).sum().backward()
        assert difference(x.grad, x.sin() * 2) is None


def test_graphs_hold_one_node_for_a_function(backend):
    recorded = RecordGraphs()
    compiled = bothways.compile(lambda x: Structures.apply(x) + 1, backend=recorded, fullgraph=True)
    compiled(*inputs())
    assert recorded.only.ops == ["FunctionCtx", "autograd_function_apply", "add"]
