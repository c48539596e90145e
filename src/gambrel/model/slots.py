"""A builder for layers that are not a mixer and a feed-forward, and the pieces that such layers share.

A family's row has `builder=slots(make)`; `make` returns the parts of one layer. The helpers read a config through
Fields, so that whatever it holds is named in a ConfigError.
"""

from __future__ import annotations

from gambrel.model.arch import Experts
from gambrel.model.builder import Builder, Layer
from gambrel.model.experts import MixtureOfExperts
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Elementwise, FeedForward, Linear, Norm, Part
from gambrel.model.precision import PLAIN, STORED
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, ClassVar

    from gambrel.types import Format

    #: The parts of one layer, from the builder, the layer and its module path.
    Make = Callable[[Builder, Layer, str], tuple[Part, ...]]

#: The group of a recurrent mixer's parameters, its projections included.
RECURRENT = "recurrent"


class Slots(Builder):
    """A builder whose layers are what `make` returns, rather than a mixer and a feed-forward."""

    make: ClassVar[Make]
    prefix: ClassVar[str]

    def layer_parts(self, layer: Layer, index: int) -> tuple[Part, ...]:
        """The parts of one layer, in order."""
        return self.make(layer, f"{self.prefix}.{index}")


def slots(make: Make, prefix: str = "model.layers") -> type[Slots]:
    """A builder that hands its layers to `make`; prefix: of their module paths."""
    return type("Slots", (Slots,), {"make": make, "prefix": prefix})


# Reading ----------------------------------------------------------------------------------------


def number_at(f: Fields, key: str, default: float) -> float:
    """A positive number, whole or not."""
    value = f.raw(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 10**9:
        raise ConfigError(f"{f.label(key)} is {value!r:.60}; accepted is a positive number")
    return value


def only(f: Fields, key: str, value: Any) -> None:
    """Refuse any value of a key but the one that is counted here; absent or null is that one."""
    f.choice(key, f.raw(key, value), (value,))


def free(f: Fields, *keys: str) -> None:
    """Keys that cost nothing in this family, though their names might mean something in another."""
    f.used |= set(keys)


def auto_whole(f: Fields, key: str, auto: int) -> int:
    """A whole number, or what "auto" stands for."""
    return auto if f.raw(key, "auto") == "auto" else f.whole(key)


def state_format(f: Fields, key: str) -> Format:
    """The dtype of the state."""
    name = f.text(key, "float32").removeprefix("torch.")
    f.choice(key, name, list(STORED))
    return PLAIN[STORED[name]]


#: Spellings of the kinds of layer.
KINDS = {
    "mamba": "linear",
    "linear_attention": "linear",
    "recurrent": "linear",
    "attention": "full",
    "full_attention": "full",
    "hybrid": "hybrid",
    "conv": "conv",
    "moe": "moe",
    "mlp": "mlp",
}


def kinds_of(b: Builder, key: str, accepted: Sequence[str], otherwise: Sequence[str]) -> list[str]:
    """Kinds of the layers by the config's list, else the family's own pattern."""
    types = b.fields.items(key, length=b.n_layers)
    spellings = [name for name, kind in KINDS.items() if kind in accepted]
    return [KINDS[b.fields.choice(key, name, spellings)] for name in types] or list(otherwise)


def indices_of(b: Builder, key: str) -> list[int]:
    """A list of layer indices."""
    found = b.fields.items(key)
    for index in found:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < b.n_layers:
            raise ConfigError(f"{b.fields.label(key)} holds {index!r:.60}; accepted is 0 to {b.n_layers - 1}")
    return found


def divided(f: Fields, what: str, whole: int, parts: int) -> int:
    """The size of each of so many equal parts; `what` names them where they are not equal."""
    if whole % parts:
        raise ConfigError(f"{f.where}{what}: {whole} is no multiple of {parts}")
    return whole // parts


def note_predictions(b: Builder, key: str) -> None:
    """Multi-token-prediction layers are not part of a forward pass."""
    layers = b.fields.whole(key, 0, low=0)
    if layers:
        b.notes.append(f"{key} = {layers}: multi-token-prediction weights are not counted")


# Pieces of layers -------------------------------------------------------------------------------


def pre_norm(b: Builder, norm: str, *parts: Part) -> tuple[Part, ...]:
    """A norm, parts, the residual add."""
    return (b.norm(norm), *parts, Elementwise("residual_add", b.hidden))


@frozen
class Projections:
    """How a family's attention differs from the usual: input width, a gate per head, names, norms of queries and keys.

    n_in: width of the input; None is the hidden width. gated: queries come with a gate for the output. bias, out_bias:
    of the projections. qk_norm: as in Family.
    """

    n_in: int | None = None
    gated: bool = False
    bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    rotary: bool = True
    out: str = "o_proj"


def grouped_attention(b: Builder, path: str, how: Projections, window: int | None = None) -> tuple[Part, ...]:
    """Grouped-query attention, with a gate on its output where the family has one."""
    d, n_in = b.head_dim, how.n_in or b.hidden
    q, kv = b.n_heads * d, b.n_kv * d
    projections = (
        b.linear(f"{path}.q_proj", "attention", n_in, q * (1 + how.gated), how.bias, b.n_heads),
        b.linear(f"{path}.k_proj", "attention", n_in, kv, how.bias, b.n_kv),
        b.linear(f"{path}.v_proj", "attention", n_in, kv, how.bias, b.n_kv),
    )
    norms: tuple[Norm, ...] = ()
    if how.qk_norm == "head":
        norms = (b.norm("q_norm", d, per_row=b.n_heads), b.norm("k_norm", d, per_row=b.n_kv))
    elif how.qk_norm == "full":
        norms = (b.norm("q_norm", q), b.norm("k_norm", kv))
    out = b.linear(f"{path}.{how.out}", "attention", q, b.hidden, how.out_bias, b.n_heads)
    part = Attention(projections, out, b.n_heads, b.n_kv, d, d, b.base, norms, window, how.rotary)
    return (part, Elementwise("output_gate", q, flops_per_element=5)) if how.gated else (part,)


@frozen
class Inner:
    """Names and kind of a feed-forward: projections in, projection out, whether gated, whether with biases."""

    names: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gated: bool = True
    bias: bool = False


PLAIN_INNER = Inner(("up_proj",), gated=False)
FUSED_INNER = Inner(("input_linear",), "output_linear")
NUMBERED_INNER = Inner(("w1", "w3"), "w2")


def feed_forward(b: Builder, path: str, width: int, how: Inner = Inner(), group: str = "mlp") -> FeedForward:  # noqa: B008
    """A feed-forward; one name for a gated one means that gate and value are one matrix."""
    b.widths.add(width)
    each = width * (2 if how.gated and len(how.names) == 1 else 1)
    inner = tuple(b.linear(f"{path}.{name}", group, b.hidden, each, how.bias, width) for name in how.names)
    down = b.linear(f"{path}.{how.down}", group, width, b.hidden, how.bias, width)
    return FeedForward(inner, down, width, how.gated)


@frozen
class Routed:
    """A mixture of experts: numbers, widths and names. n_in: width of the experts' input; None is the hidden width."""

    n_experts: int
    top_k: int
    width: int
    how: Inner = Inner()
    n_in: int | None = None
    router: str = "gate"
    shared: FeedForward | None = None
    shared_gate: Linear | None = None


def mixture(b: Builder, path: str, r: Routed) -> MixtureOfExperts:
    """Experts; one stands for all, since they are equal."""
    if r.top_k > r.n_experts:
        raise ConfigError(f"{r.top_k} experts per token of {r.n_experts}; accepted is at most all of them")
    b.experts = Experts(r.n_experts, r.top_k)
    b.widths.add(r.width)
    n_in, expert = r.n_in or b.hidden, f"{path}.experts.0"
    return MixtureOfExperts(
        b.linear(f"{path}.{r.router}", "router", b.hidden, r.n_experts, ways=1),
        tuple(b.linear(f"{expert}.{n}", "experts", n_in, r.width, r.how.bias, r.width) for n in r.how.names),
        b.linear(f"{expert}.{r.how.down}", "experts", r.width, n_in, r.how.bias, r.width),
        r.width,
        r.how.gated,
        r.n_experts,
        r.top_k,
        r.shared,
        r.shared_gate,
    )
