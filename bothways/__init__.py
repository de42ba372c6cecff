"""bothways compiles PyTorch programs both ways, forward and backward."""

from bothways import cache, errors, testing
from bothways.api import autograd
from bothways.api.compile import compile, reset
from bothways.api.decorators import (
    allow_in_graph,
    assume_constant_result,
    disable,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    set_stance,
)
from bothways.api.doctor import doctor
from bothways.api.dropin import install, uninstall
from bothways.api.explain import explain
from bothways.api.history import history
from bothways.api.memory import memory
from bothways.api.profile import profile
from bothways.api.report import report
from bothways.backends import list_backends, register_backend
from bothways.config import config
from bothways.grad import trace_wrapped
from bothways.grad.tracing.trace import trace

__version__ = "0.1.0"

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "autograd",
    "cache",
    "compile",
    "config",
    "disable",
    "doctor",
    "errors",
    "explain",
    "graph_break",
    "history",
    "install",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "memory",
    "profile",
    "register_backend",
    "report",
    "reset",
    "set_stance",
    "testing",
    "trace",
    "trace_wrapped",
    "uninstall",
]
