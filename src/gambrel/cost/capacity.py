"""Whether a workload fits: usable memory x utilisation - resident weights - reserve, and what the rest holds."""

from __future__ import annotations

from gambrel.model.arch import reserved_bytes_per_token, state_bytes
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.model.model import Model
    from gambrel.types import Cache, Step
    from gambrel.units import Num

#: What engines take by default (vLLM's gpu_memory_utilization).
UTILIZATION = 0.9

#: Memory kept for activations, the context and the allocator [byte]. Measured: vLLM 0.19.0 with Llama-3.1-8B in bf16
#: and 2,048 tokens a step had 41,408 tokens of KV on an RTX 4090 of 25,250,627,584 bytes at 0.9: it kept 1.24 GB.
RESERVE_BYTES = 1_240_000_000
RESERVE_SOURCE = "measured: vLLM 0.19.0, Llama-3.1-8B, RTX 4090 (casys-kaist/LLMServingSim log)"


@frozen
class Capacity:
    """The memory of one device, term by term [byte].

    usable_bytes: what the driver reports. utilization: share of it that is used. weights_bytes: resident weights.
    reserve_bytes: activations and workspace. caches: what one sequence keeps, by kind of layer. tp: devices that
    share weights and cache. stated_budget_bytes: a KV budget that the user gave instead of all these terms.
    source_tokens: of an encoder's input, None for as many as the context [token].
    """

    usable_bytes: float
    utilization: float
    weights_bytes: Num
    reserve_bytes: float
    caches: tuple[tuple[Cache, int], ...]
    tp: int = 1
    stated_budget_bytes: float | None = None
    source_tokens: int | None = None

    @property
    def budget_bytes(self) -> Num:
        """What is left for the KV cache on one device; negative where the weights alone do not fit."""
        if self.stated_budget_bytes is not None:
            return self.stated_budget_bytes
        return self.usable_bytes * self.utilization - self.weights_bytes - self.reserve_bytes

    def sequence_bytes(self, context_tokens: Num, reserved: bool = False) -> Num:
        """Cache of one sequence on one device; `reserved` as a paged engine sets aside."""
        source = context_tokens if self.source_tokens is None else self.source_tokens
        return state_bytes(self.caches, context_tokens, self.tp, reserved, source)

    def missing_bytes(self, batch: Num, context_tokens: Num) -> Num:
        """What a batch needs beyond the budget; zero or less where it fits."""
        return batch * self.sequence_bytes(context_tokens) - self.budget_bytes

    def fits(self, batch: Num, context_tokens: Num) -> bool:
        """Whether weights, reserve and the cache of the batch fit."""
        return bool(self.missing_bytes(batch, context_tokens) <= 0)

    def max_batch(self, context_tokens: Num, reserved: bool = False) -> int:
        """Largest batch of sequences of this context; 0 where not one fits."""
        each = self.sequence_bytes(context_tokens, reserved)
        return max(int(self.budget_bytes // each), 0) if each else 0

    def max_tokens(self) -> int:
        """Tokens of KV in the budget as a paged engine reserves them."""
        each = reserved_bytes_per_token(self.caches, self.tp)
        return max(int(self.budget_bytes // each), 0) if each else 0

    def max_context(self, batch: int, limit: int = 2**40) -> int:
        """Longest context of `batch` sequences, at most `limit`; 0 where none fits."""
        low, high = 0, limit
        if self.fits(batch, limit):
            return limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(batch, middle) else (low, middle - 1)
        return low


@frozen
class Needs:
    """The least memory of one step: weights, cache, inputs and outputs of the largest operator [byte]."""

    weight_bytes: float
    cache_bytes: float
    largest_op_bytes: float

    @property
    def total_bytes(self) -> float:
        """All three, which exist at the same time."""
        return self.weight_bytes + self.cache_bytes + self.largest_op_bytes


def least_memory(model: Model, step: Step, cached_tokens: int) -> Needs:
    """What a step of a model needs at the least, with so many tokens of each sequence in the cache after it."""
    largest = max(op.cost.act_bytes for op in model.ops(step))
    return Needs(model.weight_bytes(), step.batch * model.state_bytes(cached_tokens), largest)


def fit_rows(room: Capacity, batches: tuple[int, ...], contexts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Per context: cache of one sequence, largest batch, as windowed and as reserved, and which batches fit."""
    return [
        {
            "context_tokens": context,
            "sequence_bytes": room.sequence_bytes(context),
            "sequence_bytes_reserved": room.sequence_bytes(context, reserved=True),
            "max_batch": room.max_batch(context),
            "max_batch_reserved": room.max_batch(context, reserved=True),
            "fits": {str(batch): room.fits(batch, context) for batch in batches},
        }
        for context in contexts
    ]


def context_rows(room: Capacity, batches: tuple[int, ...], limit: int) -> list[dict[str, Any]]:
    """Per batch: the longest context that fits, at most `limit`."""
    return [{"batch": batch, "max_context_tokens": room.max_context(batch, limit)} for batch in batches]


@frozen
class Fit:
    """What fits of a model on a device: the memory term by term, asked at these batches and contexts.

    max_context: the longest that the model was made for [token], None where unknown. kv_bytes_per_token: on one device,
    every layer counted as growing [byte]. notes: of the reading of the config.
    """

    model_name: str
    device_id: str
    device_name: str
    room: Capacity
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    max_context: int | None
    kv_bytes_per_token: float
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Per context, what fits."""
        rows = fit_rows(self.room, self.batches, self.contexts)
        longest = self.max_context
        return [{**r, "beyond_max_context": longest is not None and r["context_tokens"] > longest} for r in rows]

    @property
    def longest(self) -> list[dict[str, Any]]:
        """Per batch, the longest context; never beyond the model's maximum."""
        return context_rows(self.room, self.batches, self.max_context or 2**30)

    @property
    def all_fit(self) -> bool:
        """Whether every batch fits at every context, none of them beyond the model's maximum."""
        return all(all(row["fits"].values()) and not row["beyond_max_context"] for row in self.rows)
