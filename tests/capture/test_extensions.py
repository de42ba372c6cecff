"""Functions of C and C++ extensions, and other callables that say odd things about themselves."""

import collections
import ctypes
import functools
import importlib.util
import shutil
import subprocess
import sysconfig
import types
from pathlib import Path

import pytest
import torch

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]

SOURCE = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static long calls;

static PyObject *count(PyObject *self, PyObject *ignored) { return PyLong_FromLong(++calls); }
static PyObject *fail(PyObject *self, PyObject *ignored) { PyErr_SetString(PyExc_KeyError, "no"); return NULL; }
static PyObject *same_object(PyObject *self, PyObject *value) { Py_INCREF(value); return value; }

static PyMethodDef plain = {"count", count, METH_NOARGS, "counts"};
static PyMethodDef failing = {"fail", fail, METH_NOARGS, NULL};
static PyMethodDef called_append = {"append", count, METH_NOARGS, NULL};
static PyMethodDef odd_name = {"no\nname", same_object, METH_O, NULL};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hostile_extension", NULL, -1, NULL};

static void add(PyObject *module, const char *name, PyMethodDef *method, PyObject *self, PyObject *home) {
    PyModule_AddObject(module, name, PyCFunction_NewEx(method, self, home));
}

PyMODINIT_FUNC PyInit_hostile_extension(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *record = PyCapsule_New(&calls, "record", NULL), *list = PyList_New(0);
    add(module, "of_module", &plain, module, PyUnicode_FromString("hostile_extension"));
    add(module, "of_record", &plain, record, PyUnicode_FromString("hostile_extension"));
    add(module, "of_record_failing", &failing, record, NULL);
    add(module, "of_nothing", &plain, NULL, NULL);
    add(module, "of_list", &called_append, list, NULL);
    add(module, "of_tensor_like_name", &odd_name, record, PyLong_FromLong(7));
    add(module, "of_class", &plain, (PyObject *)&PyList_Type, NULL);
    return module;
}
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    include = sysconfig.get_paths()["include"]
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("needs a compiler and Python's headers")
    folder = tmp_path_factory.mktemp("extension")
    source, library = folder / "source.c", folder / "hostile_extension.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)], check=True)
    found = importlib.util.spec_from_file_location("hostile_extension", library)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


FUNCTIONS = ["of_module", "of_record", "of_nothing", "of_list", "of_class"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_an_extension_runs_once_at_each_call(name, backend, extension):
    def through_module(x):
        y = x * 2
        return y, getattr(extension, name)(), y.sin() + 1

    def through_argument(x, function):
        y = x * 2
        return y, function(), y.sin() + 1

    function = getattr(extension, name)
    for plain, given in ((through_module, ()), (through_argument, (function,))):
        compiled = bothways.compile(plain, backend=backend)
        for x in (torch.ones(4), torch.ones(4), torch.ones(3)):
            before = extension.of_module()
            assert compiled(x, *given)[1] == before + 1
            assert same(compiled(x, *given)[::2], plain(x, *given)[::2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_function_of_an_extension_raises_is_caught_by_the_user(backend, extension):
    def plain(x, function):
        try:
            return function(), x
        except KeyError as error:
            return str(error), x * 2

    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        found = outcome(compiled, torch.ones(2), extension.of_record_failing)
        assert same(found, outcome(plain, torch.ones(2), extension.of_record_failing))
    assert compiled(torch.ones(2), lambda: 3)[0] == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_of_an_extension_with_a_strange_name_and_module(backend, extension):
    def plain(x, function):
        return function(x * 2) + 1, function.__name__, callable(function), {function: 1}[function]

    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        found = compiled(torch.ones(2), extension.of_tensor_like_name)
        assert same(found, plain(torch.ones(2), extension.of_tensor_like_name))


# PyTorch itself has many functions that pybind11 made.

PYBIND = [
    torch._C._jit_get_inline_everything_mode,
    functools.partial(torch._C._jit_get_inline_everything_mode),
    functools.partial(lambda function: str(function("f(Tensor a) -> Tensor")), torch._C.parse_schema),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", PYBIND)
def test_a_function_of_pybind11(function, backend):
    def plain(x, function):
        y = x * 2
        return y, function(), y + 1

    compiled = bothways.compile(plain, backend=backend)
    for x in (torch.ones(4), torch.ones(4), torch.ones(3)):
        assert same(compiled(x, function), plain(x, function))


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_of_pybind11_that_are_only_passed_around(backend):
    function, other = torch._C._jit_get_inline_everything_mode, torch._C.parse_schema

    def plain(x, function):
        return x * 2, function is other, function.__name__, [function], {function: 1}, bool(function)

    compiled = bothways.compile(plain, backend=backend)
    for given in (function, function, other):
        assert same(compiled(torch.ones(2), given), plain(torch.ones(2), given))


def test_fullgraph_says_which_function_is_not_known():
    def plain(x, function):
        return x * 2, function()

    with pytest.raises(bothways.errors.Unsupported, match="_jit_get_inline_everything_mode"):
        bothways.compile(plain, fullgraph=True)(torch.ones(2), torch._C._jit_get_inline_everything_mode)


# Callables that say odd things about themselves.


class Refusing:
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def __call__(self, x):
        return x * 2


class Nameless:
    @property
    def __name__(self):
        raise RuntimeError("no name")

    __self__ = __wrapped__ = __name__

    def __call__(self, x):
        return x * 2


class FromNoModule:
    __module__ = None
    scale = 2.0

    def __call__(self, x):
        return x * self.scale


class FromNumber(FromNoModule):
    __module__ = 5


def said_to_be_from(module):
    def function(x):
        return x * 2 + 1

    function.__module__ = module
    return function


def with_globals(name):
    return types.FunctionType((lambda x: x * 2 + 1).__code__, {"__name__": name})


class Longer(list):
    def append(self, item):
        super().append(item)
        super().append(item)


@functools.singledispatch
def by_type(value):
    return 1.0


@by_type.register
def _(value: int):
    return 2.0


@by_type.register
def _(value: torch.Tensor):
    return value * 3.0


absolute = ctypes.CDLL(None).labs
CALLABLES = {
    "attributes that raise": Refusing(),
    "a name that raises": Nameless(),
    "a class from no module": FromNoModule(),
    "a class from a number": FromNumber(),
    "a function from no module": said_to_be_from(None),
    "a function from a number": said_to_be_from(7),
    "a function from a list": said_to_be_from([]),
    "globals without a name": with_globals(None),
    "globals with a number for a name": with_globals(5),
    "one for each type": by_type,
    "a method wrapper": torch.ones(4).__add__,
    "a method of a tensor": torch.ones(4).mul,
    "a method of a number": (3).__add__,
    "a method of a text": lambda x, f="abc".__len__: x * f(),
    "a method of a dict": lambda x, f={"a": 2.0}.get: x * f("a"),
    "a function of ctypes": lambda x: x * absolute(-3),
    "a function of a class": lambda x, f=int.from_bytes: x * f(b"\x02", "big"),
    "a method of no instance": lambda x, f=int.__add__: x * f(2, 3),
    "a method of a deque": lambda x, f=collections.deque([2]).count: x * f(2),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_with(name, backend):
    function = CALLABLES[name]

    def plain(x):
        return function(x) if not isinstance(function, types.MethodWrapperType) or x.dim() else x

    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        assert same(outcome(compiled, torch.ones(4)), outcome(plain, torch.ones(4)))
    if isinstance(function, types.FunctionType):
        direct = bothways.compile(function, backend=backend)
        assert same(direct(torch.ones(4)), function(torch.ones(4)))


def test_a_numpy_ufunc():
    numpy = pytest.importorskip("numpy")

    def plain(x):
        return x * float(numpy.sin(0.5)) + torch.from_numpy(numpy.add(numpy.ones(4), 1))

    compiled = bothways.compile(plain, backend="eager")
    x = torch.ones(4, device="cpu")  # where arrays are
    for _ in range(2):
        assert same(compiled(x), plain(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_bound_method_that_its_class_has_overridden(backend):
    def plain(x, append):
        append(1)
        return x * 2

    ours, theirs = Longer(), Longer()
    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        for function, items in ((compiled, ours), (plain, theirs)):
            assert same(function(torch.ones(2), super(Longer, items).append), torch.full((2,), 2.0))
        assert same(compiled(torch.ones(2), ours.append), plain(torch.ones(2), theirs.append))
    assert ours == theirs == [1] * 6
