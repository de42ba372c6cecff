"""Which folders and files of the cache are believed: those that no other user can have written, from the root on."""

import errno
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
import torch

import bothways
from bothways.backends.native import native
from bothways.building import build as building
from bothways.building.build import CSource, build
from bothways.cache import trust
from bothways.cache.disk import CHECKSUMS, Cache, checksums, is_key, open_cache, whole_files
from bothways.cache.trust import Untrusted, own_folder, read_own_files, safe_folder
from bothways.errors import KernelWarning, warn_once
from bothways.testing import same

TWICE = CSource((), ("int twice(int x) { return 2 * x; }\n",))
PLANTED = CSource((), ("int twice(int x) { return 666; }\n",))
OTHER_USER = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def forget():
    building._loaded.clear()
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where caches are put; the folder that is used is below."""
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield tmp_path
    forget()


def plant(folder):
    """An entry with another user's code, whole in every other respect."""
    folder.mkdir(mode=0o700, exist_ok=True)
    cache, key = Cache(folder), building.library_key(TWICE, building.toolchain())
    with cache.workplace() as workplace:
        building._compile(PLANTED, building.toolchain(), workplace)
        for path in workplace.glob("0.*"):
            path.unlink()
        (workplace / building.SOURCE).write_text("")
        assert cache.add(key, workplace)
    return folder / key


def answer():
    """What is computed now, and what people are told."""
    forget()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = build(TWICE).twice(21)
    return found, " ".join(str(warning.message) for warning in seen if warning.category is KernelWarning)


def test_what_is_planted_would_be_loaded_from_a_folder_of_our_own(place):
    plant(place / "cache")
    assert answer() == (666, "")


# Links ---------------------------------------------------------------------------------------------------------


@as_root
def test_a_link_of_another_user_is_not_followed(place):
    plant(place / "planted")
    (place / "cache").symlink_to(place / "planted")
    os.lchown(place / "cache", OTHER_USER, OTHER_USER)
    found, told = answer()
    assert found == 42 and "cache is a link that belongs to another user" in told


@as_root
def test_nor_is_one_on_the_way(place, monkeypatch):
    (place / "planted").mkdir(mode=0o700)
    plant(place / "planted" / "cache")
    (place / "way").symlink_to("planted")
    os.lchown(place / "way", OTHER_USER, OTHER_USER)
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(place / "way" / "cache"))
    found, told = answer()
    assert found == 42 and "way is a link that belongs to another user" in told


@as_root
def test_nor_is_one_behind_a_link_of_our_own(place):
    plant(place / "planted")
    (place / "theirs").symlink_to("planted")
    os.lchown(place / "theirs", OTHER_USER, OTHER_USER)
    (place / "cache").symlink_to("theirs")
    found, told = answer()
    assert found == 42 and "theirs is a link that belongs to another user" in told


def test_links_of_our_own_are_followed(place):
    (place / "deep" / "er").mkdir(parents=True, mode=0o700)
    (place / "deep" / "er" / "link").symlink_to("../../real")
    (place / "cache").symlink_to(place / "deep" / "er" / "link")
    (place / "real").mkdir(mode=0o700)
    assert answer() == (42, "")
    assert any(is_key(path.name) for path in (place / "real").iterdir())
    assert open_cache().root == (place / "real").resolve()


def test_links_in_a_circle_are_a_warning(place):
    (place / "cache").symlink_to("other")
    (place / "other").symlink_to("cache")
    found, told = answer()
    assert found == 42 and "too many links" in told


def test_a_link_to_nowhere_makes_the_folder(place):
    (place / "cache").symlink_to("not/yet")
    assert answer() == (42, "")
    assert [(place / name).stat().st_mode & 0o777 for name in ("not", "not/yet")] == [0o700, 0o700]


# Folders -------------------------------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("name", ["cache", "."])
def test_a_folder_of_another_user_is_not_used(name, place):
    entry = plant(place / "cache")
    os.chown(place / name, OTHER_USER, OTHER_USER)
    found, told = answer()
    assert found == 42 and "belongs to another user" in told
    assert entry.exists()


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o707])
def test_a_folder_below_one_that_all_users_can_write_is_not_used(mode, place, monkeypatch):
    (place / "open").mkdir()
    plant(place / "open" / "cache")
    (place / "open").chmod(mode)
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(place / "open" / "cache"))
    found, told = answer()
    assert found == 42 and "open can be changed by other users" in told


def test_below_one_like_the_temporary_folder_it_is(place, monkeypatch):
    (place / "open").mkdir()
    (place / "open").chmod(0o1777)
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(place / "open" / "cache"))
    assert answer() == (42, "")
    assert open_cache() is not None


def test_in_one_like_the_temporary_folder_it_is_not(place):
    plant(place / "cache")
    (place / "cache").chmod(0o1777)
    found, told = answer()
    assert found == 42 and "cache can be changed by other users" in told


def test_a_group_of_our_own_is_no_other_user(place, monkeypatch):
    (place / "shared").mkdir()
    (place / "shared").chmod(0o770)
    monkeypatch.setattr(trust, "_is_own_group", lambda gid: True)
    assert own_folder(place / "shared" / "cache").exists()
    monkeypatch.setattr(trust, "_is_own_group", lambda gid: False)
    with pytest.raises(Untrusted, match="shared can be changed by other users"):
        own_folder(place / "shared" / "cache")
    with pytest.raises(Untrusted):  # the cache itself is ours alone
        monkeypatch.setattr(trust, "_is_own_group", lambda gid: True)
        own_folder(place / "shared")


@as_root
def test_a_group_with_others_in_it_is_another_user(place):
    (place / "shared").mkdir()
    os.chown(place / "shared", 0, 4)
    (place / "shared").chmod(0o775)
    with pytest.raises(Untrusted, match="can be changed by other users"):
        safe_folder(place / "shared")


@as_root
def test_the_home_of_another_user_is_one_warning_and_no_cache(place, monkeypatch):
    (place / "home").mkdir(mode=0o755)
    os.chown(place / "home", OTHER_USER, OTHER_USER)
    monkeypatch.delenv("BOTHWAYS_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(place / "home"))
    x = torch.randn(5)
    with pytest.warns(KernelWarning, match="home belongs to another user; set BOTHWAYS_CACHE_DIR") as seen:
        for factor in (2, 3):
            function = lambda x, factor=factor: x.sin() * factor  # noqa: E731
            assert same(bothways.compile(function, backend=native)(x), function(x))
    assert len([warning for warning in seen if warning.category is KernelWarning]) == 1
    assert list((place / "home").iterdir()) == []


def test_a_temporary_folder_that_all_users_can_write_is_not_built_in(place, monkeypatch):
    (place / "open").mkdir()
    (place / "open").chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(place / "open"))
    assert answer() == (42, "")  # in the cache
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(place / "open" / "cache"))
    forget()
    x = torch.randn(5)
    with pytest.warns(KernelWarning, match="there is no temporary folder: .*open can be changed by other users"):
        assert same(bothways.compile(lambda x: x.sin() * 7, backend=native)(x), x.sin() * 7)
    building._troubles.clear()


# Files ---------------------------------------------------------------------------------------------------------


def replace_by_link(path, place):
    path.rename(place / "elsewhere")
    path.symlink_to(place / "elsewhere")


def give_another_name(path, place):
    os.link(path, place / "elsewhere")


def replace_by_pipe(path, place):
    path.unlink()
    os.mkfifo(path, 0o600)


def replace_by_folder(path, place):
    path.unlink()
    path.mkdir(mode=0o700)


def open_to_all(path, place):
    path.chmod(0o666)


def give_away(path, place):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, OTHER_USER, OTHER_USER)


HARMS = [replace_by_link, give_another_name, replace_by_pipe, replace_by_folder, open_to_all, give_away]


@pytest.mark.parametrize("name", ["kernels.so", "checksums"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_may_be_another_users_is_built_again(harm, name, place):
    assert answer() == (42, "")
    [entry] = [path for path in (place / "cache").iterdir() if is_key(path.name)]
    harm(entry / name, place)
    found, told = answer()
    assert found == 42 and "entries of the cache are not used" in told
    assert answer() == (42, "")
    assert not (entry / name).is_symlink() and (entry / name).is_file()


def test_an_entry_that_is_a_link_is_not_loaded(place):
    entry = plant(place / "planted")
    (place / "cache").mkdir(mode=0o700)
    (place / "cache" / entry.name).symlink_to(entry)
    found, told = answer()
    assert found == 42 and "entries of the cache are not used" in told
    assert entry.exists() and answer() == (42, "")
    assert [path.name for path in (place / "cache").iterdir()] == [entry.name]  # and nothing is left of the link


def test_a_file_in_the_place_of_an_entry_is_removed(place):
    key = building.library_key(TWICE, building.toolchain())
    (place / "cache").mkdir(mode=0o700)
    (place / "cache" / key).write_text("")
    assert answer()[0] == 42 and answer() == (42, "")
    assert [path.name for path in (place / "cache").iterdir()] == [key]


def test_an_entry_under_another_name_is_not_loaded(place):
    entry = plant(place / "cache")
    other = CSource((), ("int twice(int x) { return x + x; }\n",))
    key = building.library_key(other, building.toolchain())
    shutil.copytree(entry, place / "cache" / key)
    forget()
    assert build(other).twice(21) == 42


def test_an_entry_that_cannot_be_opened_now_is_kept(place, monkeypatch):
    cache = Cache(own_folder(place / "cache"))
    cache.keep("a" * 64, {"text": "stays"})

    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch, pytest.warns(KernelWarning, match="too many open files"):
        patch.setattr(trust.os, "listdir", refuse)
        assert cache.read("a" * 64) is None
    assert cache.read("a" * 64) == {"text": b"stays"}


def test_where_warnings_are_errors_an_entry_is_an_error_once(place):
    cache = Cache(own_folder(place / "cache"))
    cache.keep("a" * 64, {"text": "goes"})
    (place / "cache" / ("a" * 64) / "text").chmod(0o666)
    with warnings.catch_warnings(), pytest.raises(KernelWarning, match="entries of the cache are not used"):
        warnings.simplefilter("error")
        cache.read("a" * 64)
    assert not (place / "cache" / ("a" * 64)).exists()


def test_what_is_read_is_what_was_stored(place):
    cache = Cache(own_folder(place / "cache"))
    cache.keep("a" * 64, {"text": "caf\xe9 \udcff", "facts.json": json.dumps([1])})
    assert cache.read("a" * 64) == {"text": "caf\xe9 \udcff".encode("utf-8", "surrogatepass"), "facts.json": b"[1]"}
    files = read_own_files(place / "cache" / ("a" * 64))
    assert whole_files("b" * 64, dict(files)) is None and whole_files("a" * 64, dict(files)) is not None
    assert files.pop(CHECKSUMS) == checksums("a" * 64, files)


def test_a_name_that_is_no_text_is_a_folder_like_any_other(place, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(place / "caf\udce9"))
    assert answer() == (42, "")
    assert any(is_key(path.name) for path in Path(place / "caf\udce9").iterdir())
