"""From Python bytecode to a Capture: the graph, the guards, the effects and the outputs of one call."""

from bothways.capture.capture import Capture, capture
from bothways.capture.features import FEATURES

__all__ = ["FEATURES", "Capture", "capture"]
