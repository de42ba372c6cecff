"""Every name of ``torch.compiler`` works through the drop-in, or the table says in one line why not."""

import unicodedata

import pytest
import torch

import bothways
from bothways.api.dropin.compiler_names import NAMES, Fate
from bothways.api.dropin.table import ROWS
from bothways.capture.standins import STANDINS
from bothways.runtime.marks import Mark
from bothways.testing import same

OURS = {row.name: row.ours for row in ROWS if row.module == "torch.compiler"}


@pytest.fixture(autouse=True)
def installed():
    bothways.install()
    yield
    bothways.uninstall()


def test_every_name_of_pytorch_has_a_row():
    assert set(torch.compiler.__all__) <= set(NAMES)


# What PyTorch 2.13 has not, and 2.15 has.
NEWER = {"nonstrict_trace", "cudagraph_mark_warmup_incomplete", "precompile", "PrecompileError"}


@pytest.mark.skipif(not torch.__version__.startswith(("2.13", "2.15")), reason="the lists of two versions")
def test_every_row_is_a_name_of_pytorch():
    older = NEWER if torch.__version__.startswith("2.13") else set()
    assert set(NAMES) - older <= set(torch.compiler.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_says_who_does_it_and_in_one_line_what(name):
    row = NAMES[name]
    assert 10 < len(row.says) <= 100 and "\n" not in row.says
    if row.fate is Fate.OURS:
        assert callable(OURS[name]) and not isinstance(OURS[name], Mark)
    if row.fate is Fate.AS_IT_IS:
        assert name not in OURS


def test_filters_of_guards_are_accepted_and_every_guard_is_checked():
    if not hasattr(torch.compiler, "skip_all_guards_unsafe"):
        pytest.skip("a newer PyTorch has it")
    scale = torch.compile(
        lambda x, factor: x * factor, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    )
    assert [scale(torch.ones(1), factor).item() for factor in (2, 3, "no" and 4)] == [2, 3, 4]


def test_a_nested_region_is_inlined():
    if not hasattr(torch.compiler, "nested_compile_region"):
        pytest.skip("a newer PyTorch has it")

    @torch.compiler.nested_compile_region
    def block(x):
        return x.sin() * 2

    @torch.compiler.nested_compile_region(options=None)
    def other(x):
        return x.cos()

    x = torch.ones(3)
    compiled = torch.compile(lambda x: block(block(x)) + other(x), fullgraph=True)
    assert same(compiled(x), (x.sin() * 2).sin() * 2 + x.cos())


def test_python_is_captured_in_the_place_of_a_function_in_c():
    try:

        @torch.compiler.substitute_in_graph(unicodedata.decimal, skip_signature_check=True)
        def decimal(digit):
            return "0123456789".index(digit)

        compiled = torch.compile(lambda x, digit: x * unicodedata.decimal(digit), fullgraph=True)
        assert same(compiled(torch.ones(2), "4"), torch.full((2,), 4.0))
        assert same(compiled(torch.ones(2), "7"), torch.full((2,), 7.0))
        assert decimal("4") == 4
    finally:
        STANDINS.pop(unicodedata.decimal, None)
    with pytest.raises(TypeError):
        torch.compiler.substitute_in_graph(3)(lambda: None)


def test_defaults_stances_and_steps():
    torch.compiler.cudagraph_mark_step_begin()
    if hasattr(torch.compiler, "set_enable_guard_collectives"):
        torch.compiler.set_enable_guard_collectives(True)
    if hasattr(torch.compiler, "set_default_backend"):
        torch.compiler.set_default_backend("eager")
        try:
            assert torch.compiler.get_default_backend() == "eager"
            double = torch.compile(lambda x: x * 2)
            assert same(double(torch.ones(2)), torch.full((2,), 2.0))
            assert bothways.history(double)[0].backend == "eager"
        finally:
            torch.compiler.set_default_backend(None)
    with torch.compiler.set_stance("force_eager"):
        plain = torch.compile(lambda x: x * 3)
        plain(torch.ones(2))
        assert not bothways.history(plain)


def test_a_function_that_pytorch_would_not_look_into_is_captured():
    import torch._dynamo

    @torch._dynamo.nonstrict_trace
    def block(module, x):
        return module(x) + x

    module = torch.nn.Linear(3, 3)
    compiled = torch.compile(lambda x: block(module, x) * 2, fullgraph=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), (module(x) + x) * 2)
    with pytest.raises(AssertionError, match="expects a callable"):
        torch._dynamo.nonstrict_trace(3)


def test_asking_what_is_under_way():
    def asked(x):
        return x + torch.compiler.is_compiling() + 10 * torch.compiler.is_exporting()

    assert same(torch.compile(asked)(torch.zeros(1)), torch.ones(1))
    assert not torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def test_a_function_of_arrays_runs_inside():
    pytest.importorskip("numpy")
    import numpy

    @torch.compiler.wrap_numpy
    def total(x):
        return numpy.sum(x * 2)

    def use(x):
        return total(x) + 1

    assert same(float(torch.compile(use)(torch.ones(3))), 7.0)


def test_caches_travel_as_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))  # no kernels of other tests
    double = torch.compile(lambda x: (x.sin() * 2).exp())
    double(torch.ones(64))
    content, info = torch.compiler.save_cache_artifacts()
    assert isinstance(content, bytes) and info.entries > 0
    assert torch.compiler.load_cache_artifacts(content).entries > 0
