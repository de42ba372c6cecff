"""bothways.config: typed fields, errors that help, patch as context manager and decorator."""

import threading

import pytest
from pythons import run_python

from bothways.config import LOG_TOPICS, Config, config, parse_topics


@pytest.fixture(autouse=True)
def restored():
    before = config.as_dict()
    yield
    for name, value in before.items():
        setattr(config, name, value)


def test_defaults():
    fresh = Config(logs="")
    assert fresh.as_dict() == {
        "recompile_limit": 8,
        "error_on_recompile": False,
        "automatic_dynamic": True,
        "assume_static": True,
        "static_parameters": True,
        "numbers_from_data": False,
        "sizes_from_data": False,
        "inline_depth_limit": 100,
        "wasted_capture_ratio": 20,
        "suppress_errors": False,
        "capture_backward": False,
        "recompute": True,
        "exact_random": True,
        "kernels_for_small_graphs": False,
        "kernel_cache": True,
        "kernel_cache_megabytes": 256,
        "compiler_seconds": 120,
        "guards_in_c": True,
        "cuda_graphs": "auto",
        "logs": "",
    }
    assert "recompile_limit          = 8" in repr(fresh)


def test_reset_restores_the_defaults(monkeypatch):
    monkeypatch.setenv("BOTHWAYS_LOGS", "breaks")
    config.recompile_limit = 1
    config.reset()
    assert (config.recompile_limit, config.logs) == (8, "breaks")


def test_an_unknown_name_is_refused_with_the_close_one():
    with pytest.raises(AttributeError, match="did you mean 'recompile_limit'. the fields are recomp"):
        config.recompile_limits = 3
    with pytest.raises(AttributeError, match="'zzz'; the fields are recompile_limit, error_on_recompile, "):
        config.patch(zzz=3)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("recompile_limit", "8", "config.recompile_limit must be an int, not '8'"),
        ("recompile_limit", True, "config.recompile_limit must be an int, not True"),
        ("error_on_recompile", 1, "config.error_on_recompile must be a bool, not 1"),
        ("logs", ["breaks"], "config.logs must be a str, not"),
    ],
)
def test_a_wrong_type_is_refused(name, value, message):
    before = getattr(config, name)
    with pytest.raises(TypeError, match=message):
        setattr(config, name, value)
    with pytest.raises(TypeError, match=message):
        config.patch(**{name: value})
    assert getattr(config, name) == before


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="must not be negative: -1"):
        config.recompile_limit = -1


def test_log_topics():
    config.logs = " programs,Recompiles,programs "
    assert config.logs == "recompiles,programs"
    assert config.wants_log("programs") and not config.wants_log("breaks")
    assert parse_topics("all") == tuple(LOG_TOPICS)
    assert parse_topics("") == ()
    with pytest.raises(ValueError, match="no log topic 'recompile'; the valid topics are recompiles, breaks"):
        config.logs = "recompile"


def test_logs_start_from_the_environment(monkeypatch):
    monkeypatch.setenv("BOTHWAYS_LOGS", "graphs,breaks")
    assert Config().logs == "breaks,graphs"
    monkeypatch.setenv("BOTHWAYS_LOGS", "nonsense")
    with pytest.warns(UserWarning, match="BOTHWAYS_LOGS is ignored: no log topic 'nonsense'"):
        assert Config().logs == ""


def test_patch_as_context_manager_nests_and_restores():
    with config.patch(recompile_limit=2, suppress_errors=True) as patched:
        assert patched is config
        with config.patch(recompile_limit=1):
            assert (config.recompile_limit, config.suppress_errors) == (1, True)
        assert config.recompile_limit == 2
    assert (config.recompile_limit, config.suppress_errors) == (8, False)


def test_patch_restores_after_an_exception():
    with pytest.raises(ZeroDivisionError), config.patch(recompile_limit=2):
        config.recompile_limit = 5
        1 / 0
    assert config.recompile_limit == 8


def test_patch_changes_nothing_when_one_value_is_wrong():
    with pytest.raises(TypeError):
        config.patch(recompile_limit=2, suppress_errors="yes")
    assert config.recompile_limit == 8


def test_patch_as_decorator():
    @config.patch(recompile_limit=3)
    def limit(depth: int = 0) -> int:
        "What the limit is."
        return limit(depth - 1) if depth else config.recompile_limit

    assert limit.__name__ == "limit" and limit.__doc__ == "What the limit is."
    assert limit() == 3
    assert limit(2) == 3
    assert config.recompile_limit == 8


def test_one_patch_can_be_entered_again():
    patch = config.patch(recompile_limit=3)
    for _ in range(2):
        with patch, patch:
            assert config.recompile_limit == 3
        assert config.recompile_limit == 8


def test_patch_refuses_what_it_could_not_hold_for():
    def generator():
        yield config.recompile_limit

    for target in (generator, Config, 3):
        with pytest.raises(TypeError, match="config.patch decorates plain functions"):
            config.patch(recompile_limit=3)(target)


def test_patches_from_several_threads_restore_in_the_end():
    patch = config.patch(recompile_limit=3)

    @patch
    def work() -> None:
        assert config.recompile_limit == 3

    threads = [threading.Thread(target=lambda: [work() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert config.recompile_limit == 8


def test_the_package_exports_the_object():
    script = "import bothways, bothways.config as c; assert bothways.config is c; print(c.recompile_limit)"
    done = run_python(["-c", script])
    assert done.stdout.strip() == "8", done.stderr


@pytest.mark.parametrize("name", ["logs", "recompile_limit", "suppress_errors"])
def test_fields_cannot_be_deleted(name):
    before = getattr(config, name)
    with pytest.raises(AttributeError, match=f"config.{name} cannot be deleted"):
        delattr(config, name)
    assert getattr(config, name) == before
    with pytest.raises(AttributeError):
        del config.no_such_field
