"""Lightning trains a module whose network is compiled; ``self.log`` in steps works as ever."""

import pytest
import torch

import bothways

lightning = pytest.importorskip("lightning")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Regression(lightning.LightningModule):
    def __init__(self, compile):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        self.run, self.losses = compile(self.network), []

    def training_step(self, batch, index):
        loss = self.run(batch[0]).pow(2).mean()
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), lr=1e-2)


def trained(tmp_path, compile, whole=lambda module: module):
    torch.manual_seed(0)
    module = Regression(compile)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 8)), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(whole(module), data)
    return module.losses, float(trainer.callback_metrics["loss"]), module.network.state_dict()


@pytest.mark.parametrize(
    "compile", [bothways.compile, lambda network: torch.compile(network, backend="bothways")], ids=["ours", "by name"]
)
def test_a_compiled_network(tmp_path, compile):
    plain, logged, _ = trained(tmp_path, lambda network: network)
    compiled, also, state = trained(tmp_path, compile)
    assert plain == pytest.approx(compiled, abs=1e-5) and logged == pytest.approx(also, abs=1e-5)
    assert not any("_orig_mod" in name for name in state)


def compiled_step(module):
    module.training_step = bothways.compile(module.training_step)
    return module


def test_a_compiled_training_step_that_logs(tmp_path):
    plain, logged, _ = trained(tmp_path, lambda network: network)
    compiled, also, _ = trained(tmp_path, lambda network: network, compiled_step)
    assert plain == pytest.approx(compiled, abs=1e-5) and logged == pytest.approx(also, abs=1e-5)
