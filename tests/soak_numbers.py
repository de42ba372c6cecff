"""Templates of programs on Python's numbers: deep expressions over those that change from call to call.

``{i}`` is a whole number, ``{f}`` one with a fraction, ``{b}`` a truth, ``{s}`` a text. The first rows of each kind are
what an expression ends with.
"""

import random
import re

EXPRESSIONS = {
    "i": [
        "k", "j", "k", "j", "x.shape[0]", "x.shape[1]", "x.numel()", "len(x)", "x.dim()", "x.size(-1)", "x.stride(0)", "0", "1", "2", "3", "-1", "7", "-5",
        "10**12", "2**63", "BIG", "G", "({i} + {i})", "({i} - {i})", "({i} * {i})", "({i} // {i})", "({i} % {i})", "(-{i})", "abs({i})", "(~{i})",
        "({i} & {i})", "({i} | {i})", "({i} ^ {i})", "({i} << ({i} % 5))", "({i} >> ({i} % 5))", "(({i} % 7) ** ({i} % 4))", "pow({i} % 5, 3, 7)",
        "min({i}, {i})", "max({i}, {i}, {i})", "int({f})", "round({f})", "math.floor({f})", "math.ceil({f})", "math.trunc({f})", "divmod({i}, {i})[0]",
        "divmod({i}, {i})[1]", "({i} if {b} else {i})", "int({b})", "sum([{i}, {i}])", "len(range({i} % 9))", "len(range({i} % 9, {i} % 20, 2))",
        "({i}).bit_length()", "({i}).bit_count()", "math.gcd({i}, {i})", "math.isqrt(abs({i}))", "math.comb({i} % 6, {i} % 4)", "int({s})", "len({s})",
        "ord({s}[0])", "hash({i})", "[{i}, {i}, {i}][{i} % 3]", "({i}, {i})[{b}]", "{{0: {i}, 1: {i}}}[{i} % 2]", "int(str({i}))",
        "sorted([{i}, {i}, {i}])[1]", "sum(range({i} % 6))", "sum(v * v for v in range({i} % 5))", "[{i}, {i}].index({i})", "[{i}, {i}, {i}].count({i})",
        "(lambda q: q + {i})({i})", "({i} or {i})", "({i} and {i})", "operator.floordiv({i}, {i})", "operator.index({i})", "int(bool({i}))",
        "({i}).__add__({i})", "({i}).conjugate()", "({i}).real", "functools.reduce(operator.add, [{i}, {i}])", "math.prod([{i}, {i}])",
        "int(math.copysign({i}, {f}))", "abs(hash(({i}, {i}))) % 10", "math.factorial({i} % 6)", "int('{{}}'.format({i}))", "(w := {i})",
        "bin({i}).count('1')", "int(hex({i}), 16)", "({i}).to_bytes(20, 'big', signed=True)[-1]", "x[:{i}].shape[0]", "x[{i}:].shape[0]",
        "x[:, {i}:{i}].shape[1]", "torch.zeros({i} % 5).shape[0]", "x.reshape(-1)[:{i}].numel()", "torch.arange({i} % 9).shape[0]", "len(str({i}))",
        "round({i}, -1)", "int({f} // 1)", "int({i} / 3)", "int({f})",
    ],
    "f": [
        "f", "g", "f", "g", "0.5", "1.5", "-0.0", "2.5", "1e300", "1e-320", "0.1", "float({i})", "({f} + {f})", "({f} - {f})", "({f} * {f})", "({f} / {f})",
        "({f} // {f})", "({f} % {f})", "(-{f})", "abs({f})", "({f} ** 2)", "({i} / {i})", "({i} * {f})", "({f} + {i})", "({i} - {f})",
        "({f} if {b} else {f})", "min({f}, {f})", "max({f}, {i})", "math.sqrt(abs({f}))", "math.exp({f} % 3)", "math.log(abs({f}) + 1)", "math.sin({f})",
        "math.fmod({f}, {f})", "math.copysign({f}, {f})", "round({f}, 2)", "round({f}, {i} % 3)", "math.hypot({f}, {f})", "math.atan2({f}, {f})",
        "divmod({f}, {f})[1]", "float(str({f}))", "sum([{f}, {i}])", "({f} or {f})", "math.pow(abs({f}), 0.5)", "float({b})", "({f}).real",
        "math.fsum([{f}, {f}])", "math.ldexp({f}, {i} % 5)", "math.frexp({f})[0]", "math.modf({f})[0]", "float('{{:.3f}}'.format({f}))", "math.fabs({f})",
        "math.degrees({f})", "[{f}, {f}][{i} % 2]", "sorted([{f}, {f}])[0]", "math.tanh({f})", "(math.floor({f}) / 2)", "(2 ** {f})", "({f} ** 0.5)", "math.inf",
        "math.nan", "math.remainder({f}, {f})", "math.cbrt({f})", "(({i} % 5) ** -1)", "math.nextafter({f}, 0)", "math.dist([{f}], [{f}])",
        "float.fromhex({f}.hex())", "math.expm1({f} % 2)", "math.ulp({f})",
    ],
    "b": [
        "flag", "({i} < {i})", "({i} == {i})", "({i} != {f})", "({f} <= {f})", "({f} > {f})", "({f} == {f})", "({i} <= {i} < {i})", "(not {b})",
        "({b} and {b})", "({b} or {b})", "bool({i})", "bool({f})", "({i} in ({i}, {i}))", "({i} in [{i}, {i}])", "({i} in {{{i}, {i}}})",
        "({i} in range({i}))", "isinstance({i}, int)", "isinstance({b}, int)", "({b} ^ {b})", "({b} & {b})", "math.isnan({f})", "math.isclose({f}, {f})",
        "math.isfinite({f})", "{f}.is_integer()", "any([{b}, {b}])", "all(v < {i} for v in [{i}, {i}])", "({s} < {s})", "({s} == {s})", "{s}.isdigit()",
        "(type({i}) is int)", "(type({f}) is float)", "({i} % 2 == 0)", "(x.shape[0] == x.shape[1])", "(x.shape[0] > {i})", "((1, {i}) < ({i}, 2))",
        "([{i}] == [{i}])", "(x.shape == ({i}, {i}))", "callable({i})", "x.is_contiguous()", "({i} in x.shape)", "({b} is True)", "({b} == 1)", "bool({s})",
    ],
    "s": [
        "s", "'7'", "str({i})", "str({f})", "repr({f})", "('%d' % {i})", "('%5.2f|%s' % ({f}, {i}))", "'{{}}-{{}}'.format({i}, {f})",
        "'{{:08.3f}}'.format({f})", "hex({i})", "oct({i})", "bin({i})", "({s} + {s})", "({s} * ({i} % 3))", "{s}[{i} % 3:]", "{s}[::-1]",
        "{s}.zfill({i} % 9)", "{s}.rjust({i} % 9, '*')", "','.join([{s}, {s}])", "chr(65 + {i} % 20)", "str({b})", "repr([{i}, {f}])", "str(({i}, {b}))",
        "str(x.shape)", "format({i}, 'b')", "format({f}, '.1%')", "str({{'a': {i}}})", "({s} if {b} else {s})", "'abc'[{i} % 3]", "{s}.replace('1', '2')",
        "str(divmod({i}, {i}))", "('%r' % ({i},))", "str(range({i}))", "str(slice({i}, None))", "str({i} / {i})",
    ],
}  # fmt: skip
ENDS = {"i": 4, "f": 4, "b": 1, "s": 2}  # how many rows end an expression
HOLE = re.compile(r"\{\{|\}\}|\{([ifbs])\}")
WHOLE, FRACTIONS = [3, 4, -2, 0, 1, 100, 2**40, 5, 17], [0.5, -1.5, 2.0, 0.0, 3.25, 1e10, 7.0, -0.0]
OTHERS, TEXTS = ["1.5", "-2.5", "0.25", "4.0", "math.nan", "math.inf", "0.1"], ["12", "7", "ab", "3.5"]
ERRORS = "(ZeroDivisionError, ValueError, OverflowError, TypeError, IndexError, KeyError)"

HEAD = """import functools, math, operator
import torch
import bothways

BIG = 123456789
G = 5
STATE = ["G"]
GIVEN = [{given}]

def make(call):
    k, j, f, g, flag, s, n, m = GIVEN[call]
    return torch.randn(n, m), k, j, f, g, flag, s

def target(x, k, j, f, g, flag, s):
    global G
    y = x + 1
"""


class Writer:
    """Fills templates; deep ones first."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    def expression(self, kind: str, depth: int) -> str:
        rows = EXPRESSIONS[kind] if depth > 0 else EXPRESSIONS[kind][: ENDS[kind]]
        text = HOLE.sub(lambda hole: self._filled(hole, depth), self.random.choice(rows))
        if " for " in text and ":=" in text:  # which may not stand in what a comprehension goes over
            text = text.replace("(w := ", "(")
        return text

    def _filled(self, hole: re.Match[str], depth: int) -> str:
        """What stands for a hole; two braces are one, and those of what was put into holes stay as they are."""
        return self.expression(hole[1], depth - 1) if hole[1] else hole[0][0]

    def call(self) -> str:
        values = [self.random.choice(WHOLE), self.random.choice([3, -4, 2, 0, 6, -7]), self.random.choice(FRACTIONS)]
        sizes = self.random.choice([2, 3, 4]), self.random.choice([2, 3, 5])
        rest = [self.random.random() < 0.5, self.random.choice(TEXTS), *sizes]
        return f"({', '.join([*map(repr, values), self.random.choice(OTHERS), *map(repr, rest)])})"

    def statement(self, number: int) -> str:
        kind = self.random.choice("iifffbs")
        text = self.expression(kind, self.random.choice([2, 3, 3, 4]))
        lines = [f"try:\n    r{number} = {text}\nexcept {ERRORS} as e:\n    r{number} = type(e).__name__ + str(e)"]
        if kind in "if" and self.random.random() < 0.3:
            name = f"r{number}"
            lines.append(f"y = y * ({name} if type({name}) in (int, float) and -1000 < {name} < 1000 else 2)")
        if self.random.random() < 0.15:
            yes, no = f"k = {self.expression('i', 1)} % 50", f"f = {self.expression('f', 1)}"
            branch = f"if {self.expression('b', 2)}:\n        {yes}\n    else:\n        {no}"
            lines.append(f"try:\n    {branch}\nexcept {ERRORS}:\n    pass")
        lines += ["G = (G + k) % 100"] * (self.random.random() < 0.1)
        lines += ["bothways.graph_break()"] * (self.random.random() < 0.1)
        return "\n".join(lines)


def program(source: random.Random, statements: int = 14) -> str:
    """The source of one program: ``make`` gives the arguments of ``target``."""
    writer = Writer(source)
    calls = [writer.call() for _ in range(4)]
    given = ", ".join([calls[0], *calls])
    body = "\n".join(writer.statement(number) for number in range(statements)).replace("\n", "\n    ")
    results = ", ".join(f"r{number}" for number in range(statements))
    return f"{HEAD.format(given=given)}    {body}\n    return y, [{results}], G, k, f\n"
