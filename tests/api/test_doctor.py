"""``bothways.doctor()`` says what there is, what is wrong, and how to mend it, in one screen."""

import os
from types import SimpleNamespace

import pytest
import torch

import bothways
from bothways.__main__ import main
from bothways.api import doctor as checks
from bothways.api.doctor import Diagnosis, Finding, Health


def test_a_machine_where_everything_works_is_fine():
    diagnosis = bothways.doctor()
    assert diagnosis.is_fine, str(diagnosis)
    assert [finding.state for finding in diagnosis.findings if finding.what in ("C compiler", "example")] == [
        Health.FINE, Health.FINE,
    ]  # fmt: skip
    assert "kernels, forward and backward, give the same results as plain PyTorch" in str(diagnosis)


def test_it_fits_a_screen_and_reads_by_itself():
    diagnosis = bothways.doctor()
    lines = str(diagnosis).splitlines()
    assert len(lines) <= 30 and repr(diagnosis) == str(diagnosis)
    assert all(finding.advice for finding in diagnosis.wrong)


def test_no_compiler_is_wrong_and_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    [finding] = list(checks._compiler())
    assert finding.state is Health.WRONG and "no-such-compiler" in finding.seen
    assert "apt install gcc" in finding.advice


def test_a_compiler_that_refuses_is_asked_and_quoted(monkeypatch, tmp_path):
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho 'kernels.c: the license has expired' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    [finding] = list(checks._compiler())
    assert finding.state is Health.WRONG and "license has expired" in finding.seen


def test_a_cache_that_others_can_write_to_is_wrong(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(folder))
    [finding] = list(checks._cache())
    assert finding.state is Health.WRONG and "can be changed by other users" in finding.seen
    assert "chmod go-w" in finding.advice


def test_a_cache_that_is_no_folder_is_wrong(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "file"))
    [finding] = list(checks._cache())
    assert finding.state is Health.WRONG and "no folder" in finding.seen


def test_a_full_disk_and_a_cache_that_is_off_are_notes(monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert [finding.state for finding in checks._cache()] == [Health.NOTE]
    with bothways.config.patch(kernel_cache=False):
        [finding] = list(checks._cache())
    assert finding.state is Health.NOTE and "switched off" in finding.seen


def test_settings_that_are_not_the_usual_ones_are_named(monkeypatch):
    monkeypatch.setenv("BOTHWAYS_LOGS", "")
    with bothways.config.patch(recompute=False):
        seen = [finding.seen for finding in checks._settings()]
    assert any("recompute=False" in text for text in seen)
    assert any(text.startswith("BOTHWAYS_LOGS=") for text in seen)


def test_kernels_that_give_wrong_numbers_are_found(monkeypatch):
    monkeypatch.setattr(checks, "difference", lambda plain, compiled: "result[0]: values differ")
    [finding] = list(checks._example())
    assert finding.state is Health.WRONG and "repro" in finding.advice


def test_kernels_are_tried_on_the_cpu_whichever_device_is_the_default():
    with torch.device("meta"):
        [finding] = list(checks._example())
    assert finding.state is Health.FINE


@pytest.mark.parametrize(
    "version, state", [("2.13.0+cpu", Health.FINE), ("2.10.1", Health.WRONG), ("3.0.0a0", Health.FINE)]
)
def test_a_torch_that_is_too_old_is_wrong(monkeypatch, version, state):
    monkeypatch.setattr(torch, "__version__", version)
    assert [finding.state for finding in checks._torch()] == [state]


def test_a_gpu_without_its_compiler_is_wrong(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA Z1", major=9, minor=0, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    def missing():
        raise checks.NoNVRTC("libnvrtc is nowhere")

    monkeypatch.setattr(checks, "nvrtc", missing)
    gpu, compiler = checks._gpus()
    assert gpu.seen == "NVIDIA Z1, sm_90, 80 GiB" and gpu.state is Health.FINE
    assert compiler.state is Health.WRONG and "bothways[cuda]" in compiler.advice


def test_a_check_that_fails_itself_is_a_finding(monkeypatch):
    def _breaks():
        raise RuntimeError("unheard of")
        yield

    monkeypatch.setattr(checks, "CHECKS", (_breaks,))
    diagnosis = bothways.doctor()
    assert not diagnosis.is_fine and "unheard of" in str(diagnosis)


def test_long_and_strange_texts_stay_on_their_line():
    text = str(Diagnosis((Finding("cache", "a\nb" + "c" * 300 + os.fsdecode(b"\xff")),)))
    assert len(text.splitlines()[0]) <= checks.WIDTH and len(text.splitlines()) == 2


def test_the_command_prints_it_and_its_status_says_whether_it_is_fine(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    assert "everything works" in capsys.readouterr().out
    monkeypatch.setattr(checks, "CHECKS", (lambda: iter([Finding("x", "y", Health.WRONG, "z")]),))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == "WRONG  x              y\n                      -> z\n1 wrong, 0 notes.\n"
    assert main(["doctor", "please"]) == 2
