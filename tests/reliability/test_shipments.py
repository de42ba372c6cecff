"""``cache.save`` and ``cache.load`` ship what was compiled to machines of one kind, and take nothing that is not."""

import io
import os
import zipfile

import pytest
import torch

import bothways
from bothways.building import build
from bothways.cache import portable
from bothways.cache.disk import CHECKSUMS, Cache, checksums, directory
from bothways.cache.portable import NotLoaded
from bothways.cache.trust import own_folder


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Puts the cache into an empty folder, as another machine has it."""

    def other(name):
        folder = tmp_path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(folder))
        build._loaded.clear()
        return Cache(own_folder(directory()))

    return other


def function(x):
    return (x.sin() * 3 + x.cos()).softmax(-1).sum()


def train():
    """A forward and a backward of one program; gives how often the C compiler was called."""
    bothways.reset()
    calls, run = [], build._run_compiler
    build._run_compiler = lambda *arguments: (calls.append(1), run(*arguments))[1]
    try:
        x = torch.linspace(0, 1, 64).reshape(8, 8).requires_grad_()
        bothways.compile(function)(x).backward()
        y = x.detach().clone().requires_grad_()
        function(y).backward()
        assert torch.allclose(x.grad, y.grad, atol=1e-6)
    finally:
        build._run_compiler = run
    return len(calls)


def test_what_one_machine_compiled_another_does_not_compile(machine, tmp_path):
    machine("first")
    assert train() > 0
    saved = bothways.cache.save(tmp_path / "kernels.zip")
    assert saved.entries > 3 and (tmp_path / "kernels.zip").stat().st_mode & 0o077 == 0
    second = machine("second")
    assert not second.keys()
    loaded = bothways.cache.load(tmp_path / "kernels.zip")
    assert (loaded.entries, loaded.left_out) == (saved.entries, 0)
    assert train() == 0
    again = bothways.cache.load(tmp_path / "kernels.zip")  # what is there stays
    assert again.entries == saved.entries and "entries" in str(again)


def rewritten(path, change):
    """A shipment whose files were changed by name."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(files).items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def shipment(machine, tmp_path):
    machine("first")
    train()
    bothways.cache.save(tmp_path / "kernels.zip")
    machine("second")
    return tmp_path / "kernels.zip"


def test_a_library_of_another_source_is_left_out(shipment):
    """Its checksums are right, and its key is not that of its source."""

    def change(files):
        key = next(name for name in files if name.endswith("kernels.so")).partition("/")[0]
        own = {name.partition("/")[2]: text for name, text in files.items() if name.startswith(key)}
        own["kernels.c"] = own["kernels.c"].replace(b"kernel_0", b"kernel_9")
        own.pop(CHECKSUMS)
        return files | {f"{key}/{name}": text for name, text in {**own, CHECKSUMS: checksums(key, own)}.items()}

    loaded = bothways.cache.load(rewritten(shipment, change))
    assert loaded.left_out == 1 and "another compiler" in str(loaded)
    assert train() > 0


def test_a_library_that_another_compiler_built_is_left_out(shipment, monkeypatch):
    monkeypatch.setattr(build, "working_tools", lambda cache: (_ for _ in ()).throw(bothways.errors.NoCompiler("none")))
    loaded = bothways.cache.load(shipment)
    assert loaded.left_out > 0 and loaded.entries > 0


def test_damaged_entries_and_names_that_lead_elsewhere_are_left_out(shipment, tmp_path):
    def change(files):
        name = next(name for name in files if name.endswith("program.py"))
        return files | {name: files[name] + b"#", "../../outside": b"x", f"{'0' * 64}/../../outside": b"x"}

    loaded = bothways.cache.load(rewritten(shipment, change))
    assert loaded.left_out == 1
    assert not list(tmp_path.rglob("outside"))


def test_a_shipment_of_another_version_is_left_out_as_a_whole(shipment):
    def change(files):
        return files | {"manifest": files["manifest"] + b"+"}

    loaded = bothways.cache.load(rewritten(shipment, change))
    assert loaded.entries == 0 and "another Python, PyTorch or bothways" in loaded.reason


def test_a_file_that_others_could_have_written_is_not_read(shipment):
    os.chmod(shipment, 0o666)
    with pytest.raises(NotLoaded, match="can be changed by other users"):
        bothways.cache.load(shipment)


def test_a_link_and_a_folder_of_others_are_not_followed(shipment, tmp_path):
    (tmp_path / "link.zip").symlink_to(shipment)
    with pytest.raises(NotLoaded):
        bothways.cache.load(tmp_path / "link.zip")
    place = tmp_path / "open"
    place.mkdir()
    os.rename(shipment, place / "kernels.zip")
    place.chmod(0o777)
    with pytest.raises(NotLoaded, match="can be changed by other users"):
        bothways.cache.load(place / "kernels.zip")


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_what_is_no_shipment_is_said_to_be_none(machine, tmp_path, content):
    machine("first")
    if content is None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("manifest", "something else")
        content = buffer.getvalue()
    path = tmp_path / "kernels.zip"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(NotLoaded, match="no shipment"):
        bothways.cache.load(path)


def test_a_missing_file_and_a_cache_that_is_off(machine, tmp_path):
    machine("first")
    with pytest.raises(NotLoaded):
        bothways.cache.load(tmp_path / "nothing.zip")
    with bothways.config.patch(kernel_cache=False):
        content, count = portable.packed()
        assert count == 0 and portable.unpacked(content).reason == "the cache is off"
