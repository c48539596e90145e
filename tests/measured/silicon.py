"""Kernels that others measured (shared/measured/silicon), each as one of gambrel's operators with its bound."""

from __future__ import annotations

from functools import lru_cache

from rows import Row, device, records, size_class

from gambrel import Step
from gambrel.cost.roofline import demand, numerics_for, op_bound, step_bound
from gambrel.model.experts import MixtureOfExperts
from gambrel.model.parts import Attention, Linear
from gambrel.model.precision import BF16, FORMATS
from gambrel.types import Format, Numerics

DEVICES = {"a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200"}
NAMES = {"a100_sxm": "A100 SXM 80 GB", "h100_sxm": "H100 SXM", "h200_sxm": "H200 SXM", "b200_sxm": "B200 SXM"}

#: How each dtype of the files is stored and multiplied. Weight-only formats multiply in bf16; a whole column or group
#: shares one 16-bit scale, which is the least that such kernels read.
WEIGHTS = {
    "bfloat16": BF16,
    "float16": FORMATS["fp16"],
    "fp8": FORMATS["fp8"],
    "fp8_block": Format("fp8", 8, "fp8", (128, 128), 32),
    "nvfp4": FORMATS["nvfp4"],
    "sq": FORMATS["int8"],
    "int8_wo": Format("int8", 8, "bf16", (10**9, 1), 16),
    "int4_wo": Format("int4", 4, "bf16", (128, 1), 16),
}
KINDS = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8"}
HALF = ("bf16", "fp16", "fp8")
PLAIN = Numerics(BF16, BF16, "bf16")
M_LIMITS = (16, 256, 4096)
KV_LIMITS = (16_384, 262_144)

A100_DECODE = "decode attention of TensorRT-LLM 1.0.0 on A100"
H100_INT8 = "int8 weight-only GEMM on H100 above peak FLOP/s"

#: Experts without a gate (squared ReLU, two matrices), by experts per token and inner width: the Nemotron 3 models.
UNGATED = {(6, 1856), (22, 2688)}


def _read(folder, kind):
    for path in sorted(folder.glob(f"{kind}_*.csv")):
        for r in records(path):
            yield r, NAMES[r["system"]], device(DEVICES[r["system"]]), float(r["latency_ms"]) / 1000


def _whole(r, *names):
    return [int(r[name]) for name in names]


def _engine(r):
    return f"{r['framework']} {r['version']} {r['kernel_source'].rsplit('/', 1)[-1]}"


def gemm_rows(folder):
    """Every GEMM [m, k] x [k, n]: Linear's operator."""
    return [_gemm(*found) for found in _read(folder, "gemm")]


def _gemm(r, gpu, dev, measured_s):
    m, n, k = _whole(r, "m", "n", "k")
    dtype = r["gemm_dtype"]
    op = Linear("gemm", "mlp", k, n, WEIGHTS[dtype]).op(m, PLAIN)
    bound = op_bound(op, dev)
    impossible = r["system"] == "h100_sxm" and dtype == "int8_wo" and bound.limits_s["compute"] > measured_s
    return Row(
        gpu,
        f"GEMM {KINDS.get(dtype, dtype)}",
        size_class(m, M_LIMITS, "m"),
        f"{dtype} m {m}, n {n}, k {k}, {_engine(r)}",
        measured_s,
        bound.time_s,
        bound.binding,
        H100_INT8 if impossible else "",
        _fits(op, dev),
    )


def _fits(op, dev):
    return op.cost.weight_bytes + op.cost.kv_bytes + op.cost.act_bytes <= (dev.l2_bytes or 0)


@lru_cache(None)
def _numerics(kv_dtype, system):
    kv = WEIGHTS[kv_dtype]
    return numerics_for(Numerics(BF16, kv, "fp8" if kv.name == "fp8" else "bf16"), device(DEVICES[system]))


@lru_cache(None)
def _attention(n_heads, n_kv_heads, width, window):
    none = Linear("none", "attention", 1, 1, BF16)
    return Attention((), none, n_heads, n_kv_heads, width, width, BF16, window=window or None)


def prefill_rows(folder):
    """Attention of `isl` new tokens after `step` cached ones, causal."""
    return [_attend("prefill attention", *found) for found in _read(folder, "context_attention")]


def decode_rows(folder):
    """Attention of one new token over `step` cached ones and itself."""
    return [_attend("decode attention", *found) for found in _read(folder, "generation_attention")]


def _attend(kind, r, gpu, dev, measured_s):
    batch, new, cached = _whole(r, "batch_size", "isl", "step")
    heads, kv_heads, width, window = _whole(r, "num_heads", "num_key_value_heads", "head_dim", "window_size")
    part = _attention(heads, kv_heads, width, window)
    op = part.kernel(Step(batch, new, new + cached), _numerics(r["kv_cache_dtype"], r["system"]))
    bound = op_bound(op, dev)
    bad = kind == "decode attention" and (r["system"], r["framework"], r["version"]) == ("a100_sxm", "TRTLLM", "1.0.0")
    return Row(
        gpu,
        f"{kind}, {KINDS[r['kv_cache_dtype']]} KV",
        size_class(batch * (new + cached), KV_LIMITS),
        f"batch {batch}, {new} new, {cached} cached, {heads} heads, {kv_heads} KV heads, "
        f"{KINDS[r['attn_dtype']]} attention, {_engine(r)}",
        measured_s,
        bound.time_s,
        bound.binding,
        A100_DECODE if bad else "",
        _fits(op, dev),
    )


def moe_rows(folder):
    """The experts' products of a fused MoE layer on one device, activations left out.

    tp divides the inner width. ep divides the experts, and of m·k token-expert pairs m·k/ep arrive, at least one:
    k/ep experts per token. Bound: all tokens agree on the same experts.
    """
    return [_moe(*found) for found in _read(folder, "moe")]


def _moe(r, gpu, dev, measured_s):
    tokens, hidden, inner, top_k, experts, tp, ep = _whole(
        r, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"
    )
    layer = _experts(hidden, inner, top_k, experts, tp, ep, r["moe_dtype"], tokens)
    need = demand(op for op in layer.ops(Step(tokens), PLAIN) if op.name in ("in_proj", "out_proj"))
    bound = step_bound(need, dev)
    return Row(
        gpu,
        f"MoE {KINDS.get(r['moe_dtype'], r['moe_dtype'])}",
        size_class(tokens, M_LIMITS, "m"),
        f"{r['moe_dtype']} m {tokens}, hidden {hidden}, inner {inner}, top {top_k} of {experts}, tp {tp}, ep {ep}, "
        f"{r['distribution']}, {_engine(r)}",
        measured_s,
        bound.time_s,
        bound.binding,
        expected_s=step_bound(need, dev, expected=True).time_s,
    )


@lru_cache(None)
def _experts(hidden, inner, top_k, experts, tp, ep, dtype, tokens):
    gated = (top_k, inner) not in UNGATED
    width, form = inner // tp, WEIGHTS[dtype]
    into = Linear("in_proj", "experts", hidden, width * (2 if gated else 1), form)
    out = Linear("out_proj", "experts", width, hidden, form)
    router = Linear("router", "router", hidden, experts, BF16)
    arriving = max(top_k / ep, 1 / tokens)
    return MixtureOfExperts(router, (into,), out, width, gated, experts // ep, arriving)


READERS = {"GEMM": gemm_rows, "prefill attention": prefill_rows, "decode attention": decode_rows, "MoE": moe_rows}
