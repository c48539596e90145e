"""Encoder-decoders: the T5 family, the BART family, Whisper.

Sources: the configuration and modelling code of transformers 5.24; T5 (arXiv:1910.10683), Switch Transformers
(arXiv:2101.03961), LongT5 (arXiv:2112.07916), BART (arXiv:1910.13461), LED (arXiv:2004.05150), Whisper
(arXiv:2212.04356). A config that unties the output head has one more table, even where that library ties it by force.
"""

from __future__ import annotations

from functools import partial

from gambrel.model.arch import Arch, Block, Experts
from gambrel.model.builder import Custom, Result, layer_range
from gambrel.model.encdec_parts import BandAttention, Convolution, Lookup, PositionBias
from gambrel.model.encoders import CrossAttention, Stack
from gambrel.model.experts import MixtureOfExperts
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Elementwise, FeedForward, Head, Linear, Norm, Part, Table
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from gambrel.model.precision import Precision

#: Classes that are half of such a model, whose parameters and passes are not those of the whole.
HALVES = frozenset(
    """
    T5EncoderModel MT5EncoderModel UMT5EncoderModel LongT5EncoderModel SwitchTransformersEncoderModel BartForCausalLM
    MBartForCausalLM PegasusForCausalLM MarianForCausalLM WhisperForCausalLM WhisperForAudioClassification
    """.split()
)


class Maker:
    """Reads a config through the fields of a family, and makes parts of the hidden width."""

    def __init__(self, top: Fields, precision: Precision, names: Mapping[str, tuple[str, ...]]) -> None:
        self.fields = f = Fields(top.data, names)
        f.used = top.used  # what this reader knows, the caller knows
        self.precision = precision
        self.hidden = f.whole("d_model")
        self.vocab = f.whole("vocab_size")
        self.tied = f.flag("tie_word_embeddings", True)
        self.notes: list[str] = []
        f.choice("is_encoder_decoder", f.flag("is_encoder_decoder", True), (True,))
        f.choice("tie_encoder_decoder", f.flag("tie_encoder_decoder", False), (False,))
        for name in f.items("architectures"):
            if isinstance(name, str) and name in HALVES:
                raise ConfigError(f"architectures is {name}, half of the model; accepted is a class that has both")

    @property
    def base(self) -> Any:
        """The format of norms, biases and tables."""
        return self.precision.base

    def linear(
        self, path: str, group: str, sides: tuple[int, int], bias: bool = False, ways: int | None = None
    ) -> Linear:
        """A weight matrix of (inputs, outputs), named after the last part of its path."""
        fmt = self.precision.matrix(path, group)
        return Linear(path.rsplit(".", 1)[-1], group, *sides, fmt, self.base if bias else None, ways)

    def stack(self, kinds: Sequence[Any], layer: Callable[[int], tuple[Part, ...]]) -> list[tuple[Part, ...]]:
        """The parts of every layer; those of one kind share them, unless a scheme may tell them apart by their path."""
        made: dict[Any, tuple[Part, ...]] = {}
        keys = [(kind, index if self.precision.scheme else None) for index, kind in enumerate(kinds)]
        for index, key in enumerate(keys):
            if key not in made:
                made[key] = layer(index)
        return [made[key] for key in keys]

    def residual(self) -> Elementwise:
        """The residual add behind every part."""
        return Elementwise("residual_add", self.hidden)

    def table(self, name: str = "shared", rows: int | None = None, tied: bool | None = None) -> Table:
        """A token table; the config says whether the head multiplies by it unless `tied` does."""
        tied = self.tied if tied is None else tied
        return Table(name, rows or self.vocab, self.hidden, self.precision.matrix(name, "embedding"), tied)

    def head(self, name: str = "lm_head", rows: int | None = None) -> Head:
        """The output head, in the table's format where it is the table."""
        fmt = self.precision.matrix(*(("shared", "embedding") if self.tied else (name, "head")))
        return Head(Linear(name, "head", self.hidden, rows or self.vocab, fmt), self.tied)

    def heads_of(self, key: str) -> tuple[int, int]:
        """Number and width of heads that split the hidden width."""
        heads = self.fields.whole(key)
        if self.hidden % heads:
            raise ConfigError(
                f"{self.fields.label('d_model')} is {self.hidden}, not a multiple of {key} = {heads}; "
                "accepted is a multiple"
            )
        return heads, self.hidden // heads


def merged(layers: Sequence[tuple[Part, ...]]) -> tuple[Block, ...]:
    """Equal layers together, in order of first occurrence; those that are one object are not compared."""
    same: dict[int, list[int]] = {}
    for index, parts in enumerate(layers):
        same.setdefault(id(parts), []).append(index)
    kinds: dict[tuple[Part, ...], list[int]] = {}
    for indices in same.values():
        kinds.setdefault(layers[indices[0]], []).extend(indices)
    return tuple(Block(layer_range(sorted(indices)), parts, len(indices)) for parts, indices in kinds.items())


def encoder(before: tuple[Part, ...], layers: Sequence[tuple[Part, ...]], after: tuple[Part, ...]) -> Stack:
    """An encoder over the source."""
    return Stack("encoder", (Block("encoder input", before), *merged(layers), Block("encoder end", after)), "source")


# T5 -------------------------------------------------------------------------------------------


@frozen
class T5:
    """What tells the models of the T5 family apart.

    proj: default of feed_forward_proj. every: each layer has position biases of its own, not the first for all.
    local: the encoder's attention is local. sparse: some layers have experts.
    """

    proj: str = "relu"
    every: bool = False
    local: bool = False
    sparse: bool = False


_T5_NAMES = {
    "d_model": ("d_model", "hidden_size"),
    "num_layers": ("num_layers", "num_hidden_layers"),
    "num_heads": ("num_heads", "num_attention_heads"),
    "d_kv": ("d_kv", "head_dim"),
}


class T5Maker(Maker):
    """The layers of a T5."""

    def __init__(self, row: T5, top: Fields, precision: Precision) -> None:
        super().__init__(top, precision, _T5_NAMES)
        f, self.row = self.fields, row
        self.n_heads, self.width, self.d_ff = f.whole("num_heads"), f.whole("d_kv"), f.whole("d_ff")
        self.layers = f.whole("num_layers", high=10_000)
        self.decoder_layers = f.whole("num_decoder_layers", self.layers, high=10_000)
        self.buckets = f.whole("relative_attention_num_buckets", 32)
        f.maybe("relative_attention_max_distance")
        f.maybe("n_positions")  # of training; relative positions have no end
        self.gated = self._gated()
        self.experts: Experts | None = None
        self.sparse = self._sparse("encoder", self.layers), self._sparse("decoder", self.decoder_layers)
        self.radius = f.whole("local_radius", 127) if row.local else 0
        self.block = self._block() if row.local else None

    def _gated(self) -> bool:
        f = self.fields
        told = f.text("feed_forward_proj", self.row.proj)
        gated = told.startswith("gated-")
        if told.count("-") > gated:
            raise ConfigError(f"feed_forward_proj is {told!r}; accepted is an activation or gated- and an activation")
        f.text("dense_act_fn", "")
        f.choice("is_gated_act", f.flag("is_gated_act", gated), (gated,))
        return f.choice("feed_forward_proj", gated, (False,)) if self.row.sparse else gated

    def _block(self) -> int | None:
        """Tokens of a summary, where the encoder has summaries."""
        f = self.fields
        kind = f.choice("encoder_attention_type", f.text("encoder_attention_type", "local"), ("local", _GLOBAL))
        return f.whole("global_block_size", 16) if kind == _GLOBAL else None

    def _sparse(self, side: str, layers: int) -> list[bool]:
        """Which layers have experts: every n-th from the second on, n from their number unless the config says it."""
        if not self.row.sparse:
            return [False] * layers
        f = self.fields
        number = f.whole(f"num_sparse_{side}_layers", 3, low=0)
        step = f.whole(f"{side}_sparse_step", layers // number if number else layers, low=0)
        return [step > 0 and (step == 1 or i % step == 1) for i in range(layers)]

    def attention(self, path: str) -> tuple[Linear, Linear, Linear, Linear]:
        """Projections of queries, keys, values and output."""
        inner, h = self.n_heads * self.width, self.n_heads
        q, k, v = (self.linear(f"{path}.{x}", "attention", (self.hidden, inner), ways=h) for x in "qkv")
        return q, k, v, self.linear(f"{path}.o", "attention", (inner, self.hidden), ways=h)

    def bias(self, name: str = "relative_attention_bias", span: int | None = None, block: int | None = None) -> Part:
        """A table of position biases."""
        return PositionBias(name, self.buckets, self.n_heads, self.base, span, block)

    def norm(self, name: str = "layer_norm", last_rows: bool = False) -> Norm:
        """A norm without a bias."""
        return Norm(name, self.hidden, self.base, last_rows=last_rows)

    def full(self, path: str) -> Part:
        """Self-attention over every position."""
        q, k, v, o = self.attention(f"{path}.SelfAttention")
        return Attention((q, k, v), o, self.n_heads, self.n_heads, self.width, self.width, self.base, rotary=False)

    def local(self, path: str) -> Part:
        """The encoder's attention of LongT5."""
        name = "LocalSelfAttention" if self.block is None else "TransientGlobalSelfAttention"
        q, k, v, o = self.attention(f"{path}.{name}")
        norm = None if self.block is None else self.norm("global_input_layer_norm")
        return BandAttention(q, (k, v), o, self.n_heads, self.width, self.radius, self.block, norm)

    def cross(self, path: str) -> Part:
        """Attention of the decoder over the encoder's output."""
        q, k, v, o = self.attention(f"{path}.EncDecAttention")
        return CrossAttention(q, k, v, o, self.n_heads, self.n_heads, self.width)

    def dense(self, path: str) -> Part:
        """The feed-forward network."""
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        path = f"{path}.{'mlp' if self.row.sparse else 'DenseReluDense'}"
        inner = tuple(self.linear(f"{path}.{n}", "mlp", (self.hidden, self.d_ff), ways=self.d_ff) for n in names)
        down = self.linear(f"{path}.wo", "mlp", (self.d_ff, self.hidden), ways=self.d_ff)
        return FeedForward(inner, down, self.d_ff, self.gated)

    def moe(self, path: str) -> Part:
        """Experts of which each token uses one; what a full expert leaves out is not left out here."""
        f = self.fields
        n, router_bias = f.whole("num_experts"), f.flag("router_bias", False)
        f.choice("num_selected_experts", f.whole("num_selected_experts", 1), (1,))
        f.maybe("expert_capacity")
        self.experts, path = Experts(n, 1), f"{path}.mlp"
        router = self.linear(f"{path}.router.classifier", "router", (self.hidden, n), router_bias, ways=1)
        expert = f"{path}.experts.expert_0"
        inner = self.linear(f"{expert}.wi", "experts", (self.hidden, self.d_ff), ways=self.d_ff)
        down = self.linear(f"{expert}.wo", "experts", (self.d_ff, self.hidden), ways=self.d_ff)
        return MixtureOfExperts(router, (inner,), down, self.d_ff, False, n, 1)

    def biases(self, index: int, local: bool) -> tuple[Part, ...]:
        """The position biases that a layer brings."""
        if index and not self.row.every:
            return ()
        if not local:
            return (self.bias(),)
        own = self.bias(span=3 * (self.radius + 1) ** 2)
        return (own,) if self.block is None else (own, self.bias("global_relative_attention_bias", block=self.block))

    def layer(self, side: str, index: int) -> tuple[Part, ...]:
        """One layer of the encoder or the decoder."""
        path, decodes = f"{side}.block.{index}.layer", side == "decoder"
        local = self.row.local and not decodes
        own = self.local(f"{path}.0") if local else self.full(f"{path}.0")
        cross = (self.norm(), self.cross(f"{path}.1"), self.residual()) if decodes else ()
        last = f"{path}.{2 if decodes else 1}"
        ffn = self.moe(last) if self.sparse[decodes][index] else self.dense(last)
        before = (self.norm(), *self.biases(index, local))
        return (*before, own, self.residual(), *cross, self.norm(), ffn, self.residual())

    def arch(self) -> Arch:
        """The model."""
        table = self.table()
        source = Lookup("embed_tokens", self.hidden, table.format)
        encoding, decoding = ([(i == 0, sparse) for i, sparse in enumerate(layers)] for layers in self.sparse)
        source_layers = self.stack(encoding, partial(self.layer, "encoder"))
        layers = self.stack(decoding, partial(self.layer, "decoder"))
        return Arch(
            (table,),
            merged(layers),
            (self.norm("final_layer_norm", last_rows=True), self.head()),
            (encoder((source,), source_layers, (self.norm("final_layer_norm"),)),),
            self.experts,
            None,
            self.n_heads,
            self.n_heads,
            (self.d_ff,),
            encodes=True,
        )


_GLOBAL = "transient-global"


# BART and Whisper -----------------------------------------------------------------------------


@frozen
class Bart:
    """What tells the models of the BART family apart.

    positions: keys of the encoder's and the decoder's positions. offset: rows of their tables beyond them, None where
    positions are computed. embed_norm: a norm behind the embedding. final_norm: a norm behind the layers, whose own
    stand before their parts then. key_bias: the key projection has a bias. stem: the source is sound, which two
    convolutions make into source tokens. windows: the encoder's attention is local. root: of the module paths.
    """

    positions: tuple[str, str] = ("max_position_embeddings", "max_position_embeddings")
    offset: int | None = 0
    embed_norm: bool = False
    final_norm: bool = False
    key_bias: bool = True
    stem: bool = False
    windows: bool = False
    root: str = "model"
    head: str = "lm_head"


_BART_NAMES = {
    "d_model": ("d_model", "hidden_size"),
    "encoder_layers": ("encoder_layers", "num_hidden_layers"),
    "encoder_attention_heads": ("encoder_attention_heads", "num_attention_heads"),
}

#: Class defaults of positions that published configs leave out.
_POSITIONS = {
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "max_encoder_position_embeddings": 16384,
    "max_decoder_position_embeddings": 1024,
}


class BartMaker(Maker):
    """The layers of a BART."""

    def __init__(self, row: Bart, top: Fields, precision: Precision) -> None:
        super().__init__(top, precision, _BART_NAMES)
        f, self.row = self.fields, row
        self.heads = {side: self.heads_of(f"{side}_attention_heads") for side in ("encoder", "decoder")}
        self.widths = {side: f.whole(f"{side}_ffn_dim") for side in self.heads}
        self.layers = {side: f.whole(f"{side}_layers", high=10_000) for side in self.heads}
        sides = zip(self.heads, row.positions, strict=True)
        self.positions = {side: f.whole(key, _POSITIONS.get(key, 1024)) for side, key in sides}
        self.radii = self._radii() if row.windows else []
        self.shared = f.flag("share_encoder_decoder_embeddings", True)
        self.target_vocab = f.whole("decoder_vocab_size", self.vocab)
        if self.shared:
            f.choice("decoder_vocab_size", self.target_vocab, (self.vocab,))

    def _radii(self) -> list[int]:
        """Half of attention_window, one for each layer of the encoder."""
        f, layers = self.fields, self.layers["encoder"]
        given = f.raw("attention_window", 512)
        windows = f.items("attention_window", layers) if isinstance(given, list) else [given] * layers
        for window in windows:
            if isinstance(window, bool) or not isinstance(window, int) or window < 2 or window % 2:
                raise ConfigError(f"attention_window holds {window!r:.60}; accepted are even whole numbers from 2")
        self.notes.append("global attention is counted for no token: its projections are resident and never read")
        return [window // 2 for window in windows]

    def norm(self, name: str, last_rows: bool = False) -> Norm:
        """A norm with a bias."""
        return Norm(name, self.hidden, self.base, True, last_rows=last_rows)

    def attention(self, side: str, path: str) -> tuple[Linear, Linear, Linear, Linear]:
        """Projections of queries, keys, values and output."""
        square, h = (self.hidden, self.hidden), self.heads[side][0]
        q, k, v = (
            self.linear(f"{path}.{x}_proj", "attention", square, x != "k" or self.row.key_bias, h) for x in "qkv"
        )
        return q, k, v, self.linear(f"{path}.out_proj", "attention", square, True, h)

    def own(self, side: str, path: str) -> Part:
        """Self-attention."""
        q, k, v, o = self.attention(side, path)
        h, d = self.heads[side]
        return Attention((q, k, v), o, h, h, d, d, self.base, rotary=False)

    def band(self, path: str, radius: int) -> Part:
        """The encoder's attention of LED, with the projections of tokens with global attention."""
        square, (h, d) = (self.hidden, self.hidden), self.heads["encoder"]
        names = ("query", "key", "value", "query_global", "key_global", "value_global")
        inner = f"{path}.longformer_self_attn"
        q, k, v, *idle = (self.linear(f"{inner}.{n}", "attention", square, True, h) for n in names)
        return BandAttention(
            q, (k, v), self.linear(f"{path}.output", "attention", square, True, h), h, d, radius, idle=tuple(idle)
        )

    def cross(self, path: str) -> Part:
        """Attention of the decoder over the encoder's output."""
        h, d = self.heads["decoder"]
        return CrossAttention(*self.attention("decoder", path), h, h, d)

    def dense(self, side: str, path: str) -> Part:
        """The feed-forward network."""
        d, width = self.hidden, self.widths[side]
        inner = self.linear(f"{path}.fc1", "mlp", (d, width), True, width)
        return FeedForward((inner,), self.linear(f"{path}.fc2", "mlp", (width, d), True, width), width, False)

    def layer(self, side: str, index: int) -> tuple[Part, ...]:
        """One layer; where the norms stand does not change what they cost."""
        path = f"{self.row.root}.{side}.layers.{index}"
        banded = self.radii and side == "encoder"
        own = self.band(f"{path}.self_attn", self.radii[index]) if banded else self.own(side, f"{path}.self_attn")
        slots = [("self_attn_layer_norm", own), ("final_layer_norm", self.dense(side, path))]
        if side == "decoder":
            slots.insert(1, ("encoder_attn_layer_norm", self.cross(f"{path}.encoder_attn")))
        return tuple(part for name, mixer in slots for part in (self.norm(name), mixer, self.residual()))

    def places(self, side: str) -> tuple[Part, ...]:
        """Positions, added to the embedding, and the norm behind."""
        add = Elementwise("add_positions", self.hidden)
        norm = (self.norm("layernorm_embedding"),) if self.row.embed_norm else ()
        if self.row.offset is None:
            return (add, *norm)
        rows = self.positions[side] + self.row.offset
        return (Table("embed_positions", rows, self.hidden, self.base), add, *norm)

    def stem(self) -> tuple[Part, ...]:
        """Two convolutions of width 3, the second with stride 2: two frames are one source token."""
        d, bins = self.hidden, self.fields.whole("num_mel_bins", 80)
        first = Linear("conv1", "embedding", 3 * bins, d, self.base, self.base)
        second = Linear("conv2", "embedding", 3 * d, d, self.base, self.base)
        return (Convolution(first, bins, rows=2, rows_in=2), Convolution(second, d, rows_in=2))

    def tables(self) -> tuple[tuple[Part, ...], Table]:
        """What reads the source, and the decoder's table."""
        if self.row.stem:
            return self.stem(), self.table("embed_tokens")
        if not self.shared:
            return (self.table("embed_tokens", tied=False),), self.table("embed_tokens", self.target_vocab)
        table = self.table()
        return (Lookup("embed_tokens", self.hidden, table.format),), table

    def arch(self) -> Arch:
        """The model."""
        source, table = self.tables()
        kinds = {side: self.radii if self.radii and side == "encoder" else [0] * n for side, n in self.layers.items()}
        layers = {side: self.stack(kind, partial(self.layer, side)) for side, kind in kinds.items()}
        name = "layer_norm"
        final = self.row.final_norm
        h = self.heads["decoder"][0]
        after = (self.norm(name),) if final else ()
        return Arch(
            (table, *self.places("decoder")),
            merged(layers["decoder"]),
            (*((self.norm(name, last_rows=True),) if final else ()), self.head(self.row.head, self.target_vocab)),
            (encoder((*source, *self.places("encoder")), layers["encoder"], after),),
            None,
            self.positions["decoder"],
            h,
            h,
            tuple(sorted({*self.widths.values(), self.heads["encoder"][0]})),
            True,
            self.positions["encoder"] if self.row.stem else None,
        )


def _made(maker: type[T5Maker] | type[BartMaker], row: Any) -> Custom:
    """A model of a maker; row: what tells it from the others of its family."""

    def read(top: Fields, precision: Precision) -> Result:
        made = maker(row, top, precision)
        return Result(made.arch(), tuple(made.notes))

    return Custom(read)


_t5, _bart = partial(_made, T5Maker), partial(_made, BartMaker)


# The table ------------------------------------------------------------------------------------

CUSTOM: dict[str, Custom] = {
    "t5": _t5(T5()),
    "mt5": _t5(T5(proj="gated-gelu")),
    "umt5": _t5(T5(proj="gated-gelu", every=True)),
    "longt5": _t5(T5(local=True)),
    "switch_transformers": _t5(T5(sparse=True)),
    "bart": _bart(Bart(offset=2, embed_norm=True)),
    "plbart": _bart(Bart(offset=2, embed_norm=True)),
    "blenderbot": _bart(Bart(final_norm=True)),
    "blenderbot-small": _bart(Bart(embed_norm=True)),
    "mbart": _bart(Bart(offset=2, embed_norm=True, final_norm=True)),
    "pegasus": _bart(Bart(final_norm=True)),
    "marian": _bart(Bart()),
    "m2m_100": _bart(Bart(offset=None, final_norm=True)),
    "led": _bart(
        Bart(
            positions=("max_encoder_position_embeddings", "max_decoder_position_embeddings"),
            embed_norm=True,
            windows=True,
            root="led",
        )
    ),
    "whisper": _bart(
        Bart(
            positions=("max_source_positions", "max_target_positions"),
            final_norm=True,
            key_bias=False,
            stem=True,
            head="proj_out",
        )
    ),
}

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "T5ForConditionalGeneration": ("t5", "mt5"),
    "T5WithLMHeadModel": ("t5",),
    "MT5ForConditionalGeneration": ("mt5",),
    "UMT5ForConditionalGeneration": ("umt5",),
    "LongT5ForConditionalGeneration": ("longt5",),
    "SwitchTransformersForConditionalGeneration": ("switch_transformers",),
    "BartForConditionalGeneration": ("bart",),
    "PLBartForConditionalGeneration": ("plbart",),
    "BlenderbotForConditionalGeneration": ("blenderbot",),
    "BlenderbotSmallForConditionalGeneration": ("blenderbot-small",),
    "MBartForConditionalGeneration": ("mbart",),
    "PegasusForConditionalGeneration": ("pegasus",),
    "MarianMTModel": ("marian",),
    "M2M100ForConditionalGeneration": ("m2m_100",),
    "LEDForConditionalGeneration": ("led",),
    "WhisperForConditionalGeneration": ("whisper",),
}
