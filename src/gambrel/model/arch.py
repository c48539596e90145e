"""A model as composition: parts before the layers, kinds of layer with how often each occurs, parts after them."""

from __future__ import annotations

from dataclasses import replace

from gambrel.types import Cache, GambrelError, Numerics, Op, Step, Tensor
from gambrel.units import Num, minimum, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gambrel.model.parts import Part


#: Most devices that tensor parallelism is asked about.
MOST_DEVICES = 1024


@frozen
class Block:
    """One kind of layer: its parts in order, and how many layers are like it."""

    name: str
    parts: tuple[Part, ...]
    count: int = 1


@frozen
class Experts:
    """How a mixture of experts routes, for active parameters: E experts, k of them per token."""

    n_experts: int
    top_k: int


@frozen
class Arch:
    """A decoder: `first` (embeddings), `blocks`, `last` (final norm, output head), and `extras` beside the text path.

    max_context: the longest context that the model was made for [token]; None where the config does not say.
    n_heads, n_kv_heads, widths: what tensor parallelism must divide. encodes: an encoder reads a source before the
    decoder speaks; source_tokens: how long that source always is, None where it varies [token]; max_source_tokens: the
    longest that it may be [token].
    """

    first: tuple[Part, ...]
    blocks: tuple[Block, ...]
    last: tuple[Part, ...]
    extras: tuple[Part, ...] = ()
    experts: Experts | None = None
    max_context: int | None = None
    n_heads: int = 1
    n_kv_heads: int = 1
    widths: tuple[int, ...] = ()
    encodes: bool = False
    source_tokens: int | None = None
    max_source_tokens: int | None = None

    @property
    def n_layers(self) -> int:
        """Layers of all kinds."""
        return sum(block.count for block in self.blocks)

    def _parts(self) -> Iterator[tuple[Part, int, str]]:
        for part in self.first:
            yield part, 1, "embedding"
        for block in self.blocks:
            for part in block.parts:
                yield part, block.count, block.name
        for part in self.last:
            yield part, 1, "head"
        for part in self.extras:
            yield part, 1, "beside the text"

    def tensors(self) -> Iterator[Tensor]:
        """Every weight tensor, equal ones together with their number."""
        for part, count, _ in self._parts():
            for tensor in part.tensors():
                yield tensor if count == 1 else replace(tensor, copies=tensor.copies * count)

    def ops(self, step: Step, numerics: Numerics) -> list[Op]:
        """Every operator of one forward pass, equal ones together with their number."""
        return [
            replace(op, count=op.count * count, block=op.block or name)
            for part, count, name in self._parts()
            for op in part.ops(step, numerics)
        ]

    def caches(self, numerics: Numerics) -> list[tuple[Cache, int]]:
        """What each kind of layer keeps per sequence, with the number of such layers."""
        found = ((part.cache(numerics), count) for part, count, _ in self._parts())
        return [(cache, count) for cache, count in found if cache is not None]


def params_total(tensors: Iterable[Tensor]) -> int:
    """All parameters; tied ones once."""
    return sum(t.params * t.copies for t in tensors)


def params_gemm(tensors: Iterable[Tensor]) -> int:
    """Parameters that take part in the matrix products of a text token: all layer matrices and the output head."""
    return sum(t.params * t.copies for t in tensors if t.gemm and t.streamed)


def params_by_group(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Parameters by what they are for."""
    groups: dict[str, int] = {}
    for t in tensors:
        groups[t.group] = groups.get(t.group, 0) + t.params * t.copies
    return groups


def params_active(tensors: Iterable[Tensor]) -> int:
    """All parameters minus those of the routed experts that a token does not use."""
    return sum(t.params * t.copies * t.used[0] // t.used[1] for t in tensors)


def weight_bytes(tensors: Iterable[Tensor], streamed_only: bool = False, tp: int = 1) -> Num:
    """Bytes of the weights on one of `tp` devices; streamed_only leaves out what a step of text does not read."""
    return total(_part_of(t.stored_bytes * t.copies, tp, t.ways) for t in tensors if t.streamed or not streamed_only)


def _part_of(amount: Num, devices: int, ways: int | None) -> Num:
    split = devices if ways is None else min(devices, ways)
    return (
        amount if split == 1 else amount // split if isinstance(amount, int) and amount % split == 0 else amount / split
    )


def kv_bytes_per_token(caches: Iterable[tuple[Cache, int]], tp: int = 1) -> Num:
    """Bytes one more token of context takes, every layer counted as growing (as a paged engine reserves it)."""
    return total(_part_of(cache.bytes_per_token * count, tp, cache.ways) for cache, count in caches)


def reserved_bytes_per_token(caches: Iterable[tuple[Cache, int]], tp: int = 1) -> Num:
    """Bytes a paged engine sets aside for one more token: every growing layer gets a page of the widest layer's size.

    Engines page all layers alike, so window layers keep full-length pages and narrow layers wide ones.
    """
    growing = [(_part_of(cache.bytes_per_token, tp, cache.ways), n) for cache, n in caches if cache.bytes_per_token]
    return max((size for size, _ in growing), default=0) * sum(n for _, n in growing)


def state_bytes(
    caches: Iterable[tuple[Cache, int]],
    context_tokens: Num,
    tp: int = 1,
    reserved: bool = False,
    source_tokens: Num = 0,
) -> Num:
    """Bytes that one sequence of `context_tokens` keeps: windowed layers min(s, W) tokens; or what is reserved for it.

    source_tokens: length of the encoder's input, whose keys and values cross-attention keeps [token].
    """
    caches = list(caches)
    if reserved:
        pages = context_tokens * reserved_bytes_per_token(caches, tp)
        return pages + total(_part_of(_beside(cache, source_tokens) * n, tp, cache.ways) for cache, n in caches)
    return total(
        _part_of((_growing(cache, context_tokens) + _beside(cache, source_tokens)) * n, tp, cache.ways)
        for cache, n in caches
    )


def _growing(cache: Cache, context_tokens: Num) -> Num:
    kept = context_tokens if cache.window is None else minimum(context_tokens, cache.window)
    return cache.bytes_per_token * kept


def _beside(cache: Cache, source_tokens: Num) -> Num:
    return cache.source_bytes_per_token * source_tokens + cache.fixed_bytes


def possible_tp(arch: Arch) -> list[int]:
    """Numbers of devices that divide the heads and widths of the model."""
    return [n for n in range(1, min(arch.n_heads, MOST_DEVICES) + 1) if _divides(arch, n)]


def check_tp(arch: Arch, tp: int) -> None:
    """Raise GambrelError unless tensor parallelism over `tp` devices divides the heads and widths of the model.

    KV heads may be replicated: tp must divide them or be a multiple of them.
    """
    possible = possible_tp(arch)
    if tp not in possible:
        raise GambrelError(
            f"--tp {tp} cannot split {arch.n_heads} query heads and {arch.n_kv_heads} KV heads; "
            f"possible here: {', '.join(map(str, possible))}"
        )


def _divides(arch: Arch, tp: int) -> bool:
    kv = arch.n_kv_heads
    return arch.n_heads % tp == 0 and (kv % tp == 0 or tp % kv == 0) and all(width % tp == 0 for width in arch.widths)
