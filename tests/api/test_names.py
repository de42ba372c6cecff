"""Names of the user's in generated code: no value takes a name that the generated Python or C uses itself."""

import builtins
import keyword
import os
import sys
import types
from itertools import islice

import pytest
import torch
import torch.fx
from agreeing import agree
from pythons import run_python

import bothways
from bothways import trace
from bothways.backends.aot import run_and_forget
from bothways.lower.dialects.c.dialect import C
from bothways.lower.dialects.cuda.dialect import Cuda
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir.names import GraphNames
from bothways.lower.schedule.steps import lower
from bothways.source_text import identifier, in_comment, is_plain_name, printable, words_in
from bothways.testing import same

pytestmark = pytest.mark.usefixtures("kernels_for_all")

BACKENDS = ["eager", "aot_eager", "native"]

# Names that the Python around kernels, a program, Python itself, C or its library use.
OF_PROGRAMS = (
    "empty empty_strided full run inputs area get_num_threads settle surprises as_laid_out at_mm at_float32 run_0 "
    "kernel_0_exp torch call len int list max hit failure error result state numbers after kept self forward s0 q0 v0 "
    "f0 fu0 exp expf sinf double float restrict auto inline static int64_t const void NAN INFINITY linux unix main "
    "errno malloc free omp_get_thread_num given Given row lane parallel max_float x_p print type match _ __name__"
).split()


def written(source):
    found = {}
    exec(source, {"torch": torch}, found)
    return found["f"]


# Reading memory that was never written is nothing a test can compare; its shape is.


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_tensors_beside_kernels_that_need_memory(backend):
    def plain(x):
        made = torch.empty(3, 8)
        strided = torch.empty_strided((3, 8), (1, 3))
        return made.shape, strided.stride(), made, strided, (x.sin().mm(x).exp() * 2).mm(x)

    compiled = bothways.compile(plain, backend=backend)
    for x in (torch.eye(8), torch.ones(8, 8), torch.eye(4)):
        found, expected = compiled(x), plain(x)
        assert found[:2] == expected[:2]
        assert [tensor.shape for tensor in found[2:]] == [tensor.shape for tensor in expected[2:]]
        torch.testing.assert_close(found[-1], expected[-1])


@pytest.mark.parametrize("takes_list", [False, True])
def test_inputs_and_values_of_a_graph_may_be_called_anything(takes_list):
    def plain(x, y):
        product = (x.mm(y) + 1).tanh()
        return (product.mm(y).exp(), (product * x).softmax(1), product.sum(0))

    x, y = torch.rand(8, 8) / 8, torch.rand(8, 8) / 8
    names, dialect = iter(OF_PROGRAMS), Cuda(x.device.index) if x.is_cuda else C()
    while True:
        graph = trace(plain)(x, y)
        chosen = list(islice(names, 9))
        if not chosen:
            break
        for node, name in zip(graph.graph.nodes, chosen, strict=False):
            node.name = name
        program = KernelProgram(lower(graph, [x, y]), dialect=dialect, takes_list=takes_list)
        for _ in range(2):  # the first call is another function
            found = program.run([x, y]) if takes_list else program.run(x, y)
            for one, other in zip(found, plain(x, y), strict=True):
                torch.testing.assert_close(one, other)


def test_names_are_handed_out_once_and_never_those_of_generated_code():
    names = GraphNames()
    hints = [*OF_PROGRAMS, *OF_PROGRAMS, *dir(builtins), *keyword.kwlist, "", "²", "a b"]
    given = [names.fresh(hint) for hint in hints]
    assert len(set(given)) == len(given)
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in given)
    assert not {*dir(builtins), "empty", "run", "inputs", "area", "at_mm", "run_0", "s0"} & set(given)
    assert names.fresh("hidden") == "hidden"
    assert names.fresh("hidden") == "hidden_1"


def test_a_graph_that_empties_its_list_may_have_an_input_called_inputs():
    graph = torch.fx.Graph()
    inputs, other = graph.placeholder("inputs"), graph.placeholder("inputs_")
    graph.output((graph.call_function(torch.add, (inputs, other)),))
    run = run_and_forget(torch.fx.GraphModule(torch.nn.Module(), graph), [])
    given = [torch.ones(2), torch.ones(2)]
    assert same(run(given), (torch.full((2,), 2.0),))
    assert given == []


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in OF_PROGRAMS if is_plain_name(name)])
def test_parameters_may_be_called_as_generated_code_calls_its_own(name, backend):
    plain = written(f"def f({name}, *, table, k=2.0): return ({name} * k).exp() @ table['x'], table['n']")
    compiled = bothways.compile(plain, backend=backend)
    for x in (torch.eye(4), torch.ones(4, 4), torch.eye(3)):
        table = {"x": x, "n": len(x)}
        assert same(compiled(x, table=table), plain(x, table=table))
        assert same(compiled(**{name: x}, table=table, k=3.0), plain(x, table=table, k=3.0))


# What is no identifier.

STRANGE = {
    "a keyword": "class",
    "a line": "a\nraise SystemExit(3)\n#",
    "another line": "a\rraise SystemExit(3)\r#",
    "a form feed": "a\x0craise\x0c",
    "a line of Unicode": "a\u2028raise\u2029b\x85c",
    "nothing": "",
    "NUL": "a\0b",
    "quotes": "a'\"\"\"'''b",
    "a backslash": "a\\",
    "a trigraph": "a??/",
    "the end of a comment": "a*/ #error b /*",
    "braces": "{x} {0} %s @plain@",
    "half a pair": "a\ud800b",
    "a byte that is no UTF-8": "a\udcffb",
    "an exponent": "m²",
    "a ligature": "ﬁ",
    "dots": "a.b.",
    "a mark of order": "\ufeffa\u202e",
    "a number": "1_2_3",
    "very long": "a" * 3000,
}


def copy(function, **changes):
    """The same function with another code object."""
    made = types.FunctionType(function.__code__.replace(**changes), function.__globals__, function.__name__)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def breaking(x, scale=2.0):
    y = (x * scale).exp()
    print(end="")
    return y.mm(x).softmax(1)


def check(function, backend, *args, **kwargs):
    inputs = torch.rand(4, 4), torch.rand(4, 4), torch.rand(3, 3)
    return agree(function, lambda run, x: {"result": run(x, *args, **kwargs)}, *inputs, backend=backend)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", STRANGE.values(), ids=STRANGE)
def test_a_function_of_any_name(name, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_DUMP", str(tmp_path))
    renamed = copy(breaking)
    renamed.__name__ = renamed.__qualname__ = name
    check(renamed, backend)
    in_code = copy(breaking, co_name=name, co_qualname=name)
    check(in_code, backend)

    def calls(x):
        return in_code(x) + 1

    compiled = check(calls, backend)
    for explained in (compiled, renamed):
        bothways.explain(explained)(torch.rand(4, 4)).details.encode()
    for file in tmp_path.glob("*.py"):
        compile(file.read_text(), str(file), "exec")


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", [name for name in STRANGE.values() if name and "\0" not in name])
def test_a_file_of_any_name(name, backend, capsys):
    with bothways.config.patch(logs="all"):
        check(copy(breaking, co_filename=f"/nowhere/{name}"), backend)
    capsys.readouterr().err.encode()


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", STRANGE.values(), ids=STRANGE)
def test_parameters_of_any_name(name, backend):
    def keyword_only(x, *, scale=2.0):
        return (x * scale).exp() + 1

    check(copy(breaking, co_varnames=(name, "scale", "y")), backend)
    renamed = copy(keyword_only, co_varnames=("x", name))
    renamed.__kwdefaults__ = {name: 2.0}
    check(renamed, backend)
    check(renamed, backend, **{name: 3.0})
    compiled = bothways.compile(renamed, backend=backend)
    with bothways.set_stance("force_eager"):
        assert same(compiled(torch.ones(2), **{name: 3.0}), renamed(torch.ones(2), **{name: 3.0}))


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", STRANGE.values(), ids=STRANGE)
def test_attributes_keys_and_variables_of_any_name(name, backend):
    class Holder:
        pass

    def plain(x, holder, table):
        total = (x * getattr(holder, name)).exp() + table[name] * table[name + "2"]
        setattr(holder, name, getattr(holder, name) + 1)
        setattr(holder, name + "_2", total)
        table[name + "3"] = x * 2
        return total, {name: x + 1}

    def state():
        holder = Holder()
        setattr(holder, name, torch.ones(1))
        return holder, {name: torch.full((1,), 2.0), name + "2": 3}

    compiled = bothways.compile(plain, backend=backend)
    for x in (torch.rand(4), torch.rand(4), torch.rand(3)):
        ours, theirs = state(), state()
        assert same(compiled(x, *ours), plain(x, *theirs))
        assert same(vars(ours[0]), vars(theirs[0]))
        assert same(ours[1], theirs[1])

    def scaled(x):
        return (x * scale).exp() + 1  # noqa: F821

    names = tuple(name if used == "scale" else used for used in scaled.__code__.co_names)
    check(types.FunctionType(scaled.__code__.replace(co_names=names), {name: 2.0, "__name__": name}), backend)


def test_an_attribute_is_not_taken_for_one_that_python_reads_alike():
    class Holder:
        pass

    holder = Holder()
    setattr(holder, "ﬁ", 2.0)
    holder.fi = 3.0

    def plain(x):
        return x * getattr(holder, "ﬁ") + holder.fi  # noqa: B009

    compiled = bothways.compile(plain, backend="eager")
    assert same(compiled(torch.ones(2)), plain(torch.ones(2)))
    setattr(holder, "ﬁ", 5.0)
    assert same(compiled(torch.ones(2)), plain(torch.ones(2)))


# Lines of source in comments.


def continued(x):
    y = x * 2 + \
        x.exp() * 3 - \
        1  # fmt: skip
    return y.sin() \
        + 1  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_line_that_ends_in_a_backslash(backend):
    check(continued, backend)


def test_the_kernel_of_a_line_that_ends_in_a_backslash_is_built():
    explanation = bothways.explain(bothways.compile(continued, backend="native"))(torch.rand(8))
    [generated] = explanation.generated
    assert "return y.sin()\n" in generated.texts["C"]
    assert "run_0(" in generated.texts["Python"]


@pytest.mark.parametrize("text", [*STRANGE.values(), "ends in \\  ", "ends in \\\\\t", "x ?\\?/ y"])
def test_a_text_in_a_comment_is_one_harmless_line(text):
    harmless = in_comment(text)
    assert harmless.splitlines() in ([harmless], [])
    assert not harmless.endswith(("\\", " "))
    assert not any(mark in harmless for mark in ("*/", "/*", "??", "\0"))
    harmless.encode("utf-8")
    scope = {}
    exec(f"# {harmless}\nreached = True", scope)
    assert scope["reached"]
    assert in_comment(harmless) == harmless


def test_ordinary_text_stays_as_it_is():
    for text in ("y = x['a'] * 2  # größer", "<lambda>", "f.<locals>.g", r"re.match(r'\d+', s)"):
        assert printable(text) == in_comment(text) == text


def test_a_text_as_an_identifier():
    hints = ["x", "hidden_0", "G['a']", "1", "class", "m²", "größe", "ﬁ", "", "日本", "__x", "a\udcff"]
    assert [identifier(hint) for hint in hints] == [
        "x", "hidden_0", "G__a", "value_1", "class_", "m2", "größe", "fi", "value", "日本", "x", "a",
    ]  # fmt: skip
    assert not any(map(is_plain_name, ["class", "m²", "ﬁ", "", "a b", "__debug__", "1"]))
    assert all(map(is_plain_name, ["x", "größe", "match", "_", "__init__"]))


@pytest.mark.parametrize("name", [name for name in STRANGE.values() if "\ud800" not in name and "\udcff" not in name])
def test_methods_and_class_attributes_of_any_name(name):
    def method(self, x):
        return x * self.scale

    members = {"scale": 2.0, name: method, f"{name}1": staticmethod(lambda x: x + 1), f"{name}3": 4.0}
    members |= {f"{name}2": classmethod(lambda cls, x: x * cls.scale), f"{name}4": property(lambda self: self.scale)}
    Holder = type("Holder", (), members)

    def plain(x, holder):
        x = getattr(holder, f"{name}2")(getattr(holder, f"{name}1")(getattr(holder, name)(x)))
        return x * getattr(holder, f"{name}3") * getattr(holder, f"{name}4"), hasattr(holder, f"{name}5")

    compiled = bothways.compile(plain, backend="eager")
    for _ in range(2):
        assert same(compiled(torch.ones(2), Holder()), plain(torch.ones(2), Holder()))
    setattr(Holder, name, lambda self, x: x - 1)
    assert same(compiled(torch.ones(2), Holder()), plain(torch.ones(2), Holder()))
    setattr(Holder, f"{name}5", 1)
    assert same(compiled(torch.ones(2), Holder()), plain(torch.ones(2), Holder()))


# Files whose path is no UTF-8.

MODULE = """
import torch

def f(x):
    y = (x * 2).exp() + \\
        1
    print(end="")
    return y.softmax(0)
"""
MAIN = """
import torch, bothways, module

bothways.config.kernels_for_small_graphs = True
x = torch.rand(8)
for backend in ("eager", "aot_eager", "native"):
    compiled = bothways.compile(module.f, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module.f(x))
    compiled(x.clone().requires_grad_()).sum().backward()
explained = bothways.explain(module.f)(x).details
explained.encode()
assert "module.py" in explained
try:
    bothways.compile(module.f, fullgraph=True)(x)
except bothways.errors.Unsupported as error:
    str(error).encode()
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_program_in_a_folder_whose_name_is_no_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/a\xff\n'b"
    os.mkdir(folder)
    for name, text in ((b"module.py", MODULE), (b"main.py", MAIN)):
        with open(folder + b"/" + name, "w") as file:
            file.write(text)
    root = os.path.dirname(os.path.dirname(bothways.__file__))
    settings = {"PYTHONPATH": root, "BOTHWAYS_LOGS": "all", "BOTHWAYS_CACHE_DIR": os.fsdecode(folder + b"/cache")}
    settings["BOTHWAYS_DUMP"] = os.fsdecode(folder + b"/dump")
    for _ in range(2):  # the second finds everything in the cache
        ran = run_python([folder + b"/main.py"], env={**os.environ, **settings})
        assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran.stderr
    for name in os.listdir(folder + b"/dump"):
        with open(folder + b"/dump/" + name, encoding="utf-8") as file:
            file.read()


@pytest.mark.parametrize("below", ["a file/dump", "a file"])
def test_dumps_that_cannot_be_written_are_a_warning(below, tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "a file").write_text("")
    x = torch.rand(8)
    bothways.compile(continued, backend="native")(x)  # the cache is warm
    bothways.reset()
    monkeypatch.setenv("BOTHWAYS_DUMP", str(tmp_path / below))
    with pytest.warns(bothways.errors.KernelWarning, match="BOTHWAYS_DUMP is ignored"):
        assert same(bothways.compile(continued, backend="native")(x), continued(x))


# Words of generated code in strings of the user's.


def after_a_break(x):
    message, mul = "failure", x * 2
    print(end="")
    return mul, message


def in_a_loop(x):
    message, y = "after the failure: result", x * 2
    for number in range(3):
        print(end="")
        y = y + number
    return y, message


def beside_a_handler(x):
    message, y = 'it\'s a "failure"', x * 2
    try:
        print(end="")
    except ValueError:
        message = "error"
    return y, message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [after_a_break, in_a_loop, beside_a_handler])
def test_a_string_may_hold_a_word_of_generated_code(function, backend):
    check(function, backend)


def test_words_are_those_outside_of_strings():
    code = f"f(a, {'failure'!r}, {chr(39) + ' b'!r}, {chr(34) + chr(39) + ' c'!r}, {b'd'!r}, e[{'g'!r}].h, 'x\\\\', i)"
    assert words_in(code) - {"b"} == {"f", "a", "e", "h", "i"}
