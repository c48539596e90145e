"""Decoders with state spaces, alone or beside attention: Mamba, Jamba, Bamba, Granite 4, Falcon-H1, Zamba, Nemotron-H.

Defaults are those of the configuration classes of transformers 5.24. States are kept in float32, as those
implementations do, where the config does not name another dtype.
"""

from __future__ import annotations

from gambrel.model.builder import Builder, Family, Layer
from gambrel.model.families.patterns import window_of
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Elementwise, FeedForward, Norm, Part
from gambrel.model.precision import FP32
from gambrel.model.recurrent import Again, Blockwise, Shape, ShortConvolution, state_space
from gambrel.model.slots import (
    FUSED_INNER,
    KINDS,
    PLAIN_INNER,
    RECURRENT,
    Inner,
    Projections,
    Routed,
    auto_whole,
    divided,
    feed_forward,
    free,
    grouped_attention,
    indices_of,
    kinds_of,
    mixture,
    note_predictions,
    only,
    pre_norm,
    slots,
    state_format,
)
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gambrel.model.slots import Make
    from gambrel.types import Format

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


def _mamba_shape(b: Builder) -> None:
    """Channels take the place of heads where there is no attention."""
    f = b.fields
    only(f, "rms_norm", True)
    free(f, "pad_vocab_size_multiple", "fused_add_norm", "ssm_cfg", "time_step_rank", "expand")
    # left over from the original checkpoints, and wrong in some: state-spaces/mamba-790m-hf has d_model 2048 for 1536
    free(f, "d_model", "n_layer", "d_inner", "dt_rank")
    b.n_heads = b.n_kv = f.whole("intermediate_size", f.whole("expand", 2) * b.hidden)


def _mamba_layer(norms: str) -> Make:
    def make(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
        f, bias = b.fields, b.fields.flag("use_bias", False)
        rank = auto_whole(f, "time_step_rank", -(-b.hidden // 16))
        taps, taps_bias = f.whole("conv_kernel", 4), f.flag("use_conv_bias", True)
        spec = Mamba(b.n_heads, f.whole("state_size", 16), rank, taps, bias, taps_bias, norms)
        return pre_norm(b, "norm", *_mamba(b, f"{path}.mixer", spec))

    return make


def _mamba2_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _jamba_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _bamba_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
    f = b.fields
    if layer.kind == "full":
        bias = f.flag("attention_bias", False)
        mixer = grouped_attention(b, f"{path}.self_attn", Projections(bias=bias, out_bias=bias))
    else:
        mixer = _mamba2(b, f"{path}.mamba", _mamba_keys(b, f.whole("mamba_expand", 2) * b.hidden))
    ffn = feed_forward(b, f"{path}.feed_forward", f.whole("intermediate_size"), Inner(bias=f.flag("mlp_bias", False)))
    return (*pre_norm(b, "input_layernorm", *mixer), *pre_norm(b, "pre_ff_layernorm", ffn))


def _granite_shape(b: Builder) -> None:
    place = b.fields.text("position_embedding_type", "nope")
    b.rotary = b.fields.choice("position_embedding_type", place, ("nope", "rope")) == "rope"


def _granite_layers(b: Builder) -> list[Layer]:
    kinds = kinds_of(b, "layer_types", ("linear", "full"), ["linear"] * b.n_layers)
    sparse = b.fields.whole("num_local_experts", 8, low=0) > 0
    return [Layer(kind=kind, sparse=sparse) for kind in kinds]


def _granite_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _falcon_h1_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _zamba_shape(b: Builder) -> None:
    wide = b.fields.whole("attention_hidden_size", 2 * b.hidden)
    if not b.fields.has("head_dim"):
        b.head_dim = divided(b.fields, "attention width in heads", 2 * b.hidden, b.n_heads)
    b.rotary = b.fields.flag("use_mem_rope", False)
    b.notes.append(f"layers share a transformer of {wide} inputs: its weights are counted, and read in a step, once")


def _own(layer: Layer, *parts: Part) -> tuple[Part, ...]:
    return tuple(Again(part) for part in parts) if layer.extra == "again" else parts


def _zamba_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _zamba2_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _nemotron_kinds(f: Fields) -> list[str]:
    """The kinds of all layers, from the list or the pattern."""
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
    return kinds


def _nemotron_shape(b: Builder) -> None:
    """The list or the pattern says how many layers there are."""
    f, kinds = b.fields, _nemotron_kinds(b.fields)
    if f.has("num_hidden_layers") and b.n_layers != len(kinds):
        raise ConfigError(
            f"contradictory config: {f.label('num_hidden_layers')} is {b.n_layers}, but {len(kinds)} layers are listed"
        )
    b.n_layers = len(kinds)
    note_predictions(b, "num_nextn_predict_layers")
    for key in ("attention_bias", "mamba_proj_bias"):
        only(f, key, False)
    free(f, "expand", "mamba_expand", "chunk_size", "time_step_rank", "mtp_hybrid_override_pattern")
    free(f, "mtp_layers_block_type", "moe_shared_expert_overlap")


def _nemotron_layers(b: Builder) -> list[Layer]:
    kinds = _nemotron_kinds(b.fields)
    return [Layer(window_of(b.fields) if kind == "full" else None, kind=kind) for kind in kinds]


def _nemotron_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
    """One slot a layer: Mamba 2, attention, a feed-forward or experts."""
    return pre_norm(b, "norm", *NEMOTRON[layer.kind](b, layer, f"{path}.mixer"))


def _nemotron_mamba(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
    f, bias = b.fields, b.fields.flag("use_bias", False)
    heads, head = f.whole("mamba_num_heads", 128), f.whole("mamba_head_dim", 64)
    state, groups, taps = f.whole("ssm_state_size", 128), f.whole("n_groups", 8), f.whole("conv_kernel", 4)
    conv_bias, dtype = f.flag("use_conv_bias", True), state_format(f, "mamba_ssm_cache_dtype")
    return _mamba2(b, path, Mamba2(heads, head, state, groups, taps, bias, bias, conv_bias, dtype=dtype))


def _nemotron_attention(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
    return grouped_attention(b, path, Projections(rotary=False), layer.window)


def _nemotron_mlp(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
    how = Inner(PLAIN_INNER.names, gated=False, bias=b.fields.flag("mlp_bias", False))
    return (feed_forward(b, path, b.fields.whole("intermediate_size"), how),)


def _nemotron_moe(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


# The table ----------------------------------------------------------------------------------------

_NO_HEADS = {"num_attention_heads": 1}
_EXPERTS = {"num_experts": ("num_experts", "num_local_experts")}
_KINDS_NAMES = {"layer_types": ("layer_types", "layers_block_type")}
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
_ZAMBA_NAMES = {"head_dim": ("head_dim", "attention_head_dim")}

FAMILIES: dict[str, Family] = {
    "mamba": Family(
        defaults=_NO_HEADS,
        tied=True,
        builder=slots(_mamba_layer(""), "backbone.layers"),
        shape=_mamba_shape,
    ),
    "falcon_mamba": Family(
        defaults=_NO_HEADS,
        tied=True,
        builder=slots(_mamba_layer("plain"), "backbone.layers"),
        shape=_mamba_shape,
    ),
    "mamba2": Family(names={"num_attention_heads": ("num_heads",)}, builder=slots(_mamba2_layer, "backbone.layers")),
    "jamba": Family(
        layers=_jamba_layers, builder=slots(_jamba_layer), names=_EXPERTS, defaults={"num_key_value_heads": 8}
    ),
    "bamba": Family(layers=_bamba_layers, builder=slots(_bamba_layer), defaults={"num_key_value_heads": 8}),
    "granitemoehybrid": Family(
        layers=_granite_layers, builder=slots(_granite_layer), shape=_granite_shape, names=_KINDS_NAMES
    ),
    "falcon_h1": Family(builder=slots(_falcon_h1_layer), defaults={"num_key_value_heads": 8}),
    "zamba": Family(
        layers=_zamba_layers, builder=slots(_zamba_layer), shape=_zamba_shape, names=_ZAMBA_NAMES, tied=True
    ),
    "zamba2": Family(
        layers=_zamba2_layers, builder=slots(_zamba2_layer), shape=_zamba_shape, names=_ZAMBA_NAMES, tied=True
    ),
    "nemotron_h": Family(
        layers=_nemotron_layers,
        builder=slots(_nemotron_layer, "backbone.layers"),
        shape=_nemotron_shape,
        names=_NEMOTRON_NAMES,
        defaults={"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 1},
    ),
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
}
