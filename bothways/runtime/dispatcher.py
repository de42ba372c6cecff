"""The function that a compiled function is: guards in order, the program, else a miss.

It is one Python function with the user's signature. Its code is generated again for each program that is added, and
swapped in place, so that the user's reference stays valid and a call costs no indirection. The program that was hit
last is tried first; where calls take turns, the order changes less and less often. The names of a program must live as
long as any code that may read them: a running call keeps its code alive, and the code keeps the names.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bothways import torch_compat
from bothways.locks import Lock
from bothways.runtime import logs
from bothways.runtime.code_tables import SUSPENDS
from bothways.runtime.continuations import later
from bothways.runtime.faces import copy_face
from bothways.runtime.parameters import call_bound, parameters_of, spelled_call, spelled_signature
from bothways.runtime.program import CompiledText, Program
from bothways.runtime.tracebacks import HIDDEN
from bothways.source_text import is_plain_name, printable

__tracebackhide__ = True  # pytest shows none of its frames
_serial = itertools.count()
MISS, PROMOTE, PLAIN, INSTEAD = "_bothways_miss", "_bothways_promote", "_bothways_plain", "_bothways_instead"
LATER = "_bothways_later"
Rename = Callable[[Iterable[str]], tuple[str, ...]]
_NONE: Mapping[str, Any] = types.MappingProxyType({})
# So many programs become the first at once; after that each waits for twice as many calls as the one before, up to a
# limit. A loop whose turns need different programs would change the function's code at every call.
AT_ONCE, MOST_WAITING = 4, 64


class Names:
    """The names of one program in the namespace of a generated function; they go with the last who has this object.

    That is the dispatcher, and every code object with the program in it: as one of its constants.
    """

    __slots__ = ("_function", "_keys")

    def __init__(self, function: types.FunctionType, keys: Iterable[str]) -> None:
        self._function, self._keys = weakref.ref(function), tuple(keys)

    def __del__(self) -> None:
        function = self._function()
        if function is not None:
            for key in self._keys:
                function.__globals__.pop(key, None)


class Dispatcher:
    """The programs of one function and the generated function that chooses between them.

    Every change happens under one lock: a program is known by a number that is never given twice, so that code
    which is still running when its program goes away asks for nothing wrong. The generated function leads here by its
    namespace; the way back is weak, so that it goes, with all there is, when its last user lets go of it.
    """

    def __init__(
        self, function: types.FunctionType, miss: Callable[..., Any], rename: Rename, names: Mapping[str, Any] = _NONE
    ) -> None:
        """``names`` are those that the programs share."""
        self.parameters = parameters_of(function.__code__)
        self.inner = rename(self.parameters)  # the parameters' names in generated code
        self.is_plain = False  # whether a miss is a plain call instead of a capture
        self.stopped = ""  # for people: why
        self.generation = 0  # how often everything was forgotten
        self._redirected: str | None = None  # the name of what every call goes to, if not to a program
        self._original = function
        self._passing = entries_of(function)  # how many of the last parameters are entries of a stack
        self._programs: dict[int, Program] = {}
        self._first: int | None = None
        self._promotions = self._waiting = 0
        self._numbers = itertools.count()
        self._names: dict[int, Names] = {}
        self._codes: dict[int | None, types.CodeType] = {}
        self._lock = Lock(self._recover)
        self._files: list[str] = []
        weakref.finalize(self, _forget_files, self._files).atexit = False
        namespace: dict[str, Any] = {
            HIDDEN: True,
            **names,
            MISS: miss,
            PROMOTE: self._promote,
            PLAIN: function,
            LATER: later,
            "__builtins__": __builtins__,
            "__name__": function.__module__,
        }
        generated = types.FunctionType(self._code(None), namespace, function.__name__)
        copy_face(function, generated)
        torch_compat.keep_torch_compile_out(generated)
        self._function = weakref.ref(generated)
        self._fresh: types.FunctionType | None = generated

    def take(self) -> types.FunctionType:
        """The generated function, which from now on lives as long as whoever takes it."""
        function, self._fresh = self._fresh, None
        assert function is not None, "it was taken before"
        return function

    @property
    def function(self) -> types.FunctionType | None:
        """The generated function, while there is one."""
        return self._function()

    @property
    def namespace(self) -> dict[str, Any]:
        """What the generated function reads."""
        function = self._function()
        return {} if function is None else function.__globals__

    @property
    def programs(self) -> list[Program]:
        """The programs in the order they were made."""
        with self._lock:
            return list(self._programs.values())

    def has(self, program: Program) -> bool:
        """Whether calls may take a program."""
        with self._lock:
            return any(known is program for known in self._programs.values())

    @property
    def by_recency(self) -> list[Program]:
        """The programs in the order they are tried."""
        with self._lock:
            return [self._programs[number] for number in self._order(self._first)]

    def add(self, program: Program, generation: int | None = None) -> bool:
        """Put a program first; not if it was begun in a generation that is over."""
        with self._lock:
            function = self._function()
            if function is None or generation not in (None, self.generation):
                return False
            number = next(self._numbers)
            self._names[number] = Names(function, program.namespace)
            function.__globals__.update(program.namespace)
            self._programs[number] = program
            self._first = number
            self._renew()
            return True

    def drop(self, program: Program) -> None:
        """Forget one program."""
        with self._lock:
            for number, known in list(self._programs.items()):
                if known is program:
                    self._forget(number)
            self._renew()

    def _forget(self, number: int) -> None:
        if number == self._first:
            self._first = next((other for other in reversed(self._programs) if other != number), None)
        del self._programs[number]
        self._names.pop(number, None)

    def check_table(self, program: Program, values: tuple[Any, ...]) -> None:
        """Let go of a table that says no where the guards, asked one by one, hold: it would say so again."""
        with self._lock:
            if program.table is not None and not program.namespace[program.table.key](*values):
                program.table = None
                self._renew()

    def stop_capturing(self, reason: str = "nothing more is captured") -> None:
        """Keep the programs there are; every other call goes straight to the original from now on."""
        with self._lock:
            self.is_plain, self.stopped = True, reason
            logs.say("outcomes", f"{self._original.__qualname__}: plain Python from now on: {reason}")
            for number, program in list(self._programs.items()):
                if not program.body:  # a miss does the same now
                    self._forget(number)
            self._renew()

    def redirect(self, name: str | None, target: Callable[..., Any] | None = None) -> None:
        """Send every call to ``PLAIN``, or to a function as ``INSTEAD``; with None, to the programs again."""
        with self._lock:
            namespace = self.namespace
            if name != self._redirected or namespace.get(INSTEAD) is not target:
                self._redirected, namespace[INSTEAD] = name, target
                self._renew()

    def start_again(self) -> None:
        """Forget everything; the next call is a miss."""
        with self._lock:
            self.generation += 1
            if self._is_new:  # as most functions are where all of them start again, time after time
                return
            self.is_plain = False
            for number in list(self._programs):
                self._forget(number)
            _forget_files(self._files)
            self._renew()

    @property
    def _is_new(self) -> bool:
        """Whether there is nothing to forget: the generated function misses, whatever it is called with."""
        function = self._function()
        if self._programs or self.is_plain or function is None or len(self._files) > 1:
            return False
        return list(self._codes) == [None] and function.__code__ is self._codes[None]

    def call(self, values: tuple[Any, ...]) -> Any:
        """Call the generated function with the values its parameters are bound to."""
        function = self._function()
        assert function is not None, "whoever calls it has it"
        try:
            return call_bound(function, self._original.__code__, values)
        finally:
            del values

    def run(
        self, program: Program, values: tuple[Any, ...], missed: Callable[..., Any], instead: Mapping[str, Any]
    ) -> Any:
        """Run one program on the values its parameters are bound to; ``missed`` if its guards do not hold. ``instead``
        has other objects for some of its names.

        The guards are Python here, whose word is the last.
        """
        lines = [*program.lines(self._call(PLAIN), escape=self._plain_call()), *self._missed()]
        # Those of a program that is not kept, too.
        names = {**self.namespace, **program.namespace, MISS: missed, **instead}
        flat = types.FunctionType(self._generate(self._text(lines)), names)
        try:
            return call_bound(flat, self._original.__code__, values)
        finally:
            del values

    def renamed(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Parameter values under the names they have in generated code."""
        return dict(zip(self.inner, values, strict=True))

    @property
    def text(self) -> str:
        """The dispatcher's source as it is now."""
        with self._lock:
            return self._text(self._lines(self._first))

    def _promote(self, number: int) -> None:
        if self._waiting > 0:
            self._waiting -= 1
            return
        with self._lock:
            function = self._function()
            if number in self._programs and function is not None:
                self._promotions += 1
                self._waiting = min(1 << max(0, self._promotions - AT_ONCE), MOST_WAITING) - 1
                self._first = number
                function.__code__ = self._code(number)

    def _renew(self) -> None:
        self._codes.clear()
        self._promotions = self._waiting = 0
        function = self._function()
        if function is not None:
            function.__code__ = self._code(self._first)

    def _recover(self) -> None:
        """Begin again from the programs there are, where a change was not finished."""
        with self._lock:
            self._first = next(reversed(self._programs), None)
            self._renew()

    def _code(self, first: int | None) -> types.CodeType:
        if first not in self._codes:
            if self._passes_on:
                call = f"{self._redirected}(*args, **kwargs)" if self._redirected else self._plain_call("*args")
                text = self._text([f"return {call}"], "*args, **kwargs")
                self._codes[first] = self._generate(text, self._names.values(), ("args", "kwargs"))
            else:
                self._codes[first] = self._chosen(first)
        return self._codes[first]

    def _chosen(self, first: int | None) -> types.CodeType:
        """The code that tries the programs. That of one alone is the same for all who share it."""
        names = self._names.values()
        if first is None or len(self._programs) > 1:
            return self._generate(self._text(self._lines(first)), names)
        program = self._programs[first]
        around = (self._original.__name__, self._signature(), self._passing, self.is_plain, self._has_defaults)
        key = (first, program.table is not None, *around)
        if key not in program.codes:
            program.codes[key] = _compiled(self._text(self._lines(first)))
        return self._own(program.codes[key], names)

    @property
    def _has_defaults(self) -> bool:
        return bool(self._original.__defaults__ or self._original.__kwdefaults__)

    @property
    def _passes_on(self) -> bool:
        """Whether calls go to another function as they come, which binds their arguments itself."""
        return self._redirected is not None or (self.is_plain and not self._programs)

    def _order(self, first: int | None) -> list[int]:
        return [] if first is None else [first, *(other for other in reversed(self._programs) if other != first)]

    def _lines(self, first: int | None) -> list[str]:
        lines: list[str] = []
        for number in self._order(first):
            promote = None if number == first else f"{PROMOTE}({number})"
            program, escape = self._programs[number], self._plain_call()
            lines.append(f"# program {number}")
            lines += program.lines(self._call(PLAIN), promote, by_table=True, escape=escape)
        # Whether defaults are still those that the arguments were bound with is asked after a miss.
        is_sure = self.is_plain and not self._has_defaults
        return [*lines, *([f"return {self._plain_call()}"] if is_sure else self._missed())]

    def _missed(self) -> list[str]:
        call = f"{MISS}({', '.join(self.inner)})"
        if not self._passing:
            return [f"return {call}"]
        # The frame stays as long as an exception that a frame inside it has caught.
        return [f"result = {call}", self._let_go(), "return result"]

    def _let_go(self) -> str:
        """Forget what was on the stack of the user's frame, from its top on."""
        return f"{' = '.join(self.inner[-1 : -1 - self._passing : -1])} = None"

    def _text(self, lines: list[str], signature: str | None = None) -> str:
        if self._passing:
            # An exception keeps the frames it passes; what was on the stack of the user's frame is gone by then.
            lines = [
                "try:",
                *(f"    {line}" for chunk in lines for line in chunk.split("\n")),
                "except BaseException:",
                f"    {'args = None' if signature else self._let_go()}",
                "    raise",
            ]
        body = "\n".join(f"    {line}".rstrip() for chunk in lines for line in chunk.split("\n"))
        return f"def {_identifier(self._original.__name__)}({signature or self._signature()}):\n{body}\n"

    def _signature(self) -> str:
        return spelled_signature(self._original.__code__, self.inner)

    def _plain_call(self, arguments: str = "") -> str:
        """What to return for a call of the original; a continuation lets go of its stack when it pleases."""
        if self._passing:
            return f"{LATER}({PLAIN}, {arguments or ', '.join(self.inner)})"
        return f"{PLAIN}(*args, **kwargs)" if arguments else self._call(PLAIN)

    def _call(self, name: str) -> str:
        """A call of the original, or of another function, that passes everything on as it came."""
        return f"{name}({spelled_call(self._original.__code__, self.parameters, self.inner)})"

    def _generate(
        self, text: str, names: Iterable[Names] = (), parameters: tuple[str, ...] | None = None
    ) -> types.CodeType:
        return self._own(_compiled(text), names, parameters)

    def _own(
        self, compiled: CompiledText, names: Iterable[Names], parameters: tuple[str, ...] | None = None
    ) -> types.CodeType:
        """The code of a text as this function's own, in a file of its own."""
        filename = f"<bothways {printable(self._original.__qualname__)} {next(_serial)}>"
        linecache.cache[filename] = (compiled.size, None, compiled.lines, filename)
        self._files.append(filename)
        code = compiled.code
        # Some parameters were renamed in the text, so that builtins keep their meaning; callers may pass them by
        # keyword, under the names they know.
        # A function that returns a generator or a coroutine is called one by whoever asks; running it asks for nothing.
        parameters = self.parameters if parameters is None else parameters
        code = code.replace(
            co_filename=filename,
            co_flags=code.co_flags | (self._original.__code__.co_flags & SUSPENDS),
            co_varnames=(*parameters, *code.co_varnames[len(parameters) :]),
            co_name=self._original.__name__,
            co_qualname=self._original.__qualname__,
            co_consts=(*code.co_consts, *names),
        )
        torch_compat.keep_torch_compile_out_of(code)
        return code


# Attributes of functions of ours: the state of a compiled function, and what a continuation is.
STATE, RESUMED = "__bothways__", "__bothways_resumed__"


def is_compiled(function: Any) -> bool:
    """Whether a function is one that a dispatcher made; ``functools.wraps`` copies the attributes of one to others."""
    state = getattr(function, "__dict__", {}).get(STATE)
    return state is not None and state.dispatcher.function is function


@functools.lru_cache(maxsize=64)
def _compiled(text: str) -> CompiledText:
    """The code of a text; functions of one code, as the layers of a model are, begin with the same."""
    module = compile(text, "<bothways>", "exec", dont_inherit=True)
    code = next(const for const in module.co_consts if isinstance(const, types.CodeType))
    return CompiledText(len(text), text.splitlines(keepends=True), code)


def _forget_files(files: list[str]) -> None:
    while files:  # another thread may add one at any time
        linecache.cache.pop(files.pop(), None)


def entries_of(function: types.FunctionType) -> int:
    """How many entries of the value stack a continuation is given, after the variables; 0 for any other function."""
    record = getattr(function, RESUMED, None)
    return 0 if record is None else sum(entry.value != "null" for entry in record.point.stack)


def call_plainly(function: types.FunctionType, values: tuple[Any, ...]) -> Any:
    """Call a user's function, or the rest of one, which may let go of a generator that it is given."""
    try:
        if any(type(value) is types.GeneratorType for value in values) and entries_of(function):
            return later(function, *values)
        return call_bound(function, function.__code__, values)
    finally:
        del values


def _identifier(name: str) -> str:
    return name if is_plain_name(name) else "function"
