"""From ATen operations to primitive nodes: a table, and a file of short functions for each kind of operation."""

import bothways.lower.lowerings.activations
import bothways.lower.lowerings.arithmetic
import bothways.lower.lowerings.foreach
import bothways.lower.lowerings.indexing
import bothways.lower.lowerings.joining
import bothways.lower.lowerings.losses
import bothways.lower.lowerings.making
import bothways.lower.lowerings.normalisation
import bothways.lower.lowerings.pointwise
import bothways.lower.lowerings.pooling
import bothways.lower.lowerings.random
import bothways.lower.lowerings.reductions
import bothways.lower.lowerings.resizing
import bothways.lower.lowerings.softmax
import bothways.lower.lowerings.views  # noqa: F401  (each adds its rows)
from bothways.lower.lowerings.registry import LOWERINGS, TOLERATE_EMPTY

__all__ = ["LOWERINGS", "TOLERATE_EMPTY"]
