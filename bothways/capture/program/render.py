"""From a finished capture to a Program: the body, which draws, runs the graph, makes the effects and builds results.

Its guards are written in ``guard_text.py``, before the body, which uses the names that they have given.
"""

from __future__ import annotations

import itertools
import re
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways import torch_compat
from bothways.calls.forgetting import forget_gradients, gradient_setter
from bothways.capture.guards.sources import Source
from bothways.capture.overrides.overrides import without_class
from bothways.capture.program.groups import NameGroups, are_many
from bothways.capture.program.guard_text import ProgramGuards, parameter_names, render_late, still_there
from bothways.capture.shapes.changes import changes_inputs
from bothways.capture.shapes.safe_operations import may_draw, may_fail
from bothways.capture.values.core.base import Value
from bothways.capture.values.tensors.random_numbers import outside
from bothways.capture.writing.emit import Emitter
from bothways.capture.writing.object_inputs import build_before
from bothways.runtime.acts import acts
from bothways.runtime.guesses import Guesses
from bothways.runtime.kept_inputs import call_together, keep_inputs
from bothways.runtime.kept_inputs import put_back as undone
from bothways.runtime.program import DISAGREE, PLAIN_CALL, Check, Program
from bothways.runtime.torch_state import (
    modes,
    random_state,
    restore,
    restore_modes,
    restore_random_state,
    torch_state,
)
from bothways.source_text import words_in

if TYPE_CHECKING:
    import torch.fx

    from bothways.capture.breaks.endings import Ending
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.tensors.tensors import TensorValue

MANY = 4  # tensors whose gradients are forgotten, or set, in one call
SETS_GRADIENT = re.compile(r"[^\W\d]\w*\.grad = (?!None)[^\W\d]\w*")


def render(
    tracer: Tracer, parameters: list[str], ending: Ending, graph_key: str, program_name: str
) -> tuple[Program, list[torch.fx.Node]]:
    """The Program of a capture, still without its compiled graph, and the nodes the graph must return."""
    names = parameter_names(parameters)
    guards = ProgramGuards(tracer, parameters, names)
    emitter = Emitter(tracer, names)
    groups = NameGroups(names, guards.bound.values())
    mutated = tracer.effects.all()
    objects = tracer.graph.objects
    before = _draw(tracer, emitter)
    left = tracer.overrides.modes
    emitter.survey([*ending.roots(), *_effect_roots(mutated), *(taken.value for taken in objects), *left])
    handed_over, prepared = build_before(tracer, emitter, objects)
    for effect in mutated:
        emitter.replay(effect)
    last = ending.emit(emitter)
    sizes = [emitter.read(tracer.symbols.sources[symbol]) for symbol in tracer.graph.symbols()]
    inputs = [_input(emitter, value) for value in tracer.graph.used_inputs()]
    forgotten = _forgetting(emitter, graph_key, groups, are_many(inputs))
    outputs = list(emitter.tensors)
    modes = tracer.overrides.changes(emitter)
    is_retried = tracer.graph.has_work and any(map(may_fail, tracer.graph.until_it_acts()))
    loads = [*emitter.loads[: before.place], *(before.ask if is_retried else ()), *emitter.loads[before.place :]]
    body = _unseen(emitter, [*loads, *prepared, *(forgotten if tracer.graph.has_work else ())])
    results = ""
    if tracer.graph.has_work:
        is_together = (together := groups.text("inputs", inputs)) in groups.made and not handed_over
        if is_together:
            kept = ", kept" * (is_retried and any(map(changes_inputs, tracer.graph.until_it_acts())))
            call = _call_together(emitter, graph_key, sizes, together, f"{len(outputs)}{kept}")
            results = names.fresh("results") if are_many(outputs) else ""
        else:
            call = f"{graph_key}({', '.join([*sizes, *inputs, *handed_over])})"
        lines = _assigned(emitter, results, call)
        body += _retried(emitter, lines, before, graph_key, together, is_together) if is_retried else lines
    effects = _gradients_together(emitter, groups, results)
    after = [*emitter.builds, *effects, *emitter.positions]
    taken = _taken(emitter, results, [*after, *modes, *last])
    body += [*filter(None, taken.values()), *_unseen(emitter, after), *modes, *_grad_mode(emitter)]
    if ending.runs_python:
        body += _let_go([*taken, *([results] if results else ())], last)
    body += last
    tracer.computed_again.check(emitter.met)
    looked_up = [*tracer.assumptions.looked_up, *emitter.loaded]
    checks = guards.checks + render_late(tracer, parameters, still_there(tracer, looked_up))
    root = _root(tracer, [*body, *(check.code for check in checks)])
    return Program(
        program_name, checks, tuple(body), tracer.names.namespace, tuple(emitter.effects),
        op_count=tracer.graph.op_count, table=guards.table(body, root, groups.made),
        unseen_by_modes=_unseen_by_modes(tracer), root=root, is_bound=tracer.names.is_bound, groups=groups.made,
        anew=graph_key if tracer.graph.leaves_all and not before.ask else None,
    ), outputs  # fmt: skip


def _call_together(emitter: Emitter, graph_key: str, sizes: list[str], together: str, rest: str) -> str:
    """The call of a graph that takes many tensors as one tuple."""
    caller = emitter.inject(call_together, "call_together")
    numbers = f"({''.join(f'{size}, ' for size in sizes)})"
    return f"{caller}({graph_key}, {numbers}, {together}, {rest})"


def _assigned(emitter: Emitter, results: str, call: str) -> list[str]:
    """The call of the graph, and what it gives as ``results``, or each by its name."""
    graph, tensors = emitter.tracer.graph, emitter.tensors
    targets = results or f"{', '.join(tensors.values())}{',' * (len(tensors) == 1)}"
    line = f"{targets} = {call}" if tensors else call
    return _unseen(emitter, _restoring(emitter, line) if graph.statements else [line])


def _grad_mode(emitter: Emitter) -> list[str]:
    """The line that leaves gradients on or off for good."""
    grad_after = emitter.tracer.torch_state.grad_after
    if grad_after is None:
        return []
    return [f"{emitter.inject(torch_compat.set_grad_enabled, 'set_grad_enabled')}({grad_after})"]


def _let_go(names: list[str], last: list[str]) -> list[str]:
    """Tensors that only effects needed are not held while the user's Python runs."""
    needed = words_in("\n".join(last))
    done = [name for name in names if name not in needed]
    return [f"del {', '.join(done)}"] if done else []


def _forgetting(emitter: Emitter, graph_key: str, groups: NameGroups, of_many: bool) -> list[str]:
    """The lines that let go of gradients whose memory is to be free for the graph."""
    tensors = [emitter.read(_source_of(tensor)) for tensor in emitter.tracer.effects.forgotten]
    if not tensors or (len(tensors) < MANY and not of_many):
        return [f"{tensor}.grad = None" for tensor in tensors]
    return [f"{emitter.inject(forget_gradients, 'forget_gradients')}({graph_key}, {groups.text('owners', tensors)})"]


def _taken(emitter: Emitter, results: str, lines: list[str]) -> dict[str, str]:
    """The names of the graph's results that lines read, with what takes each from all ``results``, where these have one
    name."""
    if not results:
        return dict.fromkeys(emitter.tensors.values(), "")
    words = words_in("\n".join(lines))
    places = enumerate(emitter.tensors.values())
    return {name: f"{name} = {results}[{place}]" for place, name in places if name in words}


def _gradients_together(emitter: Emitter, groups: NameGroups, results: str) -> list[str]:
    """The lines of the effects, those that set many gradients one after the other as one."""
    lines: list[str] = []
    places = {name: place for place, name in enumerate(emitter.tensors.values())}
    for is_gradient, group in itertools.groupby(emitter.effects, lambda line: bool(SETS_GRADIENT.fullmatch(line))):
        several = list(group)
        if is_gradient and len(several) >= MANY:
            owners, gradients = zip(*(line.split(".grad = ") for line in several), strict=True)
            setter = emitter.inject(gradient_setter(), "set_gradients")
            first = places.get(gradients[0], 0)
            is_part = [places.get(name) for name in gradients] == list(range(first, first + len(gradients)))
            values = f"{results}, {first}" if results and is_part else f"[{', '.join(gradients)}]"
            several = [f"{setter}({groups.text('owners', owners)}, {values})"]
        lines += several
    return lines


def _unseen_by_modes(tracer: Tracer) -> tuple[Check, str] | None:
    """How to ask guards that must not be seen by function modes and by the classes of tensors."""
    if not tracer.overrides.must_not_see:
        return None
    asked = tracer.inject(torch_compat.override_state, "override_state").key
    expected = tracer.inject(tracer.overrides.state_at_entry, "state").key
    first = Check(f"{asked}() == {expected}", f"overrides of torch functions: {tracer.overrides.state_at_entry}", None)
    return first, tracer.inject(torch_compat.without_function_modes, "without_function_modes").key


def _unseen(emitter: Emitter, lines: list[str]) -> list[str]:
    """Lines that function modes and the classes of tensors must not see."""
    unseen = _unseen_by_modes(emitter.tracer)
    return lines if unseen is None or not lines else [f"with {unseen[1]}():", *(f"    {line}" for line in lines)]


def _input(emitter: Emitter, value: TensorValue) -> str:
    name = emitter.read(_source_of(value))
    return f"{emitter.inject(without_class, 'without_class')}({name})" if value.is_stripped else name


def _restoring(emitter: Emitter, call: str) -> list[str]:
    """The call of a graph that sets modes on its way: when it fails in between, they are as they were before. Any graph
    may: there may be no memory left, and Ctrl-C comes at any time."""
    statements = emitter.tracer.graph.statements
    ask, put_back = next(ways for known, ways in RESTORED if known is None or statements <= known)
    return [
        f"state = {emitter.inject(ask, 'torch_state')}()",
        "try:",
        f"    {call}",
        "except BaseException:",
        f"    {emitter.inject(put_back, 'restore')}(state)",
        "    raise",
    ]


# What a graph sets -> how to ask for that, and how to put it back; the first that will do. None: whatever there is.
RESTORED: list[tuple[set[Any] | None, tuple[Any, Any]]] = [
    ({torch_compat.set_grad_enabled}, (torch_compat.is_grad_enabled, torch_compat.set_grad_enabled)),
    (
        {torch_compat.set_grad_enabled, torch_compat.enter_autocast, torch_compat.exit_autocast},
        (modes, restore_modes),
    ),
    (None, (torch_state, restore)),
]


@dataclass(frozen=True)
class _Generators:
    """Python's random number generators that a program uses: how to ask where they are, and how to put them back.

    ``place`` is the line before which they are to be asked.
    """

    place: int
    ask: list[str]
    put_back: list[str]


def _draw(tracer: Tracer, emitter: Emitter) -> _Generators:
    """Write the calls of random number generators; they come before everything else."""
    used = {emitter.read(_source_of(value)): value for value in outside(tracer)}
    states = {name: emitter.names.fresh("drawn_state") for name in used}
    place = len(emitter.loads)
    for draw in tracer.effects.draws:
        draw.emit(emitter)
    ask = [f"{state} = {name}.{used[name].asks}()" for name, state in states.items()]
    return _Generators(place, ask, [f"{name}.{used[name].puts_back}({state})" for name, state in states.items()])


def _retried(
    emitter: Emitter, call: list[str], generators: _Generators, graph_key: str, inputs: str, is_together: bool
) -> list[str]:
    """The call of a graph that may fail on the data it meets: plain Python then fails at the user's line, with the
    effects that come before that line, inside the user's own ``try``. ``inputs`` is what gives its tensors,
    which are handed on together or one by one."""
    ask: list[str] = []
    undo: list[str] = []
    put_back, graph = generators.put_back, emitter.tracer.graph
    nodes = graph.until_it_acts()
    if graph.has_effects:
        asked = emitter.inject(acts, "acts")
        ask, undo = [f"acted = {asked}()"], [f"if {asked}() != acted: raise"]
    if any(map(changes_inputs, nodes)):
        written = (*map(frozenset, graph.written_inputs()), frozenset(graph.written_early()))
        facts = (*written, graph.fails_late, graph.breaks_off, graph.relies_late, is_together)
        sets = emitter.inject(facts, "written")  # made once, asked at every call
        ask += [f"kept = {emitter.inject(keep_inputs, 'keep_inputs')}({graph_key}, {inputs}, *{sets})"]
        undo += [f"if not {emitter.inject(undone, 'put_back')}(kept): raise"]
    if any(map(may_draw, nodes)):
        ask += [f"numbers = {emitter.inject(random_state, 'random_state')}()"]
        put_back = [*put_back, f"{emitter.inject(restore_random_state, 'restore_random_state')}(numbers)"]
    guesses = ""
    if emitter.tracer.symbols.guessed_at:
        guesses = emitter.inject(Guesses(emitter.tracer.symbols.guessed_at), "guesses")
        ask = [f"{guesses}.calls += 1", *ask]
    return [
        *_unseen(emitter, ask),
        "failure = None",
        "try:",
        *(f"    {line}" for line in call),
        "except Exception as error:",
        *(f"    {line}" for line in _unseen(emitter, undo)),
        "    failure = error.with_traceback(None)",  # its frames would hold on to what the graph has entered
        "if failure is not None:",
        *(f"    {line}" for line in _unseen(emitter, put_back)),
        f"    result = {PLAIN_CALL}",
        f"    {DISAGREE}({', '.join(filter(None, ('failure', guesses)))})",
        "    return result",
    ]


def render_guards(tracer: Tracer, parameters: list[str], program_name: str) -> Program:
    """A Program without a body: when its guards hold, the function runs as plain Python."""
    guards = ProgramGuards(tracer, parameters, parameter_names(parameters))
    root = _root(tracer, [check.code for check in guards.checks])
    return Program(
        program_name, guards.checks, (), tracer.names.namespace, table=guards.table([], root, {}),
        unseen_by_modes=_unseen_by_modes(tracer),
        root=root, is_bound=tracer.names.is_bound,
    )


def _root(tracer: Tracer, lines: list[str]) -> str | None:
    """The name of the captured function, where the program has anything to do with it; else it lets go of it."""
    source = tracer.names.root
    if source is None:
        return None
    function = tracer.names.namespace[source.key]
    assert isinstance(function, types.FunctionType)
    later = (other.root for other in tracer.symbols.sources.values())
    if (
        tracer.names.is_bound
        or source.key in words_in("\n".join(lines))
        or tracer.definitions.knows(function)
        or source in later
    ):
        return source.key
    tracer.names.let_go_of_root()
    return None


def kept_by(tracer: Tracer, ending: Ending) -> list[Value]:
    """What is there after the program ran."""
    return [*ending.roots(), *_effect_roots(tracer.effects.all())]


def _effect_roots(mutated: list[Any]) -> list[Value]:
    roots: list[Value] = []
    for effect in mutated:
        if isinstance(effect, Value):
            roots.extend(effect.parts())
        elif effect.value is not None:
            roots.append(effect.value)
    return roots


def _source_of(value: Value) -> Source:
    assert value.source is not None
    return value.source
