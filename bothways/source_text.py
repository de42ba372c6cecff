"""The user's words in generated source: names become identifiers, anything else is harmless in a comment.

Attributes, keys, functions and files may be called anything: a name must not end a comment, hide a name that the
generated code uses, or keep a text from being written to a file.
"""

from __future__ import annotations

import keyword
import re
import unicodedata


def is_plain_name(name: str) -> bool:
    """Whether a name means itself in source text; ``setattr`` takes any string, and Python reads ``ﬁ`` as ``fi``."""
    if not name.isidentifier() or keyword.iskeyword(name) or name == "__debug__":
        return False
    return name.isascii() or unicodedata.normalize("NFKC", name) == name


def identifier(text: str, fallback: str = "value") -> str:
    """A name for a variable that reads like a text. It begins with a letter and is no keyword."""
    if text.isascii():
        name = "".join([letter if letter.isalnum() else "_" for letter in text]).strip("_")
    else:
        text = unicodedata.normalize("NFKC", text)
        # Not all that ``isalnum`` may be in a name: the exponent of a square metre is not.
        name = "".join([letter if f"a{letter}".isidentifier() else "_" for letter in text]).strip("_")
    if not name.isidentifier():
        return f"{fallback}_{name}" if name else fallback
    return f"{name}_" if keyword.iskeyword(name) or name == "__debug__" else name


# A string as ``repr`` writes it.
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def words_in(code: str) -> set[str]:
    """The names and numbers of generated Python, without what its strings say."""
    return set(re.findall(r"\w+", _LITERAL.sub("''", code)))


def printable(text: str) -> str:
    """A text on one line, with escapes for whatever is not to be seen, and for what no file can hold."""
    if text.isprintable():
        return text
    return "".join([letter if letter.isprintable() else _ESCAPES.get(letter) or _escaped(letter) for letter in text])


_ESCAPES = {"\t": " "}


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def in_comment(text: str) -> str:
    """A text as part of a comment of Python or C, which it cannot end and beyond whose line it cannot reach."""
    text = printable(text)
    for mark, harmless in _MARKS:
        text = text.replace(mark, harmless)
    # A backslash at the end of a line, blanks or not, makes C read on.
    return text.rstrip("\\ ")


_MARKS = (("*/", "* /"), ("/*", "/ *"), ("??", "? ?"))  # the last begins a trigraph, and ??/ is a backslash


def writable(text: str) -> str:
    """A text of many lines, with escapes for what no file can hold: halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def with_article(name: str) -> str:
    """``a list``, ``an Adam``."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def described(cls: type) -> str:
    """An instance of a class, as people call it."""
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return with_article(f"{module}{cls.__qualname__}")
