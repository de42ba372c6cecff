"""``nn.Module`` inside compiled functions: calls are inlined from ``__call__`` down, and changes are noticed."""

import collections
import types

import pytest
import torch
import torch.nn.functional as F
from module_programs import X, check, check_changes, pair
from torch import nn

import bothways
from bothways.testing import CompileCounter, same

# Layers


LAYERS = {
    "linear": lambda: nn.Linear(4, 4),
    "bilinear": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.GELU()),
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm without statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "dropout": lambda: nn.Dropout(0.5),
    "flatten": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Flatten()),
    "normalised weight": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "softmax": lambda: nn.Softmax(dim=-1),
    "identity": lambda: nn.Sequential(nn.Identity(1, 2, unused=3), nn.ReLU(inplace=False)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer):
    check_changes(LAYERS[layer], lambda m: m.eval(), lambda m: m.train())


def test_convolutions():
    def make():
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))

    check_changes(make, lambda m: m.eval(), args=(torch.ones(2, 1, 8, 8),))


def test_recurrent_layers_and_attention():
    check_changes(lambda: nn.LSTM(4, 4), args=(X[None],))
    check_changes(lambda: nn.MultiheadAttention(4, 2, batch_first=True), args=(X[None], X[None], X[None]))
    check_changes(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), lambda m: m.eval(), args=(X[None],)
    )


def test_embeddings():
    index = torch.tensor([[1, 2], [3, 4]])
    check_changes(lambda: nn.Embedding(10, 3, padding_idx=0), args=(index,))
    check_changes(lambda: nn.EmbeddingBag(10, 3), args=(index,))


# Parameters, buffers, attributes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("buf", torch.zeros(4))
        self.scale, self.calls = 2.0, 0

    def forward(self, x):
        self.calls += 1
        self.buf = self.buf + 1
        return self.bn(self.fc(x)) * self.scale + self.buf


def test_buffers_and_attributes_are_read_and_written():
    plain, other, run, _ = pair(Net)
    for _ in range(3):
        check(plain, other, run, X)
    assert other.calls == plain.calls == 3
    assert other.bn.num_batches_tracked == 3 and torch.equal(other._buffers["buf"], torch.full((4,), 3.0))


def test_training_step_by_step():
    plain, other, run, _ = pair(Net)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in (plain, other)]
    for _ in range(3):
        for module, optimizer in zip((plain, run), optimizers, strict=True):
            optimizer.zero_grad()
            module(X).pow(2).sum().backward()
            optimizer.step()
        assert same([p.grad for p in other.parameters()], [p.grad for p in plain.parameters()])
    assert same(other.state_dict(), plain.state_dict())


def test_in_place_updates():
    class Decaying(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(0.5)
                self.steps += 1
            return x * self.weight

    plain, other, run, counter = pair(Decaying)
    for _ in range(3):
        check(plain, other, run, X)
    assert counter.frame_count == 1 and other.steps == 3


def test_what_forward_stores_keeps_its_identity():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.history = []
            self.register_buffer("last", None)

        def forward(self, x):
            self.history.append(x)
            self.last = x + 1
            self.kept = {"k": self.last}
            return self.last

    module = Keeping()
    out = bothways.compile(lambda x: module(x), backend="eager", fullgraph=True)(X)
    assert out is module.last is module._buffers["last"] is module.kept["k"] and module.history[0] is X


def test_submodules_are_replaced_and_deleted_in_forward():
    class Swapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.ReLU(), nn.Tanh(), nn.Identity()

        def forward(self, x):
            self.a, self.b = self.b, self.a
            self.d = self.a
            if hasattr(self, "c"):
                del self.c
            return self.a(x)

    plain, other, run, _ = pair(Swapping)
    for _ in range(2):
        check(plain, other, run, X)
        assert list(other._modules) == list(plain._modules) == ["a", "b", "d"]
        assert type(other.a) is type(plain.a)


def test_buffers_registered_in_forward():
    class Caching(nn.Module):
        def forward(self, x):
            if not hasattr(self, "cache"):
                self.register_buffer("cache", x * 2, persistent=False)
            return x + self.cache

    plain, other, run, _ = pair(Caching)
    for _ in range(2):
        check(plain, other, run, X)
    assert list(other._buffers) == ["cache"] and other._non_persistent_buffers_set == {"cache"}


def test_methods_properties_and_class_attributes():
    class Rich(nn.Module):
        instances = 0

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.config, self.steps = {"n": 2}, [torch.sin, F.relu]

        @property
        def doubled(self):
            return self.weight * 2

        @staticmethod
        def shift(x):
            return x + 1

        @classmethod
        def named(cls, x):
            return x + len(cls.__name__)

        def encode(self, x):
            return x * self.weight

        def forward(self, x, flag=None):
            for step in self.steps:
                x = step(x)
            x = self.named(self.shift(self.encode(x))) + self.doubled
            return x * self.config["n"] if flag is None else x

    check_changes(Rich, lambda m: m.config.update(n=5), lambda m: m.steps.append(torch.cos))
    module = Rich()
    encode = bothways.compile(module.encode, backend="eager", fullgraph=True)
    assert same(encode(X), module.encode(X))


def test_getattr_and_call_of_the_users_own():
    class Wrapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def __call__(self, x):
            return super().__call__(x) + 1

        def forward(self, x):
            return F.linear(x, self.weight, self.bias) + self.inner(x)

    check_changes(Wrapping)


def test_super_forward():
    class Shifted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    check_changes(lambda: Shifted(4, 4))


def test_modules_are_made_inside_after_torch_compile_was_used():
    torch.compile(lambda x: x + 1, backend="eager")(X)  # wraps nn.Module.__init__
    module = nn.ModuleList([nn.ReLU(), nn.Tanh()])

    def program(x):
        for layer in module[:1]:
            x = layer(x)
        return x

    assert same(bothways.compile(program, backend="eager", fullgraph=True)(X), program(X))


def test_modules_without_parameters_are_made_inside():
    def program(x):
        return nn.ReLU()(x), nn.Flatten()(x), nn.MSELoss()(x, x * 2), nn.Dropout(0.0)(x)

    assert same(bothways.compile(program, backend="eager", fullgraph=True)(X), program(X))


# Containers


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4) * i) for i in range(3)])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.ones(4))})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for i, layer in enumerate(self.layers[1:]):
            x = x + layer(x) * i
        x = self.layers[-1](x)
        for module in self.table.values():
            x = module(x)
        for name in self.table:
            x = self.table[name](x)
        for weight in self.weights:
            x = x * (weight + 1)
        for _, weight in self.named.items():
            x = x + weight
        if "a" in self.table and "z" not in self.table:
            x = x + len(self.layers) + len(self.table) + len(self.weights)
        return x + self.weights[0] + self.named["w"]


def test_containers_of_modules_and_parameters():
    check_changes(
        Containers,
        lambda m: m.layers.append(nn.Identity()),
        lambda m: m.layers.__setitem__(0, nn.ReLU()),
        lambda m: m.table.update({"c": nn.Tanh()}),
        lambda m: m.weights.append(nn.Parameter(torch.ones(4))),
        lambda m: m.weights.__setitem__(0, nn.Parameter(torch.full((4,), 7.0))),
        lambda m: m.table.pop("a"),
    )


def test_sequentials():
    def make():
        return nn.Sequential(collections.OrderedDict(a=nn.Linear(4, 4), b=nn.Tanh(), c=nn.Linear(4, 2)))

    torch.manual_seed(0)
    module = make()

    def program(x):
        names = [type(layer).__name__ for layer in module]
        return module(x), module.a(x), module[0](x), module[-1](x), module[:2](x), len(module), names

    assert same(bothways.compile(program, backend="eager", fullgraph=True)(X), program(X))


def test_iteration_over_members():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def program(x):
        total = sum(p.sum() for p in module.parameters()) + sum(b.sum() for b in module.buffers())
        names = [
            [name for name, _ in members]
            for members in (
                module.named_parameters(),
                module.named_buffers(),
                module.named_children(),
                module.named_modules(),
            )
        ]
        kinds = [type(child).__name__ for child in module.children()], len(list(module.modules()))
        return x + total, names, kinds, module.get_submodule("0")(x), module.get_parameter("0.weight") * 1

    run = bothways.compile(program, backend="eager", fullgraph=True)
    assert same(run(X), program(X))
    module.append(nn.Linear(4, 4, bias=False))
    assert same(run(X), program(X))


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    def untie(module):
        module.b.weight = nn.Parameter(torch.eye(4))

    def tie(module):
        module.b.weight = module.a.weight

    check_changes(Tied, untie, tie)
    plain, other, run, _ = pair(Tied)
    plain(X).sum().backward(), run(X).sum().backward()
    assert same(other.a.weight.grad, plain.a.weight.grad)


# Where a module can come from


def test_a_module_as_an_argument():
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    counter = CompileCounter()
    run = bothways.compile(lambda x, m: m(x), backend=counter, fullgraph=True)
    for module in (one, two, one):
        assert same(run(X, module), module(X))
    assert counter.frame_count == 1  # the weights are inputs, whose module it is does not matter


def test_modules_in_lists_and_dictionaries():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(3)]

    def program(x, layers, table):
        for layer in layers:
            x = layer(x)
        return table["last"](x), layers[0] in layers, layers.index(layers[1]), layers[0] == layers[1]

    run = bothways.compile(program, backend="eager", fullgraph=True)
    for args in [(X, layers, {"last": nn.ReLU()}), (X, layers[::-1], {"last": nn.Tanh()})]:
        assert same(run(*args), program(*args))


def test_modules_and_parameters_as_keys():
    module, other = nn.Linear(4, 4), nn.ReLU()
    scales = {module: 2.0, other: 3.0}

    def program(x):
        seen = {p: p.sum() for p in module.parameters()}
        return module(x) * scales[module] + scales[other], len(seen), module.bias in seen

    assert same(bothways.compile(program, backend="eager", fullgraph=True)(X), program(X))


# Changes after compilation


def test_train_and_eval():
    class Switching(nn.Module):
        def forward(self, x):
            return x + 1 if self.training else x - 1

    counter = check_changes(Switching, lambda m: m.eval(), lambda m: m.train())
    assert counter.frame_count == 2


def test_swapped_parameters_and_submodules():
    check_changes(
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.eye(4))),
        lambda m: setattr(m[0], "bias", None),
        lambda m: m[0].weight.data.mul_(2),
        lambda m: m.__setitem__(1, nn.Tanh()),
        lambda m: m.__setitem__(0, nn.Identity()),
        lambda m: m.append(nn.ReLU()),
    )


def test_other_dtypes():
    plain, other, run, counter = pair(lambda: nn.Linear(4, 4))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.float32):
        plain.to(dtype), other.to(dtype)
        check(plain, other, run, X.to(dtype))
    assert counter.frame_count == 3


def test_requires_grad_is_toggled():
    plain, other, run, _ = pair(lambda: nn.Linear(4, 4))
    for change in (lambda m: None, lambda m: m.requires_grad_(False), lambda m: m.bias.requires_grad_(True)):
        change(plain), change(other)
        assert run(X).requires_grad == plain(X).requires_grad
    plain(X).sum().backward(), run(X).sum().backward()
    assert same(other.bias.grad, plain.bias.grad) and other.weight.grad is None


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4), Containers])
def test_forward_replaced_on_the_instance(make):
    check_changes(
        make,
        lambda m: setattr(m, "forward", lambda x: x * 10),
        lambda m: delattr(m, "forward"),
        lambda m: setattr(m, "forward", types.MethodType(lambda self, x: x * len(self._parameters), m)),
    )
