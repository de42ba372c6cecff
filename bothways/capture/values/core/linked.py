"""What a value needs of values that stand above it: the one place where imports would go round in a circle.

A tuple makes iterators, and an iterator makes tuples. Modules below import those above through here, as
``linked.TupleValue``; ``features.py`` puts everything in when capture is loaded, and a test compares the two lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothways.capture.bytecode.opcodes import handler_table as handler_table
    from bothways.capture.calls import call_function as call_function
    from bothways.capture.calls import inline as _inline
    from bothways.capture.values.autograd.autograd_functions import apply as _apply
    from bothways.capture.values.code.attributes import MISSING as MISSING
    from bothways.capture.values.code.attributes import class_attribute as class_attribute
    from bothways.capture.values.code.attributes import is_data_descriptor as is_data_descriptor
    from bothways.capture.values.code.attributes import lookup as _lookup
    from bothways.capture.values.code.classes import ClassValue as ClassValue
    from bothways.capture.values.code.formatting import format_text as format_text
    from bothways.capture.values.code.formatting import text_binary as text_binary
    from bothways.capture.values.code.instance_dicts import InstanceDict as InstanceDict
    from bothways.capture.values.collections.containers import ListValue as ListValue
    from bothways.capture.values.collections.containers import TupleValue as TupleValue
    from bothways.capture.values.collections.dict_methods import METHODS as _methods
    from bothways.capture.values.collections.dict_views import DictIterator as DictIterator
    from bothways.capture.values.collections.dicts import DictValue as DictValue
    from bothways.capture.values.collections.iterators import ListIterator as ListIterator
    from bothways.capture.values.collections.iterators import RangeIterator as RangeIterator
    from bothways.capture.values.collections.iterators import ReversedListIterator as ReversedListIterator
    from bothways.capture.values.collections.iterators import SequenceIterator as SequenceIterator
    from bothways.capture.values.collections.sets import SetValue as SetValue
    from bothways.capture.values.collections.slices import SliceValue as SliceValue
    from bothways.capture.values.core import protocols as protocols
    from bothways.capture.values.core.derived import derived as derived
    from bothways.capture.values.core.numbers import NumberValue as NumberValue
    from bothways.capture.values.core.numpy_values import NumpyNumber as NumpyNumber
    from bothways.capture.values.core.numpy_values import numpy_number as numpy_number
    from bothways.capture.values.generators.generators import GeneratorValue as GeneratorValue
    from bothways.capture.values.generators.generators import stop_iteration_error as stop_iteration_error
    from bothways.capture.values.hooks.grad_fns import grad_fn_of as grad_fn_of
    from bothways.capture.values.hooks.hooks import register_on_tensor as register_on_tensor
    from bothways.capture.values.nn.construction import CLASS_METHODS as CLASS_METHODS
    from bothways.capture.values.nn.construction import BaseMethod as BaseMethod
    from bothways.capture.values.nn.construction import ClassMethodCall as ClassMethodCall
    from bothways.capture.values.nn.construction import construct as construct
    from bothways.capture.values.nn.construction import fill_payload as fill_payload
    from bothways.capture.values.nn.construction import rebuild_new as rebuild_new
    from bothways.capture.values.nn.modules import ModuleValue as ModuleValue
    from bothways.capture.values.objects.builtins import BoundBuiltin as BoundBuiltin
    from bothways.capture.values.objects.builtins import BoundClassMethod as BoundClassMethod
    from bothways.capture.values.objects.builtins import BuiltinValue as BuiltinValue
    from bothways.capture.values.objects.objects import ObjectValue as ObjectValue
    from bothways.capture.values.objects.regular_expressions import look_for as look_for
    from bothways.capture.values.tensors.arrays import as_index as as_index
    from bothways.capture.values.tensors.assumptions import takes_for_granted as takes_for_granted
    from bothways.capture.values.tensors.assumptions import usually as usually
    from bothways.capture.values.tensors.known_data import known_sizes as known_sizes
    from bothways.capture.values.tensors.known_data import known_truth as known_truth
    from bothways.capture.values.tensors.late_choices import late_extreme as late_extreme
    from bothways.capture.values.tensors.late_numbers import LateNumber as LateNumber
    from bothways.capture.values.tensors.late_numbers import late_math as late_math
    from bothways.capture.values.tensors.late_numbers import late_truth as late_truth
    from bothways.capture.values.tensors.late_texts import LateText as LateText
    from bothways.capture.values.tensors.late_texts import formatted as formatted
    from bothways.capture.values.tensors.late_texts import joined as joined
    from bothways.capture.values.tensors.late_texts import late_text as late_text
    from bothways.capture.values.tensors.late_texts import shown as shown
    from bothways.capture.values.tensors.tensors import TensorValue as TensorValue
    from bothways.capture.values.torch_state.settings import call_device as call_device
    from bothways.capture.wrap import COMPILED as COMPILED
    from bothways.capture.wrap import library_value as library_value

    inline_call = _inline
    lookup_attribute = _lookup
    apply_autograd_function = _apply
    DICT_METHODS = _methods


def link(**names: Any) -> None:
    """Put in what the names stand for."""
    globals().update(names)
