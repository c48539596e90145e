"""What other tools measured, against the bounds: serving runs row by row, and an engine's memory line by line.

A served TPOT is the mean over decode steps of a changing batch. With B the mean number of sequences that decode, by
Little's law

    B = R · TPOT · (n - 1) / n        R output tokens a second [token/s], n output tokens of a request

the bound of a step of B sequences at the mean context P + n/2 (P prompt tokens) lies below the mean of the bounds of
the steps that ran: the bound does not grow slower with the batch than linearly, and tokens are made in larger batches
than the mean over time. Rounded down, and never more than the concurrency that was set nor than what fits.
"""

from __future__ import annotations

from gambrel.cost.compare import LEGITIMATE, BelowBound
from gambrel.cost.report import step_ops
from gambrel.cost.request import sum_over
from gambrel.cost.roofline import demand, step_bound
from gambrel.cost.workload import decode_step, prefill_step
from gambrel.model.arch import kv_bytes_per_token, reserved_bytes_per_token, state_bytes
from gambrel.types import GambrelError, Step
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gambrel.cost.capacity import Capacity
    from gambrel.measure.logs import Receipt
    from gambrel.measure.results import ServingResult
    from gambrel.model.model import Model
    from gambrel.types import Bound, Device

#: A told size within this share of the predicted one agrees, beyond the rounding of what was printed.
TOLERANCE = 0.002
#: Engines hold this many tokens of KV at the most; longer lengths are a mistake in the file.
LONGEST = 10**7
MOST_SEQUENCES = 10**6
NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "latency", "output_tokens_per_s": "tokens/s"}
#: Why a served time may lie below, beside the ways in which any measurement may.
SERVED = (
    "its weights are not those of MODEL",
    "part of the prompts came from a prefix cache, or was read once for several sequences",
    "its lengths or its running batch were others (--batch, --context; of one replica where several serve)",
)


@frozen
class Setup:
    """What the runs are compared with. batch, context_tokens, prompt_tokens, new_tokens: by the user, else None."""

    model: Model
    device: Device
    room: Capacity
    tp: int = 1
    batch: int | None = None
    context_tokens: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None


@frozen
class Row:
    """One figure of one run. bound_s is None, and why says so, where the figure is not comparable.

    run: which of the file's runs, from 1. metric: what was measured. measured_s: of one step, prompt or batch [s].
    batch [seq] and context_tokens [token] of the bound. binding: what limits it. why: also how the batch was chosen.
    """

    run: int
    tool: str
    metric: str
    measured_s: float | None
    bound_s: float | None = None
    batch: int | None = None
    context_tokens: int | None = None
    binding: str | None = None
    why: str = ""

    @property
    def fraction(self) -> float | None:
        """Share of the possible speed that was reached."""
        return self.bound_s / self.measured_s if self.bound_s is not None and self.measured_s else None


def run_rows(setup: Setup, results: Sequence[ServingResult]) -> list[Row]:
    """Every figure of every run. Raises BelowBound for a measured time below its bound."""
    rows = [row for index, result in enumerate(results, 1) for row in _rows(setup, result, index)]
    for row in rows:
        if row.bound_s is not None and row.measured_s is not None and row.measured_s < row.bound_s:
            raise BelowBound(_below(row))
    return rows


def _below(row: Row) -> str:
    reasons = "; ".join(f"({i}) {reason}" for i, reason in enumerate((*LEGITIMATE, *SERVED), 1))
    assert row.measured_s is not None
    assert row.bound_s is not None
    return (
        f"run {row.run}, {row.metric}: {row.measured_s * 1e3:.4g} ms is below the bound of {row.bound_s * 1e3:.4g} ms "
        f"(batch {row.batch}, context {row.context_tokens}): an error, not a good result. "
        f"A correct measurement can be below only if {reasons}"
    )


def _rows(setup: Setup, result: ServingResult, run: int) -> list[Row]:
    start = Row(run, result.tool, "", None)
    smaller = _other_weights(setup, result)
    if result.kind == "serving":
        rows = [_served_step(setup, result, start), _served_prompt(setup, result, start)]
    elif result.kind == "total":
        rows = []
    else:
        rows = [_bare(setup, result, start)]
    told = {row.metric for row in rows}
    for name, why in result.not_comparable.items():
        metric = NAMES.get(name, name)
        if metric not in told:
            value = getattr(result, name, None) if name.endswith("_s") and not name.endswith("per_s") else None
            rows.append(_but(start, metric=metric, measured_s=value, why=f"not comparable: {why}"))
    if smaller:
        rows = [_but(row, bound_s=None, binding=None, why=smaller) if row.bound_s is not None else row for row in rows]
    return rows


def _but(row: Row, **changes: object) -> Row:
    return Row(**{**vars(row), **changes})


def _other_weights(setup: Setup, result: ServingResult) -> str:
    """Why nothing can be said where the file's weights are smaller than those of the model that was named."""
    ours = setup.model.weight_bytes()
    if result.weights_bytes is None or result.weights_bytes >= 0.98 * ours:
        return ""
    told = result.weights_bytes / 10**9
    return f"not comparable: its weights are {told:.2f} GB, MODEL's {ours / 10**9:.2f} GB (--weight-dtype)"


def _bound(setup: Setup, step: Step) -> Bound:
    return step_bound(demand(step_ops(setup.model, setup.device, step, setup.tp)), setup.device)


def _tokens(value: float | None) -> int:
    """A length of a file as whole tokens, rounded down. Raises GambrelError for one that no model has."""
    if value is not None and value > LONGEST:
        raise GambrelError(f"a length of {value:.4g} tokens in the file; accepted is at most {LONGEST:,}")
    return int(value or 0)


# Served runs ------------------------------------------------------------------------------------


def _served_step(setup: Setup, result: ServingResult, start: Row) -> Row:
    """TPOT against the bound of one decode step."""
    row = _but(start, metric="TPOT", measured_s=result.tpot_s)
    if result.tpot_s is None:
        return _but(row, why=f"not comparable: {result.not_comparable.get('tpot_s', 'the file has none')}")
    prompt, new = _lengths(setup, result)
    context = setup.context_tokens or (_tokens(prompt + (new or 0) / 2) if prompt is not None else None)
    if context is None:
        return _but(row, why="not comparable: the file does not say how long the prompts are (--context)")
    batch, why = _running(setup, result, max(context, 1))
    if batch is None:
        return _but(row, why=why)
    if result.tokens_per_step > 1:
        row = _but(row, measured_s=result.tpot_s * result.tokens_per_step)
        why = f"{result.tokens_per_step:.3g} tokens a step accepted: time of a step; {why}"
    bound = _bound(setup, decode_step(setup.model.arch, batch, max(context, 1)))
    return _but(row, bound_s=bound.time_s, batch=batch, context_tokens=context, binding=bound.binding, why=why)


def _lengths(setup: Setup, result: ServingResult) -> tuple[float | None, float | None]:
    """Mean prompt and output [token]: what the user says, else what the file says."""
    prompt = setup.prompt_tokens if setup.prompt_tokens is not None else result.input_tokens
    return prompt, setup.new_tokens if setup.new_tokens is not None else result.output_tokens


def _running(setup: Setup, result: ServingResult, context: int) -> tuple[int | None, str]:
    """Sequences of the bound's step, and how they were found; None where nothing tells."""
    if setup.batch is not None:
        return setup.batch, "batch as given"
    fits = setup.room.max_batch(context) or 1
    known = [(result.concurrency, "concurrency"), (result.in_flight, "mean in flight"), (_little(result), "decoding")]
    found = [(value, name) for value, name in known if value]
    if not found:
        return None, "not comparable: neither concurrency nor throughput in the file (--batch)"
    value, name = min(found)
    value = min(value, MOST_SEQUENCES)
    if fits < value:
        return max(int(fits), 1), f"{value:.4g} {name}, capped by capacity"
    limit = f" of {result.concurrency:g}" if result.concurrency and name != "concurrency" else ""
    return max(int(value), 1), f"{value:.4g}{limit} {name}"


def _little(result: ServingResult) -> float | None:
    """Mean sequences that decode, by Little's law."""
    rate, n = result.output_tokens_per_s, result.output_tokens
    if rate is None or result.tpot_s is None or n is None or n <= 1:
        return None
    return rate * result.tpot_s * (n - 1) / n


def _served_prompt(setup: Setup, result: ServingResult, start: Row) -> Row:
    """TTFT against the bound of a prefill, where no other request was in the way."""
    row = _but(start, metric="TTFT", measured_s=result.ttft_s)
    if result.ttft_s is None:
        return _but(row, why=f"not comparable: {result.not_comparable.get('ttft_s', 'the file has none')}")
    if result.concurrency != 1:
        return _but(row, why="not comparable: includes queueing")
    prompt = _tokens(_lengths(setup, result)[0])
    if not prompt:
        return _but(row, why="not comparable: the file does not say how long the prompts are (--prefill)")
    bound = _bound(setup, prefill_step(setup.model.arch, 1, prompt))
    return _but(row, bound_s=bound.time_s, batch=1, context_tokens=prompt, binding=bound.binding, why="mean prompt")


# Bare runs --------------------------------------------------------------------------------------


def _bare(setup: Setup, result: ServingResult, start: Row) -> Row:
    """A loop without a server: a prefill, decode steps, or a batch with both."""
    if result.kind == "decode":
        return _decode_loop(setup, result, start)
    prompt, new = _lengths(setup, result)
    length, steps, depth = _tokens(prompt), _tokens(new), _tokens(result.depth_tokens)
    batch = setup.batch or (1 if result.concurrency == 1 else None)
    metric = {"prompt": "prompt", "both": "prompt and tokens", "batch": "batch"}[result.kind]
    row = _but(start, metric=metric, measured_s=result.e2e_s, batch=batch)
    if not length or batch is None:
        return _but(row, why="not comparable: the file names no lengths or no batch (--batch, --prefill, --new-tokens)")
    if result.kind == "batch" and not steps:
        return _but(row, why="not comparable: the file does not say how many tokens it made (--new-tokens)")
    first = prefill_step(setup.model.arch, batch, length) if not depth else Step(batch, length, depth + length)
    prefill = _bound(setup, first)
    # A batch's prefill makes the first token; llama-bench's makes none that counts.
    steps = steps - 1 if result.kind == "batch" else steps
    time_s, binding = prefill.time_s, prefill.binding
    context = depth + length
    if steps > 0:
        time_s = time_s + _loop_s(setup, batch, context + 1, context + steps)
        context += (steps + 1) // 2
        binding = _bound(setup, decode_step(setup.model.arch, batch, context)).binding
    why = "prefill" if steps <= 0 else f"prefill and {steps} steps"
    return _but(row, bound_s=time_s, context_tokens=context, binding=binding, why=why)


def _decode_loop(setup: Setup, result: ServingResult, start: Row) -> Row:
    """The mean step of a loop of n at contexts d + 1 … d + n."""
    steps, depth = _tokens(result.output_tokens), _tokens(result.depth_tokens)
    context = depth + (steps + 1) // 2
    row = _but(start, metric="TPOT", measured_s=result.tpot_s, batch=1, context_tokens=context)
    binding = _bound(setup, decode_step(setup.model.arch, 1, context)).binding
    mean_s = _loop_s(setup, 1, depth + 1, depth + steps) / steps
    return _but(row, bound_s=mean_s, binding=binding, why=f"mean of {steps} steps, without a server")


def _loop_s(setup: Setup, batch: int, first: int, last: int) -> float:
    """The bounds of the decode steps from one context to another, summed [s]."""

    def step_s(context: int) -> float:
        return float(_bound(setup, decode_step(setup.model.arch, batch, context)).time_s)

    return sum_over(step_s, first, last)


# Receipts ---------------------------------------------------------------------------------------


@frozen
class Line:
    """One figure of an engine's log beside ours. unit: byte, token, byte/token or seq. agrees: None where
    they need not. predicted, told: None where not known.
    """

    name: str
    unit: str
    predicted: float | None
    told: float | None
    agrees: bool | None = None
    why: str = ""


def differs(model: Model) -> bool:
    """Whether layers keep unequal amounts of a token: windows, state that does not grow, or narrower layers."""
    sizes = {(cache.bytes_per_token, cache.window) for cache, _ in model.caches if cache.bytes_per_token}
    return len(sizes) > 1 or any(cache.window or cache.fixed_bytes for cache, _ in model.caches)


def receipt_lines(setup: Setup, receipt: Receipt) -> list[Line]:
    """What the engine told beside the capacity that is predicted, and beside what its own memory should hold."""
    model, room, tp = setup.model, setup.room, receipt.tp or setup.tp
    lines = [
        Line("weights", "byte", room.weights_bytes, receipt.weights_bytes, None, "resident, on one device"),
        Line("KV memory", "byte", max(room.budget_bytes, 0), receipt.kv_bytes, None, "on one device"),
        Line("KV tokens", "token", room.max_tokens(), receipt.kv_tokens, None, "predicted as a paged engine reserves"),
    ]
    reserved = reserved_bytes_per_token(model.caches, tp)
    growing = kv_bytes_per_token(model.caches, tp)
    told = receipt.kv_bytes / receipt.kv_tokens if receipt.kv_bytes and receipt.kv_tokens else None
    if receipt.window_tokens is None:
        held = receipt.kv_bytes / reserved if receipt.kv_bytes and reserved else None
        lines += [
            Line("KV a token, reserved", "byte/token", reserved, told, _agrees(receipt, told, reserved), _trap(model)),
            Line("KV a token, growing", "byte/token", growing, told, None, "every layer its own size"),
            Line("tokens in the told memory", "token", held, receipt.kv_tokens, None, "at the reserved size"),
        ]
    else:
        lines.append(_pools(setup, receipt, tp))
    if receipt.max_len and receipt.kv_bytes:
        each = state_bytes(model.caches, receipt.max_len, tp)
        most = receipt.kv_bytes / each if each else None
        why = f"of {receipt.max_len:,} tokens in the told memory, windows counted"
        lines.append(Line("longest requests at once", "seq", most, receipt.max_requests, None, why))
    return lines


def _trap(model: Model) -> str:
    if differs(model):
        return "layers differ: no size of a token where the engine counts windows"
    return "all layers alike: told is memory / tokens"


def _agrees(receipt: Receipt, told: float | None, predicted: float) -> bool | None:
    """Whether the told size is the predicted one, but for rounding of the print and one block of tokens."""
    if told is None or not receipt.kv_bytes or not receipt.kv_tokens:
        return None
    loose = receipt.kv_rounding_bytes / receipt.kv_bytes + (receipt.block_tokens or 16) / receipt.kv_tokens + TOLERANCE
    return abs(told - predicted) <= loose * predicted


def _pools(setup: Setup, receipt: Receipt, tp: int) -> Line:
    """Window layers and full layers in pools of their own: the memory of both."""
    assert receipt.window_tokens is not None
    caches = setup.model.caches
    full = kv_bytes_per_token([pair for pair in caches if pair[0].window is None], tp) * (receipt.kv_tokens or 0)
    window = kv_bytes_per_token([pair for pair in caches if pair[0].window is not None], tp) * receipt.window_tokens
    agrees = None
    if receipt.kv_bytes:
        loose = receipt.kv_rounding_bytes / receipt.kv_bytes + TOLERANCE
        agrees = abs(full + window - receipt.kv_bytes) <= loose * receipt.kv_bytes
    why = f"{receipt.kv_tokens or 0:,} tokens in full layers, {receipt.window_tokens:,} in window layers"
    return Line("memory of both pools", "byte", full + window, receipt.kv_bytes, agrees, why)
