"""At what batch decode becomes compute-bound, whether that batch fits, and whether it exists at all."""

from __future__ import annotations

from gambrel.cost.parallel import shard
from gambrel.cost.roofline import demand, numerics_for, step_bound
from gambrel.cost.workload import decode_step
from gambrel.types import Step
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.cost.capacity import Capacity
    from gambrel.cost.roofline import Demand
    from gambrel.model.model import Model
    from gambrel.types import Device

#: Longest context that the search for a compute-bound batch looks at [token].
LONGEST_TOKENS = 2**30


@frozen
class Crossover:
    """Where decode turns from memory-bound to compute-bound.

    ridge_flop_per_byte: of the device in the dtype of the weight products. weights_batch: batch whose weight products
    meet the ridge, cache left out. resident_batch: the same by time with all resident bytes. step_batch: batch of the
    whole step at this context, None where none exists. intensity_limit: of the step as the batch grows without bound.
    cache_bytes: cache of weights_batch sequences at this context. max_batch: largest that fits.
    """

    context_tokens: int
    dtype: str
    ridge_flop_per_byte: float
    weights_batch: float
    resident_batch: float
    step_batch: float | None
    intensity_limit: float
    cache_bytes: float
    max_batch: int
    fits: bool

    @property
    def exists(self) -> bool:
        """Whether any batch makes the step compute-bound at this context."""
        return self.step_batch is not None


def crossover(model: Model, device: Device, context_tokens: int, room: Capacity) -> Crossover:
    """Answer the question for one context. Source: spec section 7; the ridge is Williams et al. 2009."""
    need = _Needs(model, device, room.tp)
    weights_batch = need.balance(need.compute_s())
    resident = room.weights_bytes / device.mem_bytes_per_s
    step_batch = need.balance(need.surplus_s(context_tokens))
    wanted = step_batch if step_batch is not None else weights_batch
    dtype = max(need.at(1, 0).flops_by_dtype.items(), key=lambda item: item[1])[0]
    per_sequence = need.at(1, context_tokens)
    cache = per_sequence.kv_read_bytes + per_sequence.kv_write_bytes
    return Crossover(
        context_tokens,
        dtype,
        device.ridge(dtype),
        weights_batch or 0.0,
        resident / need.compute_s(),
        step_batch,
        per_sequence.flops / cache if cache else float("inf"),
        (weights_batch or 0.0) * room.sequence_bytes(context_tokens),
        room.max_batch(context_tokens),
        wanted is not None and room.fits(wanted, context_tokens),
    )


def context_limit(model: Model, device: Device, tp: int = 1) -> int | None:
    """Longest context at which a compute-bound batch exists [token]; None where it exists at every context."""
    need = _Needs(model, device, tp)
    if need.surplus_s(LONGEST_TOKENS) > 0:
        return None
    low, high = 0, LONGEST_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if need.surplus_s(middle) > 0 else (low, middle - 1)
    return low


class _Needs:
    """Demands of decode steps of one model on one device."""

    def __init__(self, model: Model, device: Device, tp: int) -> None:
        self.model, self.device, self.tp = model, device, tp
        self.numerics = numerics_for(model.numerics, device)
        self.known: dict[tuple[float, int], Demand] = {}

    def at(self, batch: float, context_tokens: int) -> Demand:
        """The demand of one decode step; each is computed once."""
        if (batch, context_tokens) not in self.known:
            self.known[batch, context_tokens] = self._demand(batch, context_tokens)
        return self.known[batch, context_tokens]

    def _demand(self, batch: float, context_tokens: int) -> Demand:
        arch = self.model.arch
        step = decode_step(arch, batch, context_tokens) if context_tokens else Step(batch, 1, 0)
        ops = self.model.ops(step, self.numerics)
        return demand(shard(ops, self.tp))

    def compute_s(self) -> float:
        """Compute time that one more sequence adds, its cache left out [s]; exactly linear in the batch."""
        return float(step_bound(self.at(1, 0), self.device).limits_s["compute"])

    def weights_s(self, batch: float) -> float:
        """Time to read the weights, experts as expected [s]."""
        return float(self.at(max(batch, 1), 0).expected_weight_bytes) / self.device.mem_bytes_per_s

    def surplus_s(self, context_tokens: int) -> float:
        """Compute time minus cache time that one more sequence adds [s]; positive where batching helps."""
        one = self.at(1, context_tokens)
        cache_s = (one.kv_read_bytes + one.kv_write_bytes) / self.device.mem_bytes_per_s
        return float(step_bound(one, self.device).limits_s["compute"] - cache_s)

    def balance(self, surplus: float) -> float | None:
        """The batch B with B · surplus = weights(B); None where the surplus [s] is not positive.

        A fixed point from above: weights(B) grows with B for experts, and is constant for a dense model.
        """
        if surplus <= 0:
            return None
        batch = self.weights_s(10**6) / surplus
        for _ in range(200):
            following = self.weights_s(batch) / surplus
            if abs(following - batch) <= 1e-9 * batch:
                break
            batch = following
        return following
