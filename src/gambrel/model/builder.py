"""From the fields of a config to an Arch: the parts that families share, each built in one place."""

from __future__ import annotations

from dataclasses import field

from gambrel.model.arch import Arch, Block, Experts
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import (
    Attention,
    Elementwise,
    FeedForward,
    Head,
    Linear,
    Norm,
    Part,
    Table,
)
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import Any

    from gambrel.model.experts import MixtureOfExperts
    from gambrel.model.precision import Precision


@frozen
class Layer:
    """What tells one layer of a stack from another.

    window: keys a query sees [token]; None is all. sparse: whether it has experts. kind: which mixer, where a family
    has several. chunk: attention stays within chunks of so many tokens. extra: anything else that a family's own
    builders need; hashable.
    """

    window: int | None = None
    sparse: bool = False
    kind: str = ""
    chunk: int | None = None
    extra: Hashable = None


@frozen
class Family:
    """A model family: how its config spells things, and which parts its layers are made of.

    names: canonical key -> spellings. defaults: class defaults of the family for keys that configs leave out.
    norm: "rms" or "layer" (with bias). layout: where the norms stand (see LAYOUTS). gated: the feed-forward has a
    gate. qkv_bias, out_bias, mlp_bias: a bool, or the config key that says so. fused_qkv, fused_inner: one matrix.
    qk_norm: "" none, "head" one gain per head width, "full" over all heads together. tied: default of
    tie_word_embeddings. mixer, ffn: builders of the two slots. layers: the layers of a config, in order.
    shape: mends what key names alone cannot say. first, last: parts before and after the layers. builder: the class
    that builds it, Builder where None. mend: keys that follow from others, before anything is built.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    norm: str = "rms"
    layout: str = "pre"
    gated: bool = True
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    fused_qkv: bool = False
    fused_inner: bool = False
    qk_norm: str = ""
    rotary: bool = True
    sinks: bool = False
    tied: bool = False
    mixer: Callable[[Builder, Layer, str], Part] | None = None
    ffn: Callable[[Builder, Layer, str], Part] | None = None
    layers: Callable[[Builder], list[Layer]] | None = None
    shape: Callable[[Builder], None] | None = None
    first: Callable[[Builder], tuple[Part, ...]] | None = None
    last: Callable[[Builder], tuple[Part, ...]] | None = None
    builder: type[Builder] | None = None
    mend: Callable[[Fields], dict[str, Any]] | None = None


@frozen
class Nested:
    """A config that holds a text config: the text family by default, and the towers beside it.

    text: model type of the text config where it names none. towers: parts beside the text path, from the whole
    config. tied: default of tie_word_embeddings where neither config has it; either: the head is tied where one of
    them says so, by the text family's default. keys: where the text config may be. flat: its keys may stand at the
    top, then with towers only where there is a vision_config. text_defaults: class defaults by the text's model type,
    for configs that leave out what equals them. own: text families, or other names of known ones, that are known
    here alone. free: keys of all its configs that cost nothing here.
    """

    text: str
    towers: Callable[[Fields, Builder], tuple[Part, ...]]
    tied: bool = False
    either: bool = False
    keys: tuple[str, ...] = ("text_config",)
    flat: bool = True
    text_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own: Mapping[str, Family | str] = field(default_factory=dict)
    free: frozenset[str] = frozenset()


@frozen
class Result:
    """What a reader made of a config.

    notes: choices that the config left open. unread: keys of nested configs that nobody read, under their full names.
    precision: that of a nested config, None where it is the whole config's.
    """

    arch: Arch
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    precision: Precision | None = None


@frozen
class Custom:
    """A model that is no decoder stack, read by a function of its own."""

    read: Callable[[Fields, Precision], Result]


#: Norm names of a layer around its mixer and its feed-forward: (before mixer, after mixer, before ffn, after ffn).
LAYOUTS = {
    "pre": ("input_layernorm", "", "post_attention_layernorm", ""),
    "post": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    "sandwich": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    "parallel": ("input_layernorm", "", "", ""),
}


class Builder:
    """Reads the shape once and builds each part with the format that its module path has."""

    def __init__(self, family: Family, fields: Fields, precision: Precision, tied: bool | None = None) -> None:
        self.family, self.fields, self.precision = family, fields, precision
        f = fields
        self.hidden = f.whole("hidden_size")
        self.n_layers = f.whole("num_hidden_layers", high=10_000)
        self.n_heads = f.whole("num_attention_heads")
        self.vocab = f.whole("vocab_size")
        self.n_kv = f.whole("num_key_value_heads", self.n_heads)
        self.head_dim = self._head_dim()
        self.width = f.maybe("intermediate_size")
        self.window: int | None = None
        self.experts: Experts | None = None
        self.tied = f.flag("tie_word_embeddings", family.tied) if tied is None else tied
        self.gated, self.layout, self.rotary, self.norms = family.gated, family.layout, family.rotary, True
        self.widths: set[int] = set()
        self.notes: list[str] = []
        self.beside: list[Fields] = []  # configs of towers, whose unread keys are told with the text's
        if family.shape:
            family.shape(self)
        if self.n_heads % self.n_kv:
            raise ConfigError(
                f"{f.label('num_attention_heads')} is {self.n_heads} for {self.n_kv} KV heads; accepted is a multiple"
            )

    def _head_dim(self) -> int:
        head_dim = self.fields.maybe("head_dim")
        if head_dim is not None:
            return head_dim
        if self.hidden % self.n_heads:
            raise ConfigError(
                f"{self.fields.label('hidden_size')} is {self.hidden}, not a multiple of {self.n_heads} heads, "
                "and there is no head_dim"
            )
        return self.hidden // self.n_heads

    # Small parts ------------------------------------------------------------------------------

    @property
    def base(self) -> Any:
        """The format of norms, biases and tables."""
        return self.precision.base

    def linear(
        self, path: str, group: str, n_in: int, n_out: int, bias: bool | str = False, ways: int | None = None
    ) -> Linear:
        """A weight matrix named after the last part of its path; `bias` may be the config key that says so."""
        has_bias = self.fields.flag(bias, False) if isinstance(bias, str) else bias
        fmt = self.precision.matrix(path, group)
        return Linear(path.rsplit(".", 1)[-1], group, n_in, n_out, fmt, self.base if has_bias else None, ways)

    def norm(self, name: str, width: int | None = None, per_row: int = 1, last_rows: bool = False) -> Norm:
        """A norm of the family's kind."""
        bias = self.family.norm == "layer" and self.norms
        return Norm(name, width or self.hidden, self.base, bias, per_row, self.norms, last_rows)

    # The two slots of a layer ------------------------------------------------------------------

    def attention(self, layer: Layer, path: str) -> Part:
        """Grouped-query attention; multi-head where n_kv = n_h, multi-query where n_kv = 1."""
        fam, d = self.family, self.head_dim
        q, kv = self.n_heads * d, self.n_kv * d
        if fam.fused_qkv:
            projections: tuple[Linear, ...] = (
                self.linear(f"{path}.qkv_proj", "attention", self.hidden, q + 2 * kv, fam.qkv_bias),
            )
        else:
            projections = (
                self.linear(f"{path}.q_proj", "attention", self.hidden, q, fam.qkv_bias, self.n_heads),
                self.linear(f"{path}.k_proj", "attention", self.hidden, kv, fam.qkv_bias, self.n_kv),
                self.linear(f"{path}.v_proj", "attention", self.hidden, kv, fam.qkv_bias, self.n_kv),
            )
        norms: tuple[Norm, ...] = ()
        if fam.qk_norm == "head":
            norms = (self.norm("q_norm", d, per_row=self.n_heads), self.norm("k_norm", d, per_row=self.n_kv))
        elif fam.qk_norm == "full":
            norms = (self.norm("q_norm", q), self.norm("k_norm", kv))
        return Attention(
            projections,
            self.linear(f"{path}.o_proj", "attention", q, self.hidden, fam.out_bias),
            self.n_heads,
            self.n_kv,
            d,
            d,
            self.base,
            norms,
            layer.window,
            self.rotary,
            fam.sinks,
            layer.chunk,
        )

    def dense(self, path: str, width: int | None = None, group: str = "mlp") -> FeedForward:
        """A feed-forward network of the given inner width, the config's by default."""
        width = width or self.width
        if width is None:
            width = self.fields.whole("intermediate_size")
        self.widths.add(width)
        fam, d = self.family, self.hidden
        names = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        if self.gated and fam.fused_inner:
            inner: tuple[Linear, ...] = (self.linear(f"{path}.gate_up_proj", group, d, 2 * width, fam.mlp_bias),)
        else:
            inner = tuple(self.linear(f"{path}.{name}", group, d, width, fam.mlp_bias, width) for name in names)
        return FeedForward(
            inner, self.linear(f"{path}.down_proj", group, width, d, fam.mlp_bias, width), width, self.gated
        )

    def moe(self, path: str, spec: MoE) -> MixtureOfExperts:
        """Experts of the given spec; one expert stands for all, since they are equal."""
        from gambrel.model.experts import MixtureOfExperts

        if spec.top_k > spec.n_experts:
            raise ConfigError(f"{spec.top_k} experts per token of {spec.n_experts}; accepted is at most all of them")
        self.experts = Experts(spec.n_experts, spec.top_k)
        self.widths.add(spec.width)
        d, expert = self.hidden, f"{path}.experts.0"
        if spec.fused:
            inner: tuple[Linear, ...] = (
                self.linear(f"{expert}.gate_up_proj", "experts", d, 2 * spec.width, spec.bias),
            )
        else:
            inner = tuple(
                self.linear(f"{expert}.{name}", "experts", d, spec.width, spec.bias, spec.width)
                for name in ("gate_proj", "up_proj")
            )
        shared = (
            self.dense(f"{path}.shared_experts", spec.shared_width, "shared_experts") if spec.shared_width else None
        )
        gate = self.linear(f"{path}.shared_expert_gate", "shared_experts", d, 1, ways=1) if spec.shared_gate else None
        return MixtureOfExperts(
            self.linear(f"{path}.gate", "router", d, spec.n_experts, spec.router_bias, ways=1),
            inner,
            self.linear(f"{expert}.down_proj", "experts", spec.width, d, spec.bias, spec.width),
            spec.width,
            True,
            spec.n_experts,
            spec.top_k,
            shared,
            gate,
        )

    def latent_attention(self, layer: Layer, path: str) -> Part:
        """Multi-head latent attention with the widths that DeepSeek's configs name."""
        from gambrel.model.latent import LatentAttention

        f, h, d = self.fields, self.n_heads, self.hidden
        nope, rope, v = f.whole("qk_nope_head_dim"), f.whole("qk_rope_head_dim"), f.whole("v_head_dim")
        latent, rank = f.whole("kv_lora_rank"), None
        if not ("q_lora_rank" in f.data and f.data["q_lora_rank"] is None):
            rank = f.maybe("q_lora_rank")
        f.choice("qk_head_dim", f.whole("qk_head_dim", nope + rope), (nope + rope,))
        bias = "attention_bias"
        if rank is None:
            queries: tuple[Linear | Norm, ...] = (
                self.linear(f"{path}.q_proj", "attention", d, h * (nope + rope), False, h),
            )
        else:
            queries = (
                self.linear(f"{path}.q_a_proj", "attention", d, rank, bias, ways=1),
                self.norm("q_a_layernorm", rank),
                self.linear(f"{path}.q_b_proj", "attention", rank, h * (nope + rope), False, h),
            )
        return LatentAttention(
            queries,
            self.linear(f"{path}.kv_a_proj_with_mqa", "attention", d, latent + rope, bias, ways=1),
            self.norm("kv_a_layernorm", latent),
            self.linear(f"{path}.kv_b_proj", "attention", latent, h * (nope + v), False, h),
            self.linear(f"{path}.o_proj", "attention", h * v, d, bias, h),
            h,
            latent,
            nope,
            rope,
            v,
        )

    # The whole --------------------------------------------------------------------------------

    def layer_parts(self, layer: Layer, index: int) -> tuple[Part, ...]:
        """The parts of one layer, in order."""
        fam, path = self.family, f"model.layers.{index}"
        before, after, ffn_before, ffn_after = LAYOUTS[self.layout]
        mixer = (fam.mixer or Builder.attention)(self, layer, f"{path}.self_attn")
        ffn = fam.ffn(self, layer, f"{path}.mlp") if fam.ffn else self.dense(f"{path}.mlp")
        return (*self._slot(before, mixer, after), *self._slot(ffn_before, ffn, ffn_after))

    def _slot(self, before: str, part: Part, after: str) -> tuple[Part, ...]:
        """A part with the norms around it and the residual add behind."""
        norms = [(self.norm(name),) if name else () for name in (before, after)]
        return (*norms[0], part, *norms[1], Elementwise("residual_add", self.hidden))

    def blocks(self) -> tuple[Block, ...]:
        """Kinds of layer with their counts, in order of first occurrence; equal layers are built once."""
        layers = self.family.layers(self) if self.family.layers else [Layer(self.window)] * self.n_layers
        kinds: dict[Any, list[int]] = {}
        for index, layer in enumerate(layers):
            kinds.setdefault((layer, self.precision.layer_mark(index)), []).append(index)
        return tuple(
            Block(layer_range(indices), self.layer_parts(layer, indices[0]), len(indices))
            for (layer, _), indices in kinds.items()
        )

    def table(self, width: int | None = None) -> Table:
        """The token embedding."""
        fmt = self.precision.matrix("model.embed_tokens", "embedding")
        return Table("embed_tokens", self.vocab, width or self.hidden, fmt, self.tied)

    def head(self, width: int | None = None) -> Head:
        """The output head, in the table's format where it is the table."""
        path = ("model.embed_tokens", "embedding") if self.tied else ("lm_head", "head")
        fmt = self.precision.matrix(*path)
        return Head(Linear("lm_head", "head", width or self.hidden, self.vocab, fmt), self.tied)

    def unread(self) -> tuple[str, ...]:
        """Keys of the configs beside the text's that nobody read."""
        return tuple(key for part in self.beside for key in part.unread())

    def arch(self, extras: tuple[Part, ...] = ()) -> Arch:
        """The model."""
        fam = self.family
        return Arch(
            fam.first(self) if fam.first else (self.table(),),
            self.blocks(),
            fam.last(self) if fam.last else (self.norm("final_norm", last_rows=True), self.head()),
            extras,
            self.experts,
            self.fields.maybe("max_position_embeddings"),
            self.n_heads,
            self.n_kv,
            tuple(sorted(self.widths)),
        )


@frozen
class MoE:
    """Widths and numbers of a mixture of experts, as a family's config gives them."""

    n_experts: int
    top_k: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    fused: bool = False


def layer_range(indices: Sequence[int]) -> str:
    """Indices for people: "layers 0-2, 5"; long patterns are cut."""
    runs: list[str] = []
    start = previous = indices[0]
    for index in (*indices[1:], -1):
        if index != previous + 1:
            runs.append(f"{start}-{previous}" if previous > start else str(start))
            start = index
        previous = index
    shown = ", ".join(runs[:4]) + (", …" if len(runs) > 4 else "")
    return f"layer {shown}" if len(indices) == 1 else f"layers {shown}"
