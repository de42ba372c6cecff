"""From ATen operations to primitive nodes: a file of short functions for each kind of operation."""

import bothways.lower.ir.lowerings.activations
import bothways.lower.ir.lowerings.arithmetic
import bothways.lower.ir.lowerings.convolutions
import bothways.lower.ir.lowerings.foreach
import bothways.lower.ir.lowerings.indexing
import bothways.lower.ir.lowerings.joining
import bothways.lower.ir.lowerings.losses
import bothways.lower.ir.lowerings.making
import bothways.lower.ir.lowerings.normalisation
import bothways.lower.ir.lowerings.pointwise
import bothways.lower.ir.lowerings.pooling
import bothways.lower.ir.lowerings.products
import bothways.lower.ir.lowerings.random
import bothways.lower.ir.lowerings.reductions
import bothways.lower.ir.lowerings.resizing
import bothways.lower.ir.lowerings.scattering
import bothways.lower.ir.lowerings.softmax
import bothways.lower.ir.lowerings.views  # noqa: F401  (each adds its rows)
from bothways.ops import LOWERINGS

__all__ = ["LOWERINGS"]
