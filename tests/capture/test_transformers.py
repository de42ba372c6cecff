"""Models of the ``transformers`` library: captured whole with their loss, and equal to eager. Skipped without it."""

import copy

import pytest
import torch

import bothways
from bothways.testing import CompileCounterWithBackend, same

transformers = pytest.importorskip("transformers")

IDS = (torch.arange(32).reshape(2, 16) * 7) % 90
MASK = torch.tensor([[1] * 16, [1] * 9 + [0] * 7])
IMAGES = torch.sin(torch.arange(2 * 3 * 32 * 32.0)).reshape(2, 3, 32, 32)
SOUND = torch.sin(torch.arange(2 * 8 * 32.0)).reshape(2, 8, 32)

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    **TOKENS,
}
TEXT = {"input_ids": IDS, "labels": IDS}


def model(kind, config, **options):
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**options))


GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64, **TOKENS}
OPT = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {"ffn_dim": 64, "word_embed_proj_dim": 32}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
VIT = {k: SIZES[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
DISTILBERT = {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
WHISPER = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
    "max_source_positions": 16, "max_target_positions": 32, "decoder_start_token_id": 1, **TOKENS,
}  # fmt: skip

MODELS = {
    "GPT-2": (model("GPT2LMHeadModel", "GPT2Config", **GPT2), TEXT),
    "GPT-2 with a mask": (model("GPT2LMHeadModel", "GPT2Config", **GPT2), {**TEXT, "attention_mask": MASK}),
    "BERT": (model("BertForMaskedLM", "BertConfig", **SIZES), TEXT),
    "BERT with a mask": (model("BertForMaskedLM", "BertConfig", **SIZES), {**TEXT, "attention_mask": MASK}),
    "Llama": (model("LlamaForCausalLM", "LlamaConfig", **SIZES), TEXT),
    "Llama with a mask": (model("LlamaForCausalLM", "LlamaConfig", **SIZES), {**TEXT, "attention_mask": MASK}),
    "Mistral": (
        model("MistralForCausalLM", "MistralConfig", num_key_value_heads=1, sliding_window=8, **SIZES),
        TEXT,
    ),
    "Gemma": (model("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=1, head_dim=16, **SIZES), TEXT),
    "Qwen2": (model("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=1, **SIZES), TEXT),
    "RoBERTa": (model("RobertaForMaskedLM", "RobertaConfig", **SIZES), TEXT),
    "DistilBERT": (model("DistilBertForMaskedLM", "DistilBertConfig", **DISTILBERT), TEXT),
    "T5": (
        model("T5ForConditionalGeneration", "T5Config", pad_token_id=0, decoder_start_token_id=0, **T5),
        TEXT,
    ),
    "ViT": (
        model("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **VIT),
        {"pixel_values": IMAGES, "labels": torch.tensor([0, 1])},
    ),
}
# In training these draw a number for each layer and skip it by that; a graph cannot.
EVALUATED = {
    "OPT": (model("OPTForCausalLM", "OPTConfig", **OPT), TEXT),
    "Whisper": (
        model("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER),
        {"input_features": SOUND, "labels": IDS},
    ),
}
CASES = [(name, mode) for name in MODELS for mode in (True, False)] + [(name, False) for name in EVALUATED]


def step(call, module, arguments):
    torch.manual_seed(1)
    out = call(**arguments)
    module.zero_grad()
    out.loss.backward()
    return out.loss, out.logits, [parameter.grad for parameter in module.parameters()]


def check(name, training, backend):
    make, arguments = {**MODELS, **EVALUATED}[name]
    torch.manual_seed(0)
    plain = make().train(training)
    other = copy.deepcopy(plain)
    counter = CompileCounterWithBackend(backend)
    compiled = bothways.compile(other, backend=counter, fullgraph=True)
    for _ in range(3):
        expected = step(plain, plain, arguments)
        assert same(step(compiled, other, arguments), expected)
    return counter


@pytest.mark.parametrize(("name", "training"), CASES)
def test_models(name, training):
    counter = check(name, training, "eager")
    assert counter.frame_count <= 2  # a classifier's first call changes its configuration


@pytest.mark.parametrize("name", ["GPT-2", "BERT"])
def test_models_with_kernels(name):
    assert check(name, True, "native").frame_count == 1


def test_the_result_is_the_librarys_own():
    make, arguments = MODELS["GPT-2"]
    compiled = bothways.compile(make(), backend="eager", fullgraph=True)
    out = compiled(**arguments)
    assert type(out).__name__ == "CausalLMOutputWithCrossAttentions"
    assert list(out) == list(make()(**arguments))
    assert compiled(**arguments, return_dict=False)[0].shape == ()
