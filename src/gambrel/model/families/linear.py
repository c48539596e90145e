"""Decoders with linear attention, short convolutions or other recurrences: Qwen3-Next, Kimi Linear, MiniMax, LFM2, …

Defaults are those of the configuration classes of transformers 5.24. States are kept in float32, as those
implementations do, where the config does not name another dtype (Lightning attention: the base dtype).
"""

from __future__ import annotations

from gambrel.model.builder import Builder, Family, Layer
from gambrel.model.families.patterns import window_of
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Elementwise, Linear, Norm, Part
from gambrel.model.precision import FP32
from gambrel.model.recurrent import (
    Blockwise,
    Shape,
    ShortConvolution,
    delta_rule,
    gated_unit,
    linear_attention,
    matrix_lstm,
    token_shift,
    wkv,
)
from gambrel.model.slots import (
    KINDS,
    NUMBERED_INNER,
    RECURRENT,
    Inner,
    Projections,
    Routed,
    divided,
    feed_forward,
    free,
    grouped_attention,
    indices_of,
    kinds_of,
    mixture,
    note_predictions,
    number_at,
    only,
    pre_norm,
    slots,
    state_format,
)
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gambrel.model.slots import Make
    from gambrel.types import Format

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

    def make(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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
        ffn = (
            _qwen_moe(b, f"{path}.mlp")
            if layer.sparse
            else feed_forward(b, f"{path}.mlp", f.whole("intermediate_size"))
        )
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


def _olmo_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _kimi_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _minimax_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _lfm2_width(b: Builder) -> None:
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


def _lfm2_shape(b: Builder) -> None:
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


def _lfm2_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _rwkv_shape(b: Builder) -> None:
    b.n_heads = b.n_kv = b.fields.whole("attention_hidden_size", b.hidden)
    free(b.fields, "rescale_every")


def _rwkv_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _xlstm_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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


def _griffin_shape(b: Builder) -> None:
    """Heads always share the hidden width; the feed-forward has half the width that the config names."""
    b.head_dim = divided(b.fields, "hidden width in heads", b.hidden, b.n_heads)
    free(b.fields, "embeddings_scale_by_sqrt_dim")
    b.width = b.fields.whole("intermediate_size") // 2


def _griffin_layer(b: Builder, layer: Layer, path: str) -> tuple[Part, ...]:
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
_KIMI_NAMES = {
    "num_experts": ("num_experts", "num_local_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "num_experts_per_tok"),
    "n_shared_experts": ("num_shared_experts", "n_shared_experts"),
    "max_position_embeddings": ("model_max_length", "max_position_embeddings"),
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
_QWEN = {"head_dim": 256, "num_key_value_heads": 2}
_MINIMAX = Family(
    layers=_minimax_layers, builder=slots(_minimax_layer), names=_EXPERTS, defaults={"num_key_value_heads": 8}
)

FAMILIES: dict[str, Family] = {
    "qwen3_next": Family(
        layers=_interval_layers(True), builder=slots(_qwen_layer(True)), names=_EXPERTS, defaults=_QWEN
    ),
    "qwen3_5_text": Family(
        layers=_interval_layers(False),
        builder=slots(_qwen_layer(False)),
        defaults={"head_dim": 256, "num_key_value_heads": 4},
    ),
    "qwen3_5_moe_text": Family(
        layers=_interval_layers(True), builder=slots(_qwen_layer(False)), names=_EXPERTS, defaults=_QWEN
    ),
    "olmo_hybrid": Family(layers=_olmo_layers, builder=slots(_olmo_layer)),
    "kimi_linear": Family(layers=_kimi_layers, builder=slots(_kimi_layer), names=_KIMI_NAMES),
    "minimax": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "lfm2": Family(
        layers=_lfm2_layers,
        builder=slots(_lfm2_layer),
        shape=_lfm2_width,
        names=_LFM2_NAMES,
        defaults={"num_key_value_heads": 8},
        tied=True,
    ),
    "lfm2_moe": Family(
        layers=_lfm2_moe_layers,
        builder=slots(_lfm2_layer),
        shape=_lfm2_shape,
        names={**_LFM2_NAMES, **_EXPERTS},
        defaults={"num_key_value_heads": 8},
        tied=True,
    ),
    "rwkv": Family(
        names={"max_position_embeddings": ("context_length", "max_position_embeddings")},
        defaults=_NO_HEADS,
        norm="layer",
        builder=slots(_rwkv_layer, "rwkv.blocks"),
        shape=_rwkv_shape,
        first=_rwkv_first,
    ),
    "xlstm": Family(names=_XLSTM_NAMES, builder=slots(_xlstm_layer, "backbone.blocks"), last=_xlstm_last),
    "recurrent_gemma": Family(layers=_griffin_layers, builder=slots(_griffin_layer), shape=_griffin_shape, tied=True),
}

#: Class names of `architectures` and the model types that they go with.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
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
