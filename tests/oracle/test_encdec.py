"""Encoder-decoders against their published configs and against the modules of transformers.

Small models run an encoding pass with a few decoder tokens, a chunk and a decode step over the cache; FLOPs by role,
parameters and cache are those of the module. What makes the two comparable, beyond what test_flops says:

* Local attention of transformers multiplies whole blocks (LongT5: 3(r + 1) keys a query; LED: two chunks of 2r, then
  3r) and masks afterwards, and LongT5 sums blocks by a product with a one-hot matrix.
  gambrel counts the pairs within the band, as a fused kernel does; the module's count is corrected by the difference.
* A config that unties the head: the T5 family ties by force in that library (the checkpoints store a head), and the
  others untie the encoder's and the decoder's tokens too, beside a shared table that nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from compared import assert_refused, counted, gambrel_flops, published, truth

from gambrel.model import arch as totals
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config
from gambrel.types import Step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BATCH, SOURCE = 2, 16
#: Steps in order: new tokens of the decoder; the first one encodes.
STEPS = (4, 3, 1)

# Published configs ----------------------------------------------------------------------------

FILES = (
    "allenai__led-base-16384.json",
    "facebook__bart-large.json",
    "facebook__m2m100-12B-last-ckpt.json",
    "facebook__mbart-large-cc25.json",
    "google-t5__t5-small.json",
    "google__byt5-small.json",
    "google__byt5-xl.json",
    "google__long-t5-tglobal-base.json",
    "google__mt5-base.json",
    "google__mt5-large.json",
    "google__mt5-xl.json",
    "google__mt5-xxl.json",
    "google__pegasus-large.json",
    "google__switch-base-128.json",
    "google__switch-base-8.json",
    "google__switch-c-2048.json",
    "google__umt5-xxl.json",
    "openai__whisper-tiny.json",
)

#: Files without a model_type, refused as they are: the type that the message asks for.
WITHOUT_TYPE = {"google__umt5-xxl.json": "umt5"}

#: Groups of parameters: gambrel's name -> column of the truth. "other" holds gated feed-forwards and convolutions.
GROUPS = {"attention": "attention", "experts": "experts_routed", "router": "router", "norm": "norm"}


@pytest.mark.parametrize("file", FILES)
def test_published(file: str, shared: Path) -> None:
    """Total and active parameters, groups, KV bytes per token and the state that does not grow."""
    config, row = published(shared, file), truth(shared, file)
    if file in WITHOUT_TYPE:
        with pytest.raises(ConfigError, match="missing key model_type"):
            read_config(config)
        config["model_type"] = WITHOUT_TYPE[file]
    reading = read_config(config, Overrides(kv="bf16"))
    assert reading.unread == ()
    arch, tensors = reading.arch, list(reading.arch.tensors())
    head = int(row["total_params_if_untied"]) - int(row["total_params"]) if row["truth_note"] else 0
    assert totals.params_total(tensors) == int(row["total_params"]) + head
    assert totals.params_active(tensors) == int(row["active_params"] or row["total_params"]) + head
    groups = totals.params_by_group(tensors)
    assert {name: groups.get(name, 0) for name in GROUPS} == {n: int(row[column]) for n, column in GROUPS.items()}
    rest = sum(groups.get(name, 0) for name in ("mlp", "embedding", "head"))
    assert rest == head + sum(int(row[c]) for c in ("mlp", "other", "embed_params", "embed_other"))
    caches = arch.caches(reading.precision.numerics())
    if row["kv_bytes_per_token_bf16"]:  # the cache could not be measured for LED and the Switch Transformers
        assert totals.kv_bytes_per_token(caches) == int(row["kv_bytes_per_token_bf16"])
        source = arch.source_tokens or 4
        assert totals.state_bytes(caches, 0, source_tokens=source) == 2 * int(row["fixed_state_elems"])


# Small models ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Small:
    """A small config. more: parameters that gambrel counts beyond the module's where the head is untied (see above)."""

    name: str
    config: dict[str, Any]
    more: int = 0


V, D = 320, 48
_T5 = {
    "vocab_size": V,
    "d_model": D,
    "d_kv": 8,
    "d_ff": 80,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
    "torch_dtype": "bfloat16",
}
_BART = {
    "vocab_size": V,
    "d_model": D,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 112,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "torch_dtype": "bfloat16",
}
_LED = {
    **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
    "max_encoder_position_embeddings": 96,
    "max_decoder_position_embeddings": 32,
    "encoder_attention_heads": 4,
    "attention_window": 4,
}
_WHISPER = {
    **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
    "max_source_positions": SOURCE,
    "max_target_positions": 32,
    "num_mel_bins": 10,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
_SWITCH = {**_T5, "num_experts": 4, "num_layers": 4, "num_decoder_layers": 4}
UNTIED = {"tie_word_embeddings": False}

SMALL = (
    Small("t5", {**_T5, "model_type": "t5"}),
    Small("t5-gated-untied", {**_T5, "model_type": "t5", "feed_forward_proj": "gated-gelu", **UNTIED}, V * D),
    Small("t5-symmetric", {**{k: v for k, v in _T5.items() if k != "num_decoder_layers"}, "model_type": "t5"}),
    Small("mt5", {**_T5, "model_type": "mt5"}),
    Small("mt5-relu-untied", {**_T5, "model_type": "mt5", "feed_forward_proj": "relu", **UNTIED}, V * D),
    Small("umt5", {**_T5, "model_type": "umt5"}),
    Small("longt5-local", {**_T5, "model_type": "longt5", "local_radius": 3}),
    Small(
        "longt5-global",
        {
            **_T5,
            "model_type": "longt5",
            "local_radius": 4,
            "encoder_attention_type": "transient-global",
            "global_block_size": 3,
            "feed_forward_proj": "gated-gelu",
            **UNTIED,
        },
        V * D,
    ),
    Small("longt5-wide", {**_T5, "model_type": "longt5", "local_radius": 40}),
    Small("switch", {**_SWITCH, "model_type": "switch_transformers", "num_sparse_encoder_layers": 2}),
    Small(
        "switch-all-encoder-no-decoder",
        {
            **_SWITCH,
            "model_type": "switch_transformers",
            "num_sparse_encoder_layers": 4,
            "num_sparse_decoder_layers": 9,
            "router_bias": True,
        },
    ),
    Small(
        "switch-steps",
        {**_SWITCH, "model_type": "switch_transformers", "encoder_sparse_step": 2, "decoder_sparse_step": 0},
    ),
    Small(
        "switch-none",
        {
            **_SWITCH,
            "model_type": "switch_transformers",
            "num_sparse_encoder_layers": 0,
            "num_sparse_decoder_layers": 3,
        },
    ),
    Small("bart", {**_BART, "model_type": "bart"}),
    Small("bart-untied", {**_BART, "model_type": "bart", **UNTIED}, -2 * V * D),
    Small("plbart", {**_BART, "model_type": "plbart"}),
    Small("blenderbot", {**_BART, "model_type": "blenderbot"}),
    Small("blenderbot-small", {**_BART, "model_type": "blenderbot-small"}),
    Small("mbart", {**_BART, "model_type": "mbart"}),
    Small("pegasus", {**_BART, "model_type": "pegasus"}),
    Small("m2m_100", {**_BART, "model_type": "m2m_100"}),
    Small("marian", {**_BART, "model_type": "marian"}),
    Small(
        "marian-two-vocabularies",
        {**_BART, "model_type": "marian", "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 200},
    ),
    Small(
        "marian-two-vocabularies-untied",
        {
            **_BART,
            "model_type": "marian",
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 200,
            **UNTIED,
        },
    ),
    Small("led", {**_LED, "model_type": "led"}),
    Small("led-windows", {**_LED, "model_type": "led", "attention_window": [4, 8, 4]}),
    Small("whisper", {**_WHISPER, "model_type": "whisper"}),
    Small("whisper-untied", {**_WHISPER, "model_type": "whisper", **UNTIED}),
)
#: Their masks or their routing need values.
ON_CPU = {"longt5", "led", "switch_transformers"}


def parametrized() -> Any:
    return pytest.mark.parametrize("small", SMALL, ids=[small.name for small in SMALL])


def build(modules: Any, config: dict[str, Any]) -> Any:
    """The module, in evaluation mode, with attention that the counter sees."""
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

    made = modules.config({key: value for key, value in config.items() if key != "torch_dtype"})
    auto = AutoModelForSpeechSeq2Seq if config["model_type"] == "whisper" else AutoModelForSeq2SeqLM
    options = {} if config["model_type"] in ("longt5", "led") else {"attn_implementation": "eager"}
    with modules.torch.device("cpu" if config["model_type"] in ON_CPU else "meta"):
        module = auto.from_config(made, **options).eval()
    module.tie_weights()
    return module


@parametrized()
def test_parameters(small: Small, modules: Any) -> None:
    """Unique parameters, those of experts apart."""
    module = build(modules, small.config)
    tensors = list(read_config(small.config).arch.tensors())
    assert totals.params_total(tensors) == sum(p.numel() for p in module.parameters()) + small.more
    experts = sum(p.numel() for name, p in module.named_parameters() if ".experts." in name)
    assert totals.params_by_group(tensors).get("experts", 0) == experts


def passes(module: Any, modules: Any, config: dict[str, Any]) -> Any:
    """FLOPs by role of every step, with the cache after it."""
    torch, device = modules.torch, module.device
    if config["model_type"] == "whisper":
        source = {"input_features": torch.zeros(BATCH, config["num_mel_bins"], 2 * SOURCE, device=device)}
    else:
        source = {"input_ids": torch.full((BATCH, SOURCE), 5, device=device)}
    cache, encoded = None, None
    for new_tokens in STEPS:
        ids = torch.full((BATCH, new_tokens), 5, device=device)

        def run(ids: Any = ids, cache: Any = cache, encoded: Any = encoded) -> Any:
            # by hand, since the Switch Transformers hand use_cache on to their encoder, which refuses it
            encoded = module.get_encoder()(**source) if encoded is None else encoded
            out = module(encoder_outputs=encoded, decoder_input_ids=ids, past_key_values=cache, use_cache=True)
            return encoded, out.past_key_values

        flops, (encoded, cache) = counted(run)
        yield flops, cache


def band_correction(config: dict[str, Any]) -> int:
    """Attention FLOPs of the pairs within the bands of the encoder, minus those of the blocks that multiply them."""
    n, kind = SOURCE, config["model_type"]
    pairs = lambda r: sum(abs(i - j) <= r for i in range(n) for j in range(n))
    if kind == "longt5":
        r, h, d, layers = config["local_radius"], config["num_heads"], config["d_kv"], config["num_layers"]
        side = n // config["global_block_size"] if config.get("encoder_attention_type") == "transient-global" else 0
        length, one_hot = r + 1, 2 * n * side * config["d_model"]
        blocks = -(-n // length) * length * (3 * length + side)
        return BATCH * layers * (4 * h * d * (pairs(r) + n * side - blocks) - one_hot)
    if kind == "led":
        h, windows = config["encoder_attention_heads"], config["attention_window"]
        d = config["d_model"] // h
        total = 0
        for window in windows if isinstance(windows, list) else [windows] * config["encoder_layers"]:
            w = window // 2
            square = (n // w - 1) * (2 * w) ** 2
            total += 4 * h * d * pairs(w) - 2 * h * d * (square + n * 3 * w)
        return BATCH * total
    return 0


@parametrized()
def test_flops_and_cache(small: Small, modules: Any) -> None:
    """FLOPs of an encoding pass, a chunk and a decode step, and the elements that the cache holds after each."""
    config, context = small.config, 0
    caches = read_config(config).arch.caches(read_config(config).precision.numerics())
    for new_tokens, (right, cache) in zip(STEPS, passes(build(modules, config), modules, config), strict=True):
        encodes, context = context == 0, context + new_tokens
        right["attention"] += band_correction(config) if encodes else 0
        step = Step(BATCH, new_tokens, context, False, "all", SOURCE, encodes)
        assert gambrel_flops(config, step) == right
        held = sum(
            layer.keys.numel() + layer.values.numel()
            for half in (cache.self_attention_cache, cache.cross_attention_cache)
            for layer in half.layers
        )
        assert BATCH * totals.state_bytes(caches, context, source_tokens=SOURCE) == 2 * held


@parametrized()
def test_weight_bytes(small: Small) -> None:
    """A decode step reads what is streamed, an encoding pass everything but the tables of which it gathers rows."""
    reading = read_config(small.config)
    arch, numerics = reading.arch, reading.precision.numerics()
    tensors = list(arch.tensors())

    def read(step: Step) -> int:
        return sum(op.cost.weight_bytes * op.count for op in arch.ops(step, numerics))

    unused = sum(t.stored_bytes * t.copies * (t.used[1] - t.used[0]) // t.used[1] for t in tensors)
    gathered = sum(
        t.stored_bytes * t.copies
        for t in tensors
        if (t.name in ("shared", "embed_tokens") and not t.gemm) or t.name == "embed_positions" or "_global" in t.name
    )
    unused_streamed = sum(
        t.stored_bytes * t.copies * (t.used[1] - t.used[0]) // t.used[1] for t in tensors if t.streamed
    )
    decode = Step(BATCH, 1, 9, source_tokens=SOURCE)
    assert read(decode) == totals.weight_bytes(tensors, streamed_only=True) - unused_streamed
    encode = Step(BATCH, 1, 1, source_tokens=SOURCE, encode=True)
    assert read(encode) == totals.weight_bytes(tensors) - unused - gathered


def cost_of(ops: Any) -> Any:
    return sum(
        op.count * (op.cost.flops + op.cost.kv_read_bytes + op.cost.kv_write_bytes + op.cost.act_bytes) for op in ops
    )


@parametrized()
def test_grid(small: Small) -> None:
    """A grid of batches, decoder contexts and lengths of the source costs what each of its points costs."""
    np = pytest.importorskip("numpy")
    reading = read_config(small.config)
    numerics, contexts, sources = reading.precision.numerics(), (4, 9, 30, 64), (1, 7, 16, 200)
    batches = np.array([1.0, 2.0, 3.0, 4.0])
    grid = cost_of(reading.arch.ops(Step(batches, 3, np.array(contexts), source_tokens=9, encode=True), numerics))
    points = [
        cost_of(reading.arch.ops(Step(b, 3, c, source_tokens=9, encode=True), numerics))
        for b, c in enumerate(contexts, 1)
    ]
    assert list(grid) == points
    parts = [part for block in reading.arch.extras[0].blocks for part in block.parts]
    grid = sum(cost_of(part.ops(Step(batches, np.array(sources), np.array(sources)), numerics)) for part in parts)
    points = [sum(cost_of(part.ops(Step(b, s, s), numerics)) for part in parts) for b, s in enumerate(sources, 1)]
    assert list(grid) == points


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["T5EncoderModel"]}, ("architectures", "T5EncoderModel")),
        ({"is_encoder_decoder": False}, ("is_encoder_decoder", "True")),
        ({"tie_encoder_decoder": True}, ("tie_encoder_decoder", "False")),
        ({"feed_forward_proj": "swish-gelu"}, ("feed_forward_proj", "gated-")),
        ({"feed_forward_proj": "gated-gelu", "is_gated_act": False}, ("is_gated_act",)),
        ({"d_kv": 0}, ("d_kv",)),
        ({"d_ff": None}, ("d_ff",)),
        ({"num_heads": "8"}, ("num_heads", "whole number")),
        ({"hidden_size": 99}, ("contradictory", "d_model", "hidden_size")),
    ],
)
def test_refused_t5(change: dict[str, Any], words: tuple[str, ...]) -> None:
    """Broken or contradictory configs are refused by key."""
    assert_refused({**_T5, "model_type": "t5", **change}, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention_window": 5}, ("attention_window", "even")),
        ({"attention_window": [4, 4]}, ("attention_window", "3 layers")),
        ({"attention_window": [4, None, 4]}, ("attention_window", "even")),
        ({"attention_window": "4"}, ("attention_window",)),
        ({"encoder_attention_heads": 5}, ("d_model", "encoder_attention_heads")),
        ({"decoder_layers": 0}, ("decoder_layers",)),
        ({"decoder_vocab_size": 7}, ("decoder_vocab_size",)),
    ],
)
def test_refused_led(change: dict[str, Any], words: tuple[str, ...]) -> None:
    """Broken or contradictory configs are refused by key."""
    assert_refused({**_LED, "model_type": "led", **change}, words)
