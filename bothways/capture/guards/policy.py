"""Which functions are inlined, which become one node of the graph, and which stop the capture.

The decision follows from where a function was defined; the longest matching prefix of its module wins.
Adding a library means adding a row.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from typing import Any

import torch

from bothways import torch_compat


class Treatment(enum.Enum):
    """What a call of a Python function does to the capture."""

    INLINE = "inline"
    GRAPH = "graph"
    BREAK = "break"


# Module prefix -> treatment. PyTorch's functions that are tensor operations to their users stay whole in the
# graph; its modules, contexts and helpers are ordinary Python and are looked into.
TREATMENTS: dict[str, Treatment] = {
    "torch": Treatment.BREAK,
    "torch._functorch.functional_call": Treatment.INLINE,
    "torch._jit_internal": Treatment.INLINE,
    "torch._library.autograd": Treatment.INLINE,
    "torch._tensor": Treatment.GRAPH,
    "torch._VF": Treatment.GRAPH,
    "torch.amp": Treatment.INLINE,
    "torch.autograd.function": Treatment.INLINE,
    "torch.autograd.grad_mode": Treatment.INLINE,
    "torch.autograd.graph": Treatment.INLINE,
    "torch.functional": Treatment.GRAPH,
    "torch.fx.experimental.symbolic_shapes": Treatment.INLINE,
    "torch.masked._ops": Treatment.GRAPH,
    "torch.nn": Treatment.INLINE,
    "torch.nn.functional": Treatment.GRAPH,
    "torch.nn.parallel": Treatment.BREAK,
    "torch.nn.parameter": Treatment.BREAK,
    "torch.backends.cuda": Treatment.INLINE,
    "torch.distributions": Treatment.INLINE,
    "torch.utils._contextlib": Treatment.INLINE,
    "torch.utils._foreach_utils": Treatment.INLINE,
    "torch.utils._pytree": Treatment.INLINE,
    "torch.onnx": Treatment.INLINE,
    "torch.optim": Treatment.INLINE,
    "torch.overrides": Treatment.INLINE,
    "torch.return_types": Treatment.INLINE,
    # The standard library is inlined where it is plain Python; what touches the outside world is not.
    "asyncio": Treatment.BREAK,
    "builtins": Treatment.INLINE,
    "concurrent": Treatment.BREAK,
    "ctypes": Treatment.BREAK,
    "gc": Treatment.BREAK,
    "importlib": Treatment.BREAK,
    "inspect": Treatment.BREAK,
    "io": Treatment.BREAK,
    "json": Treatment.BREAK,
    "linecache": Treatment.BREAK,
    "logging": Treatment.BREAK,
    "multiprocessing": Treatment.BREAK,
    "numpy": Treatment.BREAK,
    "os": Treatment.BREAK,
    "pathlib": Treatment.BREAK,
    "pickle": Treatment.BREAK,
    "random": Treatment.BREAK,
    "re": Treatment.BREAK,
    "socket": Treatment.BREAK,
    "subprocess": Treatment.BREAK,
    "tempfile": Treatment.BREAK,
    "threading": Treatment.BREAK,
    "time": Treatment.BREAK,
    "traceback": Treatment.BREAK,
    "typing": Treatment.BREAK,
    "unittest": Treatment.BREAK,
    "unittest.case": Treatment.BREAK,
    "warnings": Treatment.BREAK,
    "weakref": Treatment.BREAK,
    "bothways": Treatment.BREAK,
    "bothways.capture.standins": Treatment.INLINE,
    "bothways.runtime.function_bodies": Treatment.INLINE,
    "bothways.backward.custom": Treatment.INLINE,
    "bothways.backward.steps": Treatment.INLINE,
    "bothways.grad.nodes.result_hooks": Treatment.INLINE,
}

# What ``inspect`` asks by looking at an object's class.
ASKED = (
    "isfunction ismethod isclass isbuiltin isroutine ismethoddescriptor ismethodwrapper ismodule isgenerator iscode"
)

# Functions that are looked into although the others of their module are not: they call what they are given, or only
# read an object's fields.
INLINED_FUNCTIONS: frozenset[Any] = frozenset(
    {
        torch.func.grad,
        torch.func.grad_and_value,
        torch.nn.functional.gaussian_nll_loss,
        torch.nn.functional.triplet_margin_with_distance_loss,
        torch_compat.counts_nodes,
        torch.__future__.get_swap_module_params_on_conversion,
        torch.nn.parameter.is_lazy,
        torch_compat.none_or_dtype,
        torch_compat.assert_,
        torch_compat.call_distributed,
        *(getattr(inspect, name) for name in ASKED.split()),
        inspect.Signature.bind,
        inspect.Signature.bind_partial,
        *(function for function in vars(inspect.BoundArguments).values() if inspect.isfunction(function)),
        *(vars(inspect.BoundArguments)[name].fget for name in ("signature", "args", "kwargs")),
        vars(inspect.Signature)["_bind"],
        *(vars(inspect.Signature)[name].fget for name in ("parameters", "return_annotation")),
        *(vars(inspect.Parameter)[name].fget for name in ("name", "kind", "default", "annotation")),
    }
)

# The same for functions that such a function gives, by their code: they bear the user's names.
INLINED_CODES = frozenset(
    constant
    for function in (torch.func.grad, torch.func.grad_and_value, torch.func.vmap)
    for constant in function.__code__.co_consts
    if isinstance(constant, types.CodeType)
)

# Where a person looks at the frame that calls: it has to be the user's own, with all its variables, and so have those
# around it.
DEBUGGERS = frozenset("bdb debugpy epdb ipdb IPython pdb pdbpp pudb pydevd remote_pdb rpdb web_pdb wdb".split())

LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "bothways"}


def module_of(obj: Any) -> str:
    """The module that a function or a class says it is from; "" where it says nothing, or no name."""
    module = obj.__module__
    return module if type(module) is str else ""


def name_of(globals_: dict[str, Any]) -> str:
    """The module whose globals these are; "" where they do not say."""
    module = globals_.get("__name__")
    return module if type(module) is str else ""


@functools.cache
def treatment_of_module(module: str) -> Treatment:
    """The longest prefix in the table decides; what is not in it is the user's and is inlined."""
    prefix = module
    while prefix:
        if prefix in TREATMENTS:
            return TREATMENTS[prefix]
        prefix = prefix.rpartition(".")[0]
    return Treatment.INLINE


def treatment_of(function: types.FunctionType) -> Treatment:
    module = name_of(function.__globals__)
    if function.__code__.co_filename.startswith("<") and module in LIBRARIES:
        return Treatment.INLINE  # generated by dataclasses, namedtuple and the like in the library's name
    if function in INLINED_FUNCTIONS or function.__code__ in INLINED_CODES:
        return Treatment.INLINE
    if module == "torch._jit_internal" and function.__module__ == "torch.nn.functional":
        return Treatment.GRAPH  # F.max_pool2d and friends: one name that picks between two functions by a flag
    return treatment_of_module(module)


def is_debugger(function: types.FunctionType) -> bool:
    """Whether a function waits for a person who looks at the frames around it."""
    module = name_of(function.__globals__)
    return module.partition(".")[0] in DEBUGGERS or function.__name__ in ("breakpoint", "set_trace")


def is_users(globals_: dict[str, Any]) -> bool:
    """Whether a function gains from being compiled by itself: the user's, and modules that call the user's."""
    module = name_of(globals_)
    is_library = is_library_module(module) and not module.startswith("torch.nn.")
    return treatment_of_module(module) is Treatment.INLINE and not is_library


def is_library_module(module: object) -> bool:
    """Whether the module is a library's: what captured code reads of it is stamped, not guarded (``definitions.py``).

    What says of itself that it is from no module, or from something that is no name, is the user's.
    """
    return type(module) is str and _is_library(module)


@functools.cache
def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES and module != "__main__"


def _c_functions() -> frozenset[Any]:
    holders = [
        torch_compat.VARIABLE_FUNCTIONS,
        torch_compat.NN_FUNCTIONS,
        torch_compat.LINALG_FUNCTIONS,
        torch_compat.FFT_FUNCTIONS,
        torch_compat.SPECIAL_FUNCTIONS,
        torch,
        torch.nn.functional,
        torch.linalg,
        torch.fft,
        torch.special,
    ]
    functions = set()
    for holder in filter(None, holders):
        for name in dir(holder):
            function = getattr(holder, name, None)
            if isinstance(function, types.BuiltinFunctionType):
                functions.add(function)
    return frozenset(functions) - {getattr(torch, name) for name in NOT_OPERATIONS if hasattr(torch, name)}


# Functions in torch's namespace that read or change the interpreter instead of computing tensors.
NOT_OPERATIONS: tuple[str, ...] = tuple(
    "from_numpy frombuffer from_file set_default_tensor_type set_num_threads set_num_interop_threads get_num_threads "
    "get_num_interop_threads init_num_threads set_flush_denormal set_anomaly_enabled is_anomaly_enabled "
    "set_autocast_enabled set_autocast_dtype set_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_gpu_dtype "
    "set_autocast_cache_enabled autocast_increment_nesting autocast_decrement_nesting clear_autocast_cache "
    "is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype get_autocast_cpu_dtype get_autocast_gpu_dtype "
    "is_autocast_cache_enabled is_grad_enabled is_inference_mode_enabled get_default_dtype is_nonzero equal "
    "import_ir_module parse_ir parse_schema wait fork unify_type_list merge_type_from_type_comment "
    "get_device can_cast_to init".split()
)


@functools.cache
def graph_functions() -> frozenset[Any]:
    """Every C function that is one tensor operation to its users."""
    return _c_functions()


def is_graph_function(function: Any) -> bool:
    """Whether a callable becomes one node of the graph when it is called."""
    if isinstance(function, torch_compat.OP_TYPES):
        return True
    if isinstance(function, types.FunctionType):
        return treatment_of(function) is Treatment.GRAPH
    try:
        return function in graph_functions()
    except TypeError:
        return False
