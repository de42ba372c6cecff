"""The record of one operation: a function or method of PyTorch's, an operator of Python's, or an overload of ATen's.

Whatever a record does not say is the careful answer: an operation may fail, nothing is known of the memory it gives, it
is not run a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any, NamedTuple

from bothways.ops import rules


class Fails(Enum):
    """When an operation may raise although shapes and dtypes are guarded; some kernels know few dtypes."""

    ON_SOME_DATA = auto()  # an index out of range, a singular matrix
    NEVER = auto()
    UNLESS_ALL_FLOAT = auto()
    UNLESS_FLOATS_FIT = auto()  # all are, and none is in double precision beside others
    UNLESS_PARAMETERS_FIT = auto()  # all are of one dtype, or the first in half precision, the others in single
    UNLESS_LISTS_FIT = auto()  # what a list holds for a parameter is of its dtype; counters may be of another
    UNLESS_ANY_FLOAT = auto()
    IF_ANY_FLOAT = auto()
    UNLESS_GIVES_FLOAT = auto()  # or complex numbers


class Gives(Enum):
    """Whose memory a result is."""

    UNKNOWN = auto()
    FRESH = auto()  # always its own
    VIEW = auto()  # that of the first argument, or the argument itself
    BY_LAYOUT = auto()  # a view, the argument itself or a copy, by how that lies
    SECRET_VIEW = auto()  # that of the first argument, of which neither autograd nor a traced graph knows


class LooksLike(Enum):
    """Where the result looks like dense floating operands, so that no shape rule has to be asked."""

    ONE = auto()
    TWO = auto()  # the second may be a number
    TWO_TENSORS = auto()
    FIRST = auto()  # where the others are numbers


class Says(Enum):
    """What an operation says where all numbers are finite: of numbers, or of what others have said of them."""

    YES = auto()
    NO = auto()
    THE_SAME = auto()
    THE_OPPOSITE = auto()


class Home(Enum):
    """Where PyTorch's bindings in C++ are."""

    METHODS = auto()
    FUNCTIONS = auto()
    NN_FUNCTIONS = auto()


@dataclass(frozen=True)
class Binding:
    """The fastest way from Python into an overload: a method or function of the operation's name."""

    home: Home
    is_alike: bool = False  # it is another overload, which does the same
    number_as_tensor: bool = False  # a number may stand for the second tensor
    takes_two: bool = False  # it knows other arguments by place: these have to be two
    needs: tuple[str, ...] = ()  # keywords without which binding and overload choose for themselves


@dataclass(frozen=True, eq=False, repr=False)
class Operation:
    """What is known of an operation. Schema and tags tell the rest for overloads (``table.of``)."""

    name: str
    target: Any = None  # the overload, of those that have one

    # When it raises.
    fails: Fails = Fails.ON_SOME_DATA
    call_fails: bool = True  # as a call of ATen from a lowered graph
    of_reals: bool = False  # kernels refuse complex numbers; shapes do not tell
    of_numbers: bool = False  # and truths
    asks_whole: bool = False  # by its numbers and PyTorch's version, kernels refuse whole ones or take them
    checks_indexes: bool = False  # one out of range is an error, also where the result is not read
    takes_numbers: bool = False  # numbers become elements, or meet them, and a dtype has to hold them
    promotes: bool = False  # operands are brought to one dtype, which in place has to fit into the first
    of_one_dtype: tuple[int, ...] = ()  # arguments that kernels refuse in several dtypes; shapes do not tell
    mixes_on_cpu: bool = False  # parameters in single beside half precision, which kernels of GPUs refuse

    # What it does besides computing.
    draws: bool = False  # random numbers
    writes: bool = False  # to an argument
    writes_left: bool = False  # an operator of Python's that writes to what is on its left
    writes_by_index: bool = False  # to places that an index names; as a function it copies the whole
    copies_first: bool = False  # its first argument, and changes the copy
    writes_no_elements: bool = False  # changes what is known of its argument alone: sizes, history
    reshapes: bool = False  # its argument itself
    may_write_shared: bool = False  # writes to elements of a part, or the same to all, so that some may share memory
    # Of so many lists one kernel for all leaves the versions of what it writes as they are; of others it counts.
    uncounted_at_once: int = 0
    keeps_statistics: bool = False  # writes running statistics, which leaves their versions as they are
    functional: str = ""  # of what writes: the operation that gives the new value instead
    training_at: int | None = None  # the argument that says that statistics are updated, though no schema does

    # What it gives.
    gives: Gives = Gives.UNKNOWN
    aliases: bool = False  # the schema says that results may be in the arguments' memory
    takes_apart: bool = False  # several views at once, none of which autograd allows to be changed
    begins_alike: bool = False  # a view that begins with the first element
    permutes: bool = False  # a view after which nothing can be told from how a tensor lies
    looks_like: LooksLike | None = None
    folds: bool = False  # a Python value that follows from dtypes and sizes
    is_question: bool = False  # which the dispatcher answers for itself
    says: Says | None = None  # where all numbers are finite
    meta_is_wrong: bool = False  # PyTorch's kernel for shapes says other than the operation does

    # What it costs.
    moves: bool = False  # it only moves or makes data
    pointwise: bool = False
    takes_long: bool = False  # to compute, compared with what memory takes to bring the values
    is_product: bool = False  # of matrices
    joins: bool = False  # makes one tensor of a list of them

    # How it is called and lowered.
    factor: str = ""  # the keyword that multiplies the first argument
    primitive: str = ""  # which computes it at each index, where that has another name
    each: str = ""  # of an operation on lists: what is done for each tensor
    tolerates_empty: bool = False  # tensors without elements, beside those that matter
    binding: Binding | None = None
    forgets_result: bool = False  # no formula of its gradient reads what it gave
    ignores_grad_mode: bool = False  # gives the same whether or not gradients will be wanted

    def __repr__(self) -> str:
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("name", "target")}
        said = [f"{name}={value}" for name, value in told.items() if value != getattr(type(self), name)]
        return f"Operation({', '.join([self.name, *said])})"

    @property
    def is_view(self) -> bool:
        """Whether the result is a view of the first argument, or may be."""
        return self.gives in (Gives.VIEW, Gives.BY_LAYOUT)

    @property
    def is_cheap(self) -> bool:
        """Whether it may run a second time: products, reductions and searches take long, others draw other numbers."""
        return self.moves or (self.pointwise and not self.draws)

    @property
    def shape_rule(self) -> rules.ShapeRule | None:
        """What it returns for fake tensors, where a rule says so."""
        return rules.SHAPE_RULES.get(self.name) or rules.SHAPE_RULES.get(self.name.partition(".")[0])

    @property
    def lowering(self) -> rules.Lowering | None:
        """What makes primitives of it."""
        return rules.LOWERINGS.get(self.target)

    @property
    def warns(self) -> Callable[..., bool] | None:
        """Whether its kernel warns, given arguments and result."""
        return rules.WARNINGS.get(self.name)


class FactRow(NamedTuple):
    """The same facts about several operations, or overloads (``max.dim``), which add to those of their family."""

    names: list[str]
    facts: dict[str, Any]


def row(names: str, **facts: Any) -> FactRow:
    return FactRow(names.split(), facts)
