"""transformers' Trainer with ``torch_compile_backend="bothways"``: trained as without, saved without ``_orig_mod.``.

It hands the name to accelerate, which has a list of its own; the drop-in puts ours on it.
"""

import pytest
import torch

import bothways

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Copies(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        tokens = (torch.arange(16) * (index + 1)) % 64
        return {"input_ids": tokens, "labels": tokens}


def trained(folder, **settings):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = transformers.GPT2LMHeadModel(config)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        use_cpu=True, save_strategy="no", seed=0, data_seed=0, disable_tqdm=True, **settings,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Copies())
    trainer.train()
    trainer.save_model(str(folder / "saved"))
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model


def test_the_trainer_compiles_with_our_backend(tmp_path):
    plain, _ = trained(tmp_path / "plain")
    bothways.install()
    try:
        compiled, model = trained(tmp_path / "compiled", torch_compile=True, torch_compile_backend="bothways")
    finally:
        bothways.uninstall()
    assert plain == pytest.approx(compiled, abs=2e-3)
    again = transformers.GPT2LMHeadModel.from_pretrained(str(tmp_path / "compiled" / "saved"))
    assert not any("_orig_mod" in name for name in again.state_dict())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value)
