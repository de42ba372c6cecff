"""Training steps with layers that PyTorch follows for plain sizes only, when the length of sequences changes."""

import pytest
import torch
from seeding import seeded
from stepping import BACKENDS, agree

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


@pytest.fixture(autouse=True)
def no_tensor_float():
    """In which cuDNN computes, and where the last bit of a number is seen in the third digit of others."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def sequences():
    generator = seeded(0)
    return [(torch.randn(length, 3, 4, generator=generator),) for length in (4, 4, 7, 9, 4)]


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=lambda one: one.__name__)
def test_the_last_chunk_is_shorter(kind, backend):
    def make():
        model = kind(4, 5, 2)
        state = {"hidden": None}

        def step(x):
            model.zero_grad()
            out, state["hidden"] = model(x, state["hidden"])
            loss = out.square().mean()
            loss.backward()
            hidden = state["hidden"]
            state["hidden"] = tuple(one.detach() for one in hidden) if isinstance(hidden, tuple) else hidden.detach()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            return loss.detach()

        return step, {"model": model}

    agree(make, sequences(), backend, fullgraph=False)
