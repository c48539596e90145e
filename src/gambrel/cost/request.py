"""Whole requests, and what the three serving designs gain, from the same bounds as the report."""

from __future__ import annotations

from gambrel.cost.parallel import shard
from gambrel.cost.roofline import demand, numerics_for, step_bound
from gambrel.cost.workload import Beside, decode_step, prefill_step
from gambrel.types import GambrelError, Step
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gambrel.model.model import Model
    from gambrel.types import Device


@frozen
class Rig:
    """What stays the same over a request: the model, its device, tensor parallelism, weights counted as streamed or
    resident, and the share of peak that a prefill reaches (an estimate, not a bound).
    """

    model: Model
    device: Device
    tp: int = 1
    weights: str = "streamed"
    efficiency: float = 0.6

    def bound_s(self, step: Step) -> float:
        """Lower bound on one step, the least expert weights read [s]."""
        return self._time_s(step, expected=False)

    def expected_s(self, step: Step, efficiency: float = 1.0) -> float:
        """One step with the experts that uniform routing hits, its compute time stretched by an efficiency [s].

        Equal to the bound for a dense model at efficiency 1; otherwise an expectation or an estimate.
        """
        return self._time_s(step, expected=True, efficiency=efficiency)

    def _time_s(self, step: Step, expected: bool, efficiency: float = 1.0) -> float:
        ops = self.model.ops(step, numerics_for(self.model.numerics, self.device))
        need = demand(shard(ops, self.tp))
        limits = step_bound(need, self.device, expected).limits_s
        memory = limits["memory"]
        if self.weights == "resident":
            read = need.expected_weight_bytes if expected else need.weight_bytes
            memory += (self.model.weight_bytes(tp=self.tp) - read) / self.device.mem_bytes_per_s
        return float(max(limits["compute"] / efficiency, memory))


@frozen
class Request:
    """One batch of equal requests from first prompt token to last new token [s].

    prefill_bound_s: at peak, the least expert weights; prefill_s: an estimate at the stated efficiency. step_s: the
    first decode step; decode_s: the sum over the growing context; both with the experts that uniform routing hits, so
    floors for dense models. decode_bound_s: the same sum with the least expert weights, a floor for every model.
    """

    prompt_tokens: int
    new_tokens: int
    batch: int
    efficiency: float
    prefill_bound_s: float
    prefill_s: float
    step_s: float
    decode_s: float
    decode_bound_s: float

    @property
    def context_tokens(self) -> int:
        """Keys of each sequence at its end [token]."""
        return self.prompt_tokens + self.new_tokens

    @property
    def total_s(self) -> float:
        """Prefill estimate and expected decode together."""
        return self.prefill_s + self.decode_s

    @property
    def decode_share(self) -> float:
        """Share of the total that is decode."""
        return self.decode_s / self.total_s


def request(rig: Rig, prompt_tokens: int, new_tokens: int, batch: int = 1, logits: str = "last") -> Request:
    """Latency of `batch` requests of the same length served together.

    The prefill makes the first new token, so decode makes the other new_tokens - 1 over contexts growing from
    prompt + 1 keys. Raises WorkloadError for lengths below 1.
    """
    arch, beside = rig.model.arch, Beside(prompt_tokens)
    prefill = prefill_step(arch, batch, prompt_tokens, logits=logits)
    first = 1 if arch.encodes else prompt_tokens

    def decode(time_s: Callable[[Step], float]) -> float:
        if new_tokens < 2:
            return 0.0
        return sum_over(lambda s: time_s(decode_step(arch, batch, s, beside)), first + 1, first + new_tokens - 1)

    expected = decode(rig.expected_s)
    return Request(
        prompt_tokens,
        new_tokens,
        batch,
        rig.efficiency,
        rig.bound_s(prefill),
        rig.expected_s(prefill, rig.efficiency),
        rig.expected_s(decode_step(arch, batch, first + 1, beside)),
        expected,
        decode(rig.bound_s) if rig.model.arch.experts else expected,
    )


def sum_over(f: Callable[[int], float], first: int, last: int) -> float:
    """Σ f(i) for i = first … last of a piecewise linear f, exact where its pieces are longer than three points.

    A range whose inner points lie on the chord of its ends is summed as a trapezoid; any other is halved.
    """
    if last - first < 4:
        return sum(f(i) for i in range(first, last + 1))
    a, b = f(first), f(last)
    third, middle = first + (last - first) // 3, (first + last) // 2
    if all(abs(f(i) - a - (b - a) * (i - first) / (last - first)) <= 1e-9 * b for i in (third, middle)):
        return (a + b) / 2 * (last - first + 1)
    return sum_over(f, first, middle) + sum_over(f, middle + 1, last)


@frozen
class Serving:
    """What serving designs gain, from the same numbers [s unless said].

    step_1_s, step_b_s: a decode step at batch 1 and at `batch`; batching_gain: throughput over batch 1.
    stall_s: a whole prefill between two decode steps. chunks: number of chunks; chunk_s: mean, chunk_max_s: longest;
    mixed_step_s: one step with a chunk and the decode batch together, mixed_saved_s: against both apart.
    transfer_bytes: KV of one prompt sent from a prefill pool to a decode pool; transfer_s over the scale-up link.
    """

    batch: int
    chunk_tokens: int
    step_1_s: float
    step_b_s: float
    batching_gain: float
    stall_s: float
    chunks: int
    chunk_s: float
    chunk_max_s: float
    mixed_step_s: float
    mixed_saved_s: float
    transfer_bytes: float
    transfer_s: float | None


def serving(rig: Rig, prompt_tokens: int, batch: int, chunk_tokens: int, logits: str = "last") -> Serving:
    """Continuous batching, chunked prefill and disaggregation for prompts of one length.

    Prefill times are estimates at the rig's efficiency; decode times are floors, experts as expected.
    """
    arch = rig.model.arch
    if arch.encodes:
        raise GambrelError("chunked prefill and disaggregation are for decoders; this model has an encoder")
    one, many = (rig.expected_s(Step(b, 1, prompt_tokens)) for b in (1, batch))
    ends = [*range(chunk_tokens, prompt_tokens, chunk_tokens), prompt_tokens]
    starts = [0, *ends[:-1]]
    pieces = [Step(1, end - start, end, logits=logits) for start, end in zip(starts, ends, strict=True)]
    times = [rig.expected_s(piece, rig.efficiency) for piece in pieces]
    decode = Step(batch, 1, prompt_tokens)
    mixed = rig.expected_s(pieces[-1] + decode, rig.efficiency)
    kv = rig.model.state_bytes(prompt_tokens)
    link = rig.device.link
    return Serving(
        batch,
        chunk_tokens,
        one,
        many,
        batch * one / many,
        rig.expected_s(Step(1, prompt_tokens, prompt_tokens, logits=logits), rig.efficiency),
        len(pieces),
        sum(times) / len(times),
        max(times),
        mixed,
        times[-1] + many - mixed,
        kv,
        kv / link.bytes_per_s if link else None,
    )
