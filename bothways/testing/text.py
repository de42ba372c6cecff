"""Text of graphs in a form that tests can compare: no comments, no layout that varies.

Comments in a printed graph hold file names and line numbers, which change with every edit of a test.
"""

from __future__ import annotations


def normalize_gm(gm_str: str) -> str:
    """A printed GraphModule without comment lines and trailing spaces, and with runs of blank lines made one.

    A comment behind code on the same line stays, as types of results are written there.

    - ``gm_str``: what ``graph_module.print_readable(print_output=False)`` gives.

    >>> bothways.testing.normalize_gm("# a file\\nx = y  # f32[2]\\n\\n\\nreturn x")
    'x = y  # f32[2]\\n\\nreturn x'
    """
    kept: list[str] = []
    for line in gm_str.split("\n"):
        line = line.rstrip()
        is_comment = line.lstrip().startswith("#")
        repeats_blank = not line and bool(kept) and not kept[-1]
        if not is_comment and not repeats_blank:
            kept.append(line)
    return "\n".join(kept)
