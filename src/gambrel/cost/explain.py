"""Every number of a report explained: its formula, the formula with the numbers put in, and its source."""

from __future__ import annotations

from gambrel.cost.capacity import RESERVE_SOURCE
from gambrel.cost.report import step_ops
from gambrel.cost.roofline import demand
from gambrel.cost.workload import decode_step
from gambrel.types import GambrelError
from gambrel.units import count, duration, gigabytes, si, significant
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gambrel.cost.report import Report

ROOFLINE = "Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785"
TRANSFORMER = "Vaswani et al. 2017, arXiv:1706.03762; a multiply-add is 2 FLOPs"


@frozen
class Explanation:
    """A key, what it means, its formula, the numbers put in, and where the formula or the number comes from."""

    key: str
    meaning: str
    formula: str
    numbers: str
    source: str

    def __str__(self) -> str:
        rows = (("", self.meaning), ("formula", self.formula), ("here", self.numbers), ("source", self.source))
        return "\n".join([self.key, *(f"  {name:<9}{text}" if name else f"  {text}" for name, text in rows)])


def explain(key: str, report: Report) -> Explanation:
    """Explain one key, for the first decode (or prefill) row. Raises GambrelError that lists the keys."""
    if key not in EXPLANATIONS:
        raise GambrelError(f"--explain {key}: accepted is {', '.join(EXPLANATIONS)}")
    meaning, formula, numbers, source = EXPLANATIONS[key]
    return Explanation(key, meaning, formula, numbers(report), source(report) if callable(source) else source)


def _params_total(r: Report) -> str:
    groups = " + ".join(f"{count(n)} {name}" for name, n in r.model.params_by_group.items())
    return f"{groups} = {count(r.model.params_total)}"


def _params_gemm(r: Report) -> str:
    parts: dict[str, int] = {}
    for t in r.model.tensors:
        if t.gemm and t.streamed:
            group = "head" if t.group == "embedding" else t.group
            parts[group] = parts.get(group, 0) + t.params * t.copies
    return f"{' + '.join(f'{count(n)} {name}' for name, n in parts.items())} = {count(r.model.params_gemm)}"


def _params_active(r: Report) -> str:
    experts = r.model.arch.experts
    if experts is None:
        return f"no experts: all {count(r.model.params_total)}"
    routed = r.model.params_by_group["experts"]
    return (
        f"{count(r.model.params_total)} - {count(routed)} x (1 - {experts.top_k}/{experts.n_experts}) "
        f"= {count(r.model.params_active)}"
    )


def _resident(r: Report) -> str:
    bits = 8 * r.model.weight_bytes() / r.model.params_total
    return f"{count(r.model.params_total)} x {bits / 8:.5g} byte = {gigabytes(r.model.weight_bytes())}"


def _streamed(r: Report) -> str:
    whole, read = r.model.weight_bytes(), r.model.weight_bytes(streamed_only=True)
    return f"{gigabytes(whole)} - {gigabytes(whole - read)} = {gigabytes(read)}"


def _kv_per_token(r: Report) -> str:
    terms = [f"{layers} x {significant(c.bytes_per_token, 4)} B" for c, layers in r.model.caches]
    return f"{' + '.join(terms)} = {count(r.model.kv_bytes_per_token)} B ({r.model.numerics.kv.name})"


def _ridge(r: Report) -> str:
    c, d = r.crossover, r.device
    peak, rate = si(d.peak(c.dtype), "FLOP/s"), si(d.mem_bytes_per_s, "B/s")
    return f"{peak} ({c.dtype}) / {rate} = {significant(c.ridge_flop_per_byte)} FLOP/byte"


def _device_source(key: str) -> Callable[[Report], str]:
    def source(r: Report) -> str:
        figure = r.device.figures.get(key if "." in key else f"peak_flops_per_s.{r.crossover.dtype}")
        origin = r.device.sources.get(figure.source, {}) if figure else {}
        told = ", ".join(str(origin[k]) for k in ("title", "url", "date") if k in origin) or "your own figure"
        return f"{ROOFLINE}; peak: {told}" if "." not in key else told

    return source


def _flops(r: Report) -> str:
    row = r.decode[0]
    return f"batch {count(row.batch)}, context {count(row.context_tokens)}: {si(row.flops, 'FLOP', 5)}"


def _kv_read(r: Report) -> str:
    row = r.decode[0]
    each = row.kv_bytes / row.batch
    return f"{count(row.batch)} x {gigabytes(each)} at {count(row.context_tokens)} tokens = {gigabytes(row.kv_bytes)}"


def _memory(r: Report) -> str:
    row, rate = r.decode[0], si(r.device.mem_bytes_per_s, "B/s")
    written = si(row.kv_write_bytes, "B")
    return (
        f"({gigabytes(row.weight_bytes)} weights + {gigabytes(row.kv_bytes)} KV read + {written} written) / {rate} "
        f"= {duration(row.memory_s)}"
    )


def _compute(r: Report) -> str:
    row = r.decode[0]
    step = decode_step(r.model.arch, row.batch, row.context_tokens, r.options.beside)
    need = demand(step_ops(r.model, r.device, step, r.options.tp))
    terms = [f"{si(f, 'FLOP', 4)} / {si(r.device.peak(d), 'FLOP/s')} {d}" for d, f in need.flops_by_dtype.items()]
    return f"{' + '.join(terms)} = {duration(row.compute_s)}"


def _bound(r: Report) -> str:
    row = r.decode[0]
    return f"max({duration(row.compute_s)} compute, {duration(row.memory_s)} memory) = {duration(row.bound_s)}"


def _expected(r: Report) -> str:
    row, experts = r.decode[0], r.model.arch.experts
    if experts is None:
        return f"no experts: equal to bound_s, {duration(row.bound_s)}"
    k, e = experts.top_k, experts.n_experts
    hit = e * (1 - (1 - k / e) ** row.batch)
    return (
        f"{e} x (1 - (1 - {k}/{e})^{row.batch}) = {hit:.4g} experts a layer; "
        f"{gigabytes(row.expected_weight_bytes)} of weights; {duration(row.expected_bound_s)}"
    )


def _tokens(r: Report) -> str:
    row = r.decode[0]
    return f"{count(row.batch)} / {duration(row.bound_s)} = {significant(row.tokens_per_s, 4)} token/s"


def _fits(r: Report) -> str:
    row, room = r.decode[0], r.capacity
    need = row.batch * room.sequence_bytes(row.context_tokens)
    verdict = "fits" if row.fits else f"{gigabytes(row.missing_bytes)} short"
    return f"{gigabytes(need)} of KV against {gigabytes(room.budget_bytes)}: {verdict}"


def _budget(r: Report) -> str:
    room = r.capacity
    if room.stated_budget_bytes is not None:
        return f"{gigabytes(room.budget_bytes)}, as stated"
    return (
        f"{gigabytes(room.usable_bytes)} x {room.utilization:g} - {gigabytes(room.weights_bytes)} weights "
        f"- {gigabytes(room.reserve_bytes)} reserve = {gigabytes(room.budget_bytes)}"
    )


def _max_batch(r: Report) -> str:
    room, context = r.capacity, r.options.contexts[0]
    each = gigabytes(room.sequence_bytes(context))
    return f"{gigabytes(room.budget_bytes)} / {each} at {count(context)} tokens = {count(room.max_batch(context))}"


def _crossing(r: Report) -> str:
    c = r.crossover
    by_time = significant(c.resident_batch, 4)
    return f"{significant(c.weights_batch, 4)} sequences (by time with all resident bytes: {by_time})"


def _limit(r: Report) -> str:
    c = r.crossover
    return f"at {count(c.context_tokens)} tokens: {significant(c.intensity_limit, 4)} FLOP/byte"


def _estimate(r: Report) -> str:
    if not r.prefill:
        return "no prefill asked for"
    row = r.prefill[0]
    return f"{duration(row.compute_s)} / {row.efficiency:g} = {duration(row.estimate_s)}"


def _operators(r: Report) -> str:
    return f"{duration(r.decode[0].operators_s)} against a step bound of {duration(r.decode[0].bound_s)}"


def _intensity(r: Report) -> str:
    row = r.decode[0]
    moved = row.weight_bytes + row.kv_bytes + row.kv_write_bytes
    return f"{si(row.flops, 'FLOP', 4)} / {gigabytes(moved)} = {significant(row.intensity_flop_per_byte)} FLOP/byte"


def _attention_flops(r: Report) -> str:
    context = r.options.contexts[0]
    return f"{si(r.model.flops_per_token(context)['attention'], 'FLOP', 4)} a token at {count(context)} tokens"


MOE = "independent uniform routing: each of m tokens misses a given expert with probability 1 - k/E"

EXPLANATIONS: dict[str, tuple[str, str, Callable[[Report], str], str | Callable[[Report], str]]] = {
    "params_total": ("All parameters, tied ones once.", "Σ over weight tensors", _params_total, "the config's shapes"),
    "params_gemm": (
        "Parameters in matrix products: all layer matrices and the output head, once.",
        "Σ over matrices that a text token is multiplied by",
        _params_gemm,
        TRANSFORMER,
    ),
    "params_active": (
        "Parameters that one token uses; embeddings and head stay in.",
        "total - routed experts x (1 - k/E)",
        _params_active,
        "the config's shapes; publishers differ in what they leave out",
    ),
    "weight_bytes_resident": (
        "What lies in memory.",
        "Σ parameters x stored bytes, scales included",
        _resident,
        "the config's dtypes",
    ),
    "weight_bytes_streamed": (
        "What one step reads.",
        "resident - tables that are gathered (untied embedding, positions) - towers",
        _streamed,
        "a gather reads one row per token, not the table",
    ),
    "kv_bytes_per_token": (
        "Cache of one token, every layer counted as growing.",
        "Σ layers x n_kv x (d_k + d_v) x bytes; MLA: (latent + rope) x bytes",
        _kv_per_token,
        "Ainslie et al. 2023 (GQA), arXiv:2305.13245; DeepSeek-V2 (MLA), arXiv:2405.04434",
    ),
    "ridge_flop_per_byte": ("Where bandwidth stops limiting.", "peak / bandwidth", _ridge, _device_source("peak")),
    "mem_bytes_per_s": (
        "Datasheet bandwidth.",
        "as published",
        lambda r: si(r.device.mem_bytes_per_s, "B/s"),
        _device_source("memory.bandwidth_bytes_per_s"),
    ),
    "flops": (
        "Matrix and attention FLOPs of a step; norms, softmax, activations neglected.",
        "2 x rows x matrices + 2 x heads x (d_qk + d_v) x scores",
        _flops,
        TRANSFORMER,
    ),
    "attention_flops": (
        "Attention over the context.",
        "Σ layers 2 x heads x (d_qk + d_v) x min(s, W)",
        _attention_flops,
        TRANSFORMER,
    ),
    "kv_bytes": ("Cache that a step reads.", "batch x Σ layers min(s, W) x bytes per token", _kv_read, TRANSFORMER),
    "intensity_flop_per_byte": (
        "Work per byte moved.",
        "FLOPs / (weights + KV read + KV written)",
        _intensity,
        ROOFLINE,
    ),
    "memory_s": ("Time to move the bytes once.", "(weights + KV read + KV written) / bandwidth", _memory, ROOFLINE),
    "compute_s": ("Time to do the FLOPs at the dense peak.", "Σ FLOPs / peak of their dtype", _compute, ROOFLINE),
    "bound_s": ("No step is faster under these assumptions.", "max(compute_s, memory_s)", _bound, ROOFLINE),
    "expected_bound_s": (
        "The bound with the experts that uniform routing hits.",
        "E x (1 - (1 - k/E)^batch) experts read",
        _expected,
        MOE,
    ),
    "operators_s": (
        "The bound of operators run one after the other, none fused.",
        "Σ max(FLOPs/peak, (weights + KV + activations)/bandwidth)",
        _operators,
        ROOFLINE,
    ),
    "tokens_per_s": ("Most tokens a second at the bound.", "batch / bound_s", _tokens, ROOFLINE),
    "estimate_s": (
        "A prefill at a stated share of peak: an estimate, not a bound.",
        "compute_s / efficiency",
        _estimate,
        "the efficiency is yours to state, with --efficiency",
    ),
    "budget_bytes": (
        "What is left for KV.",
        "usable x utilization - weights - reserve",
        _budget,
        f"reserve: {RESERVE_SOURCE}",
    ),
    "fits": ("Whether weights, reserve and KV fit.", "batch x KV of a sequence <= budget_bytes", _fits, "budget_bytes"),
    "max_batch": ("Largest batch at this context.", "budget_bytes / KV of a sequence", _max_batch, "budget_bytes"),
    "weights_batch": (
        "Batch whose weight products meet the ridge.",
        "B x weight FLOPs / peak = weight bytes / bandwidth, experts as expected; dense: ridge x bytes per weight / 2",
        _crossing,
        ROOFLINE,
    ),
    "intensity_limit": (
        "Intensity as the batch grows without bound.",
        "FLOPs of a sequence / its KV bytes",
        _limit,
        ROOFLINE,
    ),
}
