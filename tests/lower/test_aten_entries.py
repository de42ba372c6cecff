"""Every row of the table of entries: PyTorch's own method or function does what the overload does.

What reaches the dispatcher is compared, operation and arguments, and then the results: values, dtypes, strides, and
whose memory they are.
"""

import pytest
import torch
from op_samples import first_samples, op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bothways
from bothways import ops, torch_compat
from bothways.cache.spelling import SCOPE, spelled
from bothways.lower.host.aten_calls import function_of
from bothways.lower.host.entries import asks_for_grad_mode, direct, entry
from bothways.testing import same

aten = torch.ops.aten
BINDINGS = {f"aten.{name}": facts["binding"] for name, facts in ops.FACTS.items() if "binding" in facts}
ALIKE = {name for name, binding in BINDINGS.items() if binding.is_alike}


PARTS = 8  # of PyTorch's samples
# Made of others: what reaches the dispatcher is those, from both.
COMPOSITE = {"aten.linear.default"}


class Recorder(TorchDispatchMode):
    """Notes what comes to the dispatcher."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.calls.append((operation, args, kwargs or {}))
        return operation(*args, **(kwargs or {}))


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def is_plain(value):
    return not is_tensor(value) or value.layout is torch.strided


def are_alike(one, other):
    """Whether two arguments are the same object, or the same number, or tensors that were made of the same number."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if is_tensor(one) and is_tensor(other):
        return one is other or (one.dim() == other.dim() == 0 and one.dtype == other.dtype and torch.equal(one, other))
    return type(one) is type(other) and (one == other or one != one)


def memory(value):
    return value.untyped_storage().data_ptr(), value.storage_offset()


def check(target, args, kwargs):
    """Whether there is an entry for these arguments; it must do what the overload does."""
    function = entry(target, args, kwargs, is_tensor)
    if torch_compat.overload_of(function) is target:
        return False
    with Recorder() as expected:
        torch.manual_seed(0)
        try:
            plain = target(*args, **kwargs)
        except RuntimeError:  # not with these defaults
            with pytest.raises(RuntimeError):
                function(*args, **kwargs)
            return False
    with Recorder() as got:
        torch.manual_seed(0)
        result = function(*args, **kwargs)
    if str(target) not in ALIKE | COMPOSITE:
        [(operation, given, named)], [(other, other_given, other_named)] = expected.calls, got.calls
        assert operation is other and are_alike(given, other_given), (given, other_given)
        assert named.keys() == other_named.keys() and all(are_alike(named[name], other_named[name]) for name in named)
    results, plains = tree_leaves(result), tree_leaves(plain)
    inputs = [memory(value) for value in tree_leaves((args, kwargs)) if is_tensor(value) and value.numel()]
    for one, two in zip(results, plains, strict=True):
        assert type(one) is type(two)
        if is_tensor(one):
            assert (one.dtype, one.shape, one.stride(), one.device) == (two.dtype, two.shape, two.stride(), two.device)
            assert (memory(one) in inputs) == (memory(two) in inputs) and one._is_view() == two._is_view()
            if "empty" not in str(target):
                torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == two
    return True


X, Y, ROW = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
COUNTS, FLAGS, SINGLE = torch.arange(12).view(3, 4), torch.randn(3, 4) > 0, torch.tensor(2.0)
IMAGE, FILTERS, PLACES = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.tensor([[0, 2], [1, 1]])
PLAIN = {"dtype": torch.float32, "device": torch.device("cpu")}

# What graphs of models hold, with the ways of writing their arguments that traces have.
CALLS = [
    *((aten.add.Tensor, (X, other)) for other in (Y, ROW, SINGLE, 2, 2.5, True, COUNTS)),
    *((operation, (COUNTS, other)) for operation in (aten.mul.Tensor, aten.div.Tensor) for other in (3, 2.5, SINGLE)),
    *((operation, (value, 2)) for operation in (aten.add.Scalar, aten.mul.Scalar) for value in (X, COUNTS, FLAGS)),
    *((operation, (value, 1.5)) for operation in (aten.sub.Scalar, aten.div.Scalar) for value in (X, COUNTS, SINGLE)),
    (aten.sub.Tensor, (X, Y), {"alpha": 2}), (aten.add.Scalar, (X, 1, 2)), (aten.mul.Tensor, (X.half(), 2.0)),
    (aten.mm.default, (X, Y.t())), (aten.addmm.default, (ROW[:3], X, Y.t())), (aten.t.default, (X,)),
    (aten.addmm.default, (ROW[:3], X, Y.t()), {"beta": 2, "alpha": 0.5}), (aten.bmm.default, (X[None], Y.t()[None])),
    *((aten.sum.dim_IntList, (X, *rest)) for rest in (([0],), ([0], True), ([],), (None,), ([-1, 0], False))),
    (aten.sum.dim_IntList, (X.half(), [0]), {"dtype": torch.float32}), (aten.sum.default, (FLAGS,)),
    (aten.mean.dim, (X, [1], True)), (aten.mean.dim, (X, [])), (aten.amax.default, (X, [])), (aten.max.dim, (X, 1)),
    *((aten.view.default, (X, size)) for size in ([12], [-1], [2, 6], [1, 3, 4])), (aten.view.default, (SINGLE, [])),
    *((aten.expand.default, (ROW, size)) for size in ([3, 4], [2, -1], [4])), (aten.expand.default, (SINGLE, [])),
    (aten.transpose.int, (X, 0, -1)), (aten.permute.default, (X, [1, 0])), (aten.permute.default, (SINGLE, [])),
    (aten.detach.default, (X,)), (aten.clone.default, (X.t(),)), (aten.unsqueeze.default, (X, -1)),
    (aten.clone.default, (X.t(),), {"memory_format": torch.contiguous_format}), (aten.squeeze.dim, (X[None], 0)),
    (aten.squeeze.dims, (X[None], [0])), (aten.select.int, (X, 1, -1)), (aten.split.Tensor, (X, 2, 1)),
    (aten.split_with_sizes.default, (X, [1, 3], 1)), (aten.unbind.int, (X,)), (aten.as_strided.default, (X, [2], [4])),
    *((aten.clamp.default, (X, *ends)) for ends in ((0,), (None, 1), (-0.5, 0.5))), (aten.clamp_min.default, (X, 0)),
    (aten.clamp.Tensor, (X, None, Y)), (aten.pow.Tensor_Scalar, (X, 2)), (aten.pow.Scalar, (2, X)),
    (aten.eq.Scalar, (COUNTS, 3)), (aten.gt.Tensor, (X, Y)), (aten.where.self, (FLAGS, X, SINGLE)),
    (aten.masked_fill.Scalar, (X, FLAGS, float("-inf"))), (aten.bitwise_and.Tensor, (FLAGS, ~FLAGS)),
    (aten.gather.default, (X, 1, PLACES)), (aten.scatter_add.default, (X, 1, PLACES, Y)),
    (aten.scatter.value, (X, 1, PLACES, 0)), (aten.index_select.default, (X, 0, PLACES[0])),
    (aten.embedding.default, (X, PLACES)), (aten.embedding.default, (X, PLACES, 0)), (aten.cat.default, ([X, Y], 1)),
    (aten.stack.default, ([X, Y],)), (aten.cumsum.default, (X, 0)),
    (aten.var_mean.correction, (X, [1]), {"correction": 0}), (aten.std.correction, (X, [0]), {"correction": 1}),
    (aten.var.correction, (X, [1]), {"correction": 0, "keepdim": True}),
    *((aten.native_layer_norm.default, (X, [4], weight, weight, 1e-5)) for weight in (ROW, None)),
    (aten.native_dropout.default, (X, 0.5, True)), (aten._softmax.default, (X, -1, False)),
    (aten._softmax_backward_data.default, (X, Y, -1, torch.float32)), (aten._log_softmax.default, (X, 1, False)),
    (aten._log_softmax_backward_data.default, (X, Y, 1, torch.float32)), (aten.gelu.default, (X,)),
    (aten.gelu.default, (X,), {"approximate": "tanh"}), (aten.silu.default, (X,)), (aten.leaky_relu.default, (X, 0.1)),
    (aten.convolution.default, (IMAGE, FILTERS, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    (aten.max_pool2d_with_indices.default, (IMAGE, [2, 2], [2, 2])), (aten.avg_pool2d.default, (IMAGE, [2, 2])),
    (aten._adaptive_avg_pool2d.default, (IMAGE, [2, 2])), (aten.constant_pad_nd.default, (X, [1, 1], 0.0)),
    (aten.full.default, ([2, 3], 1), PLAIN), (aten.zeros.default, ([2],), PLAIN), (aten.ones.default, ([2],), PLAIN),
    (aten.scalar_tensor.default, (2,), PLAIN), (aten.full_like.default, (X.t(), 0.5)),
    (aten.full_like.default, (X, 1), {"dtype": torch.int64, "pin_memory": False}), (aten.ones_like.default, (X,)),
    (aten.zeros_like.default, (X,), {"memory_format": torch.preserve_format}), (aten.new_zeros.default, (X, [2, 2])),
    (aten.linear.default, (X, Y)), (aten.linear.default, (X, Y, ROW[:3])), (aten.rsub.Scalar, (X, 1)),
    (aten.topk.default, (X, 2)), (aten.sort.default, (X, 1)), (aten.argmax.default, (X, 1)),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, (torch.randn(1, 2, 4, 8),) * 3, {"scale": 0.5}),
]  # fmt: skip
# Those that have to be called by the overload: no binding takes these arguments for the same.
WITHOUT_ENTRY = [
    (aten.add.Scalar, (X, 1, 2), {}),
    (aten.full.default, ([2], 1), {}),
    (aten.var.correction, (X, [1]), {}),
    (aten.tanh_backward.default, (X, Y), {}),
    (aten.mm.default, (X,), {"mat2": Y.t()}),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_an_entry_does_what_the_overload_does(number):
    target, args, *rest = CALLS[number]
    kwargs = rest[0] if rest else {}
    has_entry = [check(target, fewer, kwargs) for fewer in shortened(target, args)][-1]
    assert has_entry or any(target is other for other, *_ in WITHOUT_ENTRY)


@pytest.mark.parametrize("target, args, kwargs", WITHOUT_ENTRY)
def test_what_no_binding_means_is_called_by_its_overload(target, args, kwargs):
    function = entry(target, args, kwargs, is_tensor)
    assert torch_compat.overload_of(function) is target and function is direct(target)
    assert same(function(*args, **kwargs), target(*args, **kwargs))


def test_what_is_no_operation_of_the_dispatcher_stays_what_it_is():
    assert entry(torch.add, (X, Y), {}, is_tensor) is torch.add


@pytest.mark.parametrize("name", ["mm", "gelu", "_softmax", "tanh_backward"])
def test_entries_are_found_again_by_another_process(name):
    target = getattr(aten, name).default
    count = sum(argument.default_value is None for argument in target._schema.arguments if not argument.kwarg_only)
    function = entry(target, (X,) * count, {}, is_tensor)
    assert eval(spelled(function), dict(SCOPE)) is function


def test_every_row_names_an_operation_whose_defaults_bindings_know():
    for row in BINDINGS:
        _, name, overload = row.split(".")
        if name == "cholesky" and not hasattr(aten, name):  # which newer versions have no more
            continue
        assert overload in getattr(aten, name).overloads(), row
        arguments = getattr(getattr(aten, name), overload)._schema.arguments
        assert "reduction" not in {argument.name for argument in arguments}  # what is not said is none to bindings


def shortened(target, args):
    """The arguments, and fewer of them, as far as the operation has defaults: graphs do not spell those out."""
    places = [argument for argument in target._schema.arguments if not argument.kwarg_only]
    required = sum(not argument.has_default_value() for argument in places)
    for count in range(required, len(args) + 1):
        yield args[:count]


def recorded(info):
    """What an operation of PyTorch's samples does, forward and backward."""
    for sample in first_samples(info, torch.float32, 6, requires_grad=info.supports_autograd):
        with Recorder() as recorder:
            try:
                values = tree_leaves(info.op(sample.input, *sample.args, **sample.kwargs))
                results = [value for value in values if is_tensor(value) and value.requires_grad]
                given = filter(is_tensor, tree_leaves((sample.input, sample.args, sample.kwargs)))
                leaves = [value for value in given if value.requires_grad]
                if results and leaves:
                    torch.autograd.grad(results, leaves, list(map(torch.ones_like, results)), allow_unused=True)
            except Exception:  # what it did until then will do
                pass
        yield from recorder.calls


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_do_what_the_overloads_do_on_the_samples_of_pytorch(part):
    checked = 0
    counts = dict.fromkeys(BINDINGS, 0)
    for info in op_db[part::PARTS]:
        if torch.float32 not in info.dtypes:
            continue
        for target, args, kwargs in recorded(info):
            name = str(target)
            if counts.get(name, 100) < 20 and all(map(is_plain, tree_leaves((args, kwargs)))):
                counts[name] += 1
                with torch.no_grad():
                    args = tuple(value.detach() if is_tensor(value) else value for value in args)
                    checked += sum(check(target, fewer, kwargs) for fewer in shortened(target, args))
    assert checked > 100


# Graphs as functions.


def graph_of(function, *args):
    return bothways.trace(function)(*args)


def test_a_graph_calls_entries_and_overloads_where_there_are_none():
    def program(x, y):
        return (torch.ops.aten.tanh_backward(x, y) * 2, torch.native_layer_norm(x.t() @ y, [4], None, None, 1e-5)[0])

    graph = graph_of(program, X, Y)
    for takes_list in (False, True):
        run = function_of(graph, takes_list=takes_list)
        assert run.__globals__["at_mm"] is torch.Tensor.mm
        assert run.__globals__["at_tanh_backward"] is direct(aten.tanh_backward.default)
        given = [X, Y]
        assert same(run(given) if takes_list else run(X, Y), program(X, Y))
        assert not takes_list or given == []


def test_a_graph_of_names_that_generated_code_has():
    graph = torch.fx.Graph()
    names = ["inputs", "run", "below_autograd", "at_mul"]
    first, *others = map(graph.placeholder, names)
    for node in (first, *others):
        node.meta["val"] = X
    for other in others:
        first = graph.call_function(aten.mul.Tensor, (first, other))
    graph.output((first,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    expected = (X * X * X * X,)
    assert same(function_of(module, takes_list=True)([X] * 4), expected)
    assert same(function_of(module, takes_list=False)(X, X, X, X), expected)


def test_which_operations_ask_for_the_grad_mode():
    assert not asks_for_grad_mode(aten.mm.default) and not asks_for_grad_mode(aten.where.self)
    assert asks_for_grad_mode(aten._scaled_dot_product_flash_attention_for_cpu.default)
    assert asks_for_grad_mode(torch.relu)
