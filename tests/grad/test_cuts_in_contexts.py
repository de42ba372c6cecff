"""A graph that is cut inside of autocast or ``no_grad`` enters that again behind the cut; all parts are compiled."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree
from torch.utils.checkpoint import checkpoint

import bothways


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def bfloat16(enabled=True):
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def ways(compiled):
    """How the parts of all graphs run."""
    return [str(piece) for compilation in bothways.history(compiled) for piece in compilation.pieces]


def trained(make_step, backend, **options):
    """A training step, plain and compiled, for some calls; how its parts run."""
    networks = []

    def observe(function, seed):
        torch.manual_seed(seed)
        network = networks[-1]
        network.zero_grad()
        result = function(torch.randn(6, 8), torch.randint(0, 4, (6,)))
        after = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        torch.set_grad_enabled(True)
        if isinstance(result, tuple):
            result[0].backward()
        gradients = [parameter.grad for parameter in network.parameters()]
        return {"result": result, "gradients": gradients, "modes": after}

    network = model()
    networks.append(network)
    with bothways.config.patch(kernels_for_small_graphs=True):
        return ways(agree(make_step(network), observe, 1, 2, 1, 2, backend=backend, tol=1e-2, **options))


def returns_logits(network):
    def step(x, y):
        with bfloat16():
            logits = network(x)
            loss = F.cross_entropy(logits, y)
        return loss, logits

    return step


def returns_from_an_inner_context(network):
    def step(x, y):
        with bfloat16():
            logits = network(x)
            with bfloat16(False):
                scaled = logits.float() * 2
                loss = F.cross_entropy(scaled, y)
            again = network[0](x).sum()
        return loss + again.float(), scaled, logits

    return step


@pytest.mark.parametrize("make_step", [returns_logits, returns_from_an_inner_context])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_returned_from_inside_of_autocast_leaves_no_part_as_captured(make_step, backend):
    pieces = trained(make_step, backend, fullgraph=True, programs=1)
    assert backend == "eager" or not any("as captured" in piece for piece in pieces), pieces


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_behind_a_break_without_gradients_is_compiled(backend):
    def make_step(network):
        def step(x, y):
            with torch.no_grad():
                target = network(x).softmax(-1)
                if target.sum() > 100:
                    target = target * 2
                target = target.log()
            loss = F.kl_div(network(x).log_softmax(-1), target.exp(), reduction="sum") + F.cross_entropy(network(x), y)
            loss.backward()
            return loss.detach()

        return step

    pieces = trained(make_step, backend)
    left = [piece for piece in pieces if "as captured" in piece]
    assert backend == "eager" or left == [
        f"part {number} of 4: 1 operation as captured (gradients are turned on or off)" for number in (2, 4)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_on_for_a_while(backend):
    def make_step(network):
        def step(x, y):
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            with torch.no_grad():
                weight = network[0].weight * 2
                if weight.sum() > 1e6:
                    weight = weight * 2
                with torch.enable_grad():
                    again = F.cross_entropy(network(x), y)
                    again.backward()
                left = weight.exp().sum() * again
            return loss.detach(), left.sin()

        def without_backward(x, y):
            loss, left = step(x, y)
            return [loss, left, left.requires_grad]

        return without_backward

    trained(make_step, backend)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mode_that_is_set_for_good_stays_where_the_graph_is_cut(backend, grad):
    """A hook cuts the graph; each part leaves the modes as it found them, and the last switch is nobody's to undo."""

    def make_step(network):
        def step(x, y):
            hidden = network[0](x)
            hidden.register_hook(lambda gradient: gradient * 2)
            loss = F.cross_entropy(network[1:](hidden), y)
            torch.set_grad_enabled(False)
            quiet = hidden.exp().sum()
            torch.set_grad_enabled(grad)
            return loss, quiet

        return step

    trained(make_step, backend)


def with_a_checkpoint(network, average):
    def step(x, y):
        with bfloat16(False):
            hidden = network[0](x)
            with torch.no_grad():
                average.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
            logits = network[2](checkpoint(network[1], hidden, use_reentrant=False))
        return F.cross_entropy(logits, y), average.requires_grad

    return step


def with_a_parameter_that_is_changed(network, average):
    def step(x, y):
        with bfloat16():
            hidden = network[1](network[0](x))
            with torch.no_grad():
                average.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
                network[2].bias.mul_(0.5)
            logits = network[2](hidden)
        return F.cross_entropy(logits, y), average.requires_grad

    return step


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make_step", [with_a_checkpoint, with_a_parameter_that_is_changed])
def test_what_is_changed_without_gradients_inside_of_autocast_gets_no_history(make_step, backend):
    """Autocast keeps what it has cast of a parameter, which may change there: what is inside runs as captured."""
    average, bias = torch.zeros(16), model()[2].bias.detach().clone()
    networks = []

    def reset():
        assert average.is_leaf
        average.zero_()
        with torch.no_grad():
            networks[-1][2].bias.copy_(bias)

    def make(network):
        networks.append(network)
        network[2].register_full_backward_hook(lambda module, given, got: None)
        return make_step(network, average)

    trained(make, backend, reset=reset)
    reset()
