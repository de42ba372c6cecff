"""Expressions inside compiled functions: comprehensions, unpacking, slices, comparisons, strings, names."""

import pytest
import torch
from programs import agree

X = torch.arange(4.0)


def both(expression):
    """A program of a tensor and a number that gives the expression's value beside a tensor."""

    def program(x, n):
        return x + n, expression(x, n)

    return program


# Comprehensions

COMPREHENSIONS = {
    "list": lambda x, n: [i * 2 for i in range(n)],
    "condition": lambda x, n: [i for i in range(n * 2) if i % 2 if i > 1],
    "nested loops": lambda x, n: [(i, j) for i in range(n) for j in range(i) if i + j > 1],
    "nested lists": lambda x, n: [[j * n for j in range(i)] for i in range(n)],
    "set": lambda x, n: sorted({i % 2 for i in range(n)}),
    "dict": lambda x, n: {str(i): i for i in range(n)},
    "dict of pairs": lambda x, n: {b: a for a, b in zip("abc", range(n))},
    "generator": lambda x, n: sum(i * i for i in range(n)),
    "outer variables": lambda x, n: [(n, k, m) for k in range(2) for m in [n + k]],
    "same name": lambda x, n: ([n for n in range(n)], n),
    "tensors": lambda x, n: sum([x * i for i in range(n)]),
    "in a lambda": lambda x, n: (lambda m: [i + m for i in range(n)])(5),
    "functions": lambda x, n: [f() for f in [lambda: i for i in range(n)]],
    "functions of both": lambda x, n: [f(1) for f in [lambda a: (a, i, n) for i in range(n)]],
    "starred": lambda x, n: [y for a, *b in [(1, 2, 3), (4, n)] for y in b],
    "conditional": lambda x, n: [i if i % 2 else -i for i in range(n)],
    "walrus": lambda x, n: [y for i in range(n) if (y := i * 3) > 2],
    "over a dict": lambda x, n: [k + v for k, v in {"a": "b", "c": str(n)}.items()],
    "over a string": lambda x, n: [c * n for c in "xyz"],
    "over a tensor": lambda x, n: [row + n for row in x],
}


@pytest.mark.parametrize("form", COMPREHENSIONS)
def test_comprehensions(form):
    agree(both(COMPREHENSIONS[form]), (X, 3), (X, 4))


def test_a_comprehension_leaves_the_variables_of_its_function_alone():
    def program(x, n):
        i, cell = "kept", "cell"
        read = lambda: cell
        first = [i for i in range(n)]
        second = [cell for cell in range(n)]
        makers = [lambda: cell for cell in range(n)]
        try:
            [unbound for unbound in range(n)]
            unbound
        except NameError as error:
            name = str(error)
        return x + n, i, cell, read(), first, second, [make() for make in makers], name

    agree(program, (X, 2), (X, 3))


def test_a_comprehension_that_raises_puts_the_variables_back():
    def program(x, n):
        i = "kept"
        try:
            [10 // (n - i) for i in range(n + 1)]
        except ZeroDivisionError as error:
            return x + n, i, str(error)

    agree(program, (X, 2), (X, 3))


def test_a_free_variable_may_share_its_name_with_a_comprehension():
    def program(x, n):
        value = n

        def inner():
            squares = [value for value in range(3)]
            return squares, value, [[value for value in range(k)] + [value] for k in range(2)]

        return x + n, inner()

    agree(program, (X, 2), (X, 3))


# Operators and conditions

OPERATORS = {
    "arithmetic": lambda x, n: (n + 2, n - 2, n * 2, n / 2, n // 2, n % 2, n**2, -n, +n, ~n),
    "bits": lambda x, n: (n << 2, n >> 1, n & 1, n | 8, n ^ 5),
    "comparison": lambda x, n: (n < 3, n <= 3, n == 3, n != 3, n > 3, n >= 3),
    "chain": lambda x, n: (1 < n < 4, 1 < n > 2 > 0, 0 == n - 3 == 0, 1 < n in [n] != []),
    "identity": lambda x, n: (n is None, n is not None, x is x, x is not x),
    "membership": lambda x, n: (n in [1, 3], n not in (1, 3), str(n) in "123", n in {3: 0}, n in {4}),
    "and or": lambda x, n: (n and 0, n or 5, 0 or n and "b", not n, not (n - 3), None or [] or n),
    "conditional": lambda x, n: "big" if n > 3 else "three" if n == 3 else "small",
    "matrix product": lambda x, n: x @ x * n,
    "tensor comparison": lambda x, n: (x < n, (x == n) | (x > 2), ~(x != n)),
    "precedence": lambda x, n: (2 + n * 3**2 // 4 - -n, (n := n + 1) * n),
    "strings": lambda x, n: ("a" * n + "b", "%s-%d" % ("a", n), "abc"[n - 3], "x" "y"),
    "none": lambda x, n: [v is None for v in (None, n)] + [1 if None is not None else 2],
}


@pytest.mark.parametrize("form", OPERATORS)
def test_operators(form):
    agree(both(OPERATORS[form]), (X, 3), (X, 4))


def test_and_or_do_not_evaluate_what_is_not_needed():
    def program(x, n):
        seen = []

        def see(value):
            seen.append(value)
            return value

        see(0) and see(1)
        see(n) or see(2)
        see(n) < see(5) < see(0) < see(9)
        see(3) if n else see(4)
        return x + n, seen

    agree(program, (X, 1), (X, 0))


def test_assignments_with_an_operator():
    def program(x, n):
        a = b = n
        a += 1
        a -= 5
        a *= 3
        a //= 2
        a **= 2
        a %= 7
        a <<= 2
        a |= 3
        a &= 14
        a ^= 5
        a >>= 1
        y = x + 0
        alias = y
        y += n
        numbers = more = [1]
        numbers += (n,)
        pair = same = (1,)
        pair += (n,)
        numbers[0] *= 10
        return a, b, y, alias, numbers, more, pair, same

    agree(program, (X, 3), (X, 4))


# Unpacking and slices

UNPACKING = {
    "tuple": lambda x, n: [(a, b) for a, b in [(1, n)]],
    "star first": lambda x, n: [(a, b) for *a, b in [range(n)]],
    "star last": lambda x, n: [(a, b) for a, *b in [range(n)]],
    "star middle": lambda x, n: [(a, b, c) for a, *b, c in ["x" * n]],
    "nested": lambda x, n: [(a, b, c) for (a, [b, c]) in [(1, (2, n))]],
    "display": lambda x, n: ([*range(n), 0, *"ab"], (*[1], *(2, n)), sorted({*[n], *[1]})),
    "dict display": lambda x, n: {**{"a": 1}, "b": n, **dict(a=3)},
    "tensor": lambda x, n: [a + d for a, b, c, d in [x]],
}


@pytest.mark.parametrize("form", UNPACKING)
def test_unpacking(form):
    agree(both(UNPACKING[form]), (X, 3), (X, 4))


def test_unpacking_assignments():
    def program(x, n):
        a, b = 1, n
        a, b = b, a
        (c, d), *rest = (a, b), n, n + 1
        e = f = [0] * 3
        e[0], e[1] = n, e[0]
        i, e[i] = 2, "i"
        [g] = {n}
        for h, (k, *m) in [(1, (2, 3)), (n, "abc")]:
            g += h
        return x + n, a, b, c, d, rest, e, f, g, k, m

    agree(program, (X, 3), (X, 4))


def test_unpacking_the_wrong_number_raises():
    def program(x, n):
        texts = []
        for values in (1,), range(n), "abc", ():
            try:
                a, b = values
            except ValueError as error:
                texts.append(str(error))
        try:
            a, *b, c = [n]
        except ValueError as error:
            texts.append(str(error))
        try:
            a, b = n
        except TypeError as error:
            texts.append(str(error))
        return x + n, texts

    agree(program, (X, 3), (X, 2))


def test_slices():
    def program(x, n):
        values = list(range(10))
        values[2:4] = "ab"
        values[::5] = [n, n]
        del values[-2:]
        start = slice(1, None, 2)
        text = "abcdefgh"
        picked = text[1:], text[:n], text[1:n], text[::-1], text[-n:-1], text[start], (1, 2, 3)[:n]
        return x[1:], x[:n], x[1:n], x[::2], x[..., None], x[None, 1:], x[start], values, picked

    agree(program, (X, 3), (X, 2))


def test_items_and_attributes_are_stored_and_deleted():
    class Holder:
        pass

    def program(x, n, holder, mapping):
        holder.a = n
        holder.b, mapping["c"] = x * n, n
        holder.a += 1
        mapping["list"][0] = n
        del mapping["d"], holder.old
        deleted = n
        del deleted
        try:
            deleted  # noqa: F821
        except UnboundLocalError as error:
            return holder.a, sorted(mapping), str(error), hasattr(holder, "old")

    def arguments(n):
        holder = Holder()
        holder.old = 1
        return X, n, holder, {"d": 1, "list": [0, 1]}

    agree(program, arguments(3), arguments(4))


def test_whether_an_attribute_is_there_is_guarded():
    class Holder:
        def __init__(self, **attributes):
            self.__dict__.update(attributes)

    def program(x, holder):
        try:
            holder.a
            found = True
        except AttributeError:
            found = False
        return x + 1, found, hasattr(holder, "b"), getattr(holder, "c", "default")

    holders = [Holder(a=1, b=2, c=3), Holder(b=2, c=3), Holder(a=1, c=3), Holder(a=1, b=2), Holder(a=0, b=0, c=0)]
    agree(program, *[(X, holder) for holder in holders])


# Strings

FSTRINGS = {
    "plain": lambda x, n: f"{n}",
    "text around": lambda x, n: f"<{n} and {n + 1}>",
    "conversions": lambda x, n: f"{n!s} {'a'!r} {'é'!a} {'é'!r}",
    "quotes": lambda x, n: f"{chr(92)!a} {chr(39)!a} {chr(0x1F600)!a}",
    "spec": lambda x, n: f"{n:03d} {n / 3:.2f} {'a':>{n}} {n!r:>5}",
    "nested": lambda x, n: f"{f'{n}' + 'b'}",
    "self": lambda x, n: f"{n=} {n + 1 = :>4}",
    "containers": lambda x, n: f"{[n, 'a']} {(n,)} {dict(a=n)!r}",
    "empty": lambda x, n: f"{''}" + f"{n * ''}",
    "shapes": lambda x, n: f"{x.shape} {x.dtype} {x.ndim:>3} {tuple(x.shape)}",
    "format": lambda x, n: "{0} {n:>4} {0!r}".format("a", n=n) + format(n, "b"),
}


@pytest.mark.parametrize("form", FSTRINGS)
def test_formatted_strings(form):
    agree(both(FSTRINGS[form]), (X, 3), (X, 4))


def test_formatting_uses_the_methods_of_the_class():
    class Shown:
        def __init__(self, n):
            self.n = n

        def __repr__(self):
            return f"Shown({self.n!r})"

        def __str__(self):
            return f"<{self.n}>"

        def __format__(self, spec):
            return f"{spec}|{self.n}"

    def program(x, n):
        it = Shown(n)
        return x + n, f"{it} {it:spec} {it!r} {it!s:>6} {[it]}", str(it), "%s %r" % (it, it)

    agree(program, (X, 3), (X, 4))


# Names


def test_walrus():
    def program(x, n):
        values = []
        while (n := n - 1) > 0:
            values.append(n)
        if (total := sum(values)) > 2 and (last := values[-1]):
            return x + total, last, [y := 1, y**2]
        return x - total, (z := total) + z

    agree(program, (X, 4), (X, 2))


ASSERTIONS = """
def program(x, n):
    assert n > 0
    assert x.ndim == 1, "never made"
    try:
        assert n > 3, f"{n} is too small"
    except AssertionError as error:
        return x - n, error.args
    return x + n, None
"""


def test_assertions():
    space = {}
    exec(ASSERTIONS, space)  # as text, because pytest rewrites the assertions it finds in this file
    agree(space["program"], (X, 3), (X, 4), (X, 0))


def test_imports_of_modules_that_are_there():
    def program(x, n):
        import math
        import os.path as path
        from math import floor as down

        return x + math.floor(n + 0.5), down(n / 2), path is not None

    agree(program, (X, 3), (X, 4))


def test_many_names_and_constants():
    # More than 255 of each: the operands need a prefix.
    lines = [f"    v{i} = {i} + n" for i in range(300)]
    total = " + ".join(f"v{i}" for i in range(300))
    space = {}
    exec("\n".join(["def program(x, n):", *lines, f"    return x + n, {total}, [v{299} for v0 in range(2)]"]), space)
    agree(space["program"], (X, 3), (X, 4))
