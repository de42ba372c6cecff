"""From Python bytecode to a Capture: the graph, the guards, the effects and the outputs of one call."""

from bothways.capture.capture import Capture, capture

__all__ = ["Capture", "capture"]
