"""Compiled custom functions have the derivatives their backwards say: gradcheck, gradgradcheck, and third order."""

import pytest
import torch
from custom_functions import BACKENDS
from seeding import seeded
from torch.autograd import Function, gradcheck, gradgradcheck

import bothways
from bothways.testing import difference


def tensor(*shape, positive=False):
    generator = seeded(sum(shape) + len(shape))
    value = torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.5
    return (value if positive else value * 2 - 2).requires_grad_()


class Cube(Function):
    """Saves an input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


class Exp(Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class Linear(Function):
    """Setup context, three inputs, needs_input_grad."""

    @staticmethod
    def forward(x, weight, bias):
        return x @ weight.t() + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        for_x = grad @ weight if ctx.needs_input_grad[0] else None
        for_weight = grad.t() @ x if ctx.needs_input_grad[1] else None
        return for_x, for_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


class SinCos(Function):
    """Two results whose backward needs both gradients."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, for_sin, for_cos):
        (x,) = ctx.saved_tensors
        return for_sin * x.cos() - for_cos * x.sin()


class Swish(Function):
    """Attributes on ctx beside a saved tensor."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(ctx.beta * x)
        return grad * (gate + ctx.beta * x * gate * (1 - gate)), None


class Product(Function):
    """Two inputs, broadcast by hand."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, (grad * x).sum(0)


class Normalized(Function):
    """A reduction in both directions."""

    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x)
        return x / norm

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        norm = (x * x).sum(-1, keepdim=True).sqrt()
        y = x / norm
        return (grad - y * (grad * y).sum(-1, keepdim=True)) / norm


class Quiet(Function):
    """Gradients that may be None."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        for_x = for_y = None
        if first is not None:
            for_x, for_y = first * y, first * x
        if second is not None:
            for_x = second if for_x is None else for_x + second
            for_y = second if for_y is None else for_y + second
        return for_x, for_y


class Chained(Function):
    """Other custom functions in both bodies."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Cube.apply(x) + Exp.apply(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (3 * Product.apply(x, x) if x.dim() > 1 else 3 * x * x) + grad * Exp.apply(x)


class Masked(Function):
    """A result that is not differentiable."""

    @staticmethod
    def forward(ctx, x):
        mask = x > 0.25
        ctx.save_for_backward(x, mask)
        ctx.mark_non_differentiable(mask)
        return torch.where(mask, x**2, x), mask

    @staticmethod
    def backward(ctx, grad, _):
        x, mask = ctx.saved_tensors
        return torch.where(mask, 2 * grad * x, grad)


class Inside(Function):
    """In-place work on what forward made itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mul(2).add_(1).mul_(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (4 * x + 1)


class Reversed(Function):
    """The input itself is the result."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 1


class Reshaped(Function):
    """Shapes that differ between the two sides."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.flatten().clone() * 2

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad.reshape(ctx.shape)


# name -> (function of tensors, inputs)
FUNCTIONS = {
    "a saved input": (lambda x: Cube.apply(x), (tensor(3),)),
    "a saved result": (lambda x: Exp.apply(x), (tensor(3),)),
    "setup_context": (lambda x, w, b: Linear.apply(x, w, b), (tensor(3, 4), tensor(2, 4), tensor(2))),
    "two results": (lambda x: SinCos.apply(x), (tensor(3),)),
    "one of two results": (lambda x: SinCos.apply(x)[1], (tensor(3),)),
    "constants": (lambda x: Swish.apply(x, 1.5), (tensor(4),)),
    "two inputs": (lambda x, y: Product.apply(x, y), (tensor(3, 2), tensor(2))),
    "a reduction": (lambda x: Normalized.apply(x), (tensor(2, 3, positive=True),)),
    "gradients that may be None": (lambda x, y: Quiet.apply(x, y)[0], (tensor(3), tensor(3, positive=True))),
    "both gradients": (lambda x, y: Quiet.apply(x, y), (tensor(3), tensor(3, positive=True))),
    "functions in functions": (lambda x: Chained.apply(x), (tensor(3),)),
    "a non-differentiable result": (lambda x: Masked.apply(x)[0], (tensor(4),)),
    "in-place work inside": (lambda x: Inside.apply(x), (tensor(4),)),
    "the input itself": (lambda x: Reversed.apply(x).sin(), (tensor(4),)),
    "another shape": (lambda x: Reshaped.apply(x).cos(), (tensor(2, 3),)),
    "between other operations": (lambda x: Cube.apply(x.sin()).exp() * x, (tensor(3),)),
    "a chain": (lambda x: Exp.apply(Cube.apply(SinCos.apply(x)[0])), (tensor(3),)),
    "one input twice": (lambda x: Linear.apply(x, x, x[0, :2]), (tensor(2, 2),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name):
    function, inputs = FUNCTIONS[name]
    assert gradcheck(bothways.compile(function, backend="aot_eager", fullgraph=True), inputs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradgradcheck(name):
    function, inputs = FUNCTIONS[name]
    assert gradgradcheck(bothways.compile(function, backend="aot_eager", fullgraph=True), inputs)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_third_derivatives(name, backend):
    function, inputs = FUNCTIONS[name]
    results = []
    for candidate in (function, bothways.compile(function, backend=backend, fullgraph=True)):
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        outputs = candidate(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum((output**2).sum() for output in outputs)
        orders = []
        for _ in range(3):
            gradients = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
            orders.append(gradients)
            total = sum((gradient**2).sum() for gradient in gradients if gradient is not None)
        results.append(orders)
    assert difference(*results) is None


@pytest.mark.parametrize("name", ["a saved input", "two results", "setup_context", "constants"])
def test_the_backward_is_part_of_the_compiled_node(name):
    function, inputs = FUNCTIONS[name]
    compiled = bothways.compile(function, backend="aot_eager", fullgraph=True)
    outputs = compiled(*inputs)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    assert type(first.grad_fn).__name__ == "CompiledNodeBackward"
