"""Mixture-of-experts decoders: GLM, Hunyuan, MiniMax, Granite, ERNIE, Llama 4, DeepSeek V1 and V3.2, LongCat, …

Class defaults are those of transformers 5.24; the three types that it does not have (deepseek, bailing_moe,
step3_text) follow the modules that their publishers and vLLM have, and the counts that the publishers state.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.builder import Builder, Family, Layer, MoE
from gambrel.model.families.patterns import BIASED, sparse_or_dense, typed, window_of
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Elementwise, Linear, Norm, Part
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gambrel.model.experts import MixtureOfExperts
    from gambrel.model.sparse import Indexer

# Attention ------------------------------------------------------------------------------------


@frozen
class Heads:
    """One layer's attention: numbers of heads, widths of a head's keys and values, biases and norms.

    norm: "" none, "head" one gain per head width, "full" over all heads together, "plain" per head without a gain.
    qkv_bias, out_bias: a bool, or the config key that says so.
    """

    n: int
    n_kv: int
    d_qk: int
    d_v: int
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    norm: str = ""
    rotary: bool = True
    sinks: bool = False


def grouped(b: Builder, layer: Layer, path: str, h: Heads) -> Attention:
    """Grouped-query attention of the given shape, with the layer's window or chunk."""
    if h.n % h.n_kv:
        raise ConfigError(f"num_attention_heads of {path} is {h.n} for {h.n_kv} KV heads; accepted is a multiple")
    shapes = (("q_proj", h.n * h.d_qk, h.n), ("k_proj", h.n_kv * h.d_qk, h.n_kv), ("v_proj", h.n_kv * h.d_v, h.n_kv))
    projections = tuple(
        b.linear(f"{path}.{name}", "attention", b.hidden, width, h.qkv_bias, ways) for name, width, ways in shapes
    )
    out = b.linear(f"{path}.o_proj", "attention", h.n * h.d_v, b.hidden, h.out_bias, h.n)
    norms: tuple[Norm, ...] = ()
    if h.norm == "full":
        norms = (b.norm("q_norm", h.n * h.d_qk), b.norm("k_norm", h.n_kv * h.d_qk))
    elif h.norm:
        gain = h.norm == "head"
        norms = tuple(
            Norm(name, h.d_qk, b.base, per_row=heads, affine=gain)
            for name, heads in (("q_norm", h.n), ("k_norm", h.n_kv))
        )
    return Attention(
        projections, out, h.n, h.n_kv, h.d_qk, h.d_v, b.base, norms, layer.window, h.rotary, h.sinks, layer.chunk
    )


def _plain(b: Builder, **options: Any) -> Heads:
    """The config's own heads."""
    return Heads(b.n_heads, b.n_kv, b.head_dim, b.head_dim, **options)


def _gated(attention: Attention, gate: Linear) -> Part:
    from gambrel.model.sparse import GatedAttention, extended

    return extended(GatedAttention, attention, gate=gate)


def _afmoe_attention(b: Builder, layer: Layer, path: str) -> Part:
    """Windowed layers alone are rotated; a gate for each element of the heads' output."""
    bias = "attention_bias"
    h = _plain(b, qkv_bias=bias, out_bias=bias, norm="head", rotary=layer.window is not None)
    gate = b.linear(f"{path}.gate_proj", "attention", b.hidden, h.n * h.d_v, ways=h.n)
    return _gated(grouped(b, layer, path, h), gate)


def _laguna_attention(b: Builder, layer: Layer, path: str) -> Part:
    """Each layer has its own number of query heads, and a gate per head or per element."""
    f, n = b.fields, layer.extra
    assert isinstance(n, int)
    h = Heads(n, b.n_kv, b.head_dim, b.head_dim, "attention_bias", "attention_bias", "head")
    kind = f.choice("gating", f.raw("gating", True), (True, "per-head", "per-element"))
    gate = b.linear(f"{path}.g_proj", "attention", b.hidden, n * (h.d_v if kind == "per-element" else 1), ways=n)
    return _gated(grouped(b, layer, path, h), gate)


def _glm_attention(b: Builder, layer: Layer, path: str) -> Part:
    """A bias in queries, keys and values alone; norms per head where use_qk_norm says so."""
    norm = "head" if b.fields.flag("use_qk_norm", False) else ""
    return grouped(b, layer, path, _plain(b, qkv_bias="attention_bias", norm=norm))


def _hunyuan_attention(b: Builder, layer: Layer, path: str) -> Part:
    norm = "head" if b.fields.flag("use_qk_norm", True) else ""
    return grouped(b, layer, path, _plain(b, qkv_bias="attention_bias", out_bias="attention_bias", norm=norm))


def _mimo_attention(b: Builder, layer: Layer, path: str) -> Part:
    """Keys wider than values; windowed layers have twice the KV heads, and sinks."""
    f, v = b.fields, b.fields.whole("v_head_dim")
    if layer.window is None:
        sinks = f.flag("add_full_attention_sink_bias", False)
        return grouped(b, layer, path, Heads(b.n_heads, b.n_kv, b.head_dim, v, "attention_bias", sinks=sinks))
    h = Heads(
        f.whole("swa_num_attention_heads", b.n_heads),
        f.whole("swa_num_key_value_heads", 2 * b.n_kv),
        f.whole("swa_head_dim", b.head_dim),
        f.whole("swa_v_head_dim", v),
        "attention_bias",
        sinks=f.flag("add_swa_attention_sink_bias", True),
    )
    return grouped(b, layer, path, h)


def _llama4_attention(b: Builder, layer: Layer, path: str) -> Part:
    """Rotated layers, which are chunked as a rule, norm queries and keys without a gain."""
    rotated = layer.kind == "rope"
    norm = "plain" if rotated and b.fields.flag("use_qk_norm", True) else ""
    bias = "attention_bias"
    return grouped(b, layer, path, _plain(b, qkv_bias=bias, out_bias=bias, norm=norm, rotary=rotated))


def _bailing_attention(b: Builder, layer: Layer, path: str) -> Part:
    """One matrix for queries, keys and values; module names of GPT-NeoX."""
    f, path = b.fields, path.replace("self_attn", "attention")
    f.choice("multi_gate", f.flag("multi_gate", False), (False,))
    width, all_biased = (b.n_heads + 2 * b.n_kv) * b.head_dim, f.flag("use_bias", False)
    bias = f.flag("use_qkv_bias", False) or all_biased
    qkv = b.linear(f"{path}.query_key_value", "attention", b.hidden, width, bias)
    out = b.linear(f"{path}.dense", "attention", b.n_heads * b.head_dim, b.hidden, all_biased, b.n_heads)
    return Attention((qkv,), out, b.n_heads, b.n_kv, b.head_dim, b.head_dim, b.base)


def _step3_attention(b: Builder, layer: Layer, path: str) -> Part:
    """Multi-matrix factorised attention: queries through a shared narrow projection and a norm (arXiv:2507.19427)."""
    f, d, h = b.fields, b.head_dim, b.n_heads
    f.choice("use_mfa", f.flag("use_mfa", True), (True,))
    f.choice("num_attention_groups", b.n_kv, (1,))
    rank = f.whole("share_q_dim")
    narrow = tuple(
        b.linear(f"{path}.{name}", "attention", b.hidden, width, ways=1)
        for name, width in (("q_proj", rank), ("k_proj", d), ("v_proj", d))
    )
    wide = b.linear(f"{path}.wq", "attention", rank, h * d, ways=h)
    out = b.linear(f"{path}.o_proj", "attention", h * d, b.hidden, ways=h)
    return Attention((*narrow, wide), out, h, 1, d, d, b.base, (b.norm("inter_norm", rank),))


def _jetmoe_attention(b: Builder, layer: Layer, path: str) -> Part:
    """Query and output projections are experts; each KV head serves one query head of every chosen expert."""
    from gambrel.model.sparse import MixtureOfAttention

    f, path, width = b.fields, path.replace("self_attn", "self_attention"), b.n_kv * b.head_dim
    experts, top_k = f.whole("num_local_experts"), f.whole("num_experts_per_tok")
    kv = b.linear(f"{path}.kv_proj", "attention", b.hidden, 2 * width)
    query = b.linear(f"{path}.experts.input_linear", "experts", b.hidden, width, ways=b.n_kv)
    out = b.linear(f"{path}.experts.output_linear", "experts", width, b.hidden, ways=b.n_kv)
    kernel = Attention((kv,), out, b.n_heads, b.n_kv, b.head_dim, b.head_dim, b.base)
    router = b.linear(f"{path}.experts.router.layer", "router", b.hidden, experts, ways=1)
    return MixtureOfAttention(router, (query,), out, width, False, experts, top_k, attention=kernel, bias=b.base)


def _sparse_latent(b: Builder, layer: Layer, path: str) -> Part:
    """Latent attention over the keys that an indexer chose; a "shared" layer uses the choice of one before it."""
    from gambrel.model.latent import LatentAttention
    from gambrel.model.sparse import SparseLatentAttention, extended

    f = b.fields
    f.whole("q_lora_rank")
    latent = b.latent_attention(layer, path)
    assert isinstance(latent, LatentAttention)
    indexer = None if layer.extra == "shared" else _indexer(b, f"{path}.indexer")
    return extended(SparseLatentAttention, latent, top_k=f.whole("index_topk"), indexer=indexer)


def _indexer(b: Builder, path: str) -> Indexer:
    from gambrel.model.sparse import Indexer

    f = b.fields
    heads, width = f.whole("index_n_heads"), f.whole("index_head_dim")
    return Indexer(
        b.linear(f"{path}.wq_b", "attention", f.whole("q_lora_rank"), heads * width, ways=1),
        b.linear(f"{path}.wk", "attention", b.hidden, width, ways=1),
        Norm("k_norm", width, b.base, bias=True),
        b.linear(f"{path}.weights_proj", "attention", b.hidden, heads, ways=1),
        heads,
        width,
        f.whole("qk_rope_head_dim"),
    )


# Layer patterns -------------------------------------------------------------------------------


def _kinds(b: Builder, key: str, accepted: Sequence[Any]) -> list[Any]:
    """One entry per layer, each of those accepted; empty where the key is absent."""
    kinds = b.fields.items(key, length=b.n_layers)
    for kind in kinds:
        b.fields.choice(key, kind, accepted)
    return kinds


def _note_mtp(b: Builder, *keys: str) -> None:
    for key in keys:
        predict = b.fields.whole(key, 0, low=0)
        if predict:
            b.notes.append(f"{key} = {predict}: multi-token-prediction weights are not counted")


def _sparsity(b: Builder, first: int) -> list[bool]:
    """Which layers have experts: mlp_layer_types where the config has it, else all from first_k_dense_replace on."""
    _note_mtp(b, "num_nextn_predict_layers", "num_mtp_layers")
    kinds = _kinds(b, "mlp_layer_types", ("dense", "sparse"))
    dense = b.fields.whole("first_k_dense_replace", first, low=0)
    return [kind == "sparse" for kind in kinds] or [i >= dense for i in range(b.n_layers)]


def _every(b: Builder, first: int) -> list[bool]:
    """As _sparsity, where a config may say that every layer from there on has experts, and nothing else."""
    b.fields.choice("moe_layer_freq", b.fields.raw("moe_layer_freq", 1), (1,))
    return _sparsity(b, first)


def _from(first: int) -> Callable[[Builder], list[Layer]]:
    """Dense layers first, `first` of them where the config does not say, then experts."""
    return lambda b: [Layer(sparse=sparse) for sparse in _every(b, first)]


def _all_sparse(b: Builder) -> list[Layer]:
    b.fields.choice("first_k_dense_replace", b.fields.whole("first_k_dense_replace", 0, low=0), (0,))
    b.fields.choice("use_qk_norm", b.fields.flag("use_qk_norm", False), (False,))
    _note_mtp(b, "num_nextn_predict_layers")
    return [Layer(sparse=True)] * b.n_layers


def _hy_layers(b: Builder) -> list[Layer]:
    b.fields.choice("qk_norm", b.fields.flag("qk_norm", True), (True,))
    return _from(1)(b)


def _every_sparse(b: Builder) -> list[Layer]:
    return [Layer(sparse=True)] * b.n_layers


def _windowed_sparse(b: Builder) -> list[Layer]:
    return [Layer(window_of(b.fields), sparse=True)] * b.n_layers


def _afmoe_layers(b: Builder) -> list[Layer]:
    """Every global_attn_every_n_layers-th layer is full, the others windowed; the first layers are dense."""
    f = b.fields
    window = window_of(f, absent=1024)
    period = f.whole("global_attn_every_n_layers", 4)
    layers = typed(b, window, [Layer(window if (i + 1) % period else None) for i in range(b.n_layers)])
    dense = f.whole("num_dense_layers", 1, low=0)
    return [Layer(layer.window, sparse=i >= dense) for i, layer in enumerate(layers)]


def _dots_layers(b: Builder) -> list[Layer]:
    """Windows from layer max_window_layers on, which is none as a rule."""
    f = b.fields
    window = window_of(f, absent=4096) if f.flag("use_sliding_window", True) else None
    edge = f.whole("max_window_layers", 62, low=0)
    layers = typed(b, window, [Layer(window if i >= edge else None) for i in range(b.n_layers)])
    return [Layer(x.window, sparse=y.sparse) for x, y in zip(layers, _from(0)(b), strict=True)]


def _ernie_layers(b: Builder) -> list[Layer]:
    f = b.fields
    start, step = f.whole("moe_layer_start_index", 1, low=0), f.whole("moe_layer_interval", 1)
    end = f.whole("moe_layer_end_index", -1, low=-1)
    end = b.n_layers - 1 if end == -1 else end
    return [Layer(sparse=(i + 1) % step == 0 and start <= i <= end) for i in range(b.n_layers)]


def _laguna_layers(b: Builder) -> list[Layer]:
    f = b.fields
    heads = f.items("num_attention_heads_per_layer", length=b.n_layers) or [b.n_heads] * b.n_layers
    for n in heads:
        Fields({"num_attention_heads_per_layer": n}).whole("num_attention_heads_per_layer", high=10**6)
    window = window_of(f, absent=512)
    layers = typed(b, window, [Layer()] * b.n_layers)
    sparse = _sparsity(b, 1)
    return [Layer(x.window, sparse=s, extra=n) for x, s, n in zip(layers, sparse, heads, strict=True)]


def _mimo_layers(b: Builder) -> list[Layer]:
    """Full attention in layer 0 and every 6th, windows in the others; the published window leaves the query out."""
    f = b.fields
    window = f.maybe("sliding_window_size")
    window = window + 1 if window else f.whole("sliding_window", 129)
    f.maybe("sliding_window")
    f.maybe("attention_chunk_size")
    pattern = _kinds(b, "hybrid_layer_pattern", (0, 1))
    full = [not x for x in pattern] or [i == 0 or (i + 1) % 6 == 0 for i in range(b.n_layers)]
    layers = typed(b, window, [Layer(None if x else window) for x in full])
    experts = [bool(x) for x in _kinds(b, "moe_layer_freq", (0, 1))] or _sparsity(b, 1)
    return [Layer(x.window, sparse=s) for x, s in zip(layers, experts, strict=True)]


def _minimax_layers(b: Builder) -> list[Layer]:
    f = b.fields
    _kinds(b, "attn_type_list", (1,))
    f.choice("use_qk_norm", f.flag("use_qk_norm", True), (True,))
    f.choice("qk_norm_type", f.text("qk_norm_type", "per_layer"), ("per_layer",))
    f.choice("shared_intermediate_size", f.whole("shared_intermediate_size", 0, low=0), (0,))
    if f.flag("use_mtp", True):
        _note_mtp(b, "num_mtp_modules")
    for key in ("mtp_transformer_layers", "mlp_intermediate_size"):  # without shared experts the latter has no use
        f.maybe(key, low=0)
    return _every_sparse(b)


def _llama4_layers(b: Builder) -> list[Layer]:
    """iRoPE: rotated layers attend within chunks, the others (every 4th) to everything; experts in moe_layers."""
    f, n = b.fields, b.n_layers
    chunk = f.maybe("attention_chunk_size") if "attention_chunk_size" in f.data else 8192
    period, step = f.whole("no_rope_layer_interval", 4), f.whole("interleave_moe_layer_step", 1)
    rope = f.items("no_rope_layers") or [int((i + 1) % period != 0) for i in range(n)]
    if len(rope) < n:
        raise ConfigError(f"{f.label('no_rope_layers')} has {len(rope)} entries for {n} layers")
    for x in rope:
        f.choice("no_rope_layers", x, (0, 1))
    sparse = f.items("moe_layers") if f.has("moe_layers") else list(range(step - 1, n, step))
    kinds = _kinds(b, "layer_types", ("full_attention", "chunked_attention"))
    f.maybe("intermediate_size_mlp")
    chunked = [kind == "chunked_attention" for kind in kinds] or [bool(x) for x in rope[:n]]
    return [Layer(None, i in sparse, "rope" if rope[i] else "", chunk if chunked[i] else None) for i in range(n)]


def _qwen_layers(b: Builder) -> list[Layer]:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name."""
    dense, step = b.fields.items("mlp_only_layers"), b.fields.whole("decoder_sparse_step", 1)
    return [Layer(sparse=i not in dense and (i + 1) % step == 0) for i in range(b.n_layers)]


def _hunyuan_layers(b: Builder) -> list[Layer]:
    """Each layer's experts, top-k and shared experts, which may be lists; refuses what other releases add."""
    f, n = b.fields, b.n_layers
    for key in ("use_cla", "use_mla", "mlp_bias", "add_classification_head"):
        f.choice(key, f.flag(key, False), (False,))
    for key in ("vit_type", "vit_path"):
        f.choice(key, f.raw(key, None), (None, ""))
    f.used |= {key for key in f.data if key.startswith("vit_")} | {"cla_share_factor", "num_media_embeds"}
    f.choice("norm_type", f.text("norm_type", "rms"), ("rms",))
    f.choice("use_rotary_pos_emb", f.flag("use_rotary_pos_emb", True), (True,))
    f.choice("use_mixed_mlp_moe", f.flag("use_mixed_mlp_moe", True), (True,))
    dense = f.whole("moe_layer_num_skipped", 0, low=0)
    experts, top_k = _per_layer(b, "num_experts"), _per_layer(b, "moe_topk")
    widths = _per_layer(b, "moe_intermediate_size", f.whole("intermediate_size"))
    shared = _per_layer(b, "num_shared_expert", 1)
    specs = zip(experts, top_k, widths, shared, strict=True)
    layers = [Layer(sparse=True, extra=spec) for spec in specs]
    return [Layer()] * min(dense, n) + layers[min(dense, n) :]


def _per_layer(b: Builder, key: str, default: int | None = None) -> list[int]:
    """A whole number for each layer: a list of them, or one for all."""
    f = b.fields
    value = f.raw(key) if default is None else f.raw(key, default)
    values = f.items(key, length=b.n_layers) if isinstance(value, list) else [value] * b.n_layers
    return [Fields({key: x}, where=f.where).whole(key) for x in values]


def _step3_layers(b: Builder) -> list[Layer]:
    """Experts in the layers that moe_layers_enum lists ("4,5,6"), else in all but the first."""
    f = b.fields
    f.choice("use_moe", f.flag("use_moe", True), (True,))
    f.used |= {"moe_every_n_layer", "moe_layer_offset"}  # what engines read is moe_layers_enum
    listed = f.raw("moe_layers_enum", None)
    if listed is None:
        return [Layer(sparse=i > 0) for i in range(b.n_layers)]
    words = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else ["?"]
    if not all(str(word).strip().isdigit() for word in words):
        raise ConfigError(f"{f.label('moe_layers_enum')} is {listed!r:.60}; accepted is layer numbers such as '4,5,6'")
    sparse = {int(str(word)) for word in words}
    return [Layer(sparse=i in sparse) for i in range(b.n_layers)]


def _dsa_sparsity(b: Builder) -> list[bool]:
    _kinds(b, "layer_types", ("indexed_attention", "deepseek_sparse_attention"))
    return _every(b, 3)


def _dsa_layers(b: Builder) -> list[Layer]:
    return [Layer(sparse=sparse, extra="full") for sparse in _dsa_sparsity(b)]


def _glm_dsa_layers(b: Builder) -> list[Layer]:
    """Which layers have an indexer of their own: indexer_types, index_topk_pattern, or index_topk_freq."""
    f = b.fields
    kinds = _kinds(b, "indexer_types", ("full", "shared")) or _indexer_pattern(b)
    if not kinds:
        freq, offset = f.whole("index_topk_freq", 1), f.whole("index_skip_topk_offset", 2, low=0)
        kinds = ["shared" if max(i - offset + 1, 0) % freq else "full" for i in range(b.n_layers)]
    if kinds[0] == "shared":
        raise ConfigError("indexer_types begins with 'shared'; accepted is 'full', since no layer is before it")
    f.used |= {"index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"}
    return [Layer(sparse=sparse, extra=kind) for sparse, kind in zip(_dsa_sparsity(b), kinds, strict=True)]


def _indexer_pattern(b: Builder) -> list[str]:
    f = b.fields
    pattern = f.raw("index_topk_pattern", None)
    if pattern is None:
        return []
    letters = {"F": "full", "S": "shared", "full": "full", "shared": "shared"}
    if not isinstance(pattern, (str, list)) or len(pattern) != b.n_layers:
        raise ConfigError(f"{f.label('index_topk_pattern')} is {pattern!r:.60}; accepted is F or S for each layer")
    return [letters[f.choice("index_topk_pattern", x, tuple(letters))] for x in pattern]


# Feed-forward slots ---------------------------------------------------------------------------


def _spec(width: str, shared: str = "", **options: Any) -> Callable[[Builder], MoE]:
    """Experts of the width that key `width` names; `shared` names the number of shared experts of that width."""

    def spec(b: Builder) -> MoE:
        f = b.fields
        size = f.whole(width)
        copies = (f.maybe(shared, low=0) or 0) if shared else 0
        return MoE(f.whole("n_routed_experts"), f.whole("num_experts_per_tok"), size, copies * size, **options)

    return spec


def _moe(b: Builder, path: str, spec: MoE, shared: str = "shared_experts") -> MixtureOfExperts:
    """Experts of the spec whose shared expert has a name of its own."""
    part = b.moe(path, replace(spec, shared_width=0))
    if not spec.shared_width:
        return part
    return replace(part, shared=b.dense(f"{path}.{shared}", spec.shared_width, "shared_experts"))


def _renamed(spec: Callable[[Builder], MoE], name: str) -> Callable[[Builder, Layer, str], Part]:
    """Experts in sparse layers under the module name that the checkpoints have."""

    def ffn(b: Builder, layer: Layer, path: str) -> Part:
        path = path.replace(".mlp", f".{name}")
        return _moe(b, path, spec(b)) if layer.sparse else b.dense(path)

    return ffn


def _granite_shared_spec(b: Builder) -> MoE:
    spec = _spec("intermediate_size", fused=True)(b)
    return replace(spec, shared_width=b.fields.whole("shared_intermediate_size", 0, low=0))


def _phimoe_spec(b: Builder) -> MoE:
    """The router (SparseMixer) picks two experts whatever num_experts_per_tok says, so it may say only 2."""
    b.fields.choice("num_experts_per_tok", b.fields.whole("num_experts_per_tok", 2), (2,))
    return replace(_spec("intermediate_size")(b), top_k=2)


def _laguna_spec(b: Builder) -> MoE:
    f = b.fields
    early = f.flag("moe_apply_router_weight_on_input", False)
    f.choice("moe_apply_router_weight_on_input", early, (False,))
    spec = _spec("moe_intermediate_size", router_bias=True)(b)
    return replace(spec, shared_width=f.whole("shared_expert_intermediate_size", low=0))


def _hunyuan_ffn(b: Builder, layer: Layer, path: str) -> Part:
    if not layer.sparse:
        return b.dense(path)
    assert isinstance(layer.extra, tuple)
    experts, top_k, width, shared = layer.extra
    return _moe(b, path, MoE(experts, top_k, width, shared * width), "shared_mlp")


def _llama4_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """Experts with one shared expert of the same width; dense layers have a width of their own."""
    path = path.replace(".mlp", ".feed_forward")
    if not layer.sparse:
        return b.dense(path, b.fields.whole("intermediate_size_mlp"))
    spec = _spec("intermediate_size")(b)
    part = _moe(b, path, replace(spec, shared_width=spec.width), "shared_expert")
    return replace(part, router=b.linear(f"{path}.router", "router", b.hidden, spec.n_experts, ways=1))


def _step3_ffn(b: Builder, layer: Layer, path: str) -> Part:
    if not layer.sparse:
        return b.dense(path)
    f, path = b.fields, path.removesuffix(".mlp")
    spec = _spec("moe_intermediate_size")(b)
    shared = b.dense(f"{path}.share_expert", f.whole("share_expert_dim"), "shared_experts")
    return replace(b.moe(f"{path}.moe", spec), shared=shared)


def _jetmoe_ffn(b: Builder, layer: Layer, path: str) -> Part:
    from gambrel.model.sparse import BiasedExperts, extended

    return extended(BiasedExperts, b.moe(path, _spec("intermediate_size", fused=True)(b)), bias=b.base)


def _deepseek1_ffn(b: Builder, layer: Layer, path: str) -> Part:
    spec = _spec("moe_intermediate_size", "n_shared_experts")
    return b.moe(path, spec(b)) if layer.sparse else b.dense(path)


def _deepseek1_layers(b: Builder) -> list[Layer]:
    """Dense without n_routed_experts; else experts from first_k_dense_replace on, every moe_layer_freq-th."""
    f = b.fields
    dense, step = f.whole("first_k_dense_replace", 0, low=0), f.whole("moe_layer_freq", 1)
    some = f.has("n_routed_experts")
    return [Layer(sparse=some and i >= dense and i % step == 0) for i in range(b.n_layers)]


def _biased_head(key: str) -> Callable[[Builder], tuple[Part, ...]]:
    """The final norm, and an output head that has a bias where `key` says so."""

    def last(b: Builder) -> tuple[Part, ...]:
        head = b.head()
        if b.fields.flag(key, False):
            head = replace(head, linear=replace(head.linear, bias=b.base))
        return (b.norm("final_norm", last_rows=True), head)

    return last


# Models whose layers are not a mixer and a feed-forward ---------------------------------------


def _jetmoe_heads(f: Fields) -> dict[str, Any]:
    """Query heads are the KV heads times the experts of a token; a config that says otherwise contradicts itself."""
    heads = f.whole("num_key_value_heads") * f.whole("num_experts_per_tok")
    f.choice("num_attention_heads", f.whole("num_attention_heads", heads), (heads,))
    return {"num_attention_heads": heads}


def _longcat_depth(f: Fields) -> dict[str, Any]:
    """num_layers counts double layers; num_hidden_layers, where it stands too, their attentions."""
    halves = f.maybe("num_hidden_layers")
    if not f.has("num_layers"):
        return {"num_hidden_layers": f.whole("num_hidden_layers") // 2}
    depth = f.whole("num_layers", high=10_000)
    f.choice("num_hidden_layers", halves or depth, (depth, 2 * depth))
    return {"num_hidden_layers": depth}


class LongcatBuilder(Builder):
    """LongCat-Flash: a layer is two attentions and two dense feed-forwards, with experts beside the second half."""

    def layer_parts(self, layer: Layer, index: int) -> tuple[Part, ...]:
        """Attention, experts and feed-forward, then attention and feed-forward; the experts' sum joins at the end."""
        path, parts = f"model.layers.{index}", []
        for half in (0, 1):
            mixer = self.latent_attention(layer, f"{path}.self_attn.{half}")
            parts += [self.norm("input_layernorm"), mixer, Elementwise("residual_add", self.hidden)]
            parts += [self.norm("post_attention_layernorm")]
            parts += [self.zero_experts(f"{path}.mlp")] if half == 0 else []
            parts += [self.dense(f"{path}.mlps.{half}"), Elementwise("residual_add", self.hidden, reads=2 + half)]
        return tuple(parts)

    def zero_experts(self, path: str) -> Part:
        """Experts, a third of which pass their input on."""
        from gambrel.model.sparse import ZeroExperts, extended

        f = self.fields
        zero = f.whole("zero_expert_num", low=0)
        f.choice("zero_expert_type", f.text("zero_expert_type", "identity"), ("identity",))
        f.choice("attention_method", f.text("attention_method", "MLA"), ("MLA",))
        part = self.moe(path, _spec("moe_intermediate_size")(self))
        every = part.n_experts + zero
        router = self.linear(f"{path}.router.classifier", "router", self.hidden, every, "router_bias", ways=1)
        real, rest = divmod(part.top_k * part.n_experts, every)
        mean: Any = real if rest == 0 else part.top_k * part.n_experts / every
        self.notes.append(
            f"{zero} of {every} experts compute nothing: of the {part.top_k} that a token chooses, {mean:g} on average "
            "are counted"
        )
        part = replace(part, router=router, top_k=mean)
        return extended(ZeroExperts, part, chosen=int(f.whole("num_experts_per_tok")), zero=zero)


# The table ------------------------------------------------------------------------------------

_ROUTED = {"n_routed_experts": ("n_routed_experts", "num_experts", "num_local_experts")}
_GLM4 = Family(
    names=_ROUTED,
    mixer=_glm_attention,
    layers=_from(1),
    ffn=sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
    defaults={"num_key_value_heads": 8, "n_shared_experts": 1},
)
_HUNYUAN = Family(
    names={
        "head_dim": ("head_dim", "attention_head_dim"),
        "moe_topk": ("moe_topk", "num_experts_per_tok"),
        "num_experts": ("num_experts", "num_local_experts"),
    },
    mixer=_hunyuan_attention,
    layers=_hunyuan_layers,
    ffn=_hunyuan_ffn,
)
_DSA: dict[str, Any] = {
    "names": _ROUTED,
    "mixer": _sparse_latent,
    "ffn": sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
}
_DSA_DEFAULTS = {"n_shared_experts": 1, "index_topk": 2048, "index_head_dim": 128, "head_dim": 64}
_GRANITE: dict[str, Any] = {**BIASED, "names": _ROUTED, "layers": _every_sparse}
_NARROW = {"moe_intermediate_size": ("moe_intermediate_size", "expert_hidden_dim")}

FAMILIES: dict[str, Family] = {
    "llama4_text": Family(
        names=_ROUTED,
        mixer=_llama4_attention,
        layers=_llama4_layers,
        ffn=_llama4_ffn,
        defaults={"head_dim": 128, "num_key_value_heads": 8, "num_experts_per_tok": 1, "n_routed_experts": 16},
    ),
    "qwen3_vl_moe_text": Family(
        **BIASED,
        names=_ROUTED,
        qk_norm="head",
        tied=True,
        layers=_qwen_layers,
        ffn=sparse_or_dense(_spec("moe_intermediate_size")),
        defaults={"num_key_value_heads": 16},
    ),
    "glm4v_moe_text": Family(
        names=_ROUTED,
        qkv_bias="attention_bias",
        layers=_from(1),
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
        defaults={"num_key_value_heads": 8, "n_shared_experts": 1, "attention_bias": True},
    ),
    "glm4_moe": _GLM4,
    "glm4_moe_lite": Family(
        names=_ROUTED,
        mixer=Builder.latent_attention,
        layers=_from(1),
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
        defaults={"n_shared_experts": 1, "q_lora_rank": 768, "head_dim": 64},
    ),
    "minimax_m2": Family(
        names=_ROUTED,
        qk_norm="full",
        layers=_minimax_layers,
        ffn=_renamed(_spec("intermediate_size"), "block_sparse_moe"),
        defaults={"num_key_value_heads": 8, "head_dim": 128},
    ),
    "hunyuan": _HUNYUAN,
    "hunyuan_v1_moe": _HUNYUAN,
    "hy_v3": Family(
        **BIASED,
        names={**_ROUTED, **_NARROW},
        qk_norm="head",
        mlp_bias="mlp_bias",
        layers=_hy_layers,
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "num_shared_experts")),
        defaults={"num_key_value_heads": 8, "head_dim": 128, "num_shared_experts": 1},
    ),
    "afmoe": Family(
        names=_ROUTED,
        layout="sandwich",
        mixer=_afmoe_attention,
        layers=_afmoe_layers,
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "num_shared_experts", router_bias=True)),
        defaults={"head_dim": 128, "num_shared_experts": 2},
    ),
    "laguna": Family(
        names=_ROUTED,
        mixer=_laguna_attention,
        layers=_laguna_layers,
        ffn=sparse_or_dense(_laguna_spec),
        defaults={"head_dim": 128, "num_key_value_heads": 8},
    ),
    "mimo_v2_flash": Family(
        names=_ROUTED,
        mixer=_mimo_attention,
        layers=_mimo_layers,
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
        defaults={"head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 4},
    ),
    "dots1": Family(
        **BIASED,
        names=_ROUTED,
        qk_norm="head",
        layers=_dots_layers,
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
        defaults={"num_key_value_heads": 32},
    ),
    "solar_open": Family(
        names=_ROUTED,
        qkv_bias="attention_bias",
        layers=_all_sparse,
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "n_shared_experts")),
        defaults={"num_key_value_heads": 8, "head_dim": 128, "n_shared_experts": 1},
    ),
    "ernie4_5_moe": Family(
        names={
            "n_routed_experts": ("moe_num_experts", "num_experts", "num_local_experts"),
            "num_experts_per_tok": ("moe_k", "num_experts_per_tok"),
        },
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        last=_biased_head("use_bias"),
        layers=_ernie_layers,
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "moe_num_shared_experts", router_bias=True)),
        defaults={"num_key_value_heads": 4, "moe_num_shared_experts": 2},
    ),
    "granitemoe": Family(**_GRANITE, ffn=_renamed(_spec("intermediate_size", fused=True), "block_sparse_moe")),
    "granitemoeshared": Family(**_GRANITE, fused_inner=True, ffn=_renamed(_granite_shared_spec, "block_sparse_moe")),
    "phimoe": Family(
        **BIASED,
        names={**_ROUTED, "intermediate_size": ("intermediate_size", "moe_intermediate_size")},
        norm="layer",
        layers=_windowed_sparse,
        ffn=_renamed(_phimoe_spec, "block_sparse_moe"),
        last=_biased_head("lm_head_bias"),
        defaults={"num_key_value_heads": 8},
    ),
    "olmoe": Family(
        **BIASED,
        names=_ROUTED,
        qk_norm="full",
        layers=_every_sparse,
        ffn=sparse_or_dense(_spec("intermediate_size")),
    ),
    "flex_olmo": Family(
        **BIASED,
        names=_ROUTED,
        layout="post",
        qk_norm="full",
        layers=_every_sparse,
        ffn=sparse_or_dense(_spec("intermediate_size")),
    ),
    "deepseek": Family(**BIASED, names=_ROUTED, layers=_deepseek1_layers, ffn=_deepseek1_ffn),
    "bailing_moe": Family(
        names={**_ROUTED, "num_shared_experts": ("num_shared_experts", "n_shared_experts")},
        mlp_bias="use_bias",
        mixer=_bailing_attention,
        layers=_from(0),
        ffn=sparse_or_dense(_spec("moe_intermediate_size", "num_shared_experts")),
    ),
    "step3_text": Family(
        names={
            "num_key_value_heads": ("num_attention_groups", "num_key_value_heads"),
            "n_routed_experts": ("moe_num_experts", "num_experts", "n_routed_experts"),
            "num_experts_per_tok": ("moe_top_k", "num_experts_per_tok"),
        },
        mixer=_step3_attention,
        layers=_step3_layers,
        ffn=_step3_ffn,
        defaults={"num_key_value_heads": 1, "head_dim": 256},
    ),
    "deepseek_v32": Family(**_DSA, layers=_dsa_layers, defaults={**_DSA_DEFAULTS, "index_n_heads": 64}),
    "glm_moe_dsa": Family(**_DSA, layers=_glm_dsa_layers, defaults={**_DSA_DEFAULTS, "index_n_heads": 32}),
    "jetmoe": Family(
        names={
            "head_dim": ("kv_channels", "head_dim"),
            "num_local_experts": ("num_local_experts", "moe_num_experts"),
            "n_routed_experts": ("num_local_experts", "moe_num_experts"),
            "num_experts_per_tok": ("num_experts_per_tok", "moe_top_k"),
        },
        tied=True,
        mixer=_jetmoe_attention,
        layers=_every_sparse,
        ffn=_jetmoe_ffn,
        defaults={"num_key_value_heads": 16, "head_dim": 128},
        mend=_jetmoe_heads,
    ),
    "longcat_flash": Family(
        names={
            "intermediate_size": ("ffn_hidden_size", "intermediate_size"),
            "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_intermediate_size"),
            "num_experts_per_tok": ("moe_topk", "num_experts_per_tok"),
            "n_routed_experts": ("n_routed_experts", "num_local_experts"),
        },
        defaults={"head_dim": 64, "q_lora_rank": 1536, "zero_expert_num": 256},
        builder=LongcatBuilder,
        mend=_longcat_depth,
    ),
}

#: Class names of `architectures` and the model types that they go with.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "Llama4ForCausalLM": ("llama4_text",),
    "Glm4MoeForCausalLM": ("glm4_moe",),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite",),
    "HunYuanMoEV1ForCausalLM": ("hunyuan", "hunyuan_v1_moe"),
    "HYV3ForCausalLM": ("hy_v3",),
    "AfmoeForCausalLM": ("afmoe",),
    "LagunaForCausalLM": ("laguna",),
    "MiMoV2FlashForCausalLM": ("mimo_v2_flash",),
    "Dots1ForCausalLM": ("dots1",),
    "SolarOpenForCausalLM": ("solar_open",),
    "Ernie4_5_MoeForCausalLM": ("ernie4_5_moe",),
    "GraniteMoeForCausalLM": ("granitemoe",),
    "GraniteMoeSharedForCausalLM": ("granitemoeshared",),
    "PhimoeForCausalLM": ("phimoe",),
    "PhiMoEForCausalLM": ("phimoe",),
    "OlmoeForCausalLM": ("olmoe",),
    "FlexOlmoForCausalLM": ("flex_olmo",),
    "DeepseekForCausalLM": ("deepseek",),
    "BailingMoeForCausalLM": ("bailing_moe",),
    "Step3TextForCausalLM": ("step3_text",),
    "DeepseekV32ForCausalLM": ("deepseek_v32",),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa",),
    "JetMoeForCausalLM": ("jetmoe",),
    "LongcatFlashForCausalLM": ("longcat_flash",),
}
