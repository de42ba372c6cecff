"""Regular expressions inside compiled functions: names of layers, versions, keys of state dicts."""

import re

import pytest
import torch
from agreeing import agree

import bothways
from bothways.testing import same

X = torch.ones(3)
LAYER = re.compile(r"(?P<kind>\w+)\.(\d+)")


def agree_on_texts(function, *texts):
    """A program for each text at most, and none for a text that was there before."""
    compiled = agree(function, lambda run, text: {"result": run(X, text)}, *texts, *texts, fullgraph=True)
    assert len(bothways.history(compiled)) <= len(texts)


def test_a_match_of_a_pattern_from_outside():
    def function(x, name):
        found = LAYER.search(name)
        if not found:
            return x
        return x * int(found[2]) + found.start(), found.group("kind"), found.groups(), found.groupdict(), found.span(1)

    agree_on_texts(function, "model.layers.12.weight", "layers.3", "nothing")


def test_functions_of_the_module():
    def function(x, name):
        parts = re.split(r"\.", name, maxsplit=2)
        renamed = re.sub(r"layers\.(\d+)", r"blocks[\1]", name, flags=re.IGNORECASE)
        counted = re.subn("a", "b", name)
        whole = re.fullmatch(r"[a-z.]+", name) is None
        first = re.match(name[:1], name).end()
        return x * len(parts) + first, parts, renamed, counted, whole, re.findall(r"\d", name), re.escape(name)

    agree_on_texts(function, "model.Layers.12.weight", "alpha.beta")


def test_all_matches_one_after_the_other():
    def function(x, text):
        total, found = x, re.finditer(r"(\d)", text)
        for match in found:
            total = total * int(match.group(1)) + match.end()
        return total, list(LAYER.finditer(text)) == []

    agree_on_texts(function, "1 2 3", "", "7")


def test_a_pattern_that_is_made_inside_and_one_that_is_returned():
    def function(x, text):
        pattern = re.compile(text + r"\d", re.I)
        return x + pattern.groups, pattern, pattern.pattern, pattern.flags, pattern == re.compile(text + r"\d", re.I)

    agree_on_texts(function, "a", "b")


def test_another_pattern_is_another_program():
    def function(x, pattern):
        return x + 1 if pattern.match("layer") else x - 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for pattern in ("l", "m", "l", "L"):
        for flags in (0, re.I):
            made = re.compile(pattern, flags)
            assert same(compiled(X, made), function(X, made))


def test_a_match_that_is_returned():
    def function(x, text):
        return x + 1, re.match("(a)(b)?", text)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        (mine, match), (theirs, other) = compiled(X, "ab"), function(X, "ab")
        assert same(mine, theirs) and match.groups() == other.groups() and match.regs == other.regs


def test_patterns_that_are_wrong_raise_what_python_raises():
    def function(x, text):
        try:
            re.compile(text)
        except re.error as error:
            return x + 1, str(error)
        return x

    agree_on_texts(function, "(", "a")


@pytest.mark.parametrize("use", ["function", "method"])
def test_a_function_that_replaces_is_left_to_python(use):
    seen = []

    def replace(match):
        seen.append(match[0])
        return match[0].upper()

    def function(x, text):
        made = re.sub("a", replace, text) if use == "function" else re.compile("a").sub(replace, text)
        return x + len(made), made

    compiled = bothways.compile(function, backend="eager")
    for _ in range(2):
        assert same(compiled(X, "banana"), function(X, "banana"))
    assert seen == ["a"] * 12


def test_versions_are_compared():
    version = pytest.importorskip("packaging.version")

    def function(x, text):
        return x + 1 if version.parse(text) >= version.parse("2.1") else x - 1

    agree_on_texts(function, "2.0.1", "2.13.0+cpu", "2.1")
