"""Language models that hear: Voxtral, Qwen2-Audio, Granite Speech, and CSM, which speaks.

Sources: the configuration and modelling code of transformers 5.24; Conformer (arXiv:2005.08100), BLIP-2's Q-Former
(arXiv:2301.12597), Moshi and its codec Mimi (arXiv:2410.00037). A media token is a position of the sound encoder.
"""

from __future__ import annotations

from gambrel.model.arch import Block
from gambrel.model.builder import Builder, Custom, Family, Nested, Result
from gambrel.model.encdec_parts import (
    BlockAttention,
    ConstantQueries,
    Convolution,
    DepthDecoder,
    Frames,
    Parameters,
    Regrouped,
)
from gambrel.model.encoders import CrossAttention, Stack
from gambrel.model.families.patterns import LLAMA, TEXT_DEFAULTS
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Elementwise, FeedForward, Linear, Norm, Part, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gambrel.model.precision import Precision
    from gambrel.types import Format


def _tower(name: str, blocks: tuple[Block, ...]) -> Stack:
    return Stack(name, blocks, "media", "audio")


def _config(
    top: Fields, b: Builder, key: str, defaults: dict[str, int], names: Mapping[str, tuple[str, ...]]
) -> Fields:
    """A part's config; left out or null, the library's defaults are the part."""
    if top.has(key):
        return top.nested(key, defaults=defaults, names=names)
    b.notes.append(f"there is no {key}: counted as the defaults of transformers")
    return Fields({}, names, defaults, f"{key}.")


def _split(f: Fields, hidden: int, heads: int, key: str) -> int:
    if hidden % heads:
        raise ConfigError(f"{f.label(key)} is {heads}, which does not divide {hidden}; accepted is a divisor")
    return hidden // heads


def _attention(names: tuple[str, str, str, str], sides: tuple[int, int], heads: int, base: Format, keys: bool) -> Part:
    """Self-attention with biases; `keys`: the keys have one too."""
    width, inner = sides
    q, k, v = (
        Linear(name, "audio", width, inner, base, base if name != names[1] or keys else None) for name in names[:3]
    )
    d = inner // heads
    return Attention(
        (q, k, v), Linear(names[3], "audio", inner, width, base, base), heads, heads, d, d, base, rotary=False
    )


def _ffn(names: tuple[str, str], hidden: int, width: int, base: Format) -> Part:
    up, down = (
        Linear(names[0], "audio", hidden, width, base, base),
        Linear(names[1], "audio", width, hidden, base, base),
    )
    return FeedForward((up,), down, width, False)


# Whisper's encoder under a decoder ------------------------------------------------------------

_WHISPER = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
_WHISPER_NAMES = {
    "hidden_size": ("hidden_size", "d_model"),
    "intermediate_size": ("intermediate_size", "encoder_ffn_dim"),
    "num_hidden_layers": ("num_hidden_layers", "encoder_layers"),
    "num_attention_heads": ("num_attention_heads", "encoder_attention_heads"),
}


def _whisper(v: Fields, b: Builder) -> Stack:
    """Whisper's encoder: sound in windows of max_source_positions, each filled up with silence."""
    d, width, heads = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("num_attention_heads")
    layers, bins = v.whole("num_hidden_layers", high=10_000), v.whole("num_mel_bins")
    window = v.whole("max_source_positions")
    for key in ("head_dim", "num_key_value_heads", "vocab_size"):
        v.maybe(key)
    inner = heads * _split(v, d, heads, "num_attention_heads")
    base, add = b.base, Elementwise("residual_add", d)
    norm = Norm("self_attn_layer_norm", d, base, True)
    stem = (
        Convolution(Linear("conv1", "audio", 3 * bins, d, base, base), bins, rows=2, rows_in=2),
        Convolution(Linear("conv2", "audio", 3 * d, d, base, base), d, rows_in=2),
        Elementwise("add_positions", d),
        Parameters("embed_positions", "audio", window * d, base),
    )
    attention = _attention(("q_proj", "k_proj", "v_proj", "out_proj"), (d, inner), heads, base, False)
    layer = (norm, attention, add, Norm("final_layer_norm", d, base, True), _ffn(("fc1", "fc2"), d, width, base), add)
    blocks = ((stem, 1), (layer, layers), ((Norm("layer_norm", d, base, True),), 1))
    b.notes.append(f"a media token is a position of the sound encoder, which hears in windows of {window}")
    return _tower("audio_tower", tuple(Block("sound", (Regrouped(parts, window, window),), n) for parts, n in blocks))


def _voxtral(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Whisper's encoder, of which as many positions as make one of the inner width go into the projector."""
    v = _config(top, b, "audio_config", _WHISPER, _WHISPER_NAMES)
    tower = _whisper(v, b)
    d, width = v.whole("hidden_size"), v.whole("intermediate_size")
    if width % d:
        raise ConfigError(f"{v.label('intermediate_size')} is {width}; accepted is a multiple of hidden_size = {d}")
    for key in ("hidden_size", "vocab_size"):
        top.maybe(key)
    first, second = (
        Linear(name, "audio", n, b.hidden, b.base) for name, n in (("linear_1", width), ("linear_2", b.hidden))
    )
    projector = (first, Elementwise("activation", b.hidden, reads=1, flops_per_element=4), second)
    return (tower, _tower("projector", (Block("projector", (Regrouped(projector, width // d, 1),)),)))


def _qwen2_audio(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Whisper's encoder, the mean of every two positions, one projection."""
    b.fields.choice("model_type", b.fields.text("model_type", "qwen2"), ("qwen2",))
    v = _config(top, b, "audio_config", _WHISPER, _WHISPER_NAMES)
    tower = _whisper(v, b)
    linear = Linear("linear", "audio", v.whole("hidden_size"), b.hidden, b.base, b.base)
    return (tower, _tower("projector", (Block("projector", (Regrouped((linear,), 2, 1),)),)))


# Granite Speech -------------------------------------------------------------------------------

_CONFORMER = {
    "input_dim": 160,
    "num_layers": 10,
    "hidden_dim": 1024,
    "feedforward_mult": 4,
    "num_heads": 8,
    "output_dim": 42,
    "context_size": 200,
    "max_pos_emb": 512,
    "conv_kernel_size": 15,
    "conv_expansion_factor": 2,
}
_CONFORMER_NAMES = {
    "hidden_dim": ("hidden_dim", "hidden_size"),
    "num_layers": ("num_layers", "num_hidden_layers"),
    "num_heads": ("num_heads", "num_attention_heads"),
    "input_dim": ("input_dim", "num_mel_bins"),
}
_QFORMER = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "cross_attention_frequency": 2,
    "encoder_hidden_size": 1408,
}


def _conformer(v: Fields, b: Builder) -> Stack:
    """Granite's CTC encoder, whose middle layer's letters are added back."""
    d, layers, heads = v.whole("hidden_dim"), v.whole("num_layers", high=10_000), v.whole("num_heads")
    width, out, places = d * v.whole("feedforward_mult"), v.whole("output_dim"), v.whole("max_pos_emb")
    size = v.whole("context_size", high=places)
    d_head = v.maybe("dim_head") or _split(v, d, heads, "num_heads")
    base, inner, conv = b.base, heads * d_head, d * v.whole("conv_expansion_factor")
    kernel, add = v.whole("conv_kernel_size"), Elementwise("residual_add", d)
    norm, ffn = Norm("pre_norm", d, base, True), _ffn(("up_proj", "down_proj"), d, width, base)
    projections = (Linear("to_q", "audio", d, inner, base), Linear("to_kv", "audio", d, 2 * inner, base))
    back = Linear("to_out", "audio", inner, d, base, base)
    attention = BlockAttention(projections, back, heads, d_head, size, 2 * places + 1, base)
    module = (
        Linear("up_conv", "audio", d, 2 * conv, base, base),
        Elementwise("glu", conv, reads=2, flops_per_element=4),
        Convolution(Linear("depth_conv", "audio", kernel, conv, base), conv),
        Norm("batch_norm", conv, base, True),
        Elementwise("activation", conv, reads=1, flops_per_element=4),
        Linear("down_conv", "audio", conv, d, base, base),
    )
    layer = (norm, ffn, add, norm, attention, add, norm, *module, add, norm, ffn, add, Norm("post_norm", d, base, True))
    sides = (Linear("out", "audio", d, out, base, base), Linear("out_mid", "audio", out, d, base, base))
    first = Linear("input_linear", "audio", v.whole("input_dim"), d, base, base)
    return _tower(
        "encoder", (Block("input", (first,)), Block("layers", layer, layers), Block("letters", (*sides, add)))
    )


def _qformer_cross(p: Fields, base: Format, constant: int) -> CrossAttention:
    """Attention over the sound; `constant` queries are the same for every window, 0 for none."""
    d, seen, heads = p.whole("hidden_size"), p.whole("encoder_hidden_size"), p.whole("num_attention_heads")
    sides = (("query", d), ("key", seen), ("value", seen), ("dense", d))
    q, k, v, o = (Linear(name, "audio", n_in, d, base, base) for name, n_in in sides)
    width = _split(p, d, heads, "num_attention_heads")
    if constant:
        return ConstantQueries(q, k, v, o, heads, heads, width, queries=constant)
    return CrossAttention(q, k, v, o, heads, heads, width)


def _qformer(p: Fields, base: Format, window: int, queries: int) -> tuple[Block, ...]:
    """Learned queries among themselves, over the window's sound where it is their layer's turn, feed-forward.

    Until the first look at the sound, the queries are the same for every window.
    """
    d, heads, width = p.whole("hidden_size"), p.whole("num_attention_heads"), p.whole("intermediate_size")
    layers, every = p.whole("num_hidden_layers", high=10_000), p.whole("cross_attention_frequency")
    tail = (Elementwise("residual_add", d), Norm("LayerNorm", d, base, True))
    own = (_attention(("query", "key", "value", "dense"), (d, d), heads, base, True), *tail)
    last: tuple[Part, ...] = (_ffn(("intermediate", "output"), d, width, base), *tail)
    if p.flag("use_qformer_text_input", False):
        last += (Parameters("text_ffn", "audio", 2 * d * width + width + 3 * d, base),)
    start = (Parameters("query", "audio", queries * d, base), Norm("layernorm", d, base, True), *own)
    crosses = -(-layers // every)
    kinds = (
        (start, 1, True),
        ((_qformer_cross(p, base, queries), *tail, *last), 1, False),
        ((*own, _qformer_cross(p, base, 0), *tail, *last), crosses - 1, False),
        ((*own, *last), layers - crosses, False),
    )
    return tuple(Block("projector", (Regrouped(parts, window, queries, once),), n) for parts, n, once in kinds if n)


def _granite_speech(top: Fields, b: Builder) -> tuple[Part, ...]:
    """A conformer, a Q-Former that makes window_size // downsample_rate tokens of each window, a projection."""
    v = _config(top, b, "encoder_config", _CONFORMER, _CONFORMER_NAMES)
    p = _config(top, b, "projector_config", _QFORMER, {})
    window, rate = top.whole("window_size", 15), top.whole("downsample_rate", 5)
    if rate > window:
        raise ConfigError(f"downsample_rate is {rate}; accepted is 1 to window_size = {window}")
    p.choice("model_type", p.text("model_type", "blip_2_qformer"), ("blip_2_qformer",))
    seen = p.whole("encoder_hidden_size")
    p.choice("encoder_hidden_size", seen, (v.whole("hidden_dim"),))
    for key in ("vocab_size", "max_position_embeddings"):
        p.maybe(key)  # of a text input that this model has not
    queries = window // rate
    linear = Regrouped((Linear("linear", "audio", p.whole("hidden_size"), b.hidden, b.base, b.base),), window, queries)
    if top.flag("has_lora_adapter", True):
        b.notes.append("has_lora_adapter: the adapter's weights are a file of their own and not counted")
    blocks = (*_qformer(p, b.base, window, queries), Block("projector", (linear,)))
    return (_conformer(v, b), _tower("projector", blocks))


# CSM ------------------------------------------------------------------------------------------

_CSM_NAMES = {"vocab_size": ("vocab_size", "codebook_size")}
_CSM = Family(**LLAMA, names=_CSM_NAMES)
_MIMI = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_filters": 64,
    "num_residual_layers": 1,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "residual_kernel_size": 3,
    "compress": 2,
    "audio_channels": 1,
    "vector_quantization_hidden_dimension": 256,
    "upsample_groups": 512,
    "sampling_rate": 24_000,
}


def _read_csm(top: Fields, precision: Precision) -> Result:
    """A decoder over frames, a depth decoder that fills each frame, and the codec beside them."""
    from dataclasses import replace

    fields = Fields(top.data, _CSM_NAMES)
    fields.used = top.used
    fields.raw("tie_word_embeddings", None)  # which the library ignores: the head is never a table
    b = Builder(_CSM, fields, precision, False)
    d, books = b.hidden, fields.whole("num_codebooks", 32, low=2)
    frames = Table("embed_audio_tokens", books * b.vocab, d, b.base)
    text = Table("embed_text_tokens", fields.whole("text_vocab_size", 128_256), d, b.base)
    depth = _depth(fields, b, books)
    b.notes.append("a decode step makes one frame: the backbone once, the depth decoder once for every codebook")
    arch = b.arch((depth, _mimi(fields, b)))
    return Result(replace(arch, first=(text, Frames(frames, books))), tuple(b.notes), b.unread())


def _depth(top: Fields, b: Builder, books: int) -> Part:
    """The depth decoder, whose table is the backbone's unless the config unties it."""
    inner = top.nested("depth_decoder_config", names=_CSM_NAMES)
    inner.text("model_type", "")
    inner.choice("tie_word_embeddings", inner.flag("tie_word_embeddings", False), (False,))
    d = Builder(_CSM, inner, b.precision, False)
    inner.choice("num_codebooks", inner.whole("num_codebooks", books), (books,))
    inner.choice("backbone_hidden_size", inner.whole("backbone_hidden_size", b.hidden), (b.hidden,))
    tied = top.flag("tie_codebooks_embeddings", True)
    if tied:
        inner.choice("vocab_size", d.vocab, (b.vocab,))
    projector = b.linear("depth_decoder.model.inputs_embeds_projector", "depth", b.hidden, d.hidden)
    table = () if tied else (Table("embed_tokens", books * d.vocab, b.hidden, b.base),)
    head = Linear("codebooks_head", "head", d.hidden, d.vocab, b.base)
    inner.maybe("max_position_embeddings")
    inner.used |= {"dtype", "torch_dtype"}
    b.beside.append(inner)
    return DepthDecoder((*table, projector), d.blocks(), (d.norm("final_norm"),), head, books)


def _mimi(top: Fields, b: Builder) -> Part:
    """The codec's weights: sound to frames and back, which no pass of the language model runs."""
    c = _config(top, b, "codec_config", _MIMI, {})
    c.choice("model_type", c.text("model_type", "mimi"), ("mimi",))
    width, filters, channels = c.whole("hidden_size"), c.whole("num_filters"), c.whole("audio_channels")
    ratios = c.items("upsampling_ratios") or [8, 6, 5, 4]
    for ratio in ratios:
        if isinstance(ratio, bool) or not isinstance(ratio, int) or not 1 <= ratio <= 1000 or len(ratios) > 16:
            raise ConfigError(f"{c.label('upsampling_ratios')} holds {ratio!r:.60}; accepted are some whole numbers")
    kernel, last, widest = c.whole("kernel_size"), c.whole("last_kernel_size"), filters << len(ratios)
    params = _conv(channels, filters, kernel) + _conv(widest, width, last)
    params += _conv(width, widest, kernel) + _conv(filters, channels, last)
    for index, ratio in enumerate(reversed(ratios)):  # both ways: strided, and residual blocks at the narrower width
        narrow = filters << index
        params += 2 * c.whole("num_residual_layers", low=0) * _residual(c, narrow)
        params += _conv(narrow, 2 * narrow, 2 * ratio) + _conv(2 * narrow, narrow, 2 * ratio)
    params += 2 * _mimi_transformer(c, width) + _resampling(c, width, ratios)
    latent = c.whole("vector_quantization_hidden_dimension")
    params += 4 * width * latent if latent != width else 0
    b.notes.append("the codec's weights are resident; what turns sound into frames and back is not counted")
    return Parameters("codec_model", "audio", params, b.base)


def _conv(n_in: int, n_out: int, kernel: int) -> int:
    return n_in * n_out * kernel + n_out


def _residual(c: Fields, width: int) -> int:
    hidden = width // c.whole("compress")
    shortcut = _conv(width, width, 1) if c.flag("use_conv_shortcut", False) else 0
    return _conv(width, hidden, c.whole("residual_kernel_size")) + _conv(hidden, width, 1) + shortcut


def _mimi_transformer(c: Fields, d: int) -> int:
    """Layers of attention and a feed-forward without biases, two norms with one, two scales."""
    heads, kv = c.whole("num_attention_heads"), c.whole("num_key_value_heads")
    d_head = c.maybe("head_dim") or _split(c, d, heads, "num_attention_heads")
    biases = d + (heads + 2 * kv) * d_head if c.flag("attention_bias", False) else 0
    attention = 2 * d * d_head * (heads + kv) + biases
    return c.whole("num_hidden_layers", high=10_000) * (attention + 2 * d * c.whole("intermediate_size") + 6 * d)


def _resampling(c: Fields, width: int, ratios: list[int]) -> int:
    """The convolutions between the rate that the strides give and the frame rate, the one back in groups."""
    from math import prod

    fast = -(-c.whole("sampling_rate") // prod(ratios))
    rate = c.raw("frame_rate", c.whole("sampling_rate") / (2 * prod(ratios)))
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= fast:
        raise ConfigError(f"{c.label('frame_rate')} is {rate!r:.60}; accepted is a number up to {fast}")
    groups = c.whole("upsample_groups")
    _split(c, width, groups, "upsample_groups")
    return 2 * int(fast / rate) * width * (width + width // groups) if rate != fast else 0


CUSTOM: dict[str, Custom] = {"csm": Custom(_read_csm)}

NESTED: dict[str, Nested] = {
    "qwen2_audio": Nested("qwen2", _qwen2_audio, flat=False, text_defaults=TEXT_DEFAULTS),
    "voxtral": Nested("llama", _voxtral),
    "granite_speech": Nested("granite", _granite_speech, tied=True),
}

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "VoxtralForConditionalGeneration": ("voxtral",),
    "Qwen2AudioForConditionalGeneration": ("qwen2_audio",),
    "CsmForConditionalGeneration": ("csm",),
    "GraniteSpeechForConditionalGeneration": ("granite_speech",),
}
