"""Plain dense decoders beyond the best-known: Apertus, ChatGLM, Cohere, EXAONE, Granite, Hunyuan, InternLM, MPT, Phi, …

Defaults are those of each family's configuration class in transformers 5.24, or, for model types that it does not
have (baichuan, chatglm, internlm, internlm2, minicpm, orion, phi-msft, qwen, yuan, nemotron-nas, openelm), those of
the configuration class that is published beside the weights.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.builder import LAYOUTS, Builder, Family, Layer, MoE
from gambrel.model.dense_parts import DynamicMaskAttention, LocalizedFiltering, RetrievedExperts
from gambrel.model.families.patterns import (
    ALL_BIASED,
    BIASED,
    GPT,
    GPT_NAMES,
    LLAMA,
    all_windowed,
    every,
    sparse_or_dense,
    typed,
    window_of,
)
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Chain, Elementwise, Norm, Part, Table, Vectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gambrel.model.arch import Arch

# Checks and shapes ----------------------------------------------------------------------------


def _all(*steps: Callable[[Builder], None]) -> Callable[[Builder], None]:
    """Several shapes, one after another."""

    def shape(b: Builder) -> None:
        for step in steps:
            step(b)

    return shape


def _only(key: str, *accepted: Any) -> Callable[[Builder], None]:
    """A key that the family's layers have one answer to (the first is the default); any other is refused."""

    def shape(b: Builder) -> None:
        b.fields.choice(key, b.fields.raw(key, accepted[0]), accepted)

    return shape


def _absent(key: str) -> Callable[[Builder], None]:
    """A key that would add what is not counted here; accepted is null, false or nothing."""
    return _only(key, None, False)


def _free(*keys: str) -> Callable[[Builder], None]:
    """Keys that say nothing about cost in this family, whatever they may say in another."""

    def shape(b: Builder) -> None:
        b.fields.used.update(keys)

    return shape


def _nulls(b: Builder) -> None:
    """An explicit null is not the class default: as many KV heads as heads, heads that fill the hidden width."""
    data = b.fields.data
    if "num_key_value_heads" in data and data["num_key_value_heads"] is None:
        b.n_kv = b.n_heads
    if "head_dim" in data and data["head_dim"] is None:
        b.head_dim = _filled(b)


def _filled(b: Builder) -> int:
    """Width of heads that together fill the hidden width."""
    if b.hidden % b.n_heads:
        label = b.fields.label("hidden_size")
        raise ConfigError(f"{label} is {b.hidden}; accepted is a multiple of {b.n_heads} heads")
    return b.hidden // b.n_heads


def _filling(b: Builder) -> None:
    """Families whose heads always fill the hidden width: a head_dim that says otherwise is a contradiction."""
    b.fields.choice("head_dim", b.head_dim, (_filled(b),))


def _multi_head(b: Builder) -> None:
    """Families that have no grouped queries: another number of KV heads is a contradiction."""
    _filling(b)
    b.fields.choice("num_key_value_heads", b.n_kv, (b.n_heads,))


def _four_times(b: Builder) -> None:
    b.width = b.width or 4 * b.hidden


def _even_heads(b: Builder) -> None:
    """DiffLlama pairs its KV heads."""
    if b.n_kv % 2:
        raise ConfigError(f"{b.fields.label('num_key_value_heads')} is {b.n_kv}; accepted is an even number")


def _no_affine(b: Builder) -> None:
    b.norms = False


def _baichuan(b: Builder) -> None:
    """Baichuan 13B names no max_position_embeddings and has ALiBi in place of a rotation; 7B has both."""
    b.rotary = b.fields.has("max_position_embeddings")


def _chatglm(b: Builder) -> None:
    """ChatGLM 2 and 3 and GLM-4: groups, biases and the kind of norm are switches of the config."""
    f = b.fields
    _absent("pre_seq_len")(b)
    _only("quantization_bit", 0, None)(b)
    if f.has("vision_config"):
        raise ConfigError("vision_config: the EVA tower of GLM-4V is not counted; accepted is a config without it")
    b.n_kv = f.whole("multi_query_group_num", 1) if f.flag("multi_query_attention", False) else b.n_heads
    biased, qkv = f.flag("add_bias_linear", False), f.flag("add_qkv_bias", False)
    kind = "rms" if f.flag("rmsnorm", True) else "layer"
    b.family = replace(b.family, norm=kind, qkv_bias=biased or qkv, out_bias=biased, mlp_bias=biased)
    _free("vocab_size", "original_rope", "fp32_residual_connection")(b)  # the padded vocabulary is what is stored


def _helium(b: Builder) -> None:
    """The output projection is square."""
    _filling(b)


def _minicpm3(b: Builder) -> None:
    """Values are as wide as heads that fill the hidden width unless v_head_dim says otherwise."""
    b.fields.defaults = {**b.fields.defaults, "v_head_dim": _filled(b)}
    b.fields.choice("num_key_value_heads", b.n_kv, (b.n_heads,))
    _free("dim_model_base", "head_dim")(b)


def _mpt(b: Builder) -> None:
    """What transformers' MPT has: multi-head attention with ALiBi, no biases, a feed-forward of four times d."""
    f = b.fields
    _multi_head(b)
    for key, accepted in (("no_bias", True), ("expansion_ratio", 4), ("norm_type", "low_precision_layernorm")):
        _only(key, accepted)(b)
    b.width = 4 * b.hidden
    _free("embedding_fraction", "init_config", "init_device", "learned_pos_emb", "logit_scale")(b)
    if not f.has("attn_config"):
        return
    attention = f.nested("attn_config")
    attention.choice("attn_type", attention.text("attn_type", "multihead_attention"), ("multihead_attention",))
    for key, default, accepted in (("alibi", True, True), ("qk_ln", False, False), ("prefix_lm", False, False)):
        attention.choice(key, attention.flag(key, default), (accepted,))


def _multi_query(b: Builder) -> None:
    """gpt_bigcode: one KV head with multi_query, which an older key spells attention_type 2 or 3."""
    f = b.fields
    _filling(b)
    multi = f.flag("multi_query", True)
    kinds = (2, 3) if multi else (1,)
    f.choice("attention_type", f.whole("attention_type", kinds[0]), kinds)
    b.n_kv = 1 if multi else b.n_heads
    _free("inference_runner", "runner_max_sequence_length", "validate_runner_input")(b)


def _qwen(b: Builder) -> None:
    """Qwen 1: intermediate_size counts gate and value together; no_bias says that only q, k and v have one."""
    f = b.fields
    _absent("visual")(b)
    _absent("audio")(b)
    both = f.whole("intermediate_size", low=2)
    if both % 2:
        raise ConfigError(f"{f.label('intermediate_size')} is {both}; accepted is an even number (gate and value)")
    b.width = both // 2
    biased = not f.flag("no_bias", True)
    b.family = replace(b.family, out_bias=biased, mlp_bias=biased)
    f.choice("num_key_value_heads", b.n_kv, (b.n_heads,))
    _free("seq_length", "use_dynamic_ntk", "use_logn_attn")(b)


def _parallel_or_not(b: Builder) -> None:
    """StableLM with use_parallel_residual has one norm a layer."""
    _filling(b)
    b.layout = "parallel" if b.fields.flag("use_parallel_residual", False) else "pre"


def _post_norm(b: Builder) -> None:
    b.layout = "sandwich" if b.fields.flag("use_post_norm", True) else "pre"


def _internlm3(b: Builder) -> None:
    _nulls(b)
    f = b.fields
    f.choice("bias", f.flag("bias", False), (f.flag("qkv_bias", False),))


# Layers ---------------------------------------------------------------------------------------


def _rotated_windows(layers: Callable[[Builder], list[Layer]]) -> Callable[[Builder], list[Layer]]:
    """Only layers with a window rotate queries and keys."""
    return lambda b: [replace(x, kind="" if x.window else "no rotation") for x in layers(b)]


def _exaone4_layers(b: Builder) -> list[Layer]:
    """Local and global layers by layer_types or a pattern ("LLLG", or every n-th global); no window, no pattern.

    Global layers rotate only where no layer has a window.
    """
    f = b.fields
    window = window_of(f, absent=4096)
    pattern = f.raw("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            label = f.label("sliding_window_pattern")
            raise ConfigError(f"{label} is {pattern!r:.60}; accepted is a number or letters L and G")
        letters = [pattern[i % len(pattern)] for i in range(b.n_layers - 1)] + ["G"]  # the last is always global
    else:
        period = f.whole("sliding_window_pattern", 4, low=0 if window is None else 1)
        letters = ["L" if period and (i + 1) % period else "G" for i in range(b.n_layers)]
    layers = typed(b, window, [Layer(window if letter == "L" else None) for letter in letters])
    return layers if window is None else _rotated_windows(lambda _: layers)(b)


def _first_of_four_full(window: int) -> Callable[[Builder], list[Layer]]:
    """Layers 0, 4, 8, … are full, the others windowed."""

    def layers(b: Builder) -> list[Layer]:
        width = window_of(b.fields, absent=window)
        return typed(b, width, [Layer(width if i % 4 else None) for i in range(b.n_layers)])

    return layers


def _smollm3_layers(b: Builder) -> list[Layer]:
    """Every no_rope_layer_interval-th layer does not rotate; those have the window where use_sliding_window is set."""
    f = b.fields
    window = window_of(f) if f.flag("use_sliding_window", False) else None
    if window is None:
        f.used.add("sliding_window")
    interval = f.whole("no_rope_layer_interval", 4)
    rotated = f.items("no_rope_layers", length=b.n_layers if f.raw("no_rope_layers", None) else None)
    for value in rotated:
        f.choice("no_rope_layers", value, (0, 1))
    rotated = rotated or [int((i + 1) % interval != 0) for i in range(b.n_layers)]
    layers = typed(b, window, [Layer(None if rope else window) for rope in rotated])
    return [replace(x, kind="" if rope else "no rotation") for x, rope in zip(layers, rotated, strict=True)]


def _gpt_neo_layers(b: Builder) -> list[Layer]:
    """Global and local layers by attention_layers, or attention_types expanded: [[["global", "local"], 12]]."""
    f = b.fields
    window = f.whole("window_size", 256)
    types = f.items("attention_types") or [[["global", "local"], 12]]
    kinds: list[Any] = []
    for item in types:
        pair = item if isinstance(item, list) and len(item) == 2 else [None, None]
        if not isinstance(pair[0], list) or isinstance(pair[1], bool) or not isinstance(pair[1], int):
            raise ConfigError(f"{f.label('attention_types')} holds {item!r:.60}; accepted is [kinds, times]")
        if not 1 <= pair[1] <= b.n_layers:
            raise ConfigError(f"{f.label('attention_types')} repeats {pair[1]} times; accepted is 1 to {b.n_layers}")
        kinds += pair[0] * pair[1]
    kinds = f.items("attention_layers") or kinds
    if len(kinds) != b.n_layers:
        key = f.label("attention_layers" if f.has("attention_layers") else "attention_types")
        raise ConfigError(f"{key} has {len(kinds)} entries for {b.n_layers} layers")
    for kind in kinds:
        f.choice("attention_types", kind, ("global", "local"))
    return [Layer(window if kind == "local" else None) for kind in kinds]


def _mimo_layers(b: Builder) -> list[Layer]:
    """MiMo: all layers full; its multi-token-prediction layers stand apart."""
    f = b.fields
    f.choice("use_sliding_window", f.flag("use_sliding_window", False), (False,))
    f.used |= {"sliding_window", "max_window_layers"}
    predict = f.whole("num_nextn_predict_layers", 0, low=0)
    if predict:
        b.notes.append(f"num_nextn_predict_layers = {predict}: multi-token-prediction weights are not counted")
    return [Layer()] * b.n_layers


def _minicpm_layers(b: Builder) -> list[Layer]:
    """MiniCPM: every layer has experts where num_experts says so."""
    return [Layer(sparse=b.fields.whole("num_experts", 0, low=0) > 0)] * b.n_layers


# Mixers ---------------------------------------------------------------------------------------


def _attention(b: Builder, layer: Layer, path: str) -> Attention:
    """The builder's attention; a layer of kind "no rotation" does not rotate."""
    part = b.attention(layer, path)
    assert isinstance(part, Attention)
    return replace(part, rotary=False) if layer.kind == "no rotation" else part


def _gains_if(key: str, default: bool) -> Callable[[Builder, Layer, str], Part]:
    """Queries and keys normed with a gain (and no bias) for each head and element, where the key says so."""

    def mixer(b: Builder, layer: Layer, path: str) -> Part:
        part = _attention(b, layer, path)
        if not b.fields.flag(key, default):
            return part
        gains = (Norm("q_norm", b.n_heads * b.head_dim, b.base), Norm("k_norm", b.n_kv * b.head_dim, b.base))
        return replace(part, norms=gains)

    return mixer


def _head_norms_if(key: str, default: bool) -> Callable[[Builder, Layer, str], Part]:
    """Queries and keys normed head by head with one gain (and bias) of a head's width, where the key says so."""

    def mixer(b: Builder, layer: Layer, path: str) -> Part:
        part = _attention(b, layer, path)
        if not b.fields.flag(key, default):
            return part
        norms = (
            b.norm("q_layernorm", b.head_dim, per_row=b.n_heads),
            b.norm("k_layernorm", b.head_dim, per_row=b.n_kv),
        )
        return replace(part, norms=norms)

    return mixer


def _bitnet_mixer(b: Builder, layer: Layer, path: str) -> Part:
    """A norm stands before the output projection."""
    return replace(_attention(b, layer, path), norms=(b.norm("attn_sub_norm"),))


def _bitnet_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """A norm stands before the down projection."""
    ffn = b.dense(path)
    return Chain((ffn, b.norm("ffn_sub_norm", ffn.width)))


def _differential(b: Builder, layer: Layer, path: str) -> Part:
    """Differential attention: pairs of heads share the difference of their two maps, applied to values twice as wide.

    (softmax(Q1·K1ᵀ) - λ·softmax(Q2·K2ᵀ))·V: n_h maps over keys of width d and n_h/2 differences over values of 2·d
    are 2·n_h·(d + d) FLOPs per score, as of usual attention. transformers applies each map to both halves of V, with
    the products of queries and keys made twice: exactly twice as many. Source: arXiv:2410.05258.
    """
    vectors = Vectors("lambda", "attention", 4 * b.head_dim, b.n_heads * b.head_dim, b.base)
    norm = Norm("groupnorm", 2 * b.head_dim, b.base, per_row=b.n_heads // 2, affine=False)
    return Chain((replace(_attention(b, layer, path), norms=(norm,)), vectors))


def _square_bias_out(b: Builder, layer: Layer, path: str) -> Part:
    """GPT-Neo: no bias but the output projection's."""
    part = _attention(b, layer, path)
    return replace(part, out=replace(part.out, bias=b.base))


def _dynamic_mask(b: Builder, layer: Layer, path: str) -> Part:
    """Doge's attention with the mask that it makes of the values."""
    f = b.fields
    core = _attention(b, layer, path)
    dt = b.linear(f"{path}.dt_proj", "attention", b.n_kv * b.head_dim, b.n_kv, "attention_bias", ways=1)
    mask = Vectors("A", "attention", b.n_kv, b.n_kv, b.base)
    gain = Vectors("post_attention_residual", "attention", b.hidden, b.hidden, b.base)
    attention = DynamicMaskAttention(core, dt, mask, f.whole("keep_window_size", 2048))
    return Chain((attention, Vectors("input_residual", "other", b.hidden, b.hidden, b.base), gain))


def _filtered(b: Builder, layer: Layer, path: str) -> Part:
    """Yuan 2.0: queries and keys come from filtered hidden states, values from the hidden states themselves."""
    d, gate = b.hidden, f"{path}.lf_gate"
    first = b.linear(f"{gate}.conv1", "attention", 2 * d, d // 2, True, ways=1)
    second = b.linear(f"{gate}.conv2", "attention", 2 * (d // 2), d, True, ways=1)
    return LocalizedFiltering(first, second, b.norm("lf_norm"), _attention(b, layer, path))


# Feed-forward slots ---------------------------------------------------------------------------


def _apertus_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """xIELU learns two numbers a layer."""
    ffn = b.dense(path)
    if b.fields.text("hidden_act", "xielu") != "xielu":
        return ffn
    return Chain((ffn, Vectors("xielu", "mlp", 2, 1, b.base)))


def _doge_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """A plain feed-forward, beside which is_moe puts experts that are rows of two tables."""
    f = b.fields
    ffn = b.dense(path)
    if not f.flag("is_moe", False):
        _free("num_experts", "num_experts_per_tok")(b)
        return ffn
    n_experts, top_k = f.whole("num_experts", 16_384), f.whole("num_experts_per_tok", 64)
    keys = int(n_experts**0.5)
    keys -= keys * keys > n_experts
    if top_k > keys * keys:
        raise ConfigError(f"{f.label('num_experts_per_tok')} is {top_k}; accepted is 1 to {keys * keys}")
    router = b.linear(f"{path}.router_gate", "router", b.hidden, 2 * keys, ways=1)
    return Chain((ffn, RetrievedExperts(router, b.hidden, n_experts, top_k, b.base)))


def _minicpm_experts(b: Builder) -> MoE:
    f = b.fields
    return MoE(f.whole("num_experts"), f.whole("num_experts_per_tok"), f.whole("intermediate_size"))


# Parts before and after the layers ------------------------------------------------------------


def _positions(extra: int = 0) -> Callable[[Builder], tuple[Part, ...]]:
    """A learned position table beside the token table, `extra` rows longer than the context."""

    def first(b: Builder) -> tuple[Part, ...]:
        f = b.fields
        f.choice("add_cross_attention", f.flag("add_cross_attention", False), (False,))
        places = Table("embed_positions", f.whole("max_position_embeddings") + extra, b.hidden, b.base)
        return (b.table(), places, Elementwise("add_positions", b.hidden))

    return first


def _fixed_positions(b: Builder) -> tuple[Part, ...]:
    """Sinusoids are added, which are computed and not stored."""
    b.fields.choice("add_cross_attention", b.fields.flag("add_cross_attention", False), (False,))
    return (b.table(), Elementwise("add_positions", b.hidden))


def _normed_table(b: Builder) -> tuple[Part, ...]:
    return (b.table(), b.norm("embed_norm"))


def _biased_head(b: Builder) -> tuple[Part, ...]:
    """The output head has a bias."""
    head = b.head()
    return (b.norm("final_norm", last_rows=True), replace(head, linear=replace(head.linear, bias=b.base)))


def _chatglm_last(b: Builder) -> tuple[Part, ...]:
    norm = (b.norm("final_layernorm", last_rows=True),) if b.fields.flag("post_layer_norm", True) else ()
    return (*norm, b.head())


# Layers that differ in width ------------------------------------------------------------------


class _NasBuilder(Builder):
    """Llama-Nemotron (DeciLM), whose layers were searched one by one.

    A slot that is left out has neither norm nor residual add.
    """

    def arch(self, extras: tuple[Part, ...] = ()) -> Arch:
        """The model."""
        kinds = {layer.extra[0] for layer in _nas_layers(self) if isinstance(layer.extra, tuple)} - {None, 0}
        self.n_kv = min(kinds, default=self.n_heads)  # the fewest are what tensor parallelism meets first
        return super().arch(extras)

    def layer_parts(self, layer: Layer, index: int) -> tuple[Part, ...]:
        """The parts of one layer; layer.extra is (KV heads, inner width), None for no part and 0 for one matrix."""
        path, (before, _, ffn_before, _) = f"model.layers.{index}", LAYOUTS["pre"]
        assert isinstance(layer.extra, tuple)
        n_kv, width = layer.extra
        parts: tuple[Part, ...] = ()
        if n_kv is not None:
            parts += self._slot(before, self._mixer(n_kv, layer, f"{path}.self_attn"), "")
        if width is not None:
            parts += self._slot(ffn_before, self._ffn(width, f"{path}.mlp"), "")
        return parts

    def _mixer(self, n_kv: int, layer: Layer, path: str) -> Part:
        if not n_kv:
            return self.linear(f"{path}.linear_attn", "attention", self.hidden, self.hidden)
        stored, self.n_kv = self.n_kv, n_kv
        part = self.attention(layer, path)
        self.n_kv = stored
        return part

    def _ffn(self, width: int, path: str) -> Part:
        return self.dense(path, width) if width else self.linear(f"{path}.linear_mlp", "mlp", self.hidden, self.hidden)


def _nas_layers(b: Builder) -> list[Layer]:
    """Layers by block_configs: KV heads of the attention, inner width of the feed-forward, either left out."""
    blocks = b.fields.items("block_configs", length=b.n_layers)
    if not blocks:
        raise ConfigError("missing key block_configs: without it the widths of the layers are unknown")
    layers: list[Layer] = []
    for i, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise ConfigError(f"block_configs[{i}] is {block!r:.60}; accepted is an object")
        if i and block == blocks[i - 1]:
            layers.append(layers[-1])
            continue
        f = Fields(block, where=f"block_configs[{i}].")
        layers.append(Layer(extra=(_nas_heads(f.nested("attention"), b.n_heads), _nas_width(f.nested("ffn"), b))))
    return layers


def _nas_heads(f: Fields, n_heads: int) -> int | None:
    """KV heads of one layer; None where it has no attention, 0 where one matrix stands for it."""
    for key in ("num_sink_tokens", "window_length", "sparsify", "llama4", "mamba"):
        f.choice(key, f.raw(key, None), (None, False))
    if f.flag("no_op", False):
        return None
    if f.flag("replace_with_linear", False):
        return 0
    group = f.whole("n_heads_in_group", high=n_heads)
    if n_heads % group:
        raise ConfigError(f"{f.label('n_heads_in_group')} is {group}; accepted is a divisor of {n_heads} heads")
    return n_heads // group


def _nas_width(f: Fields, b: Builder) -> int | None:
    """Inner width of one layer, 2/3 · ffn_mult · d up to a multiple of 256; None for no feed-forward, 0 for a matrix.

    Source: configuration beside nvidia/Llama-3_3-Nemotron-Super-49B-v1, as vLLM's nemotron_nas.py reads it.
    """
    for key in ("sparsify", "moe"):
        f.choice(key, f.raw(key, None), (None, False))
    if f.flag("no_op", False):
        return None
    if f.flag("replace_with_linear", False):
        return 0
    width = f.maybe("intermediate_size")
    if width is not None:
        return width
    return -(-int(2 * _number(f, "ffn_mult") * b.hidden / 3) // 256) * 256


def _number(f: Fields, key: str) -> float:
    """A multiplier above 0."""
    value = f.raw(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1000:
        raise ConfigError(f"{f.label(key)} is {value!r:.60}; accepted is a number above 0 and at most 1000")
    return float(value)


def _openelm_layers(b: Builder) -> list[Layer]:
    """OpenELM: heads, KV heads and inner width of every layer, all stated."""
    f, n = b.fields, b.n_layers
    heads, kv = (f.items(key, length=n) for key in ("num_query_heads", "num_kv_heads"))
    scales, step = f.items("ffn_multipliers", length=n), f.whole("ffn_dim_divisor", 256)
    if not scales:
        raise ConfigError("missing key ffn_multipliers: a list of one multiplier for every layer")
    found = []
    for i in range(n):
        one = Fields({"num_query_heads": heads[i], "num_kv_heads": kv[i], "ffn_multipliers": scales[i]})
        n_heads, n_kv = one.whole("num_query_heads"), one.whole("num_kv_heads")
        if n_heads % n_kv:
            raise ConfigError(f"num_query_heads[{i}] is {n_heads} for {n_kv} KV heads; accepted is a multiple")
        found.append(Layer(extra=(n_heads, n_kv, _divisible(_number(one, "ffn_multipliers") * b.hidden, step))))
    return found


def _divisible(value: float, step: int) -> int:
    """The nearest multiple of `step`, at least `step` and never below 0.9 of the value."""
    nearest = max(step, int(value + step / 2) // step * step)
    return nearest + step if nearest < 0.9 * value else nearest


def _openelm_mixer(b: Builder, layer: Layer, path: str) -> Part:
    """Attention of the layer's own number of heads."""
    assert isinstance(layer.extra, tuple)
    n_heads, n_kv, _ = layer.extra
    d = b.head_dim
    norms: tuple[Norm, ...] = ()
    if b.fields.flag("normalize_qk_projections", True):
        norms = (b.norm("q_norm", d, per_row=n_heads), b.norm("k_norm", d, per_row=n_kv))
    qkv = b.linear(f"{path}.qkv_proj", "attention", b.hidden, (n_heads + 2 * n_kv) * d)
    out = b.linear(f"{path}.out_proj", "attention", n_heads * d, b.hidden)
    return Attention((qkv,), out, n_heads, n_kv, d, d, b.base, norms)


def _openelm_ffn(b: Builder, layer: Layer, path: str) -> Part:
    assert isinstance(layer.extra, tuple)
    return b.dense(path, layer.extra[2])


def _openelm_heads(f: Fields) -> dict[str, Any]:
    """The first layer's heads for the model's: layers grow wider with depth (arXiv:2404.14619)."""
    lists = [f.items(key) for key in ("num_query_heads", "num_kv_heads")]
    if not all(lists):
        raise ConfigError("missing key num_query_heads or num_kv_heads: lists of heads for every layer")
    f.whole("head_dim")
    f.choice("ffn_with_glu", f.flag("ffn_with_glu", True), (True,))
    f.used |= {"tie_word_embeddings", "qkv_multipliers", "num_gqa_groups"}
    return {"num_attention_heads": lists[0][0], "num_key_value_heads": lists[1][0]}


# The table ------------------------------------------------------------------------------------

_XGLM_NAMES = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "num_attention_heads": ("attention_heads", "num_attention_heads"),
    "intermediate_size": ("ffn_dim",),
}
_MPT_NAMES = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_hidden_layers": ("n_layers", "num_hidden_layers"),
    "num_attention_heads": ("n_heads", "num_attention_heads"),
    "intermediate_size": ("no_such_key",),
    "max_position_embeddings": ("max_seq_len",),
}
_GPT_NEO_NAMES = {
    "hidden_size": ("hidden_size", "hidden_dim"),
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "num_attention_heads": ("num_heads", "num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "ffn_embed_dim"),
    "max_position_embeddings": ("max_position_embeddings", "max_seq_len"),
}
_CHATGLM_NAMES = {
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "intermediate_size": ("ffn_hidden_size",),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("kv_channels",),
    "max_position_embeddings": ("seq_length",),
    "num_key_value_heads": ("no_such_key",),
}
_QWEN_NAMES = {
    "hidden_size": ("hidden_size", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size"),
    "head_dim": ("kv_channels", "head_dim"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
}
_PHI: dict[str, Any] = {
    **ALL_BIASED,
    "norm": "layer",
    "layout": "parallel",
    "gated": False,
    "mixer": _head_norms_if("qk_layernorm", False),
    "last": _biased_head,
}
_GLM: dict[str, Any] = {
    "fused_inner": True,
    "qkv_bias": "attention_bias",
    "defaults": {"attention_bias": True, "num_key_value_heads": 2, "head_dim": 128},
}
_COHERE2_KEYS = _all(
    _filling,
    *(_only(key, True) for key in ("use_parallel_block", "use_gated_activation", "use_embedding_sharing")),
    _absent("use_qk_norm"),
    _only("order_of_interleaved_layers", "local_attn_first"),
    _free("logit_scale", "layer_switch", "position_embedding_type", "use_parallel_embedding"),
)
_DIFF_KEYS = _all(
    _even_heads, _absent("mlp_bias"), _free("gradient_accumulation_steps", "lambda_std_dev", "patch_size")
)
_DOGE_KEYS = _all(
    _absent("hidden_bias"),
    _free("expert_retrieval_size", "num_cdmoe_experts", "num_cdmoe_experts_per_head", "num_cdmoe_heads"),
)
_HUNYUAN_KEYS = _all(
    _only("use_qk_norm", True),
    *(_absent(key) for key in ("use_cla", "mlp_bias", "add_classification_head")),
    _only("norm_type", "rms"),
    _free("cla_share_factor", "dense_list", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id"),
    _free("org_vocab_size", "pad_id", "pool_type", "text_end_id", "text_start_id", "use_rotary_pos_emb"),
)
_OLMO2 = Family(**BIASED, layout="post", qk_norm="full")

FAMILIES: dict[str, Family] = {
    "apertus": Family(
        **BIASED,
        gated=False,
        qk_norm="head",
        ffn=_apertus_ffn,
        shape=_all(_absent("mlp_bias"), _only("qk_norm", True), _absent("post_norm")),
    ),
    "arcee": Family(**LLAMA, gated=False),
    "baichuan": Family(fused_qkv=True, shape=_all(_multi_head, _baichuan)),
    "biogpt": Family(**GPT, first=_positions(2)),
    "bitnet": Family(
        **BIASED,
        defaults={"num_key_value_heads": 5},
        mixer=_bitnet_mixer,
        ffn=_bitnet_ffn,
        shape=_all(_nulls, _filling),
    ),
    "chatglm": Family(names=_CHATGLM_NAMES, fused_qkv=True, fused_inner=True, shape=_chatglm, last=_chatglm_last),
    "codegen": Family(
        names=GPT_NAMES,
        norm="layer",
        layout="parallel",
        gated=False,
        fused_qkv=True,
        mlp_bias=True,
        shape=_all(_multi_head, _four_times),
        last=_biased_head,
    ),
    "cohere": Family(
        **BIASED, layout="parallel", tied=True, mixer=_gains_if("use_qk_norm", False), shape=_free("logit_scale")
    ),
    "cohere2": Family(
        **BIASED,
        layout="parallel",
        tied=True,
        mixer=_attention,
        layers=_rotated_windows(every("sliding_window_pattern", 4, 4096)),
        shape=_COHERE2_KEYS,
    ),
    "ctrl": Family(
        **GPT,
        names={**GPT_NAMES, "intermediate_size": ("dff",)},
        shape=_multi_head,
        first=_fixed_positions,
        last=_biased_head,
    ),
    "cwm": Family(
        defaults={"num_key_value_heads": 8, "head_dim": 128},
        mlp_bias="mlp_bias",
        layers=_first_of_four_full(8192),
        shape=_nulls,
    ),
    "diffllama": Family(**BIASED, mixer=_differential, shape=_DIFF_KEYS),
    "doge": Family(
        **LLAMA, qk_norm="head", layers=all_windowed(None), mixer=_dynamic_mask, ffn=_doge_ffn, shape=_DOGE_KEYS
    ),
    "ernie4_5": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        defaults={"num_key_value_heads": 2, "head_dim": 128},
        shape=_nulls,
    ),
    "exaone": Family(
        **LLAMA,
        names={"num_hidden_layers": ("num_layers", "num_hidden_layers")},
        defaults={"num_key_value_heads": 8},
        shape=_nulls,
    ),
    "exaone4": Family(
        layout="post",
        qk_norm="head",
        defaults={"num_key_value_heads": 32},
        mixer=_attention,
        layers=_exaone4_layers,
    ),
    "glm": Family(**_GLM),
    "glm4": Family(**_GLM, layout="sandwich"),
    "gpt_bigcode": Family(
        **GPT,
        names=GPT_NAMES,
        fused_qkv=True,
        shape=_all(_multi_query, _four_times),
        first=_positions(),
    ),
    "gpt_neo": Family(
        names=_GPT_NEO_NAMES,
        norm="layer",
        gated=False,
        mlp_bias=True,
        rotary=False,
        tied=True,
        mixer=_square_bias_out,
        layers=_gpt_neo_layers,
        shape=_all(_multi_head, _four_times, _free("name")),
        first=_positions(),
    ),
    "gptj": Family(
        names=GPT_NAMES,
        norm="layer",
        layout="parallel",
        gated=False,
        mlp_bias=True,
        shape=_all(_multi_head, _four_times, _free("rotary")),
        last=_biased_head,
    ),
    "granite": Family(**LLAMA),
    "granite_swa": Family(
        **LLAMA,
        sinks=True,
        tied=True,
        defaults={"num_key_value_heads": 4},
        layers=_first_of_four_full(128),
        shape=_nulls,
    ),
    "helium": Family(
        qkv_bias="attention_bias",
        mlp_bias="mlp_bias",
        defaults={"num_key_value_heads": 20, "head_dim": 128},
        shape=_helium,
    ),
    "hunyuan_v1_dense": Family(
        **BIASED,
        names={"head_dim": ("head_dim", "attention_head_dim")},
        qk_norm="head",
        shape=_HUNYUAN_KEYS,
    ),
    "hyperclovax": Family(**LLAMA, shape=_post_norm),
    "internlm": Family(qkv_bias="bias", out_bias="bias", defaults={"bias": True}, shape=_multi_head),
    "internlm2": Family(qkv_bias="bias", out_bias="bias", fused_qkv=True, defaults={"bias": True}),
    "internlm3": Family(
        qkv_bias="qkv_bias",
        out_bias="qkv_bias",
        mlp_bias="bias",
        names={"qkv_bias": ("qkv_bias", "attention_bias"), "bias": ("bias", "mlp_bias")},
        defaults={"num_key_value_heads": 2, "head_dim": 128},
        shape=_internlm3,
    ),
    "iquestcoder": Family(
        **LLAMA, defaults={"num_key_value_heads": 8, "head_dim": 128}, shape=_all(_nulls, _absent("clip_qkv"))
    ),
    "jais2": Family(**LLAMA, norm="layer", gated=False, defaults={"attention_bias": True, "mlp_bias": True}),
    "mimo": Family(
        qkv_bias=True, defaults={"num_key_value_heads": 32}, layers=_mimo_layers, shape=_only("attention_bias", True)
    ),
    "minicpm": Family(
        **BIASED,
        tied=True,
        layers=_minicpm_layers,
        ffn=sparse_or_dense(_minicpm_experts),
        shape=_all(_absent("sparse_config"), _free("dim_model_base", "mup_denominator")),
    ),
    "minicpm3": Family(
        mlp_bias="mlp_bias",
        tied=True,
        mixer=Builder.latent_attention,
        defaults={"q_lora_rank": 768},
        shape=_minicpm3,
    ),
    "ministral": Family(defaults={"num_key_value_heads": 8}, layers=all_windowed(4096), shape=_nulls),
    "mpt": Family(names=_MPT_NAMES, gated=False, fused_qkv=True, rotary=False, tied=True, shape=_mpt),
    "nanochat": Family(
        **BIASED,
        norm="rms",
        gated=False,
        qk_norm="head",
        shape=_no_affine,
        first=_normed_table,
    ),
    "nemotron": Family(**LLAMA, names={"head_dim": ("head_dim", "kv_channels")}, norm="layer", gated=False),
    "olmo": Family(**BIASED, shape=_all(_no_affine, _free("clip_qkv"))),
    "olmo3": Family(**BIASED, layout="post", qk_norm="full", layers=every("sliding_window_period", 4, 4096)),
    "olmo_1124": _OLMO2,
    "orion": Family(norm="layer", shape=_all(_absent("attention_bias"), _free("max_sequence_length"))),
    "persimmon": Family(
        **ALL_BIASED,
        norm="layer",
        gated=False,
        fused_qkv=True,
        mixer=_head_norms_if("qk_layernorm", True),
        shape=_multi_head,
    ),
    "phi": Family(**_PHI),
    "phi-msft": Family(
        **_PHI,
        names={**GPT_NAMES, "num_key_value_heads": ("n_head_kv",)},
        fused_qkv=True,
        shape=_all(_four_times, _absent("img_processor")),
    ),
    "qwen": Family(names=_QWEN_NAMES, qkv_bias=True, fused_qkv=True, shape=_qwen),
    "seed_oss": Family(
        qkv_bias="attention_bias",
        out_bias="attention_out_bias",
        mlp_bias="mlp_bias",
        defaults={"attention_bias": True, "num_key_value_heads": 8, "head_dim": 128},
        shape=_nulls,
    ),
    "smollm3": Family(
        **LLAMA,
        tied=True,
        mixer=_attention,
        layers=_smollm3_layers,
        defaults={"num_key_value_heads": 4},
        shape=_nulls,
    ),
    "stablelm": Family(
        norm="layer",
        qkv_bias="use_qkv_bias",
        mixer=_gains_if("qk_layernorm", False),
        defaults={"num_key_value_heads": 32},
        shape=_parallel_or_not,
    ),
    "starcoder2": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        norm="layer",
        gated=False,
        tied=True,
        defaults={"use_bias": True, "num_key_value_heads": 2},
        layers=all_windowed(None),
        shape=_all(_only("mlp_type", "default"), _only("norm_type", "layer_norm")),
    ),
    "vaultgemma": Family(
        **BIASED,
        tied=True,
        defaults={"num_key_value_heads": 4, "head_dim": 256},
        layers=every("sliding_window_period", 2, 4096),
    ),
    "xglm": Family(
        **GPT,
        names=_XGLM_NAMES,
        shape=_multi_head,
        first=_fixed_positions,
    ),
    "youtu": Family(
        tied=True,
        mixer=Builder.latent_attention,
        defaults={"q_lora_rank": 1536},
        shape=_all(_absent("mlp_bias"), _free("embedding_initializer_range", "head_dim")),
    ),
    "yuan": Family(
        tied=True,
        mixer=_filtered,
        shape=_all(_multi_head, _absent("use_shareqk"), _free("causal_mask", "eod_token", "sep_token")),
    ),
    "nemotron-nas": Family(**LLAMA, layers=_nas_layers, builder=_NasBuilder),
    "openelm": Family(
        names={
            "hidden_size": ("model_dim",),
            "num_hidden_layers": ("num_transformer_layers",),
            "max_position_embeddings": ("max_context_length",),
            "tie_word_embeddings": ("share_input_output_layers",),
        },
        fused_inner=True,
        tied=True,
        layers=_openelm_layers,
        mixer=_openelm_mixer,
        ffn=_openelm_ffn,
        mend=_openelm_heads,
    ),
}

#: Class names of `architectures` and the model types that they go with.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "ApertusForCausalLM": ("apertus",),
    "ArceeForCausalLM": ("arcee",),
    "BaiChuanForCausalLM": ("baichuan",),
    "BaichuanForCausalLM": ("baichuan",),
    "BioGptForCausalLM": ("biogpt",),
    "BitNetForCausalLM": ("bitnet",),
    "ChatGLMForConditionalGeneration": ("chatglm",),
    "ChatGLMModel": ("chatglm",),
    "CodeGenForCausalLM": ("codegen",),
    "CohereForCausalLM": ("cohere",),
    "Cohere2ForCausalLM": ("cohere2",),
    "CTRLLMHeadModel": ("ctrl",),
    "CwmForCausalLM": ("cwm",),
    "DeciLMForCausalLM": ("nemotron-nas",),
    "DiffLlamaForCausalLM": ("diffllama",),
    "DogeForCausalLM": ("doge",),
    "Ernie4_5ForCausalLM": ("ernie4_5",),
    "Exaone4ForCausalLM": ("exaone4",),
    "ExaoneForCausalLM": ("exaone",),
    "GPTBigCodeForCausalLM": ("gpt_bigcode",),
    "GPTBigCodeLMHeadModel": ("gpt_bigcode",),
    "GPTJForCausalLM": ("gptj",),
    "GPTNeoForCausalLM": ("gpt_neo",),
    "Glm4ForCausalLM": ("glm4",),
    "GlmForCausalLM": ("glm",),
    "GraniteForCausalLM": ("granite",),
    "GraniteSWAForCausalLM": ("granite_swa",),
    "HeliumForCausalLM": ("helium",),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_v1_dense",),
    "HyperCLOVAXForCausalLM": ("hyperclovax",),
    "InternLM2ForCausalLM": ("internlm2",),
    "InternLM3ForCausalLM": ("internlm3",),
    "InternLMForCausalLM": ("internlm",),
    "IQuestCoderForCausalLM": ("iquestcoder",),
    "Jais2ForCausalLM": ("jais2",),
    "MiMoForCausalLM": ("mimo",),
    "MiniCPM3ForCausalLM": ("minicpm3",),
    "MiniCPMForCausalLM": ("minicpm",),
    "MinistralForCausalLM": ("ministral",),
    "MPTForCausalLM": ("mpt",),
    "MptForCausalLM": ("mpt",),
    "NanoChatForCausalLM": ("nanochat",),
    "NemotronForCausalLM": ("nemotron",),
    "Olmo1124ForCausalLM": ("olmo_1124",),
    "Olmo3ForCausalLM": ("olmo3",),
    "OlmoForCausalLM": ("olmo",),
    "OpenELMForCausalLM": ("openelm",),
    "OrionForCausalLM": ("orion",),
    "PersimmonForCausalLM": ("persimmon",),
    "PhiForCausalLM": ("phi", "phi-msft"),
    "QWenLMHeadModel": ("qwen",),
    "SeedOssForCausalLM": ("seed_oss",),
    "SmolLM3ForCausalLM": ("smollm3",),
    "StableLmForCausalLM": ("stablelm",),
    "Starcoder2ForCausalLM": ("starcoder2",),
    "VaultGemmaForCausalLM": ("vaultgemma",),
    "XGLMForCausalLM": ("xglm",),
    "YoutuForCausalLM": ("youtu",),
    "YuanForCausalLM": ("yuan",),
}
