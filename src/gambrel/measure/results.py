"""Result files of the benchmark tools that people use, told apart by their content.

Each tool measures by its own definitions. A reader maps them to ours, which are

    TTFT  = first token received - request sent                         [s]
    TPOT  = (last token - first token) / (n - 1), n output tokens        [s/token]
    ITL   = one gap between tokens                                       [s]

or says why a figure is not comparable. Where each format was read (names of the keys and how they are computed):

* `vllm bench serve`: vllm/benchmarks/serve.py, calculate_metrics and the result_json of main_async.
* `vllm bench latency`, `throughput`: vllm/benchmarks/latency.py and throughput.py, the dictionary "results".
* `sglang.bench_serving`: python/sglang/bench_serving.py, calculate_metrics and the result of benchmark.
* guidellm: src/guidellm/schemas/request_stats.py and src/guidellm/benchmark/schemas/generative/{metrics,report}.py.
* aiperf: src/aiperf/metrics/types/inter_token_latency_metric.py, docs/reference/json-export-schema.md; its JSON keeps
  the shape of genai-perf's.
* llama-bench: tools/llama-bench/README.md (JSON and JSONL) of ggml-org/llama.cpp.
* request records: requests.jsonl of casys-kaist/LLMServingSim, vLLM's own times of each request.

docs/measurements-of-others.md says the same for people.
"""

from __future__ import annotations

import json
from dataclasses import field, replace

from gambrel.measure.files import FileError, plain_text, read_text, shown
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

MILLI = 1e-3
#: No time, count or rate of a benchmark is larger; what is has a wrong unit or is hostile.
LARGEST = 1e15
NOT_STREAMED = "the tool wrote 0: the endpoint did not stream"
#: Seconds in the units that aiperf writes.
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


class ResultError(FileError):
    """A result file that cannot be used; the message names the file, the key and the value."""


@frozen
class ServingResult:
    """One run of a benchmark tool, in our units and by our definitions; None where the file does not say.

    kind: "serving" (requests over HTTP), "decode" (a bare loop of decode steps), "prompt" (a bare prefill), "both"
    (one after the other), "batch" (one batch from start to end, offline) or "total" (all requests, offline). notes:
    the tool's definitions and what they are mapped to. model_id: as told. concurrency: the limit that was set
    [seq]. in_flight: mean requests in the system, the waiting ones too [seq]. request_rate_per_s: None also for
    unlimited. input_tokens, output_tokens: means of one request [token]. depth_tokens: in the cache before the run
    [token]. requests, errors: counts. tokens_per_step: accepted tokens of one step, above 1 with speculative
    decoding. weights_bytes: of the model file [byte]. not_comparable: why, by figure. metadata: what else was told,
    without paths.
    """

    tool: str
    kind: str
    notes: tuple[str, ...]
    model_id: str | None = None
    concurrency: float | None = None
    in_flight: float | None = None
    request_rate_per_s: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    depth_tokens: float = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    output_tokens_per_s: float | None = None
    requests: int | None = None
    errors: int | None = None
    tokens_per_step: float = 1
    weights_bytes: float | None = None
    not_comparable: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            **vars(self),
            "notes": list(self.notes),
            "not_comparable": dict(self.not_comparable),
            "metadata": dict(self.metadata),
        }


# Reading values ---------------------------------------------------------------------------------


@frozen
class Record:
    """One JSON object of a file; every value is checked when it is read. place: path of keys before it."""

    file: str
    place: str
    data: Mapping[str, Any]

    def wrong(self, key: str, accepted: str) -> ResultError:
        """The error for a value: file, key, value and what is accepted."""
        return ResultError(f"{self.file}: {self.place}{key} is {shown(self.data.get(key))}; accepted is {accepted}")

    def number(self, key: str, scale: float = 1.0) -> float | None:
        """A number from 0, times `scale`; None for null or an absent key."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
            raise self.wrong(key, f"a number from 0 to {LARGEST:.0e}")
        return value * scale

    def need(self, key: str, scale: float = 1.0) -> float:
        """A number that must be there."""
        value = self.number(key, scale)
        if value is None:
            raise ResultError(f"{self.file}: {self.place}{key} is missing")
        return value

    def whole(self, key: str) -> int | None:
        """A whole number from 0; 3.0 is one."""
        value = self.number(key)
        if value is not None and value != int(value):
            raise self.wrong(key, "a whole number from 0")
        return None if value is None else int(value)

    def rate(self, key: str) -> float | None:
        """A rate that may be unlimited, which tools write as "inf", Infinity or null: None."""
        if self.data.get(key) in ("inf", float("inf")):
            return None
        return self.number(key)

    def text(self, key: str) -> str | None:
        """Text for people."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "text")
        return plain_text(value) if value else None

    def inside(self, key: str) -> Record:
        """The object below a key; an empty one for null or an absent key."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Record(self.file, f"{self.place}{key}.", value or {})

    def objects(self, key: str) -> list[Record]:
        """The objects of a list."""
        value = self.data.get(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(key, "a list with objects")
        for index, one in enumerate(value):
            if not isinstance(one, dict):
                raise Record(self.file, self.place, {f"{key}[{index}]": one}).wrong(f"{key}[{index}]", "an object")
        return [Record(self.file, f"{self.place}{key}[{index}].", one) for index, one in enumerate(value)]


def _metadata(record: Record, keys: Sequence[str]) -> dict[str, str]:
    """What a file says about its run, as text."""
    told = {key: record.data.get(key) for key in keys}
    return {key: plain_text(str(value)) for key, value in told.items() if isinstance(value, (str, int)) and value != ""}


def _streamed(result: ServingResult) -> ServingResult:
    """Times of 0 are none: tools write them where nothing was streamed."""
    names = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
    zero = [name for name in names if getattr(result, name) == 0]
    why = dict.fromkeys(zero, NOT_STREAMED)
    gone: dict[str, Any] = dict.fromkeys(zero)
    return replace(result, **gone, not_comparable={**why, **result.not_comparable})


def _mean(total: float | None, n: int | None) -> float | None:
    return total / n if total is not None and n else None


# vLLM and SGLang --------------------------------------------------------------------------------

TPOT_NOTE = "its TPOT is (latency - TTFT) / (output tokens - 1) of each request, then the mean: ours"
TTFT_NOTE = "its TTFT runs from sending the request to the first streamed chunk: ours, with the queue and the network"
CHUNK_NOTE = "its ITL is the gap between streamed chunks, which may hold several tokens"
CHUNKS = {"itl_s": "gaps between chunks, not tokens"}


def _streamed_benchmark(
    record: Record, tool: str, end: str, accepted: str, metadata: Sequence[str]
) -> list[ServingResult]:
    """What `vllm bench serve` and SGLang's descendant of it write alike; end, accepted: their own keys."""
    done = record.whole("completed")
    result = ServingResult(
        tool,
        "serving",
        (TPOT_NOTE, TTFT_NOTE, CHUNK_NOTE),
        record.text("model_id"),
        record.number("max_concurrency") or None,
        record.number("concurrency"),
        record.rate("request_rate"),
        _mean(record.number("total_input_tokens"), done),
        _mean(record.number("total_output_tokens"), done),
        ttft_s=record.number("mean_ttft_ms", MILLI),
        tpot_s=record.number("mean_tpot_ms", MILLI),
        itl_s=record.number("mean_itl_ms", MILLI),
        e2e_s=record.number(end, MILLI),
        output_tokens_per_s=record.number("output_throughput"),
        requests=done,
        errors=record.whole("failed"),
        tokens_per_step=max(record.number(accepted) or 1, 1),
        not_comparable=CHUNKS,
        metadata=_metadata(record, metadata),
    )
    return [_streamed(result)]


def _vllm_serve(record: Record) -> list[ServingResult]:
    """`vllm bench serve --save-result`; one object, or one a line with --append-result."""
    told = ("date", "backend", "label", "num_prompts", "burstiness")
    return _streamed_benchmark(record, "vllm bench serve", "mean_e2el_ms", "spec_decode_acceptance_length", told)


def _sglang(record: Record) -> list[ServingResult]:
    """`python -m sglang.bench_serving`; one object a line."""
    told = ("backend", "dataset_name", "random_input_len", "random_output_len")
    return _streamed_benchmark(record, "sglang.bench_serving", "mean_e2e_latency_ms", "accept_length", told)


def _vllm_latency(record: Record) -> list[ServingResult]:
    """`vllm bench latency --output-json`: a whole batch from start to end; the file names neither batch nor lengths."""
    latencies = record.data.get("latencies")
    if not isinstance(latencies, list) or not latencies:
        raise record.wrong("latencies", "a list of times in s")
    for index, _ in enumerate(latencies):
        Record(record.file, record.place, {f"latencies[{index}]": latencies[index]}).need(f"latencies[{index}]")
    notes = ("it times one batch from start to end, prefill and every decode step, without a server",)
    why = dict.fromkeys(("ttft_s", "tpot_s"), "one time for the whole batch")
    result = ServingResult("vllm bench latency", "batch", notes, e2e_s=record.need("avg_latency"), not_comparable=why)
    return [replace(result, requests=len(latencies))]


def _vllm_throughput(record: Record) -> list[ServingResult]:
    """`vllm bench throughput --output-json`: many requests at once; the file names no lengths."""
    notes = ("its tokens_per_second counts the tokens of the prompts too",)
    why = {
        "ttft_s": "one time for all requests",
        "tpot_s": "one time for all requests",
        "output_tokens_per_s": "prompt tokens are counted too and the lengths are not told",
    }
    told = _metadata(record, ("total_num_tokens",))
    result = ServingResult("vllm bench throughput", "total", notes, not_comparable=why, metadata=told)
    return [replace(result, requests=record.whole("num_requests"), e2e_s=record.need("elapsed_time"))]


# aiperf -----------------------------------------------------------------------------------------


def _aiperf(record: Record) -> list[ServingResult]:
    """profile_export_aiperf.json, or genai-perf's profile_export_genai_perf.json: a block of statistics a metric."""
    limit, rate = _aiperf_load(record.inside("input_config"))
    per_user = "its ITL is (request latency - TTFT) / (output tokens - 1): our TPOT, not our ITL"
    chunk = _block(record, "inter_chunk_latency", timed=True)
    result = ServingResult(
        "aiperf" if "aiperf_version" in record.data else "aiperf or genai-perf",
        "serving",
        (per_user, TTFT_NOTE),
        _aiperf_model(record.inside("input_config")),
        limit,
        None,
        rate,
        _block(record, "input_sequence_length"),
        _block(record, "output_sequence_length"),
        ttft_s=_block(record, "time_to_first_token", timed=True),
        tpot_s=_block(record, "inter_token_latency", timed=True),
        itl_s=chunk,
        e2e_s=_block(record, "request_latency", timed=True),
        output_tokens_per_s=_block(record, "output_token_throughput"),
        requests=_rounded(_block(record, "request_count")),
        errors=_rounded(_block(record, "error_request_count")),
        not_comparable=CHUNKS,
        metadata=_metadata(record, ("schema_version", "aiperf_version", "start_time")),
    )
    return [_streamed(result)]


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _block(record: Record, tag: str, timed: bool = False) -> float | None:
    """The mean of one metric; a time in seconds, whatever its unit."""
    block = record.inside(tag)
    if not timed or block.data.get("avg") is None:
        return block.number("avg")
    unit = block.data.get("unit")
    if not isinstance(unit, str) or unit not in SECONDS:
        raise block.wrong("unit", "one of " + ", ".join(SECONDS))
    return block.number("avg", SECONDS[unit])


def _aiperf_load(config: Record) -> tuple[float | None, float | None]:
    """Concurrency and rate, which moved between versions: input_config.loadgen, .phases, or the config itself."""
    places = [config.inside("loadgen"), config]
    phases = config.data.get("phases")
    if isinstance(phases, list) and phases:
        places += [phase for phase in config.objects("phases") if phase.data.get("name") != "warmup"]
    elif isinstance(phases, dict):
        places.append(config.inside("phases").inside("profiling"))
    found = [place for place in places if place.data.get("concurrency") is not None]
    rates = [place for place in places if place.data.get("request_rate") is not None]
    limit = found[0].number("concurrency") if found else None
    return limit or None, rates[0].rate("request_rate") if rates else None


def _aiperf_model(config: Record) -> str | None:
    """The model's name: a list in input_config.endpoint, or in the config itself."""
    for place, key in ((config.inside("endpoint"), "model_names"), (config, "model_names"), (config, "model")):
        names = place.data.get(key)
        first = names[0] if isinstance(names, list) and names else names
        if isinstance(first, str):
            return plain_text(first)
    return None


# guidellm ---------------------------------------------------------------------------------------


def _guidellm(record: Record) -> list[ServingResult]:
    """benchmarks.json: one run of load for each of `benchmarks`."""
    args = record.inside("args")
    model = args.data.get("model")
    name = plain_text(model) if isinstance(model, str) else None
    return [_guidellm_one(benchmark, name) for benchmark in record.objects("benchmarks")]


def _guidellm_one(benchmark: Record, model: str | None) -> ServingResult:
    metrics = benchmark.inside("metrics")

    def mean(key: str, scale: float = 1.0) -> float | None:
        return metrics.inside(key).inside("successful").number("mean", scale)

    strategy = benchmark.inside("config").inside("strategy")
    if not strategy.data:  # before 0.4
        strategy = benchmark.inside("args").inside("strategy")
    kind = strategy.text("type_")
    limit = 1.0 if kind == "synchronous" else strategy.number("streams") or strategy.number("max_concurrency")
    totals = metrics.inside("request_totals")
    notes = (
        "its ITL is (last - first token) / (output tokens - 1), weighted by tokens: our TPOT",
        "its TPOT divides by all output tokens and starts at the request, so it holds the prefill: not comparable",
        TTFT_NOTE,
    )
    why = {"its TPOT": "starts at the request, prefill and queue in it"}
    result = ServingResult(
        "guidellm",
        "serving",
        notes,
        model,
        limit or None,
        mean("request_concurrency"),
        strategy.rate("rate"),
        mean("prompt_token_count"),
        mean("output_token_count"),
        ttft_s=mean("time_to_first_token_ms", MILLI),
        tpot_s=mean("inter_token_latency_ms", MILLI),
        e2e_s=mean("request_latency"),
        output_tokens_per_s=mean("output_tokens_per_second"),
        requests=totals.whole("successful"),
        errors=totals.whole("errored"),
        not_comparable=why,
        metadata={"strategy": kind} if kind else {},
    )
    return _streamed(result)


# llama-bench ------------------------------------------------------------------------------------

LLAMA_NOTES = (
    "a bare loop over the model, without server, sampling or queue",
    "tg: time of n_gen decode steps at a growing context, over n_gen: our TPOT",
    "pp: time of a prompt of n_prompt tokens in batches of n_batch: a prefill",
)


def _llama_bench(record: Record) -> list[ServingResult]:
    """`llama-bench -o json` or `jsonl`: one test an object."""
    prompt, new = record.whole("n_prompt") or 0, record.whole("n_gen") or 0
    whole_s = record.need("avg_ns", 1e-9)
    if not whole_s or not prompt + new:
        raise record.wrong("avg_ns" if not whole_s else "n_prompt", "a number above 0")
    kind = "both" if prompt and new else "prompt" if prompt else "decode"
    why = {"ttft_s": "no prompt in this test" if kind == "decode" else "no server: see the prompt's own time"}
    return [
        ServingResult(
            "llama-bench",
            kind,
            LLAMA_NOTES,
            record.text("model_type"),
            1.0,
            input_tokens=prompt,
            output_tokens=new,
            depth_tokens=record.whole("n_depth") or 0,
            tpot_s=whole_s / new if kind == "decode" else None,
            e2e_s=whole_s,
            output_tokens_per_s=new / whole_s if kind == "decode" else None,
            weights_bytes=record.number("model_size") or None,
            not_comparable=why if kind == "decode" else {},
            metadata=_metadata(record, ("build_number", "gpu_info", "backends", "n_batch", "type_k", "n_gpu_layers")),
        )
    ]


# Request records --------------------------------------------------------------------------------

RECORD_NOTES = (
    "times of each request by the engine's own clock: TTFT = first token - queued, without the network",
    "TPOT = (last - first token) / (n - 1), weighted by tokens: ours",
)


def _requests(records: Sequence[Record]) -> list[ServingResult]:
    """Lines with the times of one request each, summed up to one run."""
    rows = [_request(record) for record in records]
    decoding = [(new - 1, decode_s) for _, new, _, decode_s, _, _ in rows if new > 1]
    steps = sum(n for n, _ in decoding)
    begin, end = min(row[4] for row in rows), max(row[5] for row in rows)
    span_s = end - begin
    new_tokens = sum(row[1] for row in rows)
    result = ServingResult(
        "request records",
        "serving",
        RECORD_NOTES,
        in_flight=sum(row[5] - row[4] for row in rows) / span_s if span_s else None,
        input_tokens=sum(row[0] for row in rows) / len(rows),
        output_tokens=new_tokens / len(rows),
        ttft_s=sum(row[2] for row in rows) / len(rows),
        tpot_s=sum(decode_s for _, decode_s in decoding) / steps if steps else None,
        e2e_s=sum(row[5] - row[4] for row in rows) / len(rows),
        output_tokens_per_s=new_tokens / span_s if span_s else None,
        requests=len(rows),
        not_comparable={"itl_s": "no times of single tokens"},
    )
    return [_streamed(result)]


def _request(record: Record) -> tuple[float, float, float, float, float, float]:
    """Prompt, new tokens, TTFT, time of decoding, begin and end of one request."""
    queued, first, last = (record.need(key) for key in ("queued_ts", "first_token_ts", "last_token_ts"))
    if not queued <= first <= last:
        raise record.wrong("first_token_ts", "a time between queued_ts and last_token_ts")
    return record.need("input_toks"), record.need("output_toks"), first - queued, last - first, queued, last


# Telling them apart -----------------------------------------------------------------------------


@frozen
class Reader:
    """A tool's format. keys: all are in every object of it. read: one object; or all objects of the file together."""

    tool: str
    keys: tuple[str, ...]
    read: Callable[[Record], list[ServingResult]] | None = None
    together: Callable[[Sequence[Record]], list[ServingResult]] | None = None

    def knows(self, data: Mapping[str, Any]) -> bool:
        """Whether an object is of this tool."""
        return all(key in data for key in self.keys)


#: The first that knows the first object reads the file; the more special ones stand first.
READERS = (
    Reader("sglang.bench_serving", ("total_output_tokens_retokenized", "request_throughput"), _sglang),
    Reader("vllm bench serve", ("completed", "request_throughput", "mean_ttft_ms"), _vllm_serve),
    Reader("vllm bench serve", ("completed", "request_throughput", "tokenizer_id"), _vllm_serve),
    Reader("vllm bench latency", ("avg_latency", "latencies"), _vllm_latency),
    Reader("vllm bench throughput", ("elapsed_time", "num_requests", "tokens_per_second"), _vllm_throughput),
    Reader("guidellm", ("benchmarks",), _guidellm),
    Reader("aiperf", ("request_latency", "request_throughput"), _aiperf),
    Reader("llama-bench", ("n_prompt", "n_gen", "avg_ns"), _llama_bench),
    Reader("request records", ("queued_ts", "first_token_ts", "last_token_ts"), None, _requests),
)
TOOLS = tuple(dict.fromkeys(reader.tool for reader in READERS))


def read_results(path: str) -> tuple[ServingResult, ...]:
    """The runs in a result file. Raises ResultError or FileError with one line for a file that cannot be used."""
    return results_in(path, read_text(path))


def results_in(path: str, text: str) -> tuple[ServingResult, ...]:
    """The runs in the text of a result file: one JSON document, a list of objects, or an object a line."""
    objects = _objects(path, text)
    reader = next((reader for reader in READERS if reader.knows(objects[0])), None)
    if reader is None:
        some = ", ".join(shown(key) for key in list(objects[0])[:5]) or "none"
        raise ResultError(f"{path} is of no known tool (its keys: {some}); known are {', '.join(TOOLS)}")
    records = []
    for index, one in enumerate(objects):
        if not reader.knows(one):
            raise ResultError(f"{path}: object {index + 1} is not of {reader.tool}, as the first is")
        records.append(Record(path, f"[{index}]." if len(objects) > 1 else "", one))
    if reader.together is not None:
        return tuple(reader.together(records))
    assert reader.read is not None
    return tuple(result for record in records for result in reader.read(record))


def _objects(path: str, text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        document = _lines(path, text, error)
    found = document if isinstance(document, list) else [document]
    if not found or not all(isinstance(one, dict) for one in found):
        raise ResultError(f"{path} is not a JSON object, nor a list or lines of them")
    return found


def _lines(path: str, text: str, error: Exception) -> list[Any]:
    """One JSON value a line; the error of the whole where the first line is not one either."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    found: list[Any] = []
    for number, line in lines:
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as inner:
            if not found:
                raise ResultError(f"{path} is not JSON: {_reason(error)}") from None
            raise ResultError(f"{path} line {number} is not JSON: {_reason(inner)}") from None
    return found


def _reason(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error).split("; use sys.")[0]
