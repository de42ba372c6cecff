"""Everything capture knows how to handle: one import for each feature, which fills the tables, and the links between.

Loading all of it with the package matters: a process that forks while another thread loads a module waits for ever.
"""

from __future__ import annotations

from bothways.capture.bytecode import opcodes
from bothways.capture.bytecode.opcodes import handler_table
from bothways.capture.calls import call_function
from bothways.capture.calls import inline as inline_call
from bothways.capture.standins import modules, sequences
from bothways.capture.values.autograd import autograd_functions, backwards, gradients, mapped, transforms
from bothways.capture.values.autograd.autograd_functions import apply as apply_autograd_function
from bothways.capture.values.code import formatting, instance_dicts, object_methods, partials
from bothways.capture.values.code.attributes import MISSING, class_attribute, is_data_descriptor
from bothways.capture.values.code.attributes import lookup as lookup_attribute
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.formatting import format_text, text_binary
from bothways.capture.values.code.instance_dicts import InstanceDict
from bothways.capture.values.collections import dict_methods
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dict_methods import METHODS as DICT_METHODS
from bothways.capture.values.collections.dict_views import DictIterator
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.collections.iterators import (
    ListIterator,
    RangeIterator,
    ReversedListIterator,
    SequenceIterator,
)
from bothways.capture.values.collections.sets import SetValue
from bothways.capture.values.collections.slices import SliceValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.derived import derived
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.core.numpy_values import NumpyNumber, numpy_number
from bothways.capture.values.generators.generators import GeneratorValue, stop_iteration_error
from bothways.capture.values.hooks import hooks, own_graphs, saved_tensors
from bothways.capture.values.hooks.grad_fns import grad_fn_of
from bothways.capture.values.hooks.hooks import register_on_tensor
from bothways.capture.values.nn import attention_masks, averages, clipping, optimizer_steps, scaled_steps, schedules
from bothways.capture.values.nn.construction import (
    CLASS_METHODS,
    BaseMethod,
    ClassMethodCall,
    construct,
    fill_payload,
    rebuild_new,
)
from bothways.capture.values.nn.modules import ModuleValue
from bothways.capture.values.objects import builtin_functions, builtin_types, caught_warnings, numpy_calls
from bothways.capture.values.objects.builtins import BoundBuiltin, BoundClassMethod, BuiltinValue
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.objects.regular_expressions import look_for
from bothways.capture.values.tensors import (
    assumptions,
    changing_data,
    constructors,
    data_checks,
    data_numbers,
    data_sizes,
    late_arrays,
    numpy_dtypes,
    old_variables,
    tensor_state,
    tensor_subclasses,
)
from bothways.capture.values.tensors.arrays import as_index
from bothways.capture.values.tensors.assumptions import takes_for_granted, usually
from bothways.capture.values.tensors.known_data import known_sizes, known_truth
from bothways.capture.values.tensors.late_choices import late_extreme
from bothways.capture.values.tensors.late_numbers import LateNumber, late_math, late_truth
from bothways.capture.values.tensors.late_texts import LateText, formatted, joined, late_text, shown
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.values.torch_state import anomaly, collectives, function_modes, settings, torch_contexts
from bothways.capture.values.torch_state.settings import call_device
from bothways.capture.wrap import COMPILED, library_value

# Each adds its rows to the tables when it is loaded.
FEATURES = (
    anomaly, assumptions, attention_masks, autograd_functions, averages, backwards, builtin_functions, builtin_types,
    caught_warnings, changing_data, clipping, collectives, constructors, data_checks, data_numbers, data_sizes,
    dict_methods, formatting, function_modes, gradients, hooks, instance_dicts, late_arrays, mapped, modules,
    numpy_calls, numpy_dtypes, object_methods, old_variables, opcodes, optimizer_steps, own_graphs, partials,
    saved_tensors, scaled_steps, schedules, sequences, settings, tensor_state, tensor_subclasses, torch_contexts,
    transforms,
)  # fmt: skip

linked.link(
    BaseMethod=BaseMethod, BoundBuiltin=BoundBuiltin, BoundClassMethod=BoundClassMethod, BuiltinValue=BuiltinValue,
    CLASS_METHODS=CLASS_METHODS, COMPILED=COMPILED, ClassMethodCall=ClassMethodCall, ClassValue=ClassValue,
    DICT_METHODS=DICT_METHODS,
    DictIterator=DictIterator, DictValue=DictValue, GeneratorValue=GeneratorValue, InstanceDict=InstanceDict,
    LateNumber=LateNumber, LateText=LateText,
    ListIterator=ListIterator, ListValue=ListValue, MISSING=MISSING, ModuleValue=ModuleValue,
    NumberValue=NumberValue, NumpyNumber=NumpyNumber, ObjectValue=ObjectValue, RangeIterator=RangeIterator,
    ReversedListIterator=ReversedListIterator, SequenceIterator=SequenceIterator, SetValue=SetValue,
    SliceValue=SliceValue, TensorValue=TensorValue, TupleValue=TupleValue,
    apply_autograd_function=apply_autograd_function, as_index=as_index, call_device=call_device,
    call_function=call_function,
    class_attribute=class_attribute, construct=construct, derived=derived,
    fill_payload=fill_payload, format_text=format_text, formatted=formatted, grad_fn_of=grad_fn_of,
    handler_table=handler_table,
    inline_call=inline_call, is_data_descriptor=is_data_descriptor, known_sizes=known_sizes, known_truth=known_truth,
    late_extreme=late_extreme, late_math=late_math, late_truth=late_truth,
    joined=joined, late_text=late_text,
    library_value=library_value,
    look_for=look_for, lookup_attribute=lookup_attribute, numpy_number=numpy_number, protocols=protocols,
    rebuild_new=rebuild_new, register_on_tensor=register_on_tensor, shown=shown,
    stop_iteration_error=stop_iteration_error,
    takes_for_granted=takes_for_granted, text_binary=text_binary, usually=usually,
)
