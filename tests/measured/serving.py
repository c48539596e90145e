"""Served models that others measured (shared/measured/serve_*.csv, shared/cases.md), each with gambrel's bound."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from rows import Row, device, pooled, records

from gambrel import Step, load_model
from gambrel.cost.report import step_ops
from gambrel.cost.request import sum_over
from gambrel.cost.roofline import demand, step_bound

UNKNOWN_MODEL = "model not bundled"
UNKNOWN_DEVICE = "device not in the catalogue"
STOPPED = "faster than the same set-up asked for a quarter of the tokens: the output was not generated"

model = lru_cache(None)(load_model)


@dataclass(frozen=True)
class Place:
    """hardware: catalogue name. pool: how many such devices count as one. tp: over how many the model is split."""

    hardware: str
    pool: int = 1
    tp: int = 1

    @property
    def device(self):
        """The device that the bound is for."""
        return pooled(self.hardware, self.pool)


@lru_cache(None)
def step_s(name, dtypes, place, batch, new, context):
    """The least bound of one step [s]; dtypes: of weights, cache and products, None as in the config."""
    # step_ops and not Model.bound: engines also split by other means than tensor parallelism, over any number.
    ops = step_ops(model(name, *dtypes), place.device, Step(batch, new, context), place.tp)
    return step_bound(demand(ops), place.device).time_s


@lru_cache(None)
def request_s(name, dtypes, place, batch, prompt, new):
    """A whole batch of equal requests: the prefill, which makes the first token, and new - 1 decode steps [s].

    All at once is the least work, so this is a bound also for an engine that had to run them in turns.
    """
    decode = lambda context: step_s(name, dtypes, place, batch, 1, context)
    return step_s(name, dtypes, place, batch, prompt, prompt) + sum_over(decode, prompt + 1, prompt + new - 1)


@lru_cache(None)
def token_s(name, dtypes, place, prompt, new):
    """Of one output token at the highest throughput that the memory allows [s]; None where the model does not fit.

    Requests keep prompt + new/2 tokens on average, which caps the running batch (whole memory, no reserve). Prefills
    overlap with decode steps: only their FLOPs are counted, and every decode step reads the weights.
    """
    m, dev = model(name, *dtypes), place.device
    fits = m.capacity(dev, utilization=1, reserve_bytes=0).max_batch(prompt + new // 2)
    if not fits:
        return None
    batch = fits + 1
    limit = lambda resource: lambda context: m.bound(Step(batch, 1, context), dev).limits_s[resource]
    prefill = m.bound(Step(batch, prompt, prompt), dev).limits_s["compute"]
    compute = prefill + sum_over(limit("compute"), prompt + 1, prompt + new - 1)
    memory = sum_over(limit("memory"), prompt + 1, prompt + new - 1)
    return max(compute, memory) / (batch * new)


# LLM-Inference-Bench ---------------------------------------------------------------------------

#: Where the variant is not named, the fastest in the catalogue.
BENCH_DEVICES = {
    "Nvidia A100 GPU": "a100-sxm-80gb",
    "Nvidia H100 GPU": "h100-sxm",
    "Nvidia GH200 GPU": "gh200",
    "AMD MI250 GPU": "mi250x",
    "AMD MI300X GPU": "mi300x",
    "Habana Gaudi2": "gaudi-2",
}
#: huggyllama/llama-7b has the shapes of Llama-2-7B, Qwen2-72B those of Qwen2.5-72B.
BENCH_MODELS = {
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "huggyllama/llama-7b": "llama-2-7b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b-v0.1",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Qwen/Qwen2-7B": "qwen2-7b",
    "Qwen/Qwen2-72B": "qwen2.5-72b",
}
SETUP = ("Hardware", "Num of Hardware", "Framework", "Model", "Batch Size")


def bench_rows(measured):
    """Latency of a batch with as many tokens out as in, in 16 bit, TP over the devices named.

    How many sequences ran follows from the row's own throughput, sequences · (in + out) / latency: in llama.cpp's rows
    it is one, their "batch size" being how many prompt tokens are processed at a time. llama.cpp splits by layers, so
    there the devices are pooled.
    """
    found = list(records(measured / "serve_llm_inference_bench.csv"))
    quickest = {}
    for r in found:
        lengths = quickest.setdefault(tuple(r[key] for key in SETUP), {})
        length = int(r["Input Output Length"])
        lengths[length] = min(float(r["Latency"]), lengths.get(length, float("inf")))
    return [_bench(r, quickest[tuple(r[key] for key in SETUP)]) for r in found]


def _bench(r, quickest):
    n, length, measured_s = int(r["Num of Hardware"]), int(r["Input Output Length"]), float(r["Latency"])
    sequences = round(float(r["Throughput"]) * measured_s / (2 * length))
    text = f"{r['Model']}, {r['Framework']}, on {n}, {sequences} x {length}/{length}, {measured_s:.4g} s"
    row = Row(r["Hardware"], "request latency", r["Framework"], text, measured_s)
    hardware, name = BENCH_DEVICES.get(r["Hardware"]), BENCH_MODELS.get(r["Model"])
    if name is None or hardware is None:
        return _aside(row, UNKNOWN_MODEL if name is None else UNKNOWN_DEVICE)
    if any(4 * other <= length and measured_s < latency for other, latency in quickest.items()):
        return _aside(row, STOPPED)
    split = r["Framework"] != "llama.cpp"
    place = Place(hardware, tp=n) if split else Place(hardware, pool=n)
    return _with(row, request_s(name, ("bf16", None, None), place, sequences, length, length))


def _aside(row, rule):
    return Row(row.gpu, row.kind, row.size, row.text, row.measured_s, aside=rule)


def _with(row, bound_s):
    return Row(row.gpu, row.kind, row.size, row.text, row.measured_s, bound_s)


# TensorRT-LLM's performance overview -----------------------------------------------------------

TRTLLM_DEVICES = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100": "h100-sxm",
    "H200": "h200",
    "B200": "b200",
    "GB200": "gb200",
    "GH200-480GB": "gh200-96gb",
    "L40S": "l40s",
}
TRTLLM_MODELS = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "Mistral-7B": "mistral-7b-v0.1",
    "Mixtral-8x7B": "mixtral-8x7b",
    "Mixtral-8x22B": "mixtral-8x22b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
}
#: Weights and cache: the fewest bytes that the precision can mean.
PRECISIONS = {
    "FP16": ("fp16", None, None),
    "BF16": ("bf16", None, None),
    "FP8": ("fp8", "fp8", None),
    "FP4": ("nvfp4", "fp8", None),
}


def trtllm_rows(measured):
    """Throughput at full load (as time of one token), and mean TTFT and ITL at a request rate; devices pooled."""
    return [_trtllm(r) for r in records(measured / "serve_trtllm.csv")]


def _trtllm(r):
    prompt, new, n, value = int(r["input_len"]), int(r["output_len"]), int(r["gpus"]), float(r["value"])
    throughput = r["unit"].startswith("tokens/s")
    kind = "throughput at full load" if throughput else r["metric"].removeprefix("mean_")
    text = f"{r['model']} {r['precision']}, on {n}, {prompt}/{new}, {r['batch_or_concurrency']}, {value:g}"
    row = Row(r["gpu"], kind, "TensorRT-LLM", text, 1 / value if throughput else value / 1000)
    name = TRTLLM_MODELS.get(r["model"])
    if name is None:
        return _aside(row, UNKNOWN_MODEL)
    dtypes, place = PRECISIONS[r["precision"]], Place(TRTLLM_DEVICES[r["gpu"]], pool=n)
    if throughput:
        return _with(row, token_s(name, dtypes, place, prompt, new))
    step = (prompt, prompt) if kind == "TTFT" else (1, prompt + 1)
    return _with(row, step_s(name, dtypes, place, 1, *step))


# aiconfigurator's silicon sample ---------------------------------------------------------------

SAMPLE_DEVICES = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
}
SAMPLE_MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
}


def sample_rows(measured):
    """TTFT of a prompt alone on the prefill worker, TPOT of the running batch on the decode worker; devices pooled.

    The running batch follows by Little's law from the concurrency where one worker served it all and the cache of all
    requests fits; elsewhere (several workers, or an unstated number) it is taken as 1.
    """
    return [row for r in records(measured / "serve_silicon_sample.csv") for row in _sample(r)]


def _devices(r, phase):
    whole = lambda name: int(r[f"{phase}{name}"] or 1)
    attention = whole("tp_size") * whole("attention_dp_size")
    return whole("pp_size") * max(attention, whole("moe_tp_size") * whole("moe_ep_size"))


def _sample(r):
    ttft_s, tpot_s = float(r["silicon_ttft_ms"]) / 1000, float(r["silicon_tpot_ms"]) / 1000
    engine = f"{r['backend']} {r['mode']}"
    first = Row(r["system"], "TTFT", engine, r["id"], ttft_s)
    each = Row(r["system"], "TPOT", engine, r["id"], tpot_s)
    name = SAMPLE_MODELS.get(r["model_path"])
    if name is None:
        return _aside(first, UNKNOWN_MODEL), _aside(each, UNKNOWN_MODEL)
    split = r["mode"] == "disagg"
    prompt, new, hardware = int(r["isl"]), int(r["osl"]), SAMPLE_DEVICES[r["system"]]
    prefill = Place(hardware, pool=_devices(r, "prefill_" if split else ""))
    decode = Place(hardware, pool=_devices(r, "decode_" if split else ""))
    dtypes = _sample_dtypes(name, r["precision"], device(hardware))
    running = 1 if split else _running(r, name, dtypes, decode, prompt, new, ttft_s, tpot_s)
    context = prompt + (1 if running == 1 else new // 2)
    return (
        _with(first, step_s(name, dtypes, prefill, 1, prompt, prompt)),
        _with(each, step_s(name, dtypes, decode, running, 1, context)),
    )


def _sample_dtypes(name, precision, dev):
    """The fewest bytes and the fastest products that the precision can mean; an unstated one is taken as fp8."""
    if name == "gpt-oss-120b":
        return None, "fp8", "fp4" if "fp4" in dev.peak_flops_per_s else "fp8"
    if precision == "bf16":
        return "bf16", None, None
    return ("nvfp4" if precision == "fp4" else "fp8"), "fp8", None


def _running(r, name, dtypes, place, prompt, new, ttft_s, tpot_s):
    stated = re.search(r"silicon_concurrency=(\d+)", r["silicon_data_source"])
    requests = int(stated[1]) if stated else 1
    room = model(name, *dtypes).capacity(place.device, utilization=1, reserve_bytes=0)
    if room.max_batch(prompt + new) < requests:
        return 1
    decoding_s = (new - 1) * tpot_s
    return max(requests * decoding_s / (ttft_s + decoding_s), 1)


READERS = {
    "LLM-Inference-Bench": bench_rows,
    "TensorRT-LLM overview": trtllm_rows,
    "aiconfigurator silicon sample": sample_rows,
}


# Single cases (shared/cases.md) ----------------------------------------------------------------


def case_rows():
    """LLaMA-7B (the shapes of Llama-2-7B) in fp16 with TensorRT-LLM on one A100."""
    place, dtypes = Place("a100-sxm-80gb"), ("fp16", None, None)
    cases = [(256, 128, 128, 5353), (16, 2048, 2048, 613)]
    rows = []
    for batch, prompt, new, tokens_per_s in cases:
        bound = request_s("llama-2-7b", dtypes, place, batch, prompt, new)
        text = f"LLaMA-7B, batch {batch}, {prompt}/{new}, {tokens_per_s:,} token/s"
        rows.append(Row("A100 SXM 80 GB", "whole batch", "TensorRT-LLM", text, batch * new / tokens_per_s, bound))
    first = step_s("llama-2-7b", dtypes, place, 1, 2048, 2048)
    text = "LLaMA-7B, first token of a 2,048 prompt, 120.5 ms"
    return [*rows, Row("A100 SXM 80 GB", "TTFT", "TensorRT-LLM", text, 0.1205, first)]
