"""Decoders whose layers keep a state of fixed size, alone or beside attention: Mamba, Jamba, Nemotron-H, Qwen3-Next, …

Their layers are not always a mixer and a feed-forward: a family here gives a function that returns the parts of a
layer (see Slots). Defaults are those of the configuration classes of transformers 5.24. States are kept in float32,
as those implementations do, where the config does not name another dtype.
"""

from __future__ import annotations

from gambrel.model.arch import Experts
from gambrel.model.builder import Builder, Family, Layer
from gambrel.model.experts import MixtureOfExperts
from gambrel.model.families.patterns import window_of
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Elementwise, FeedForward, Linear, Norm, Part
from gambrel.model.precision import FP32, PLAIN, STORED
from gambrel.model.recurrent import (
    Again,
    Blockwise,
    Shape,
    ShortConvolution,
    delta_rule,
    gated_unit,
    linear_attention,
    matrix_lstm,
    state_space,
    token_shift,
    wkv,
)
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gambrel.types import Format

    #: The parts of one layer, from the builder, the layer and its module path.
    Make = Callable[["Slots", Layer, str], tuple[Part, ...]]

# Mamba ------------------------------------------------------------------------------------------


@frozen
class Mamba:
    """The first Mamba: inner width, state per channel, rank of the time step, taps, biases.

    norms: of time step, B and C: "" none, "gain" learned, "plain" without a gain. heads: each with its own
    projections of its part of the channels (Zamba).
    """

    inner: int
    state: int
    rank: int
    kernel: int
    bias: bool
    conv_bias: bool
    norms: str = ""
    heads: int = 1


def _mamba(b: Builder, path: str, m: Mamba) -> tuple[Part, ...]:
    """in_proj, convolution, projections of time step, B and C, scan, out_proj."""
    wide, head = m.inner, divided(b.fields, "channels of a Mamba head", m.inner, m.heads)
    b.widths.add(wide)
    conv = ShortConvolution("conv1d", RECURRENT, wide, m.kernel, b.base, m.conv_bias, wide)
    select = b.linear(f"{path}.x_proj", RECURRENT, head, m.rank + 2 * m.state)
    step = b.linear(f"{path}.dt_proj", RECURRENT, m.rank, head, True)
    widths = (("dt_layernorm", m.rank), ("b_layernorm", m.state), ("c_layernorm", m.state)) if m.norms else ()
    scan = state_space("selective_scan", RECURRENT, Shape(wide, m.state, 1), b.base, FP32, wide * (m.state + 1))
    return (
        b.linear(f"{path}.in_proj", RECURRENT, b.hidden, 2 * wide, m.bias),
        conv,
        select if m.heads == 1 else Blockwise(select, m.heads),
        *(Norm(name, width, b.base, affine=m.norms == "gain") for name, width in widths),
        step if m.heads == 1 else Blockwise(step, m.heads),
        scan,
        b.linear(f"{path}.out_proj", RECURRENT, wide, b.hidden, m.bias),
    )


@frozen
class Mamba2:
    """Mamba 2: heads and their width, state size, groups, taps, biases, gated norm, dtype of the state."""

    heads: int
    head: int
    state: int
    groups: int
    kernel: int
    in_bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    norm: bool = True
    dtype: Format = FP32


def _mamba2(b: Builder, path: str, m: Mamba2) -> tuple[Part, ...]:
    """in_proj (gate, x, B, C, time step), convolution, state-space dual, gated norm, out_proj."""
    divided(b.fields, "Mamba heads in groups", m.heads, m.groups)
    inner = m.heads * m.head
    conv = inner + 2 * m.groups * m.state
    shape = Shape(m.heads, m.state, m.head, m.groups)
    return (
        b.linear(f"{path}.in_proj", RECURRENT, b.hidden, inner + conv + m.heads, m.in_bias, m.heads),
        ShortConvolution("conv1d", RECURRENT, conv, m.kernel, b.base, m.conv_bias, m.heads),
        state_space("state_space", RECURRENT, shape, b.base, m.dtype, 3 * m.heads),
        *((b.norm("gated_norm", inner),) if m.norm else ()),
        b.linear(f"{path}.out_proj", RECURRENT, inner, b.hidden, m.out_bias, m.heads),
    )


def _mamba_keys(b: Builder, inner: int) -> Mamba2:
    """Mamba 2 with the keys of Bamba, Granite and Falcon-H1; `inner` is what the heads must add up to."""
    f = b.fields
    heads = f.whole("mamba_n_heads", 128)
    head = auto_whole(f, "mamba_d_head", inner // heads)
    if heads * head != inner:
        raise ConfigError(
            f"contradictory config: {f.label('mamba_n_heads')} = {heads} heads of {head} are not {inner} channels"
        )
    bias = f.flag("mamba_proj_bias", False)
    return Mamba2(
        heads,
        head,
        f.whole("mamba_d_state", 256),
        f.whole("mamba_n_groups", 1),
        f.whole("mamba_d_conv", 4),
        bias,
        bias,
        f.flag("mamba_conv_bias", True),
        dtype=state_format(f, "mamba_ssm_cache_dtype"),
    )


def _mamba_shape(b: Slots) -> None:
    """Channels take the place of heads where there is no attention."""
    f = b.fields
    only(f, "rms_norm", True)
    free(f, "pad_vocab_size_multiple", "fused_add_norm", "ssm_cfg", "time_step_rank", "expand")
    # left over from the original checkpoints, and wrong in some: state-spaces/mamba-790m-hf has d_model 2048 for 1536
    free(f, "d_model", "n_layer", "d_inner", "dt_rank")
    b.n_heads = b.n_kv = f.whole("intermediate_size", f.whole("expand", 2) * b.hidden)


def _mamba_layer(norms: str) -> Make:
    def make(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
        f, bias = b.fields, b.fields.flag("use_bias", False)
        rank = auto_whole(f, "time_step_rank", -(-b.hidden // 16))
        taps, taps_bias = f.whole("conv_kernel", 4), f.flag("use_conv_bias", True)
        spec = Mamba(b.n_heads, f.whole("state_size", 16), rank, taps, bias, taps_bias, norms)
        return pre_norm(b, "norm", *_mamba(b, f"{path}.mixer", spec))

    return make


def _mamba2_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    f, bias, heads = b.fields, b.fields.flag("use_bias", False), b.n_heads
    inner = f.whole("expand", 2) * b.hidden
    if heads * b.head_dim != inner:
        raise ConfigError(
            f"contradictory config: {f.label('num_heads')} = {heads} heads of {b.head_dim} are not {inner} channels"
        )
    free(f, "chunk_size", "time_step_rank", "norm_before_gate")
    only(f, "rms_norm", True)
    groups, taps, state = f.whole("n_groups", 8), f.whole("conv_kernel", 4), f.whole("state_size", 128)
    spec = Mamba2(heads, b.head_dim, state, groups, taps, bias, bias, f.flag("use_conv_bias", True))
    return pre_norm(b, "norm", *_mamba2(b, f"{path}.mixer", spec))


# Jamba, Bamba, Granite, Falcon-H1 ----------------------------------------------------------------


def _jamba_layers(b: Builder) -> list[Layer]:
    """Every period-th layer has attention, every period-th experts, each from its offset on."""
    f, found = b.fields, []
    for name, period, offset in (("attn_layer", 8, 4), ("expert_layer", 2, 1)):
        every, first = f.whole(f"{name}_period", period), f.whole(f"{name}_offset", offset, low=0)
        if first >= every:
            raise ConfigError(f"{f.label(f'{name}_offset')} is {first}; accepted is 0 to {every - 1}")
        found.append([i % every == first for i in range(b.n_layers)])
    experts = f.whole("num_experts", 16) > 1
    f.whole("num_experts_per_tok", 2, low=0)
    return [
        Layer(kind="full" if full else "linear", sparse=sparse and experts) for full, sparse in zip(*found, strict=True)
    ]


def _jamba_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    f = b.fields
    if layer.kind == "full":
        mixer = grouped_attention(b, f"{path}.self_attn", Projections(rotary=False))
    else:
        inner = f.whole("mamba_expand", 2) * b.hidden
        rank = auto_whole(f, "mamba_dt_rank", -(-b.hidden // 16))
        bias, taps = f.flag("mamba_proj_bias", False), f.whole("mamba_d_conv", 4)
        conv_bias = f.flag("mamba_conv_bias", True)
        spec = Mamba(inner, f.whole("mamba_d_state", 16), rank, taps, bias, conv_bias, "gain")
        mixer = _mamba(b, f"{path}.mamba", spec)
    width = f.whole("intermediate_size")
    ffn: Part = feed_forward(b, f"{path}.feed_forward", width)
    if layer.sparse:
        experts = Routed(f.whole("num_experts", 16), f.whole("num_experts_per_tok", 2), width, router="router")
        ffn = mixture(b, f"{path}.feed_forward", experts)
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "pre_ff_layernorm", ffn))


def _bamba_layers(b: Builder) -> list[Layer]:
    """Attention in the layers that attn_layer_indices names."""
    free(b.fields, "mamba_dt_rank", "attn_rotary_emb")
    full = indices_of(b, "attn_layer_indices")
    return [Layer(kind="full" if i in full else "linear") for i in range(b.n_layers)]


def _bamba_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    f = b.fields
    if layer.kind == "full":
        bias = f.flag("attention_bias", False)
        mixer = grouped_attention(b, f"{path}.self_attn", Projections(bias=bias, out_bias=bias))
    else:
        mixer = _mamba2(b, f"{path}.mamba", _mamba_keys(b, f.whole("mamba_expand", 2) * b.hidden))
    ffn = feed_forward(b, f"{path}.feed_forward", f.whole("intermediate_size"), Inner(bias=f.flag("mlp_bias", False)))
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "pre_ff_layernorm", ffn))


def _granite_shape(b: Slots) -> None:
    place = b.fields.text("position_embedding_type", "nope")
    b.rotary = b.fields.choice("position_embedding_type", place, ("nope", "rope")) == "rope"


def _granite_layers(b: Builder) -> list[Layer]:
    kinds = kinds_of(b, "layer_types", ("linear", "full"), ["linear"] * b.n_layers)
    sparse = b.fields.whole("num_local_experts", 8, low=0) > 0
    return [Layer(kind=kind, sparse=sparse) for kind in kinds]


def _granite_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Attention or Mamba 2, then experts (where there are any) and a feed-forward that every token passes."""
    f = b.fields
    if layer.kind == "full":
        bias = f.flag("attention_bias", False)
        mixer = grouped_attention(b, f"{path}.self_attn", Projections(bias=bias, out_bias=bias, rotary=b.rotary))
    else:
        mixer = _mamba2(b, f"{path}.mamba", _mamba_keys(b, f.whole("mamba_expand", 2) * b.hidden))
    width = f.whole("shared_intermediate_size", 1024)
    ffn: Part = feed_forward(b, f"{path}.shared_mlp", width, FUSED_INNER, "shared_experts")
    if layer.sparse:
        assert isinstance(ffn, FeedForward)
        numbers = f.whole("num_local_experts", 8), f.whole("num_experts_per_tok", 2), f.whole("intermediate_size")
        ffn = mixture(b, f"{path}.block_sparse_moe", Routed(*numbers, router="router", shared=ffn))
    else:
        f.whole("num_experts_per_tok", 0, low=0)
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "post_attention_layernorm", ffn))


def _falcon_h1_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Attention and Mamba 2 side by side on the same input, then a feed-forward."""
    f = b.fields
    only(f, "mamba_use_mlp", True)
    keys = _mamba_keys(b, _falcon_h1_inner(f, b.hidden))
    spec = Mamba2(
        keys.heads,
        keys.head,
        keys.state,
        keys.groups,
        keys.kernel,
        keys.in_bias,
        f.flag("projectors_bias", False),
        keys.conv_bias,
        f.flag("mamba_rms_norm", False),
        keys.dtype,
    )
    bias = f.flag("attention_bias", False)
    mixers = (
        *_mamba2(b, f"{path}.mamba", spec),
        *grouped_attention(b, f"{path}.self_attn", Projections(bias=bias, out_bias=bias)),
        Elementwise("add_mixers", b.hidden),
    )
    ffn = feed_forward(b, f"{path}.feed_forward", f.whole("intermediate_size"), Inner(bias=f.flag("mlp_bias", False)))
    return (*pre_norm(b, "input_layernorm", *mixers), *pre_norm(b, "pre_ff_layernorm", ffn))


def _falcon_h1_inner(f: Fields, hidden: int) -> int:
    """Channels of the mixer: mamba_d_ssm, with null mamba_expand · hidden; unsaid, what the heads add up to."""
    expand = f.whole("mamba_expand", 2)
    if "mamba_d_ssm" in f.data:
        return f.maybe("mamba_d_ssm") or expand * hidden
    if f.raw("mamba_d_head", "auto") == "auto":
        return 1024
    return f.whole("mamba_n_heads", 128) * f.whole("mamba_d_head")


# Zamba ------------------------------------------------------------------------------------------


def _zamba_layers(b: Builder) -> list[Layer]:
    f, n = b.fields, b.n_layers
    period, offset = f.whole("attn_layer_period", 6), f.whole("attn_layer_offset", 4, low=0)
    pattern = ["linear", "linear", "hybrid", *("hybrid" if i % period == offset else "linear" for i in range(n - 3))]
    return _shared(kinds_of(b, "layers_block_type", ("linear", "hybrid"), pattern[:n]), 1)


def _zamba2_layers(b: Builder) -> list[Layer]:
    f = b.fields
    kinds = kinds_of(b, "layers_block_type", ("linear", "hybrid"), ())
    if not kinds:
        raise ConfigError(f"missing key {f.label('layers_block_type')}")
    only(f, "use_shared_mlp_adapter", True)
    free(f, "chunk_size", "use_mem_eff_path", "use_long_context", "kv_channels", "num_query_groups")
    hybrid = [i for i, kind in enumerate(kinds) if kind == "hybrid"]
    if f.has("hybrid_layer_ids") and indices_of(b, "hybrid_layer_ids") != hybrid:
        raise ConfigError(f"contradictory config: {f.label('hybrid_layer_ids')} is not what layers_block_type says")
    return _shared(kinds, f.whole("num_mem_blocks", 1))


def _shared(kinds: Sequence[str], blocks: int) -> list[Layer]:
    """Hybrid layers take turns with `blocks` shared transformers; the first of each turn owns the weights."""
    layers: list[Layer] = []
    for kind in kinds:
        seen = sum(layer.kind == "hybrid" for layer in layers)
        layers.append(Layer(kind=kind, extra="again" if kind == "hybrid" and seen >= blocks else None))
    return layers


def _zamba_shape(b: Slots) -> None:
    wide = b.fields.whole("attention_hidden_size", 2 * b.hidden)
    if not b.fields.has("head_dim"):
        b.head_dim = divided(b.fields, "attention width in heads", 2 * b.hidden, b.n_heads)
    b.rotary = b.fields.flag("use_mem_rope", False)
    b.notes.append(f"layers share a transformer of {wide} inputs: its weights are counted, and read in a step, once")


def _own(layer: Layer, *parts: Part) -> tuple[Part, ...]:
    return tuple(Again(part) for part in parts) if layer.extra == "again" else parts


def _zamba_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    f, hybrid = b.fields, layer.kind == "hybrid"
    wide = f.whole("attention_hidden_size", 2 * b.hidden)
    inner, rank = f.whole("mamba_expand", 2) * b.hidden, auto_whole(f, "mamba_dt_rank", -(-b.hidden // 16))
    bias, taps_bias = f.flag("mamba_proj_bias", False), f.flag("mamba_conv_bias", True)
    taps, state, heads = f.whole("mamba_d_conv", 4), f.whole("mamba_d_state", 16), f.whole("n_mamba_heads", 2)
    spec = Mamba(inner, state, rank, taps, bias, taps_bias, heads=heads)
    own = f"{path}.mamba_decoder.mamba" if hybrid else f"{path}.mamba"
    mamba = pre_norm(b, "input_layernorm", *_mamba(b, own, spec))
    if not hybrid:
        return mamba
    shared = f"{path}.shared_transf"
    block = _own(
        layer,
        b.norm("input_layernorm", wide),
        *grouped_attention(b, f"{shared}.self_attn", Projections(wide, rotary=False)),
        b.norm("pre_ff_layernorm"),
        feed_forward(b, f"{shared}.feed_forward", f.whole("intermediate_size")),
    )
    return (*block, b.linear(f"{path}.linear", "mlp", b.hidden, b.hidden), Elementwise("add_shared", b.hidden), *mamba)


def _zamba2_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    f, hybrid = b.fields, layer.kind == "hybrid"
    bias, heads = f.flag("add_bias_linear", False), f.whole("n_mamba_heads", 8)
    head = divided(f, "channels in Mamba heads", f.whole("mamba_expand", 2) * b.hidden, heads)
    only(f, "mamba_headdim", head)
    state, groups, taps = f.whole("mamba_d_state", 64), f.whole("mamba_ngroups", 1), f.whole("mamba_d_conv", 4)
    spec = Mamba2(heads, head, state, groups, taps, bias, bias, f.flag("use_conv_bias", True))
    own = f"{path}.mamba_decoder.mamba" if hybrid else f"{path}.mamba"
    mamba = pre_norm(b, "input_layernorm", *_mamba2(b, own, spec))
    if not hybrid:
        return mamba
    shared = _zamba2_shared(b, layer, f"{path}.shared_transformer")
    linear = b.linear(f"{path}.linear", "mlp", b.hidden, b.hidden)
    return (*shared, linear, Elementwise("add_shared", b.hidden), *mamba)


def _zamba2_shared(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
    """A shared transformer, with low-rank adapters that each layer has for itself."""
    f = b.fields
    wide, width = f.whole("attention_hidden_size", 2 * b.hidden), f.whole("intermediate_size", 4 * b.hidden)
    rank, bias = f.whole("adapter_rank", 128), f.flag("add_bias_linear", False)

    def adapter(name: str, group: str, n_in: int, n_out: int) -> tuple[Part, ...]:
        down = b.linear(f"{path}.{name}.0", group, n_in, rank)
        return (down, b.linear(f"{path}.{name}.1", group, rank, n_out), Elementwise("add_adapter", n_out))

    queries: tuple[Part, ...] = ()
    if f.flag("use_shared_attention_adapter", False):
        for name in ("linear_q_adapter", "linear_k_adapter", "linear_v_adapter"):
            queries += adapter(f"self_attn.{name}", "attention", wide, wide)
    norms = b.norm("input_layernorm", wide), b.norm("pre_ff_layernorm")
    attention = grouped_attention(b, f"{path}.self_attn", Projections(wide, rotary=b.rotary))
    ffn = feed_forward(b, f"{path}.feed_forward", width, Inner(("gate_up_proj",), bias=bias))
    return (
        *_own(layer, norms[0], *attention),
        *queries,
        *_own(layer, norms[1], ffn),
        *adapter("feed_forward.gate_up_proj_adapter", "mlp", b.hidden, 2 * width),
    )


# Nemotron-H -------------------------------------------------------------------------------------

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_shape(b: Slots) -> None:
    """The list or the pattern says how many layers there are."""
    f = b.fields
    pattern, listed = f.text("hybrid_override_pattern", ""), f.items("layers_block_type")
    for symbol in pattern:
        f.choice("hybrid_override_pattern", symbol, tuple(PATTERN))
    spelled = [PATTERN[symbol] for symbol in pattern]
    names = listed or spelled
    if not names:
        raise ConfigError(f"missing key {f.label('layers_block_type')} or {f.label('hybrid_override_pattern')}")
    accepted = [name for name, kind in KINDS.items() if kind in NEMOTRON]
    for name in names:
        f.choice("layers_block_type", name, accepted)
    kinds = [KINDS[name] for name in names]
    if listed and spelled and kinds != [KINDS[name] for name in spelled]:
        raise ConfigError("contradictory config: layers_block_type and hybrid_override_pattern name different layers")
    if f.has("num_hidden_layers") and b.n_layers != len(kinds):
        raise ConfigError(
            f"contradictory config: {f.label('num_hidden_layers')} is {b.n_layers}, but {len(kinds)} layers are listed"
        )
    b.n_layers, b.kinds = len(kinds), kinds
    note_predictions(b, "num_nextn_predict_layers")
    for key in ("attention_bias", "mamba_proj_bias"):
        only(f, key, False)
    free(f, "expand", "mamba_expand", "chunk_size", "time_step_rank", "mtp_hybrid_override_pattern")
    free(f, "mtp_layers_block_type", "moe_shared_expert_overlap")


def _nemotron_layers(b: Builder) -> list[Layer]:
    assert isinstance(b, Slots)
    return [Layer(window_of(b.fields) if kind == "full" else None, kind=kind) for kind in b.kinds]


def _nemotron_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """One slot a layer: Mamba 2, attention, a feed-forward or experts."""
    return pre_norm(b, "norm", *NEMOTRON[layer.kind](b, layer, f"{path}.mixer"))


def _nemotron_mamba(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    f, bias = b.fields, b.fields.flag("use_bias", False)
    heads, head = f.whole("mamba_num_heads", 128), f.whole("mamba_head_dim", 64)
    state, groups, taps = f.whole("ssm_state_size", 128), f.whole("n_groups", 8), f.whole("conv_kernel", 4)
    conv_bias, dtype = f.flag("use_conv_bias", True), state_format(f, "mamba_ssm_cache_dtype")
    return _mamba2(b, path, Mamba2(heads, head, state, groups, taps, bias, bias, conv_bias, dtype=dtype))


def _nemotron_attention(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    return grouped_attention(b, path, Projections(rotary=False), layer.window)


def _nemotron_mlp(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    how = Inner(PLAIN_INNER.names, gated=False, bias=b.fields.flag("mlp_bias", False))
    return (feed_forward(b, path, b.fields.whole("intermediate_size"), how),)


def _nemotron_moe(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Experts without a gate, in a narrower space where there is moe_latent_size, beside a shared one."""
    f, bias = b.fields, b.fields.flag("mlp_bias", False)
    only(f, "n_shared_experts", 1)
    latent, shared_width = f.maybe("moe_latent_size"), f.whole("moe_shared_expert_intermediate_size")
    how = Inner(PLAIN_INNER.names, gated=False, bias=bias)
    shared = feed_forward(b, f"{path}.shared_experts", shared_width, how, "shared_experts")
    numbers = f.whole("n_routed_experts"), f.whole("num_experts_per_tok"), f.whole("moe_intermediate_size")
    experts = mixture(b, path, Routed(*numbers, how=PLAIN_INNER, n_in=latent, shared=shared))
    if latent is None:
        return (experts,)
    return (
        b.linear(f"{path}.fc1_latent_proj", "latent", b.hidden, latent, bias),
        experts,
        b.linear(f"{path}.fc2_latent_proj", "latent", latent, b.hidden, bias),
    )


NEMOTRON: dict[str, Make] = {
    "linear": _nemotron_mamba,
    "full": _nemotron_attention,
    "mlp": _nemotron_mlp,
    "moe": _nemotron_moe,
}


# Gated delta nets: Qwen3-Next, Qwen3.5, OLMo Hybrid, Kimi Linear ----------------------------------


def _interval_layers(has_experts: bool) -> Callable[[Builder], list[Layer]]:
    """Every full_attention_interval-th layer has attention; experts as decoder_sparse_step and mlp_only_layers say."""

    def layers(b: Builder) -> list[Layer]:
        f = b.fields
        interval = f.whole("full_attention_interval", 4)
        pattern = ["linear" if (i + 1) % interval else "full" for i in range(b.n_layers)]
        kinds = kinds_of(b, "layer_types", ("linear", "full"), pattern)
        only(f, "use_sliding_window", False)
        note_predictions(b, "mtp_num_hidden_layers")
        dense, step = indices_of(b, "mlp_only_layers"), f.whole("decoder_sparse_step", 1)
        if not has_experts:
            f.choice("num_experts", f.whole("num_experts", 0, low=0), (0,))
            return [Layer(kind=kind) for kind in kinds]
        sparse = f.whole("num_experts", low=0) > 0
        return [
            Layer(kind=kind, sparse=sparse and i not in dense and (i + 1) % step == 0) for i, kind in enumerate(kinds)
        ]

    return layers


@frozen
class Delta:
    """A gated delta net: key and value heads, their widths, taps, the projections' names and widths by path end."""

    key_heads: int
    value_heads: int
    d_k: int
    d_v: int
    kernel: int
    dtype: Format = FP32

    @property
    def keys(self) -> int:
        """Width of all keys."""
        return self.key_heads * self.d_k

    @property
    def values(self) -> int:
        """Width of all values."""
        return self.value_heads * self.d_v


def _delta_keys(b: Builder) -> Delta:
    f = b.fields
    keys, values = f.whole("linear_num_key_heads", 16), f.whole("linear_num_value_heads", 32)
    divided(f, "value heads over key heads", values, keys)
    widths = f.whole("linear_key_head_dim", 128), f.whole("linear_value_head_dim", 128)
    return Delta(keys, values, *widths, f.whole("linear_conv_kernel_dim", 4), state_format(f, "mamba_ssm_dtype"))


def _delta_net(
    b: Builder, path: str, d: Delta, inputs: Sequence[tuple[str, int]], out: str = "out_proj"
) -> tuple[Part, ...]:
    """Projections (name and width each), convolution over queries, keys and values, delta rule, gated norm, out."""
    shape = Shape(d.value_heads, d.d_k, d.d_v, d.key_heads)
    return (
        *(b.linear(f"{path}.{name}", RECURRENT, b.hidden, width, ways=d.key_heads) for name, width in inputs),
        ShortConvolution("conv1d", RECURRENT, 2 * d.keys + d.values, d.kernel, b.base, ways=d.key_heads),
        delta_rule("gated_delta_rule", RECURRENT, shape, b.base, d.dtype, 2 * d.value_heads),
        b.norm("gated_norm", d.d_v, per_row=d.value_heads),
        b.linear(f"{path}.{out}", RECURRENT, d.values, b.hidden, ways=d.value_heads),
    )


def _qwen_layer(fused: bool) -> Make:
    """Gated attention or a gated delta net, then experts with a gated shared one, or a feed-forward."""

    def make(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
        f = b.fields
        if layer.kind == "full":
            bias = f.flag("attention_bias", False)
            only(f, "attn_output_gate", True)
            how = Projections(gated=True, bias=bias, out_bias=bias, qk_norm="head")
            mixer = grouped_attention(b, f"{path}.self_attn", how)
        else:
            d = _delta_keys(b)
            qkv, heads = 2 * d.keys + d.values, d.value_heads
            together = [("in_proj_qkvz", qkv + d.values), ("in_proj_ba", 2 * heads)]
            apart = [("in_proj_qkv", qkv), ("in_proj_z", d.values), ("in_proj_b", heads), ("in_proj_a", heads)]
            mixer = _delta_net(b, f"{path}.linear_attn", d, together if fused else apart)
        ffn = _qwen_moe(b, f"{path}.mlp") if layer.sparse else feed_forward(b, f"{path}.mlp", f.whole("intermediate_size"))
        return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "post_attention_layernorm", ffn))

    return make


def _qwen_moe(b: Builder, path: str) -> Part:
    f = b.fields
    shared_width = f.whole("shared_expert_intermediate_size")
    shared = feed_forward(b, f"{path}.shared_expert", shared_width, group="shared_experts")
    gate = b.linear(f"{path}.shared_expert_gate", "shared_experts", b.hidden, 1, ways=1)
    numbers = f.whole("num_experts"), f.whole("num_experts_per_tok"), f.whole("moe_intermediate_size")
    return mixture(b, path, Routed(*numbers, shared=shared, shared_gate=gate))


def _olmo_layers(b: Builder) -> list[Layer]:
    pattern = ["full" if i % 4 == 3 else "linear" for i in range(b.n_layers)]
    if "full" not in pattern:
        pattern[-1] = "full"
    kinds = kinds_of(b, "layer_types", ("linear", "full"), pattern)
    if len(set(kinds)) == 1:
        raise ConfigError(f"{b.fields.label('layer_types')} has only {kinds[0]} attention; accepted is both kinds")
    return [Layer(kind=kind) for kind in kinds]


def _olmo_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Attention with norms behind its parts, or a gated delta net with norms before them."""
    f, ffn = b.fields, feed_forward(b, f"{path}.mlp", b.fields.whole("intermediate_size"))
    if layer.kind == "full":
        bias = f.flag("attention_bias", False)
        rotary = f.raw("rope_parameters", {}) is not None
        how = Projections(bias=bias, out_bias=bias, qk_norm="full", rotary=rotary)
        add = Elementwise("residual_add", b.hidden)
        attention = grouped_attention(b, f"{path}.self_attn", how)
        norms = b.norm("post_attention_layernorm"), b.norm("post_feedforward_layernorm")
        return (*attention, norms[0], add, ffn, norms[1], add)
    keys, values = (f.whole(f"linear_num_{name}_heads", b.n_heads) for name in ("key", "value"))
    divided(f, "value heads over key heads", values, keys)
    d_k = f.whole("linear_key_head_dim", int(0.75 * b.hidden / keys))
    d = Delta(keys, values, d_k, f.whole("linear_value_head_dim", 2 * d_k), f.whole("linear_conv_kernel_dim", 4))
    inputs = [("q_proj", d.keys), ("k_proj", d.keys), ("v_proj", d.values), ("g_proj", d.values)]
    inputs += [("a_proj", d.value_heads), ("b_proj", d.value_heads)]
    mixer = _delta_net(b, f"{path}.linear_attn", d, inputs, "o_proj")
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "post_attention_layernorm", ffn))


#: Keys of Kimi K3's text model, which change what its layers are; refused where they say so.
KIMI_K3 = ("routed_expert_hidden_size", "latent_moe_use_norm", "mla_use_output_gate", "attn_res_block_size")


def _kimi_layers(b: Builder) -> list[Layer]:
    """Kinds by layer_types, by the lists in linear_attn_config (counted from 1), or every fourth full."""
    f, n = b.fields, b.n_layers
    for key in KIMI_K3:
        if f.raw(key, None):
            raise ConfigError(f"{f.label(key)} is {f.raw(key)!r:.60}; it is not known here, accepted is none")
    note_predictions(b, "num_nextn_predict_layers")
    only(f, "moe_layer_freq", 1)
    free(f, "moe_renormalize", "num_expert_group", "use_grouped_topk", "moe_router_activation_func", "mla_use_nope")
    pattern = ["full" if i and i % 4 == 0 else "linear" for i in range(n)]
    kinds = kinds_of(b, "layer_types", ("linear", "full"), _kimi_lists(f, n) or pattern)
    dense = f.whole("first_k_dense_replace", 1, low=0)
    types = f.items("mlp_layer_types", length=n)
    for name in types:
        f.choice("mlp_layer_types", name, ("dense", "sparse"))
    sparse = [name == "sparse" for name in types] or [i >= dense for i in range(n)]
    return [Layer(kind=kind, sparse=has) for kind, has in zip(kinds, sparse, strict=True)]


def _kimi_lists(f: Fields, n: int) -> list[str]:
    """Kinds by the two lists of linear_attn_config; empty where it has none."""
    if not f.has("linear_attn_config"):
        return []
    inner = f.nested("linear_attn_config")
    lists = {"full": inner.items("full_attn_layers"), "linear": inner.items("kda_layers")}
    if not any(lists.values()):
        return []
    found = {place: kind for kind, places in lists.items() for place in places if isinstance(place, int)}
    if sorted(found) != list(range(1, n + 1)) or sum(map(len, lists.values())) != n:
        raise ConfigError(
            f"{inner.label('full_attn_layers')} and kda_layers do not name each of the layers 1 to {n} once"
        )
    return [found[place] for place in range(1, n + 1)]


def _kimi_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Latent attention or Kimi delta attention, then experts beside shared ones, or a feed-forward."""
    f = b.fields
    if layer.kind == "full":
        mixer: tuple[Part, ...] = (b.latent_attention(layer, f"{path}.self_attn"),)
    else:
        mixer = _kimi_delta(b, f"{path}.self_attn")
    if layer.sparse:
        moe, width = f"{path}.block_sparse_moe", f.whole("moe_intermediate_size")
        n_shared = f.whole("n_shared_experts", 1)
        shared = feed_forward(b, f"{moe}.shared_experts", n_shared * width, group="shared_experts")
        names = NUMBERED_INNER
        numbers = f.whole("num_experts"), f.whole("num_experts_per_tok")
        ffn: Part = mixture(b, moe, Routed(*numbers, width, names, shared=shared))
    else:
        ffn = feed_forward(b, f"{path}.mlp", f.whole("intermediate_size"))
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "post_attention_layernorm", ffn))


def _kimi_delta(b: Builder, path: str) -> tuple[Part, ...]:
    """Kimi delta attention: low-rank forget and output gates, a decay per channel."""
    f = b.fields
    inner = f.nested("linear_attn_config") if f.has("linear_attn_config") else Fields({})
    only(inner, "use_full_rank_gate", False)
    heads = inner.whole("num_heads", f.whole("linear_num_heads", 32))
    d = inner.whole("head_dim", f.whole("linear_head_dim", 128))
    kernel = inner.whole("short_conv_kernel_size", f.whole("linear_conv_kernel_dim", 4))
    wide, shape = heads * d, Shape(heads, d, d, heads)

    def linear(name: str, n_in: int, n_out: int, ways: int = heads) -> Part:
        return b.linear(f"{path}.{name}", RECURRENT, n_in, n_out, ways=ways)

    return (
        *(linear(name, b.hidden, wide) for name in ("q_proj", "k_proj", "v_proj")),
        ShortConvolution("conv1d", RECURRENT, 3 * wide, kernel, b.base, ways=heads),
        linear("f_a_proj", b.hidden, d, 1),
        linear("f_b_proj", d, wide),
        linear("b_proj", b.hidden, heads),
        delta_rule("kimi_delta_rule", RECURRENT, shape, b.base, FP32, wide + heads),
        linear("g_a_proj", b.hidden, d, 1),
        linear("g_b_proj", d, wide),
        b.norm("o_norm", d, per_row=heads),
        linear("o_proj", wide, b.hidden),
    )


# MiniMax, LFM2, RWKV, xLSTM, RecurrentGemma -------------------------------------------------------


def _minimax_layers(b: Builder) -> list[Layer]:
    """Kinds by layer_types or attn_type_list (1 is full attention), else full and linear in turn."""
    f = b.fields
    pattern = ["full" if (i + 1) % 2 else "linear" for i in range(b.n_layers)]
    switches = f.items("attn_type_list", length=b.n_layers)
    for switch in switches:
        f.choice("attn_type_list", switch, (0, 1))
    told = ["full" if switch else "linear" for switch in switches]
    kinds = kinds_of(b, "layer_types", ("linear", "full"), told or pattern)
    if told and kinds != told:
        raise ConfigError("contradictory config: layer_types and attn_type_list name different layers")
    only(f, "shared_intermediate_size", 0)
    free(f, "shared_moe_mode", "postnorm", "block_size")
    window = window_of(f)
    return [Layer(window if kind == "full" else None, kind=kind) for kind in kinds]


def _minimax_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Softmax or Lightning attention, then experts."""
    f, own = b.fields, f"{path}.self_attn"
    if layer.kind == "full":
        mixer = grouped_attention(b, own, Projections(), layer.window)
    else:
        d, heads = b.head_dim, b.n_heads
        mixer = (
            b.linear(f"{own}.qkv_proj", RECURRENT, b.hidden, 3 * heads * d, ways=heads),
            linear_attention("lightning_attention", RECURRENT, Shape(heads, d, d), b.base, None),
            b.norm("norm", heads * d),
            b.linear(f"{own}.output_gate", RECURRENT, b.hidden, heads * d, ways=heads),
            Elementwise("output_gate", heads * d, flops_per_element=5),
            b.linear(f"{own}.out_proj", RECURRENT, heads * d, b.hidden, ways=heads),
        )
    width = f.whole("intermediate_size")
    numbers = f.whole("num_experts"), f.whole("num_experts_per_tok", 2)
    experts = mixture(b, f"{path}.block_sparse_moe", Routed(*numbers, width, NUMBERED_INNER))
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "post_attention_layernorm", experts))


def _lfm2_width(b: Slots) -> None:
    """block_ff_dim comes before intermediate_size; with block_auto_adjust_ff_dim two thirds of it, rounded up."""
    f = b.fields
    width = f.maybe("block_ff_dim") or f.whole("intermediate_size")
    multiple = f.whole("block_multiple_of", 256)
    if f.flag("block_auto_adjust_ff_dim", True):
        width = 2 * width // 3
        if not ("block_ffn_dim_multiplier" in f.data and f.data["block_ffn_dim_multiplier"] is None):
            width = -(-int(number_at(f, "block_ffn_dim_multiplier", 1.0) * width) // multiple) * multiple
    b.width = width
    _lfm2_shape(b)


def _lfm2_shape(b: Slots) -> None:
    for key in ("conv_dim", "conv_dim_out", "block_dim"):
        only(b.fields, key, b.hidden)
    for key in ("use_pos_enc", "block_use_swiglu"):
        only(b.fields, key, True)
    free(b.fields, "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init")
    free(b.fields, "use_expert_bias", "theta")


def _lfm2_layers(b: Builder) -> list[Layer]:
    """Kinds by layer_types, else attention in full_attn_idxs (all, where that is absent)."""
    full = indices_of(b, "full_attn_idxs") if b.fields.has("full_attn_idxs") else range(b.n_layers)
    kinds = kinds_of(b, "layer_types", ("conv", "full"), ["full" if i in full else "conv" for i in range(b.n_layers)])
    return [Layer(kind=kind) for kind in kinds]


def _lfm2_moe_layers(b: Builder) -> list[Layer]:
    kinds = kinds_of(b, "layer_types", ("conv", "full"), ())
    if not kinds:
        raise ConfigError(f"missing key {b.fields.label('layer_types')}")
    dense = b.fields.whole("num_dense_layers", 2, low=0)
    return [Layer(kind=kind, sparse=i >= dense) for i, kind in enumerate(kinds)]


def _lfm2_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Attention or a gated short convolution, then a feed-forward or experts."""
    f, d = b.fields, b.hidden
    if layer.kind == "full":
        mixer = grouped_attention(b, f"{path}.self_attn", Projections(qk_norm="head", out="out_proj"))
    else:
        bias, taps = f.flag("conv_bias", False), f.whole("conv_L_cache", 3)
        mixer = (
            b.linear(f"{path}.conv.in_proj", RECURRENT, d, 3 * d, bias),
            Elementwise("gate", d),
            ShortConvolution("conv", RECURRENT, d, taps, b.base, bias, d),
            Elementwise("gate", d),
            b.linear(f"{path}.conv.out_proj", RECURRENT, d, d, bias),
        )
    ffn_path = f"{path}.feed_forward"
    if layer.sparse:
        numbers = f.whole("num_experts"), f.whole("num_experts_per_tok"), f.whole("moe_intermediate_size")
        ffn: Part = mixture(b, ffn_path, Routed(*numbers, NUMBERED_INNER))
    else:
        ffn = feed_forward(b, ffn_path, b.width or f.whole("intermediate_size"), NUMBERED_INNER)
    return (*pre_norm(b, "operator_norm", *mixer), *pre_norm(b, "ffn_norm", ffn))


def _rwkv_shape(b: Slots) -> None:
    b.n_heads = b.n_kv = b.fields.whole("attention_hidden_size", b.hidden)
    free(b.fields, "rescale_every")


def _rwkv_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Time mixing and channel mixing, both over a token and the one before."""
    f, d, wide = b.fields, b.hidden, b.n_heads
    width = f.whole("intermediate_size", 4 * d)
    b.widths.add(width)

    def linear(name: str, n_in: int, n_out: int) -> Part:
        return b.linear(f"{path}.{name}", RECURRENT, n_in, n_out)

    attention = (
        token_shift("time_mix", RECURRENT, d, 3, b.base),
        *(linear(f"attention.{name}", d, wide) for name in ("key", "value", "receptance")),
        wkv("wkv", RECURRENT, wide, b.base, FP32),
        linear("attention.output", wide, d),
    )
    channels = (
        token_shift("channel_mix", RECURRENT, d, 2, b.base),
        linear("feed_forward.key", d, width),
        Elementwise("squared_relu", width, reads=1, flops_per_element=2),
        linear("feed_forward.receptance", d, d),
        linear("feed_forward.value", width, d),
        Elementwise("gate", d),
    )
    return (*pre_norm(b, "ln1", *attention), *pre_norm(b, "ln2", *channels))


def _rwkv_first(b: Builder) -> tuple[Part, ...]:
    return (b.table(), b.norm("pre_ln"))


def _xlstm_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """An mLSTM cell with its gates, then a feed-forward."""
    f, h, d = b.fields, b.n_heads, b.hidden
    bias, state = f.flag("use_bias", False), state_format(f, "inference_state_dtype")
    free(f, "chunkwise_kernel", "sequence_kernel", "step_kernel", "mode", "chunk_size", "return_last_states")
    free(f, "autocast_kernel_dtype", "gate_soft_cap", "output_logit_soft_cap", "max_inference_chunksize")
    free(f, "norm_reduction_force_float32", "force_bos_token_insert")
    f.choice("weight_mode", f.text("weight_mode", "single"), ("single", "fused"))
    keys, values = (int(d * number_at(f, f"{name}_dim_factor", size)) for name, size in (("qk", 0.5), ("v", 1.0)))
    shape = Shape(h, divided(f, "keys in heads", keys, h), divided(f, "values in heads", values, h))
    own = f"{path}.mlstm_layer"
    multiple = f.whole("ffn_round_up_to_multiple_of", 64)
    width = int((d * number_at(f, "ffn_proj_factor", 2.667) + multiple - 1) // multiple) * multiple
    names = (("q", keys), ("k", keys), ("v", values), ("ogate_preact", values))
    mixer = (
        *(b.linear(f"{own}.{name}", RECURRENT, d, wide, bias, h) for name, wide in names),
        *(b.linear(f"{own}.{name}", RECURRENT, d, h, True, h) for name in ("igate_preact", "fgate_preact")),
        matrix_lstm("mlstm", RECURRENT, shape, b.base, state),
        Norm("multihead_norm", values, b.base, bias),
        Elementwise("output_gate", values, flops_per_element=5),
        b.linear(f"{own}.out_proj", RECURRENT, values, d, bias, h),
    )
    how = Inner(("proj_up_gate", "proj_up"), "proj_down", bias=bias)
    add = Elementwise("residual_add", d)
    norms = Norm("norm_mlstm", d, b.base, bias), Norm("norm_ffn", d, b.base, bias)
    return (norms[0], *mixer, add, norms[1], feed_forward(b, f"{path}.ffn", width, how), add)


def _xlstm_last(b: Builder) -> tuple[Part, ...]:
    only(b.fields, "add_out_norm", True)
    return (Norm("out_norm", b.hidden, b.base, last_rows=True), b.head())


def _griffin_layers(b: Builder) -> list[Layer]:
    """block_types over and over; attention always has the window."""
    f = b.fields
    types = f.items("block_types") or ["recurrent", "recurrent", "attention"]
    for name in types:
        f.choice("block_types", name, ("recurrent", "attention"))
    window = f.whole("attention_window_size", 2048)
    kinds = [KINDS[types[i % len(types)]] for i in range(b.n_layers)]
    return [Layer(window if kind == "full" else None, kind=kind) for kind in kinds]


def _griffin_shape(b: Slots) -> None:
    """Heads always share the hidden width; the feed-forward has half the width that the config names."""
    b.head_dim = divided(b.fields, "hidden width in heads", b.hidden, b.n_heads)
    free(b.fields, "embeddings_scale_by_sqrt_dim")
    b.width = b.fields.whole("intermediate_size") // 2


def _griffin_layer(b: Slots, layer: Layer, path: str) -> tuple[Part, ...]:
    """Local attention or the RG-LRU between a gate and a convolution, then a feed-forward; all with biases."""
    f, own, d = b.fields, f"{path}.temporal_block", b.hidden
    if layer.kind == "full":
        how = Projections(bias=f.flag("attention_bias", False), out_bias=True)
        mixer = grouped_attention(b, own, how, layer.window)
    else:
        wide, heads = f.whole("lru_width", d), b.n_heads
        block = divided(f, "lru_width in heads", wide, heads)
        gates = ("input_gate", "recurrent_gate")
        mixer = (
            *(b.linear(f"{own}.{name}", RECURRENT, d, wide, True, heads) for name in ("linear_y", "linear_x")),
            ShortConvolution("conv_1d", RECURRENT, wide, f.whole("conv1d_width", 4), b.base, True, heads),
            *(Blockwise(Linear(name, RECURRENT, block, block, b.base, b.base), heads) for name in gates),
            gated_unit("rg_lru", RECURRENT, wide, b.base, FP32, heads),
            Elementwise("gate", wide),
            b.linear(f"{own}.linear_out", RECURRENT, wide, d, True, heads),
        )
    ffn = feed_forward(b, f"{path}.mlp_block", b.width or 1, Inner(bias=True))
    return (*pre_norm(b, "temporal_pre_norm", *mixer), *pre_norm(b, "channel_pre_norm", ffn))


# The table ----------------------------------------------------------------------------------------

_NO_HEADS = {"num_attention_heads": 1}
_EXPERTS = {"num_experts": ("num_experts", "num_local_experts")}
_KINDS_NAMES = {"layer_types": ("layer_types", "layers_block_type")}
_KIMI_NAMES = {
    "num_experts": ("num_experts", "num_local_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "num_experts_per_tok"),
    "n_shared_experts": ("num_shared_experts", "n_shared_experts"),
    "max_position_embeddings": ("model_max_length", "max_position_embeddings"),
}
_NEMOTRON_NAMES = {
    "head_dim": ("head_dim", "attention_head_dim"),
    "num_key_value_heads": ("num_key_value_heads", "num_query_groups"),
    "layers_block_type": ("layers_block_type", "layer_types"),
    "n_groups": ("n_groups", "mamba_n_groups"),
    "conv_kernel": ("conv_kernel", "mamba_d_conv"),
    "ssm_state_size": ("ssm_state_size", "mamba_d_state"),
    "use_conv_bias": ("use_conv_bias", "mamba_conv_bias"),
    "n_routed_experts": ("n_routed_experts", "num_local_experts"),
}
_LFM2_NAMES = {
    "num_attention_heads": ("num_attention_heads", "num_heads"),
    "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding"),
}
_XLSTM_NAMES = {
    "hidden_size": ("hidden_size", "embedding_dim"),
    "num_hidden_layers": ("num_hidden_layers", "num_blocks"),
    "num_attention_heads": ("num_heads",),
}
_ZAMBA_NAMES = {"head_dim": ("head_dim", "attention_head_dim")}
_QWEN = {"head_dim": 256, "num_key_value_heads": 2}
_MINIMAX = Family(
    layers=_minimax_layers, shape=slots(_minimax_layer), names=_EXPERTS, defaults={"num_key_value_heads": 8}
)

FAMILIES: dict[str, Family] = {
    "mamba": Family(
        defaults=_NO_HEADS,
        tied=True,
        shape=slots(_mamba_layer(""), _mamba_shape, prefix="backbone.layers"),
    ),
    "falcon_mamba": Family(
        defaults=_NO_HEADS, tied=True, shape=slots(_mamba_layer("plain"), _mamba_shape, prefix="backbone.layers")
    ),
    "mamba2": Family(
        names={"num_attention_heads": ("num_heads",)}, shape=slots(_mamba2_layer, prefix="backbone.layers")
    ),
    "jamba": Family(
        layers=_jamba_layers, shape=slots(_jamba_layer), names=_EXPERTS, defaults={"num_key_value_heads": 8}
    ),
    "bamba": Family(layers=_bamba_layers, shape=slots(_bamba_layer), defaults={"num_key_value_heads": 8}),
    "granitemoehybrid": Family(layers=_granite_layers, shape=slots(_granite_layer, _granite_shape), names=_KINDS_NAMES),
    "falcon_h1": Family(shape=slots(_falcon_h1_layer), defaults={"num_key_value_heads": 8}),
    "zamba": Family(layers=_zamba_layers, shape=slots(_zamba_layer, _zamba_shape), names=_ZAMBA_NAMES, tied=True),
    "zamba2": Family(layers=_zamba2_layers, shape=slots(_zamba2_layer, _zamba_shape), names=_ZAMBA_NAMES, tied=True),
    "nemotron_h": Family(
        layers=_nemotron_layers,
        shape=slots(_nemotron_layer, _nemotron_shape, prefix="backbone.layers"),
        names=_NEMOTRON_NAMES,
        defaults={"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 1},
    ),
    "qwen3_next": Family(layers=_interval_layers(True), shape=slots(_qwen_layer(True)), names=_EXPERTS, defaults=_QWEN),
    "qwen3_5_text": Family(
        layers=_interval_layers(False),
        shape=slots(_qwen_layer(False)),
        defaults={"head_dim": 256, "num_key_value_heads": 4},
    ),
    "qwen3_5_moe_text": Family(
        layers=_interval_layers(True), shape=slots(_qwen_layer(False)), names=_EXPERTS, defaults=_QWEN
    ),
    "olmo_hybrid": Family(layers=_olmo_layers, shape=slots(_olmo_layer)),
    "kimi_linear": Family(layers=_kimi_layers, shape=slots(_kimi_layer), names=_KIMI_NAMES),
    "minimax": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "lfm2": Family(
        layers=_lfm2_layers,
        shape=slots(_lfm2_layer, _lfm2_width),
        names=_LFM2_NAMES,
        defaults={"num_key_value_heads": 8},
        tied=True,
    ),
    "lfm2_moe": Family(
        layers=_lfm2_moe_layers,
        shape=slots(_lfm2_layer, _lfm2_shape),
        names={**_LFM2_NAMES, **_EXPERTS},
        defaults={"num_key_value_heads": 8},
        tied=True,
    ),
    "rwkv": Family(
        names={"max_position_embeddings": ("context_length", "max_position_embeddings")},
        defaults=_NO_HEADS,
        norm="layer",
        shape=slots(_rwkv_layer, _rwkv_shape, prefix="rwkv.blocks"),
        first=_rwkv_first,
    ),
    "xlstm": Family(names=_XLSTM_NAMES, shape=slots(_xlstm_layer, prefix="backbone.blocks"), last=_xlstm_last),
    "recurrent_gemma": Family(layers=_griffin_layers, shape=slots(_griffin_layer, _griffin_shape), tied=True),
}

#: Class names of `architectures` and the model types that they go with.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "MambaForCausalLM": ("mamba",),
    "FalconMambaForCausalLM": ("falcon_mamba",),
    "Mamba2ForCausalLM": ("mamba2",),
    "JambaForCausalLM": ("jamba",),
    "BambaForCausalLM": ("bamba",),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid",),
    "FalconH1ForCausalLM": ("falcon_h1",),
    "ZambaForCausalLM": ("zamba",),
    "Zamba2ForCausalLM": ("zamba2",),
    "NemotronHForCausalLM": ("nemotron_h",),
    "Qwen3NextForCausalLM": ("qwen3_next",),
    "Qwen3_5ForCausalLM": ("qwen3_5_text",),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe_text",),
    "OlmoHybridForCausalLM": ("olmo_hybrid",),
    "KimiLinearForCausalLM": ("kimi_linear",),
    "MiniMaxForCausalLM": ("minimax",),
    "MiniMaxM1ForCausalLM": ("minimax_m1",),
    "MiniMaxText01ForCausalLM": ("minimax_text_01",),
    "Lfm2ForCausalLM": ("lfm2",),
    "Lfm2MoeForCausalLM": ("lfm2_moe",),
    "xLSTMForCausalLM": ("xlstm",),
    "RecurrentGemmaForCausalLM": ("recurrent_gemma",),
}
