"""A pipeline as diffusers has them: a network is called in a loop by a scheduler, at steps that change."""

import pytest
import torch
from seeding import seeded

import bothways

diffusers = pytest.importorskip("diffusers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def network():
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).eval()  # fmt: skip


def images(unet):
    pipeline = diffusers.DDPMPipeline(unet=unet, scheduler=diffusers.DDPMScheduler(num_train_timesteps=10))
    pipeline.set_progress_bar_config(disable=True)
    generator = seeded(0)
    return pipeline(batch_size=1, num_inference_steps=4, generator=generator, output_type="np").images


def test_a_pipeline_with_a_compiled_network():
    plain, unet = images(network()), network()
    compiled = bothways.compile(unet)
    assert abs(plain - images(compiled)).max() < 1e-3
    assert not any("_orig_mod" in name for name in compiled.state_dict())
