"""The drop-in: programs written for ``torch.compile`` run on bothways; afterwards PyTorch is itself again."""

import importlib
import pickle
import sys
import types
import unittest
import unittest.mock
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._dynamo.config
import torch._dynamo.testing
from pythons import run_python

import bothways
from bothways import errors
from bothways.api.dropin import names, table
from bothways.api.dropin.changes import Change, Ledger
from bothways.api.dropin.installer import MODULES
from bothways.record.counters import counters


@pytest.fixture
def installed():
    bothways.install()
    yield
    bothways.uninstall()


def imported(name: str) -> types.ModuleType | None:
    """A module, or None where it needs a library, other than PyTorch, that is away: ``expecttest``, say."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "torch":
            raise
        return None


def state_of_pytorch() -> dict[tuple[str, str], object]:
    """Every attribute of every module the drop-in speaks of, and what else it links."""
    modules = [module for module in map(imported, MODULES) if module is not None]
    state = {(module.__name__, name): value for module in modules for name, value in vars(module).items()}
    state |= {("bases", name): getattr(errors, name).__bases__ for name in names.ERRORS}
    state["class", "config"] = type(torch._dynamo.config)
    state["groups", "counters"] = id(counters.groups)
    return state


# Putting it in place and taking it out --------------------------------------------------------------------


def test_uninstall_restores_everything():
    before = state_of_pytorch()
    bothways.install()
    assert torch.compile is not before["torch", "compile"]
    bothways.uninstall()
    assert state_of_pytorch() == before


def test_installing_twice_is_installing_once():
    before = state_of_pytorch()
    bothways.install()
    once = state_of_pytorch()
    bothways.install()
    assert state_of_pytorch() == once
    bothways.uninstall()
    assert state_of_pytorch() == before


def test_uninstall_without_install_does_nothing():
    before = state_of_pytorch()
    bothways.uninstall()
    assert state_of_pytorch() == before


def test_every_row_has_a_target_in_this_version_of_pytorch():
    missing = []
    for row in table.ROWS:
        owner: object = imported(row.module)
        if owner is None:
            continue
        for part in row.name.split("."):
            owner = getattr(owner, part, None)
        missing += [f"{row.module}.{row.name}"] * (owner is None)
    assert set(missing) <= {"torch._dynamo.test_case.reset"}  # PyTorch 2.15 calls that of torch._dynamo there


def test_a_row_that_fails_leaves_nothing_changed(monkeypatch):
    before = state_of_pytorch()
    broken = (*table.ROWS, table.DropInRow("torch.compiler", "no_such_name", None, required=True))
    monkeypatch.setattr("bothways.api.dropin.installer.ROWS", broken)
    with pytest.raises(AttributeError, match=r"torch\.compiler\.no_such_name"):
        bothways.install()
    assert state_of_pytorch() == before
    bothways.uninstall()
    assert state_of_pytorch() == before


def test_what_another_library_puts_in_a_changed_place_stays():
    theirs = torch.compile
    bothways.install()
    torch.compile = of_another = lambda fn: fn
    bothways.uninstall()
    assert torch.compile is of_another
    torch.compile = theirs


def test_a_ledger_finds_the_original_of_a_value_it_put_there_itself():
    class First:
        name = "original"

    class Second:
        name = "another"

    ledger, ours = Ledger(), "ours"
    ledger.make(Change(First, "name", ours))
    Second.name = First.name  # as in a module that imports the name from First after the change
    ledger.make(Change(Second, "name", ours))
    assert (ledger.before(First, "name"), ledger.before(Second, "name")) == ("original", "original")
    ledger.undo()
    assert (First.name, Second.name) == ("original", "original")


LATE = """
import sys, torch
import bothways
bothways.install()
import torch.compiler
late = "torch._dynamo" not in sys.modules
import torch._dynamo
from torch._dynamo.exc import Unsupported
assert torch._dynamo.reset.__module__ == torch._dynamo.optimize.__module__ == "bothways.api.dropin.facades"
assert issubclass(bothways.errors.Unsupported, Unsupported)
assert torch._dynamo.eval_frame.__loader__.get_source("torch._dynamo.eval_frame")
import torch._dynamo.testing
assert torch._dynamo.testing.reset is torch._dynamo.reset
bothways.uninstall()
assert torch._dynamo.testing.reset is torch._dynamo.reset
assert torch._dynamo.reset.__module__ == "torch._dynamo"
assert torch._dynamo.lookup_backend is torch._dynamo.backends.registry.lookup_backend
assert torch._dynamo.lookup_backend.__module__ == "torch._dynamo.backends.registry"
assert not issubclass(bothways.errors.Unsupported, Unsupported)
assert "torch._inductor.compile_fx" not in sys.modules
print("late" if late else "early")
"""


def test_modules_imported_after_install_are_changed_too():
    root = str(Path(__file__).parent.parent.parent)
    finished = run_python(["-c", LATE], cwd=root)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "late\n"


# Compiling -------------------------------------------------------------------------------------------------


def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x.sin() * by


def test_torch_compile_compiles_here(installed):
    graphs = bothways.testing.CompileCounter()
    compiled = torch.compile(scaled, backend=graphs)
    x = torch.randn(3)
    assert torch.equal(compiled(x), scaled(x))
    assert (graphs.frame_count, graphs.op_count) == (1, 2)
    assert counters["stats"]["unique_graphs"] >= 1


@pytest.mark.parametrize(
    "decorate",
    [
        lambda fn: torch.compile(fn),
        lambda fn: torch.compile(backend="eager")(fn),
        lambda fn: torch.compile(fn, mode="reduce-overhead"),
        lambda fn: torch.compile(fn, backend="native", mode="max-autotune"),
        lambda fn: torch.compile(fn, options={"triton.cudagraphs": True}),
        lambda fn: torch.compile(fn, fullgraph=True, dynamic=False, backend="aot_eager"),
        lambda fn: torch.compiler.compile(fn, backend="inductor"),
        lambda fn: torch._dynamo.optimize("inductor")(fn),
        lambda fn: torch._dynamo.optimize("eager", nopython=True)(fn),
        lambda fn: torch._dynamo.optimize_assert("aot_eager")(fn),
    ],
)
def test_every_way_of_compiling(installed, decorate):
    bothways.reset()
    x = torch.randn(3)
    loaded = set(sys.modules)
    torch.testing.assert_close(decorate(scaled)(x), scaled(x))
    assert counters["stats"]["unique_graphs"] == 1
    assert "torch._inductor.compile_fx" not in sys.modules.keys() - loaded


def test_arguments_that_pytorch_does_not_take_raise(installed):
    with pytest.raises(TypeError, match="no_python"):
        torch._dynamo.optimize("eager", no_python=True)
    with pytest.raises(RuntimeError, match="mode or options"):
        torch.compile(scaled, mode="default", options={"max_autotune": True})


def test_a_context_compiles_nothing(installed):
    with pytest.raises(RuntimeError, match="context manager"), torch._dynamo.optimize("eager"):
        pass
    bothways.reset()
    with torch._dynamo.config.patch(raise_on_ctx_manager_usage=False), torch._dynamo.optimize("eager"):
        scaled(torch.ones(3))
    assert not counters["stats"]


def test_a_module_compiled_in_place(installed):
    module = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = module(x)
    graphs = bothways.testing.CompileCounter()
    module.compile(backend=graphs)
    torch.testing.assert_close(module(x), expected)
    assert graphs.frame_count == 1


def test_a_backend_is_passed_its_settings(installed):
    seen = {}

    def backend(gm, example_inputs, **settings):
        seen.update(settings)
        return gm.forward

    torch.compile(scaled, backend=backend, options={"level": 3})(torch.randn(3))
    assert seen == {"options": {"level": 3}}


def test_a_class_is_compiled_through_its_instances(installed):
    graphs = bothways.testing.CompileCounter()

    @torch.compile(backend=graphs)
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x * 2

    @torch.compile(backend=graphs)
    class Tripled:
        def __call__(self, x):
            return x * 3

    x = torch.randn(3)
    assert torch.equal(Doubled()(x), x * 2) and torch.equal(Tripled()(x), x * 3)
    assert graphs.frame_count == 2


def test_compiling_can_be_switched_off_from_outside(installed, monkeypatch):
    graphs = bothways.testing.CompileCounter()
    with torch._dynamo.config.patch(disable=True):
        torch.compile(scaled, backend=graphs)(torch.randn(3))
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    torch.compile(scaled, backend=graphs)(torch.randn(3))
    assert graphs.frame_count == 0


def test_reset_is_for_both(installed):
    graphs = bothways.testing.CompileCounter()
    compiled = torch.compile(scaled, backend=graphs)
    compiled(torch.randn(3))
    torch._dynamo.reset()
    compiled(torch.randn(3))
    torch.compiler.reset()
    compiled(torch.randn(3))
    assert graphs.frame_count == 3


def test_is_compiling(installed):
    def f(x):
        return x + (1 if torch.compiler.is_compiling() else 2)

    def g(x):
        return x + (1 if torch._dynamo.is_compiling() else 2)

    x = torch.zeros(1)
    for function in (f, g):
        assert function(x).item() == 2
        assert torch.compile(function, backend="eager", fullgraph=True)(x).item() == 1


def test_marks_on_functions(installed):
    @torch.compiler.disable
    def a(x):
        return x + 1

    @torch._dynamo.disable(recursive=False, reason="prints")
    def b(x):
        return x + 1

    @torch._dynamo.assume_constant_result
    def c():
        return 4

    (d,) = torch._dynamo.allow_in_graph([scaled])
    x = torch.ones(1)
    assert (a(x).item(), b(x).item(), c()) == (2, 2, 4)
    for disabled in (a, b):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(lambda x: disabled(x) + 1, backend="eager", fullgraph=True)(x)
    assert torch.compile(lambda x: x + c(), backend="eager", fullgraph=True)(x).item() == 5
    graphs = bothways.testing.CompileCounter()
    assert torch.equal(torch.compile(lambda x: d(x), backend=graphs)(x), scaled(x))
    assert graphs.op_count == 1
    bothways.runtime.marks.unmark(scaled)


def test_marks_on_tensors(installed):
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    torch._dynamo.maybe_mark_dynamic(x, [0, 1])
    torch._dynamo.mark_static(x, 1)
    assert torch.equal(torch.compile(scaled, backend="eager")(x), scaled(x))


def test_a_graph_break(installed):
    def f(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    x = torch.randn(3)
    assert torch.equal(torch.compile(f, backend="eager")(x), f(x))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="eager", fullgraph=True)(x)


# Backends --------------------------------------------------------------------------------------------------


def test_every_translated_backend_is_one_of_ours():
    assert set(names.BACKENDS.values()) <= set(bothways.list_backends())


def test_listing_backends(installed):
    assert {"inductor", "native"} <= set(torch._dynamo.list_backends())
    assert "eager" not in torch._dynamo.list_backends()
    assert {"eager", "aot_eager"} <= set(torch.compiler.list_backends(exclude_tags=()))


def test_a_backend_registered_with_pytorch_is_found(installed):
    graphs = []

    @torch._dynamo.register_backend(name="test_dropin_backend")
    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    try:
        torch.compile(scaled, backend="test_dropin_backend")(torch.randn(3))
        assert len(graphs) == 1
        assert "test_dropin_backend" in torch._dynamo.list_backends()
    finally:
        registry = torch._dynamo.backends.registry
        registry._BACKENDS.pop("test_dropin_backend"), registry._COMPILER_FNS.pop("test_dropin_backend")


def test_a_backend_that_is_not_known(installed):
    with pytest.raises(torch._dynamo.exc.InvalidBackend, match="no_such_backend.*inductor"):
        torch.compile(scaled, backend="no_such_backend")


# Explaining ------------------------------------------------------------------------------------------------


def test_explain_has_the_parts_pytorchs_has(installed):
    def f(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    found = torch._dynamo.explain(scaled)(torch.randn(3))
    assert (found.graph_count, found.graph_break_count, found.op_count) == (1, 0, 2)
    assert len(found.ops_per_graph[0]) == 2
    assert found.out_guards and str(found)
    found = torch._dynamo.explain(f)(torch.randn(3))
    assert found.graph_break_count == len(found.break_reasons) >= 1
    assert found.break_reasons[0].user_stack[-1].line == "torch._dynamo.graph_break()"


def test_explain_as_it_used_to_be_called(installed):
    with pytest.warns(FutureWarning, match="deprecated"):
        assert torch._dynamo.explain(scaled, torch.randn(3)).graph_count == 1


# Exceptions, configuration, counters -----------------------------------------------------------------------


def test_every_translated_error_is_caught_by_handlers_for_pytorchs():
    exc = torch._dynamo.exc
    bothways.install()
    for ours, theirs in names.ERRORS.items():
        for name in theirs:
            assert issubclass(getattr(errors, ours), getattr(exc, name))
    bothways.uninstall()
    for ours in names.ERRORS:
        assert not issubclass(getattr(errors, ours), exc.TorchDynamoException)


def test_an_error_keeps_what_it_carries(installed):
    error = errors.Unsupported(errors.Break("import", "an import"))
    assert error.break_.code == "import"
    assert error.msg == str(error)
    assert pickle.loads(pickle.dumps(error)).break_ == error.break_
    assert str(pickle.loads(pickle.dumps(errors.BackendFailed("it fell over")))) == "it fell over"


def test_a_backend_that_fails(installed):
    def backend(gm, example_inputs):
        raise ZeroDivisionError("in the backend")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="in the backend") as caught:
        torch.compile(scaled, backend=backend)(torch.randn(3))
    assert isinstance(caught.value.inner_exception, ZeroDivisionError)


def test_every_translated_flag_exists_on_both_sides(installed):
    for theirs, ours in names.CONFIG.items():
        assert getattr(torch._dynamo.config, theirs) == getattr(bothways.config, ours)


def test_flags_set_on_pytorch_reach_bothways(installed):
    config = torch._dynamo.config
    with config.patch(recompile_limit=3):
        assert bothways.config.recompile_limit == config.recompile_limit == 3
    with config.patch({"recompile_limit": 4, "verbose": True}):
        assert (bothways.config.recompile_limit, config.verbose) == (4, True)
    with config.patch("cache_size_limit", 5):
        assert bothways.config.recompile_limit == config.cache_size_limit == 5
    with unittest.mock.patch("torch._dynamo.config.error_on_recompile", True):
        assert bothways.config.error_on_recompile
    with unittest.mock.patch.object(config, "suppress_errors", True):
        assert bothways.config.suppress_errors
    config.recompile_limit = 6
    assert bothways.config.recompile_limit == 6
    config.recompile_limit = 8
    assert (bothways.config.error_on_recompile, bothways.config.suppress_errors) == (False, False)
    with pytest.raises(AttributeError):
        config.no_such_flag = 1


def test_a_flag_set_on_bothways_is_seen_on_pytorch(installed):
    with bothways.config.patch(recompile_limit=2):
        assert torch._dynamo.config.recompile_limit == 2


def test_flags_patched_by_a_decorator(installed):
    @torch._dynamo.config.patch(recompile_limit=3)
    def limit():
        return bothways.config.recompile_limit

    @torch._dynamo.config.patch(recompile_limit=4)
    class Case(unittest.TestCase):
        def runTest(self):
            self.assertEqual(bothways.config.recompile_limit, 4)

    assert limit() == 3
    outcome = unittest.TestResult()
    unittest.TestSuite([Case()]).run(outcome)
    assert outcome.wasSuccessful()
    assert bothways.config.recompile_limit == 8


def test_counters_are_shared(installed):
    torch._dynamo.utils.counters.clear()
    torch.compile(scaled, backend="eager")(torch.randn(3))
    seen = torch._dynamo.utils.counters
    assert seen["frames"]["ok"] == 1
    assert (seen["stats"]["unique_graphs"], seen["stats"]["calls_captured"]) == (1, 2)


# Tests written for PyTorch's compiler ----------------------------------------------------------------------


def test_tools_of_pytorchs_tests(installed):
    testing = torch._dynamo.testing
    x = torch.randn(3)
    for backend in (
        testing.CompileCounter(),
        testing.CompileCounterWithBackend("inductor"),
        testing.EagerAndRecordGraphs(),
    ):
        assert testing.same(torch.compile(scaled, backend=backend)(x), scaled(x))
    testing.standard_test(unittest.TestCase(), lambda a, b: a + b, 2, expected_ops=1)


def test_a_test_case_of_pytorchs_resets_bothways(installed):
    pytest.importorskip("expecttest")
    from torch._dynamo.test_case import TestCase

    graphs = bothways.testing.CompileCounter()
    compiled = torch.compile(scaled, backend=graphs)

    class Case(TestCase):
        def test_first(self):
            compiled(torch.randn(3))
            self.assertEqual(graphs.frame_count, 1)

        def test_second(self):
            compiled(torch.randn(3))
            self.assertEqual(graphs.frame_count, 2)

    outcome = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(outcome)
    assert outcome.wasSuccessful(), outcome.failures + outcome.errors


def test_operators_that_pytorch_compiles_for_itself_still_work(installed):
    def f(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.ones(2)
    assert torch.equal(f(x), x.sin())
    assert torch.equal(torch.compile(f, backend="eager")(x), x.sin())


def test_export_stays_pytorchs(installed):
    class Model(torch.nn.Module):
        def forward(self, x):
            return scaled(x) if torch.compiler.is_compiling() else x

    x = torch.randn(3)
    program = torch.export.export(Model(), (x,), strict=True)
    assert torch.equal(program.module()(x), scaled(x))
