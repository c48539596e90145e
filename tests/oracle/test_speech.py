"""Models that hear or speak against their published configs and the modules of transformers.

The language models themselves are those of test_flops; here the sound encoder and projector, CSM's depth decoder and
the parameters of the whole. One correction: the conformer of transformers fills the last block up before it projects
queries, keys and values, which gambrel does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from compared import assert_refused, counted, flops_of, published, truth

from gambrel.model import arch as totals
from gambrel.model.encdec_parts import DepthDecoder
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config
from gambrel.types import Step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BATCH = 2
FILES = (
    "eustlb__csm-1b.json",
    "ibm-granite__granite-speech-3.3-8b.json",
    "mistralai__Voxtral-Mini-3B-2507.json",
)
GROUPS = ("attention", "mlp", "norm")

# Published configs ----------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_published(file: str, shared: Path) -> None:
    """Total parameters and KV bytes per token; the truth has Granite's encoder spread over its other columns."""
    row, reading = truth(shared, file), read_config(published(shared, file), Overrides(kv="bf16"))
    assert reading.unread == ()
    tensors, caches = list(reading.arch.tensors()), reading.arch.caches(reading.precision.numerics())
    assert totals.params_total(tensors) == totals.params_active(tensors) == int(row["total_params"])
    assert totals.kv_bytes_per_token(caches) == int(row["kv_bytes_per_token_bf16"])
    assert totals.state_bytes(caches, 0) == int(row["fixed_state_elems"]) == 0
    groups = totals.params_by_group(tensors)
    if "granite" not in file:
        assert {name: groups[name] for name in GROUPS} == {name: int(row[name]) for name in GROUPS}


def test_published_parameters_of_qwen2_audio() -> None:
    """The published config leaves the defaults of Qwen2 out; it is said to have 8.4 B parameters."""
    config = {
        "model_type": "qwen2_audio",
        "torch_dtype": "bfloat16",
        "audio_config": {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120},
        "text_config": {"model_type": "qwen2", "intermediate_size": 11008, "vocab_size": 156032},
    }
    assert totals.params_total(read_config(config).arch.tensors()) == 8_397_094_912


# Small models ---------------------------------------------------------------------------------

_TEXT = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_SOUND = {
    "hidden_size": 24,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 10,
    "max_source_positions": 12,
}
_QWEN_SOUND = {
    "d_model": 24,
    "encoder_ffn_dim": 72,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "num_mel_bins": 10,
    "max_source_positions": 12,
}
VOXTRAL = {
    "model_type": "voxtral",
    "text_config": {**_TEXT, "model_type": "llama", "head_dim": 8},
    "audio_config": {**_SOUND, "model_type": "voxtral_encoder"},
    "audio_token_id": 3,
    "torch_dtype": "bfloat16",
}
QWEN2_AUDIO = {
    "model_type": "qwen2_audio",
    "text_config": {**_TEXT, "model_type": "qwen2"},
    "audio_config": {**_QWEN_SOUND, "model_type": "qwen2_audio_encoder"},
    "audio_token_index": 3,
    "torch_dtype": "bfloat16",
}
GRANITE = {
    "model_type": "granite_speech",
    "text_config": {**_TEXT, "model_type": "granite"},
    "encoder_config": {
        "model_type": "granite_speech_encoder",
        "input_dim": 10,
        "num_layers": 3,
        "hidden_dim": 24,
        "feedforward_mult": 3,
        "num_heads": 4,
        "dim_head": 10,
        "output_dim": 14,
        "context_size": 8,
        "max_pos_emb": 16,
        "conv_kernel_size": 5,
        "conv_expansion_factor": 2,
    },
    "projector_config": {
        "model_type": "blip_2_qformer",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 56,
        "cross_attention_frequency": 1,
        "encoder_hidden_size": 24,
    },
    "window_size": 6,
    "downsample_rate": 2,
    "audio_token_index": 3,
    "has_lora_adapter": False,
    "torch_dtype": "bfloat16",
}
CSM = {
    "model_type": "csm",
    **{**_TEXT, "vocab_size": 35},
    "text_vocab_size": 320,
    "num_codebooks": 5,
    "depth_decoder_config": {
        "model_type": "csm_depth_decoder_model",
        "vocab_size": 35,
        "backbone_hidden_size": 48,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_codebooks": 5,
    },
    "codec_config": {
        "model_type": "mimi",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_filters": 4,
        "upsampling_ratios": [8, 6, 5, 4],
        "upsample_groups": 32,
        "vector_quantization_hidden_dimension": 16,
        "codebook_dim": 16,
        "codebook_size": 32,
        "num_quantizers": 5,
        "frame_rate": 12.5,
    },
    "pad_token_id": 0,
    "bos_token_id": 1,
    "audio_token_id": 2,
    "audio_eos_token_id": 3,
    "codebook_pad_token_id": 4,
    "torch_dtype": "bfloat16",
}
_CODEC = CSM["codec_config"]


@dataclass(frozen=True)
class Small:
    """A small config; media tokens: lengths to run its encoder on."""

    name: str
    config: dict[str, Any]
    media: tuple[int, ...] = ()


SMALL = (
    Small("voxtral", VOXTRAL, (12, 36)),
    Small("voxtral-more-text", {**VOXTRAL, "text_config": {**VOXTRAL["text_config"], "attention_bias": True}}, (24,)),
    Small("qwen2_audio", QWEN2_AUDIO, (12, 36)),
    Small("granite_speech", GRANITE, (24, 13, 5)),
    Small(
        "granite_speech-seldom-crossing",
        {
            **GRANITE,
            "encoder_config": {**GRANITE["encoder_config"], "dim_head": None, "conv_kernel_size": 4},
            "projector_config": {
                **GRANITE["projector_config"],
                "num_hidden_layers": 5,
                "cross_attention_frequency": 2,
                "use_qformer_text_input": True,
            },
            "has_lora_adapter": True,
        },
        (24,),
    ),
    Small("csm", CSM),
    Small("csm-untied", {**CSM, "tie_codebooks_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    Small(
        "csm-codec",
        {
            **CSM,
            "codec_config": {
                **_CODEC,
                "upsampling_ratios": [3, 2],
                "num_residual_layers": 2,
                "use_conv_shortcut": True,
                "attention_bias": True,
                "vector_quantization_hidden_dimension": 32,
                "codebook_dim": 32,
                "upsample_groups": 8,
                "compress": 4,
                "frame_rate": 2000,
            },
        },
    ),
    Small("csm-codec-one-rate", {**CSM, "codec_config": {**_CODEC, "frame_rate": 25}}),
)
HEARING = [(small, n) for small in SMALL for n in small.media]


def build(modules: Any, config: dict[str, Any], device: str = "meta") -> Any:
    """The module, in evaluation mode, with attention that the counter sees."""
    from transformers import (
        CsmForConditionalGeneration,
        GraniteSpeechForConditionalGeneration,
        Qwen2AudioForConditionalGeneration,
        VoxtralForConditionalGeneration,
    )

    classes = {
        "csm": CsmForConditionalGeneration,
        "granite_speech": GraniteSpeechForConditionalGeneration,
        "qwen2_audio": Qwen2AudioForConditionalGeneration,
        "voxtral": VoxtralForConditionalGeneration,
    }
    made = modules.config({key: value for key, value in config.items() if key != "torch_dtype"})
    with modules.torch.device(device):
        module = classes[config["model_type"]]._from_config(made, attn_implementation="eager").eval()
    module.tie_weights()
    return module


@pytest.mark.parametrize("small", SMALL, ids=[small.name for small in SMALL])
def test_parameters(small: Small, modules: Any) -> None:
    """Unique parameters of the whole, and of the sound encoder, the projector and the codec."""
    module = build(modules, small.config)
    tensors = list(read_config(small.config).arch.tensors())
    assert totals.params_total(tensors) == sum(p.numel() for p in module.parameters())
    beside = ("audio_tower", "projector", "encoder", "codec_model")
    audio = sum(p.numel() for name, p in module.named_parameters() if any(f"{part}." in name for part in beside))
    depth = sum(p.numel() for name, p in module.named_parameters() if "inputs_embeds_projector" in name)
    assert totals.params_by_group(tensors)["audio"] == audio - depth


def filled_up(config: dict[str, Any], n: int) -> dict[str, int]:
    """What the conformer's filled-up last block costs beyond the positions that are there."""
    if config["model_type"] != "granite_speech":
        return {"gemm": 0, "attention": 0}
    e = config["encoder_config"]
    size, heads = e["context_size"], e["num_heads"]
    inner = heads * (e["dim_head"] or e["hidden_dim"] // heads)
    rest = n % size
    rows, scores = (size - rest, size**2 - rest**2) if rest else (0, 0)
    times = BATCH * e["num_layers"]
    return {"gemm": times * 2 * rows * e["hidden_dim"] * 3 * inner, "attention": times * 6 * inner * scores}


@pytest.mark.parametrize(("small", "n"), HEARING, ids=[f"{small.name}-{n}" for small, n in HEARING])
def test_flops_of_hearing(small: Small, n: int, modules: Any) -> None:
    """FLOPs that sound of n positions adds to a pass, which are those of the encoder and the projector."""
    config, torch = small.config, modules.torch
    module = build(modules, config)
    if config["model_type"] == "granite_speech":
        frames = torch.zeros(BATCH, n, config["encoder_config"]["input_dim"], device="meta")
    else:
        windows = BATCH * n // config["audio_config"]["max_source_positions"]
        frames = torch.zeros(windows, 10, 24, device="meta")
    if config["model_type"] == "qwen2_audio":
        run = lambda: module.model.multi_modal_projector(module.model.audio_tower(frames).last_hidden_state)
    else:
        run = lambda: module.model.get_audio_features(frames)
    right, more = counted(run)[0], filled_up(config, n)
    reading = read_config(config)
    with_sound, without = (
        flops_of(reading.arch.ops(Step(BATCH, 7, 7, media_tokens=m), reading.precision.numerics())) for m in (n, 0)
    )
    assert {role: with_sound[role] - without[role] + more[role] for role in right} == right


@pytest.mark.parametrize("books", [2, 3, 4, 5])
@pytest.mark.parametrize("untied", [False, True])
def test_flops_of_speaking(books: int, untied: bool, modules: Any) -> None:
    """A decode step of CSM: the backbone over its cache and the depth decoder's passes for one frame."""
    depth = {**CSM["depth_decoder_config"], "num_codebooks": books}
    config = {**CSM, "num_codebooks": books, "depth_decoder_config": depth, "tie_codebooks_embeddings": not untied}
    module, torch = build(modules, config, "cpu"), modules.torch
    cache: dict[str, Any] = {}

    def backbone(frames: int) -> None:
        ids = torch.zeros(BATCH, frames, books, dtype=torch.long)
        out = module(input_ids=ids, past_key_values=cache.get("held"), use_cache=True, logits_to_keep=1)
        cache["held"] = out.past_key_values

    def speak() -> None:
        held = None
        for keys in range(2, books + 1):
            ids = torch.zeros(BATCH, 2 if keys == 2 else 1, dtype=torch.long)
            hidden = {"backbone_last_hidden_state": torch.zeros(BATCH, 48)} if keys == 2 else {}
            out = module.depth_decoder(input_ids=ids, past_key_values=held, use_cache=True, logits_to_keep=1, **hidden)
            held = out.past_key_values

    reading = read_config(config)
    numerics = reading.precision.numerics()
    for frames, context in ((6, 6), (1, 7)):
        right = counted(lambda frames=frames: backbone(frames))[0]
        more = counted(speak)[0]
        got = flops_of(reading.arch.ops(Step(BATCH, frames, context, causal=False), numerics))
        assert {role: right[role] + more[role] for role in right} == got


def test_weight_bytes() -> None:
    """Speaking reads what is streamed once, and the depth decoder's layers once more for every further codebook."""
    reading = read_config(CSM)
    arch, numerics = reading.arch, reading.precision.numerics()
    tensors = list(arch.tensors())
    read = sum(op.cost.weight_bytes * op.count for op in arch.ops(Step(BATCH, 1, 9), numerics))
    depth = next(part for part in arch.extras if isinstance(part, DepthDecoder))
    again = sum(t.stored_bytes * t.copies for t in depth.tensors() if t.group == "depth")
    assert read == totals.weight_bytes(tensors, streamed_only=True) + (CSM["num_codebooks"] - 2) * again


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**VOXTRAL, "audio_config": {**_SOUND, "intermediate_size": 50}}, ("audio_config.intermediate_size",)),
        ({**VOXTRAL, "audio_config": {**_SOUND, "num_attention_heads": 5}}, ("audio_config.num_attention_heads",)),
        ({**VOXTRAL, "audio_config": 7}, ("audio_config", "object")),
        ({**GRANITE, "downsample_rate": 9}, ("downsample_rate", "window_size")),
        ({**GRANITE, "projector_config": {"hidden_size": 32}}, ("projector_config.encoder_hidden_size", "24")),
        ({**CSM, "num_codebooks": 6}, ("depth_decoder_config.num_codebooks", "6")),
        ({**CSM, "depth_decoder_config": None}, ("depth_decoder_config",)),
        ({**CSM, "codec_config": {**_CODEC, "upsampling_ratios": [8, "6"]}}, ("upsampling_ratios", "6")),
        ({**CSM, "codec_config": {**_CODEC, "frame_rate": "x"}}, ("frame_rate",)),
        ({**QWEN2_AUDIO, "text_config": {"model_type": "llama"}}, ("model_type", "qwen2")),
    ],
)
def test_refused(config: dict[str, Any], words: tuple[str, ...]) -> None:
    """Broken or contradictory configs are refused by key."""
    assert_refused(config, words)
