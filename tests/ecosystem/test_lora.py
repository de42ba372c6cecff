"""The example that fine-tunes a transformers model: compiled steps train as plain ones do."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_compiled_steps_train_the_small_matrices():
    path = Path(__file__).parent.parent.parent / "examples" / "lora.py"
    spec = importlib.util.spec_from_file_location("lora", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    trained = example.main(4)
    torch.testing.assert_close(torch.tensor(trained["plain"]), torch.tensor(trained["compiled"]), rtol=1e-3, atol=1e-4)
    assert trained["compiled"][-1] < trained["compiled"][0]
