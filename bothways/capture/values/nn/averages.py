"""``AveragedModel.update_parameters``: eager asks a tensor whether the model is the first, the graph chooses.

The first update is plain Python: an average of the user's own is not asked about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.swa_utils import AveragedModel

from bothways.capture.calls import inline
from bothways.capture.standins.averages import update_average
from bothways.capture.values.code.functions import library_function
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.nn.modules import ModuleValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

UPDATE: Any = AveragedModel.update_parameters


@handles(UPDATE)
def _update(tracer: Tracer, average: Value, model: Value) -> Value:
    average = average.realize()
    count = getattr(average.obj, "n_averaged", None) if isinstance(average, ModuleValue) else None
    if not isinstance(count, torch.Tensor):
        return inline(tracer, library_function(tracer, UPDATE), [average, model], {})
    source = protocols.get_attr(tracer, average, "n_averaged").realize().source
    if source is not None and int(count) == 0:
        tracer.guard("not {s0}", source)
        tracer.stop("lazy_state", f"{average.describe()} takes its first model")
    return tracer.inline(update_average, [average, model], {})
