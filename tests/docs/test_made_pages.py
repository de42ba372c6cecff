"""The made parts of docs/ are what the code gives now: listings of the walk, API reference, figure."""

import doctest
import inspect
import pathlib
import sys
import xml.etree.ElementTree

import pytest
import torch

import bothways

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
sys.path.insert(0, str(DOCS / "making"))

import figure  # noqa: E402
import pages  # noqa: E402
import reference  # noqa: E402

# Bytecode, guards and graphs are those of the versions that constraints-dev.txt pins.
IS_PINNED = sys.version_info[:2] == (3, 11) and torch.__version__.startswith("2.13")
WALK = (DOCS / "walkthrough.md").read_text()


@pytest.fixture(scope="module")
def listings():
    return pages.listings()


@pytest.mark.skipif(not IS_PINNED, reason="listings are those of the pinned versions")
def test_the_walk_shows_what_the_code_gives_now(listings):
    assert pages.filled(WALK, listings) == WALK, "make docs"


def test_every_stage_gives_a_listing_and_every_listing_is_shown(listings):
    shown = [found[2] for found in pages.LISTING.finditer(WALK)]
    assert sorted(shown) == sorted(listings) and all(text.strip() for text in listings.values())
    assert "BINARY_OP" in listings["bytecode"] and "torch.relu" in listings["captured graph"]
    assert "aten.threshold_backward" in listings["joint graph"] and "aten.threshold_backward" in listings["backward"]
    assert "threshold_backward" not in listings["forward"] and "aten.log" in listings["forward"]
    assert "L['x'].shape == (64, 32)" in listings["guards"] and "x.shape == (64, 32)" in listings["program"]
    assert listings["loop tree of the forward"].startswith("kernel ") and "for (int64_t" in listings["C of the forward"]
    assert "seen.append(64)" in listings["program"] and "_bothways_miss(x, weight, seen)" in listings["dispatcher"]
    assert "register_hook" in listings["program with a hook"]
    assert listings["outcome with a hook"].count("forward") == 2


def test_the_walk_runs_as_the_plain_functions_do():
    import walkthrough

    for function in (walkthrough.loss_of, walkthrough.hooked_loss_of):
        results = []
        for call in (function, bothways.compile(function)):
            x, weight, seen = walkthrough.inputs()
            loss = call(x, weight, seen)
            loss.backward()
            results.append((loss, weight.grad, seen))
        assert bothways.testing.difference(*results) is None


@pytest.mark.parametrize("rows, saved", [(64, "(mean, relu, add)"), (4096, "(mean, relu)")])
def test_what_the_walk_says_of_saved_values_is_so(rows, saved):
    import walkthrough

    _, weight, seen = walkthrough.inputs()
    with bothways.config.patch(kernels_for_small_graphs=True, kernel_cache=False):
        compiled = bothways.compile(walkthrough.loss_of, backend="aot_eager")
        compiled(torch.ones(rows, 32), weight, seen)
    [forward] = bothways.history(compiled)[0].graphs_of("forward")
    assert str(forward).endswith(f"return {saved}")


def test_the_api_reference_is_up_to_date():
    if sys.version_info[:2] == (3, 11):
        assert reference.text() == (DOCS / "api.md").read_text(), "make docs"
    assert reference.text().count("### ") > 30


def test_every_public_name_is_in_the_reference():
    documented = {name.removeprefix("bothways.") for name in reference.public()}
    apart = {"config", "errors", "testing", *reference.MODULES}  # which have sections of their own
    assert set(bothways.__all__) - apart <= documented
    for module in ("testing", *reference.MODULES):
        assert {f"{module}.{name}" for name in getattr(bothways, module).__all__} <= documented


@pytest.mark.parametrize("name", reference.public())
def test_a_public_name_says_what_its_parameters_are_and_has_an_example(name):
    thing = reference.public()[name]
    text = inspect.getdoc(thing)
    assert text and ">>> " in text
    first = [line.split(":")[0] for line in text.split("\n") if line.startswith("- ``")]
    described = {word.strip("`, ") for line in first for word in line[2:].split(",")}
    assert described == set(reference.signature(thing).parameters)


@pytest.mark.parametrize("name", reference.public())
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    if name.startswith("bothways.cache."):  # all kernels of the other tests are much to pack and unpack
        monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    names = {"torch": torch, "bothways": bothways, "__name__": "example"}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(reference.public()[name]), names, name, None, 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    said = []
    runner.run(example, out=said.append)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("kind", reference.RECORDS, ids=lambda kind: kind.__name__)
def test_what_comes_back_says_what_its_parts_are(kind):
    assert kind.__doc__
    assert [name for name, value in reference.members(kind).items() if not inspect.getdoc(value)] == []


def test_the_words_of_the_figure_do_not_overlap():
    """In wide fonts of this height, a bold letter takes 9 pixels and another one 7, on the average of a line."""
    for stage in figure.ROAD:
        assert len(stage.name) * 9 <= figure.INDENT - 14, stage
        assert len(stage.says) * 7 <= figure.WIDTH - 80 - figure.INDENT, stage


def test_the_figure_is_up_to_date_and_has_every_stage():
    text = (DOCS / "road.svg").read_text()
    assert text == figure.text(), "make docs"
    assert xml.etree.ElementTree.fromstring(text).tag.endswith("svg")
    assert all(stage.name in text for stage in figure.ROAD)
    folders = [folder for stage in figure.ROAD for folder in stage.folder.split(", ")]
    assert all((DOCS.parent / "bothways" / folder).is_dir() for folder in folders)
