"""The shared frozen dataclasses, and nothing else: what the rooms hand to each other.

Shapes: B sequences in the batch, q new tokens of each, s keys in context (the new tokens' own included),
W window, all in tokens. Every size is in bytes, every count of operations in FLOPs (a multiply-add is 2).
"""

from __future__ import annotations

from dataclasses import field, replace

from gambrel.units import Num, ceil_div, is_grid, maximum, minimum, number, si, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


#: The source that a file of `gambrel calibrate` names for its figures.
CALIBRATION = "calibration"


class GambrelError(Exception):
    """Something that the user can mend: wrong input, a missing file, an impossible request."""


def one_line(error: BaseException) -> str:
    """Another library's error: its class and first line, the second too where the first only introduces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {told}"


class WorkloadError(GambrelError):
    """A workload that cannot exist: no sequence, more new tokens than context, a card count that does not divide."""


@frozen
class Format:
    """How the elements of a matrix are stored, scales included.

    bits: payload of one element [bit]. tile: (inputs, outputs) that share one scale; None for none.
    scale_bits, zero_bits: the scale and the zero point of one tile [bit].
    compute: the dtype that the matrix units multiply (bf16 for weight-only quantisation).
    """

    name: str
    bits: float
    compute: str
    tile: tuple[int, int] | None = None
    scale_bits: int = 0
    zero_bits: int = 0

    def bytes(self, n_in: int, n_out: int) -> int:
        """Bytes of an n_in x n_out matrix, its scales and zero points included."""
        payload = ceil_div(int(n_in * n_out * self.bits * 8), 64)
        if self.tile is None:
            return payload
        tiles = ceil_div(n_in, self.tile[0]) * ceil_div(n_out, self.tile[1])
        return payload + ceil_div(tiles * (self.scale_bits + self.zero_bits), 8)

    @property
    def element_bytes(self) -> float:
        """Bytes of one element, scales spread over their tile: 0.53125 for 4.25 bit."""
        overhead = 0.0 if self.tile is None else (self.scale_bits + self.zero_bits) / (self.tile[0] * self.tile[1])
        size = (self.bits + overhead) / 8
        return int(size) if size.is_integer() else size


@frozen
class Tensor:
    """A group of equal weight tensors of a model.

    group: what it is for (embedding, attention, mlp, experts, shared_experts, router, norm, head, vision, ...).
    params: elements of one. stored_bytes: bytes of one. copies: how many. gemm: takes part in matrix products.
    streamed: a forward pass of text reads all of it (a lookup table and a vision tower are not).
    used: (k, E) where a token uses k of E copies, such as experts.
    ways: over how many devices tensor parallelism can split it; 1 is replicated, None is as many as wanted.
    """

    name: str
    group: str
    params: int
    stored_bytes: int
    copies: int = 1
    gemm: bool = False
    streamed: bool = True
    ways: int | None = None
    used: tuple[int, int] = (1, 1)


_MAY_BE_ZERO = ("context_tokens", "source_tokens", "media_tokens")


@frozen
class Step:
    """One forward pass: `batch` sequences with `new_tokens` each, attending to `context_tokens` keys.

    batch [seq]; new_tokens [token]; context_tokens [token] counts the keys that the last new token attends, its own
    included. A decode step has one new token; a fresh prefill has new_tokens = context_tokens; a chunk lies between.
    A decode step with context 0 leaves the KV cache out. causal: masked scores are skipped, as fused kernels do.
    logits: "last" row of each sequence or "all" rows go through the output head. source_tokens: tokens of an encoder's
    output that cross-attention meets; encode: this pass runs the encoder on them. media_tokens: patches or frames of
    each sequence that pass through a tower. also: further sequences of other lengths in the same pass, which share its
    weights (write decode + chunk). Fields may be grids (arrays).
    Raises WorkloadError for a batch or a number of new tokens below 1, or more new tokens than context.
    """

    batch: Num = 1
    new_tokens: Num = 1
    context_tokens: Num = 0
    causal: bool = True
    logits: str = "last"
    source_tokens: Num = 0
    encode: bool = False
    media_tokens: Num = 0
    also: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("new_tokens", 1), *((n, 0) for n in _MAY_BE_ZERO)):
            value = number(getattr(self, name))
            object.__setattr__(self, name, value)
            lowest = value.min() if is_grid(value) else value
            if lowest < least:
                raise WorkloadError(f"{name} must be at least {least}, not {lowest}")
        if self.logits not in ("last", "all"):
            raise WorkloadError(f'logits must be "last" or "all", not {self.logits!r}')
        _check_context(self.new_tokens, self.context_tokens)

    def __add__(self, other: Step) -> Step:
        """A mixed batch: both in one forward pass."""
        return replace(self, also=(*self.also, *other.groups))

    @property
    def groups(self) -> tuple[Step, ...]:
        """The sequences of equal length, each as a step of its own."""
        first = self if not self.also else Step(*self._own)
        return (first, *self.also)

    @property
    def _own(self) -> tuple[Any, ...]:
        return (
            self.batch,
            self.new_tokens,
            self.context_tokens,
            self.causal,
            self.logits,
            self.source_tokens,
            self.encode,
            self.media_tokens,
        )

    @property
    def rows(self) -> Num:
        """New tokens in the pass, m of every weight GEMM [token]."""
        return total(g.batch * g.new_tokens for g in self.groups)

    @property
    def sequences(self) -> Num:
        """Sequences in the pass [seq]."""
        return total(g.batch for g in self.groups)

    @property
    def head_rows(self) -> Num:
        """Rows that go through the output head [token]."""
        return total(g.batch * (g.new_tokens if g.logits == "all" else 1) for g in self.groups)

    def scores(self, window: int | None = None, chunk: int | None = None) -> Num:
        """Query-key pairs, one head, summed over the sequences [1].

        Causal: query i of q over c cached keys meets min(c + i, W), so a fresh prompt has s(s+1)/2 and a chunk
        q·c + q(q+1)/2. Every key: q times the keys read. chunk: a query meets only keys of its own chunk of positions.
        """
        return total(g.batch * _scores(g, window, chunk) for g in self.groups)

    def keys_read(self, window: int | None = None, chunk: int | None = None) -> Num:
        """Cached keys that the pass reads, summed over the sequences: B · min(s, W + q - 1) [token]."""
        return total(g.batch * _read(g, window, chunk) for g in self.groups)

    def keys_written(self, window: int | None = None) -> Num:
        """Keys that the pass adds to the cache: B · min(q, s, W) [token]."""
        return total(g.batch * _clip(minimum(g.new_tokens, g.context_tokens), window, 0) for g in self.groups)

    # Encoders and towers ----------------------------------------------------------------------

    @property
    def source_keys(self) -> Num:
        """Keys of the encoder's output that cross-attention reads, summed over the sequences [token]."""
        return total(g.batch * g.source_tokens for g in self.groups)

    @property
    def source_scores(self) -> Num:
        """Query-key pairs of cross-attention, one head, summed over the sequences [1]."""
        return total(g.batch * g.new_tokens * g.source_tokens for g in self.groups)

    @property
    def source_written(self) -> Num:
        """Keys of the encoder's output that the pass makes: all of them where it encodes, else none [token]."""
        return total(g.batch * g.source_tokens for g in self.groups if g.encode)

    @property
    def encoder_steps(self) -> tuple[Step, ...]:
        """The pass through an encoder, where there is one: every source token meets every other."""
        return tuple(
            Step(g.batch, g.source_tokens, g.source_tokens, causal=False, logits="all")
            for g in self.groups
            if g.encode and _some(g.source_tokens)
        )

    @property
    def media_steps(self) -> tuple[Step, ...]:
        """The pass through a tower, where there is media: every patch or frame meets every other."""
        return tuple(
            Step(g.batch, g.media_tokens, g.media_tokens, causal=False, logits="all")
            for g in self.groups
            if _some(g.media_tokens)
        )


def _some(tokens: Num) -> bool:
    """Whether there may be any: a grid may hold zeros and more."""
    return is_grid(tokens) or tokens != 0


def _check_context(new_tokens: Num, context_tokens: Num) -> None:
    """A context holds its own new tokens; only a single new token may stand without any (context left out)."""
    if is_grid(new_tokens) or is_grid(context_tokens):
        bad = bool(((context_tokens < new_tokens) & (new_tokens > 1)).any())
    else:
        bad = context_tokens < new_tokens and new_tokens > 1
    if bad:
        raise WorkloadError(
            "context_tokens counts the new tokens too, so it cannot be smaller than new_tokens; "
            "a fresh prefill of s tokens is new_tokens = s, context_tokens = s"
        )


def _clip(keys: Num, window: int | None, extra: Num) -> Num:
    return keys if window is None else minimum(keys, window + extra)


def _read(g: Step, window: int | None, chunk: int | None) -> Num:
    if chunk is not None:
        first = maximum(g.context_tokens - g.new_tokens, 0)
        return g.context_tokens - first // chunk * chunk
    return _clip(g.context_tokens, window, g.new_tokens - 1)


def _scores(g: Step, window: int | None, chunk: int | None) -> Num:
    if not g.causal:
        return g.new_tokens * _read(g, window, chunk)
    cached = g.context_tokens - g.new_tokens
    if chunk is not None:
        return _sawtooth(g.context_tokens, chunk) - _sawtooth(maximum(cached, 0), chunk)
    return _triangle(g.context_tokens, window) - _triangle(cached, window)


def _triangle(n: Num, window: int | None) -> Num:
    """Sum of min(j, W) for j = 1 … n; 0 for n = -1, which is how a step without context counts none."""
    if window is None:
        return n * (n + 1) // 2
    inside = minimum(n, window)
    return inside * (inside + 1) // 2 + window * maximum(n - window, 0)


def _sawtooth(n: Num, chunk: int) -> Num:
    """Sum of the position within its chunk, 1 … C, for j = 1 … n."""
    whole, rest = n // chunk, n % chunk
    return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


@frozen
class Cost:
    """What an operator must do and move.

    flops: of matrix products and attention [FLOP]. vector_flops: of norms, softmax and the like, which every total
    and bound neglects [FLOP]. weight_bytes: weights read at the least (all tokens pick the same experts) [byte].
    expected_weight_bytes: the same under uniform routing [byte]. kv_read_bytes, kv_write_bytes: cache and state
    traffic [byte]. act_bytes: activations in and out, each once, of the unfused operator [byte].
    comm_bytes: sent to other devices [byte].
    """

    flops: Num = 0
    vector_flops: Num = 0
    weight_bytes: Num = 0
    expected_weight_bytes: Num = 0
    kv_read_bytes: Num = 0
    kv_write_bytes: Num = 0
    act_bytes: Num = 0
    comm_bytes: Num = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost.sum((self, other))

    def __mul__(self, times: Num) -> Cost:
        return Cost(*(value * times for value in self.values()))

    def values(self) -> tuple[Num, ...]:
        """The fields in order."""
        return (
            self.flops,
            self.vector_flops,
            self.weight_bytes,
            self.expected_weight_bytes,
            self.kv_read_bytes,
            self.kv_write_bytes,
            self.act_bytes,
            self.comm_bytes,
        )

    @staticmethod
    def sum(costs: Iterable[Cost]) -> Cost:
        """The sum, field by field."""
        columns = zip(*(c.values() for c in costs), strict=True)
        return Cost(*(total(column) for column in columns))

    @property
    def kv_bytes(self) -> Num:
        """Cache traffic, both ways [byte]."""
        return self.kv_read_bytes + self.kv_write_bytes


@frozen
class Op:
    """One operator of a layer.

    name: as in the model ("q_proj"). role: gemm attention elementwise reduction movement communication.
    dtype: what the matrix units multiply, picks the peak. count: how many such operators the model has.
    cost: of one. shape: for people. block: which layers. ways, kv_ways: over how many devices tensor parallelism
    can split its work and its cache; 1 is replicated, None is as many as wanted.
    """

    name: str
    role: str
    dtype: str
    cost: Cost
    count: int = 1
    shape: str = ""
    block: str = ""
    ways: int | None = None
    kv_ways: int | None = None


@frozen
class Cache:
    """What one layer keeps of a sequence between steps.

    bytes_per_token: grows with the context [byte/token]. window: tokens after which it stops growing; None never.
    fixed_bytes: state that does not grow [byte]. ways: as in Op. source_bytes_per_token: grows with the encoder's input
    instead [byte/token].
    """

    bytes_per_token: Num
    window: int | None = None
    fixed_bytes: Num = 0
    ways: int | None = None
    source_bytes_per_token: Num = 0


@frozen
class Numerics:
    """The dtypes that are not a weight's own.

    base: activations, norms and biases. kv: cache elements. attention: dtype in which scores are multiplied.
    """

    base: Format
    kv: Format
    attention: str


@frozen
class Figure:
    """One number of a device with where it comes from; `also` holds what other sources say."""

    value: float
    source: str = ""
    note: str = ""
    also: tuple[Figure, ...] = ()


@frozen
class Link:
    """A connection, one direction [byte/s]."""

    name: str
    bytes_per_s: float


@frozen
class Device:
    """A device's ceilings; all dense, none with sparsity.

    peak_flops_per_s: by dtype [FLOP/s]. mem_bytes: as advertised [byte]. usable_bytes: what a driver reports as
    total, or the advertised figure where nobody reported one [byte]. mem_bytes_per_s [byte/s]. l2_bytes [byte].
    link, host_link: one direction. power_w [W]. figures: every number with its source, by key. sources: title, url
    and date by name. changed: what the user overrode.
    """

    id: str
    name: str
    peak_flops_per_s: Mapping[str, float]
    mem_bytes: float
    mem_bytes_per_s: float
    usable_bytes: float
    l2_bytes: float | None = None
    link: Link | None = None
    host_link: Link | None = None
    power_w: float | None = None
    kind: str = ""
    vendor: str = ""
    note: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()

    @property
    def calibrated(self) -> bool:
        """Whether the figures are measured ceilings, which a better kernel may exceed, and not a datasheet's."""
        return CALIBRATION in self.sources

    def __repr__(self) -> str:
        peaks = ", ".join(f"{dtype} {si(peak, 'FLOP/s')}" for dtype, peak in self.peak_flops_per_s.items())
        return f"<Device {self.id}: {peaks}; {si(self.mem_bytes, 'B')} at {si(self.mem_bytes_per_s, 'B/s')}>"

    def peak(self, dtype: str) -> float:
        """The dense peak for a dtype [FLOP/s]. Raises GambrelError that lists what the device has."""
        try:
            return self.peak_flops_per_s[dtype]
        except KeyError:
            has = ", ".join(self.peak_flops_per_s) or "none"
            raise GambrelError(
                f"{self.id} has no {dtype} peak; it has {has}. "
                f"Choose one of them with --compute-dtype, or give the ceiling with --peak {dtype}=…TFLOP/s"
            ) from None

    def ridge(self, dtype: str) -> float:
        """The intensity at which bandwidth stops limiting [FLOP/byte]."""
        return self.peak(dtype) / self.mem_bytes_per_s


@frozen
class Bound:
    """A lower bound on time: it cannot be beaten while the assumptions hold.

    limits_s: seconds by resource ("compute", "memory"). kind: "step" is max(ΣFLOPs/peak, Σbytes/bandwidth);
    "operators" is Σ max(…) over unfused operators.
    """

    limits_s: Mapping[str, Num]
    time_s: Num
    kind: str = "step"

    @property
    def binding(self) -> str:
        """The resource that limits; for scalars."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])
