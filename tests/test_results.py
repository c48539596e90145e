"""Result files of other tools: read by content, by their own definitions, and compared with the bounds.

The files below are small and made by hand; their keys are those that the tools' code writes (the places are named in
src/gambrel/measure/results.py), llama-bench's are the example of its README.
"""

from __future__ import annotations

import csv
import gzip
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gambrel
from gambrel import GambrelError
from gambrel.cli import main
from gambrel.cost.compare import BelowBound
from gambrel.cost.others import Setup, run_rows
from gambrel.cost.report import Options, capacity
from gambrel.measure.logs import read_told
from gambrel.measure.results import TOOLS, read_results, results_in

VLLM = {
    "date": "20260820-231939",
    "endpoint_type": "vllm",
    "backend": "vllm",
    "label": None,
    "model_id": "meta-llama/Llama-3.1-8B",
    "tokenizer_id": "meta-llama/Llama-3.1-8B",
    "num_prompts": 200,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "duration": 42.0,
    "completed": 200,
    "failed": 1,
    "total_input_tokens": 204800,
    "total_output_tokens": 25600,
    "request_throughput": 4.76,
    "request_goodput": None,
    "output_throughput": 609.5,
    "total_token_throughput": 5485.7,
    "mean_ttft_ms": 412.5,
    "median_ttft_ms": 380.1,
    "std_ttft_ms": 90.1,
    "p99_ttft_ms": 700.0,
    "mean_tpot_ms": 22.9,
    "median_tpot_ms": 22.6,
    "std_tpot_ms": 1.0,
    "p99_tpot_ms": 25.0,
    "mean_itl_ms": 22.9,
    "median_itl_ms": 20.1,
    "std_itl_ms": 9.0,
    "p99_itl_ms": 60.2,
}
SGLANG = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 1,
    "sharegpt_output_len": None,
    "random_input_len": 1024,
    "random_output_len": 128,
    "random_range_ratio": 1.0,
    "duration": 60.0,
    "completed": 20,
    "total_input_tokens": 20480,
    "total_output_tokens": 2560,
    "total_output_tokens_retokenized": 2555,
    "request_throughput": 0.33,
    "input_throughput": 341.3,
    "output_throughput": 42.7,
    "mean_e2e_latency_ms": 2900.0,
    "median_e2e_latency_ms": 2890.0,
    "mean_ttft_ms": 160.0,
    "median_ttft_ms": 158.0,
    "mean_tpot_ms": 21.5,
    "median_tpot_ms": 21.4,
    "mean_itl_ms": 21.5,
    "median_itl_ms": 21.3,
    "concurrency": 0.97,
    "accept_length": None,
}


def spread(mean):
    return {"successful": {"mean": mean, "median": mean, "percentiles": {"p50": mean}}, "errored": {"mean": 0.0}}


GUIDELLM = {
    "args": {"target": "http://localhost:8000", "model": "meta-llama/Llama-3.1-8B", "profile": "sweep"},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {"run_id": "a", "strategy": strategy},
            "scheduler_metrics": {"measure_start_time": 1.0, "measure_end_time": 61.0},
            "metrics": {
                "request_totals": {"successful": 60, "errored": 2, "incomplete": 1, "total": 63},
                "requests_per_second": spread(1.0),
                "request_concurrency": spread(flight),
                "request_latency": spread(3.0),
                "prompt_token_count": spread(1000.0),
                "output_token_count": spread(128.0),
                "time_to_first_token_ms": spread(200.0),
                "time_per_output_token_ms": spread(23.5),
                "inter_token_latency_ms": spread(22.0),
                "output_tokens_per_second": spread(128.0),
            },
        }
        for strategy, flight in (
            ({"type_": "synchronous"}, 1.0),
            ({"type_": "concurrent", "streams": 8}, 7.5),
            ({"type_": "constant", "rate": 1.0}, 3.0),
        )
    ],
}


def block(avg, unit="ms"):
    return {"unit": unit, "avg": avg, "p50": avg, "p99": avg}


AIPERF = {
    "schema_version": "1.1",
    "aiperf_version": "0.4.0",
    "request_throughput": {"unit": "requests/sec", "avg": 1.0},
    "request_latency": block(3000.0),
    "request_count": {"unit": "requests", "avg": 60.0},
    "error_request_count": {"unit": "requests", "avg": 2.0},
    "time_to_first_token": block(0.2, "sec"),
    "inter_token_latency": block(22.0),
    "inter_chunk_latency": block(22.5),
    "output_token_throughput": {"unit": "tokens/sec", "avg": 128.0},
    "output_sequence_length": block(128.0, "tokens"),
    "input_sequence_length": block(1000.0, "tokens"),
    "input_config": {"endpoint": {"model_names": ["meta-llama/Llama-3.1-8B"]}, "loadgen": {"concurrency": 4}},
    "was_cancelled": False,
    "error_summary": [],
}
LLAMA = {
    "build_commit": "8cf427ff",
    "build_number": 5163,
    "gpu_info": "NVIDIA GeForce RTX 4080",
    "backends": "CUDA",
    "model_filename": "models/Qwen2.5-7B-Instruct-Q4_K_M.gguf",
    "model_type": "qwen2 7B Q4_K - Medium",
    "model_size": 4677120000,
    "model_n_params": 7615616512,
    "n_batch": 2048,
    "type_k": "f16",
    "n_gpu_layers": -1,
    "n_prompt": 512,
    "n_gen": 0,
    "n_depth": 0,
    "test_time": "2025-04-24T11:58:50Z",
    "avg_ns": 72135640,
    "stddev_ns": 1453752,
    "avg_ts": 7100.002165,
    "samples_ns": [74601900, 71632900],
}
LLAMA_TG = {**LLAMA, "n_prompt": 0, "n_gen": 128, "avg_ns": 1076767880, "avg_ts": 118.881588}
LLAMA_PG = {**LLAMA, "n_prompt": 512, "n_gen": 128, "n_depth": 512, "avg_ns": 1250000000}
LATENCY = {"avg_latency": 2.9, "std_latency": 0.1, "latencies": [2.8, 2.9, 3.0], "percentiles": {"10": 2.8, "90": 3.0}}
THROUGHPUT = {
    "elapsed_time": 30.0,
    "num_requests": 1000,
    "total_num_tokens": 500000,
    "requests_per_second": 33.3,
    "tokens_per_second": 16666.0,
}
FILES = {
    "vllm bench serve": [VLLM],
    "sglang.bench_serving": [SGLANG, {**SGLANG, "max_concurrency": None, "accept_length": 2.0}],
    "guidellm": [GUIDELLM],
    "aiperf": [AIPERF],
    "llama-bench": [LLAMA, LLAMA_TG, LLAMA_PG],
    "vllm bench latency": [LATENCY],
    "vllm bench throughput": [THROUGHPUT],
}


def text(objects):
    return "\n".join(json.dumps(one) for one in objects)


def setup(model="llama-3.1-8b", device="rtx-4090", **told):
    m, d = gambrel.load_model(model), gambrel.load_device(device)
    return Setup(m, d, capacity(m, d, Options()), **told)


def read(name):
    return results_in("x.json", text(FILES[name]))


# Definitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_told_apart_by_content(name, tmp_path):
    (tmp_path / "a.txt").write_text(text(FILES[name]))
    (tmp_path / "b").write_bytes(gzip.compress(text(FILES[name]).encode()))
    (tmp_path / "c.json").write_text(
        "\ufeff" + json.dumps(FILES[name] if len(FILES[name]) > 1 else FILES[name][0], indent=1)
    )
    results = read_results(str(tmp_path / "a.txt"))
    assert {result.tool for result in results} == {name}
    assert read_results(str(tmp_path / "b")) == results == read_told(str(tmp_path / "c.json"))
    assert json.dumps([result.to_dict() for result in results], allow_nan=False)


def test_vllm_serve():
    (run,) = read("vllm bench serve")
    assert (run.ttft_s, run.tpot_s, run.itl_s) == pytest.approx((0.4125, 0.0229, 0.0229))
    assert (run.input_tokens, run.output_tokens, run.concurrency) == (1024, 128, 16)
    assert (run.requests, run.errors, run.request_rate_per_s, run.model_id) == (200, 1, None, "meta-llama/Llama-3.1-8B")
    (run,) = results_in("x", json.dumps({**VLLM, "mean_ttft_ms": 0, "mean_tpot_ms": 0.0, "request_rate": 4}))
    assert run.ttft_s is run.tpot_s is None
    assert "did not stream" in run.not_comparable["tpot_s"]
    assert run.request_rate_per_s == 4


def test_sglang_with_speculation():
    plain, fast = read("sglang.bench_serving")
    assert (plain.concurrency, plain.in_flight, plain.request_rate_per_s) == (1, 0.97, None)
    assert (fast.concurrency, fast.tokens_per_step) == (None, 2)
    first, second = (row for row in run_rows(setup(), [plain, fast]) if row.metric == "TPOT")
    assert second.measured_s == pytest.approx(2 * first.measured_s)
    assert "2 tokens a step" in second.why


def test_guidellm_maps_its_itl_to_our_tpot():
    runs = read("guidellm")
    assert [run.tpot_s for run in runs] == pytest.approx([0.022] * 3)
    assert [run.concurrency for run in runs] == [1, 8, None]
    assert runs[2].request_rate_per_s == 1
    rows = run_rows(setup(), runs)
    assert [row.bound_s is not None for row in rows if row.metric == "TTFT"] == [True, False, False]
    assert all("prefill" in row.why for row in rows if row.metric == "its TPOT")
    old = json.loads(json.dumps(GUIDELLM))
    for benchmark in old["benchmarks"]:
        benchmark["args"] = {"strategy": benchmark.pop("config")["strategy"]}
    assert [run.concurrency for run in results_in("x", json.dumps(old))] == [1, 8, None]


def test_aiperf_maps_its_itl_to_our_tpot():
    (run,) = read("aiperf")
    assert (run.ttft_s, run.tpot_s, run.itl_s, run.e2e_s) == pytest.approx((0.2, 0.022, 0.0225, 3.0))
    assert (run.concurrency, run.requests, run.errors) == (4, 60, 2)
    for config in (
        {"phases": {"profiling": {"concurrency": 4}}},
        {"phases": [{"name": "profiling", "concurrency": 4}]},
    ):
        assert results_in("x", json.dumps({**AIPERF, "input_config": config}))[0].concurrency == 4
    with pytest.raises(GambrelError, match=r"time_to_first_token\.unit is 'furlongs'"):
        results_in("x", json.dumps({**AIPERF, "time_to_first_token": block(1, "furlongs")}))


def test_llama_bench():
    prompt, decode, both = read("llama-bench")
    assert prompt.e2e_s == pytest.approx(0.07213564)
    assert decode.tpot_s == pytest.approx(1.07676788 / 128)
    assert decode.output_tokens_per_s == pytest.approx(118.88, abs=0.01)
    assert both.depth_tokens == 512
    model = gambrel.load_model("qwen2.5-7b", weight_dtype="int4")
    d = gambrel.load_device("rtx-4090")
    rows = run_rows(Setup(model, d, capacity(model, d, Options())), [prompt, decode, both])
    bounds = {row.metric: row for row in rows if row.bound_s}
    assert bounds.keys() == {"prompt", "TPOT", "prompt and tokens"}
    assert all(0 < row.fraction < 1 for row in bounds.values())
    assert bounds["TPOT"].context_tokens == 64
    assert bounds["prompt and tokens"].bound_s > 128 * bounds["TPOT"].bound_s + bounds["prompt"].bound_s
    for row in run_rows(setup("qwen2.5-7b"), [prompt, decode]):
        assert row.bound_s is None
        assert "weights are 4.68 GB" in row.why or "no prompt" in row.why


def test_offline_runs_need_their_lengths():
    (run,) = read("vllm bench latency")
    (row,) = (row for row in run_rows(setup(), [run]) if row.metric == "batch")
    assert row.bound_s is None
    assert "--new-tokens" in row.why
    told = setup(batch=8, prompt_tokens=32, new_tokens=128)
    (row,) = (row for row in run_rows(told, [run]) if row.metric == "batch")
    assert 0.6 < row.fraction < 0.9
    assert all("not comparable" in row.why for row in run_rows(setup(), read("vllm bench throughput")))


# Against the bound ------------------------------------------------------------------------------


def test_the_running_batch_is_the_least_that_is_known():
    (run,) = read("vllm bench serve")
    row = run_rows(setup(), [run])[0]
    assert row.batch == int(609.5 * 0.0229 * 127 / 128) == 13
    assert row.context_tokens == 1024 + 64
    model, d = setup().model, setup().device
    from gambrel import Step

    assert row.bound_s == model.bound(Step(13, 1, 1088), d).time_s
    given = run_rows(setup(batch=16), [run])[0]
    assert given.bound_s > row.bound_s
    (full,) = results_in(
        "x", json.dumps({**VLLM, "max_concurrency": 512, "output_throughput": 20000, "mean_tpot_ms": 30})
    )
    capped = run_rows(setup(), [full])[0]
    assert capped.batch == setup().room.max_batch(1088) < 512
    assert "capped by capacity" in capped.why


def test_ttft_only_where_nothing_queues():
    alone, _ = read("sglang.bench_serving")
    row = next(row for row in run_rows(setup(), [alone]) if row.metric == "TTFT")
    assert row.context_tokens == 1024
    assert 0.4 < row.fraction < 1
    row = next(row for row in run_rows(setup(), read("vllm bench serve")) if row.metric == "TTFT")
    assert row.bound_s is None
    assert row.why == "not comparable: includes queueing"


def test_below_the_bound_is_an_error(tmp_path, capsys):
    fast = {**VLLM, "mean_tpot_ms": 3.0}
    with pytest.raises(BelowBound, match="run 1, TPOT"):
        run_rows(setup(), results_in("x", json.dumps(fast)))
    (tmp_path / "x.json").write_text(json.dumps(fast))
    assert main(["compare", "llama-3.1-8b", "--device", "rtx-4090", "--file", str(tmp_path / "x.json")]) == 2
    error = capsys.readouterr().err
    assert "an error, not a good result" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", FILES)
def test_command(name, tmp_path, capsys):
    path = tmp_path / "result.json"
    path.write_text(text(FILES[name]))
    line = ["compare", "llama-3.1-8b", "--device", "rtx-4090", "--file", str(path)]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert name in shown
    assert "not comparable" in shown
    assert main([*line, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gambrel.compare_results"
    assert {run["tool"] for run in document["runs"]} == {name}
    assert main([*line, "--format", "csv"]) == 0
    assert {row["table"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))} == {"rows", "runs"}
    assert main([*line, "--format", "markdown"]) == 0


def test_options_that_contradict_a_file(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(text([VLLM]))
    line = ["compare", "llama-3.1-8b", "--device", "rtx-4090", "--file", str(path)]
    assert main([*line, "--measured", "3ms"]) == 2
    assert "leave out --measured" in capsys.readouterr().err
    assert main([*line, "--require", "0.6"]) == 0
    assert main([*line, "--require", "0.9"]) == 1


@pytest.mark.parametrize(("name", "device"), [("vllm_rtx4090", "rtx-4090"), ("vllm_rtxpro6000", "rtx-pro-6000")])
def test_real_requests(shared, name, device):
    """300 ShareGPT requests against vLLM 0.19: TTFT and TPOT computed here again, and the bound below the TPOT."""
    path = shared / "requests" / f"{name}__llama-3.1-8b" / "requests.jsonl"
    (run,) = read_results(str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert run.requests == len(lines) == 300
    assert run.ttft_s == pytest.approx(sum(r["first_token_ts"] - r["queued_ts"] for r in lines) / 300)
    decode_s = sum(r["last_token_ts"] - r["first_token_ts"] for r in lines)
    assert run.tpot_s == pytest.approx(decode_s / sum(r["output_toks"] - 1 for r in lines))
    row = run_rows(setup(device=device), [run])[0]
    limit = json.loads((path.parent / "meta.json").read_text())["engine_kwargs"]["max_num_seqs"]
    assert 1 < row.batch <= limit
    assert 0.4 < row.fraction < 1


# Hostile input ----------------------------------------------------------------------------------

HOSTILE = {
    "html": ("<!DOCTYPE html><html><body>404</body></html>", "no line of vLLM or SGLang"),
    "truncated": (json.dumps(VLLM)[:300], "is not JSON"),
    "empty": ("", "is empty"),
    "spaces": (" \n \n", "is empty"),
    "empty list": ("[]", "is not a JSON object"),
    "empty object": ("{}", "no known tool"),
    "number": ("17", "is not a JSON object"),
    "null": ("null", "is not a JSON object"),
    "deep list": ("[" * 100_000, "nested too deep"),
    "deep object": ('{"a":' * 100_000, "nested too deep"),
    "half a line": (text([SGLANG]) + "\n" + json.dumps(SGLANG)[:50], "line 2 is not JSON"),
    "two tools": (text([SGLANG, LLAMA]), "object 2 is not of sglang"),
    "text for a number": (json.dumps({**VLLM, "mean_tpot_ms": "fast"}), "mean_tpot_ms is 'fast'"),
    "true for a number": (json.dumps({**VLLM, "mean_tpot_ms": True}), "mean_tpot_ms is True"),
    "list for a number": (json.dumps({**VLLM, "mean_tpot_ms": [1]}), r"mean_tpot_ms is \[1\]"),
    "nan": (json.dumps({**VLLM, "mean_tpot_ms": float("nan")}), "mean_tpot_ms is nan"),
    "infinite": (json.dumps({**VLLM, "output_throughput": float("inf")}), "output_throughput is inf"),
    "negative": (json.dumps({**VLLM, "mean_ttft_ms": -1}), "mean_ttft_ms is -1"),
    "huge": (json.dumps({**VLLM, "total_input_tokens": 10**400}), "total_input_tokens is 1000"),
    "huge digits": ('{"mean_ttft_ms": ' + "9" * 5000 + "}", "is not JSON"),
    "part of a request": (json.dumps({**VLLM, "completed": 2.5}), "completed is 2.5"),
    "number for text": (json.dumps({**VLLM, "model_id": 3}), "model_id is 3"),
    "empty benchmarks": (json.dumps({"benchmarks": []}), r"benchmarks is \[\]"),
    "wrong benchmark": (json.dumps({"benchmarks": [3]}), r"benchmarks\[0\] is 3"),
    "wrong metrics": (json.dumps({"benchmarks": [{"metrics": 3}]}), r"benchmarks\[0\]\.metrics is 3"),
    "no time": (json.dumps({**LLAMA, "avg_ns": 0}), "avg_ns is 0"),
    "null time": (json.dumps({**LLAMA, "avg_ns": None}), "avg_ns is missing"),
    "latencies": (json.dumps({**LATENCY, "latencies": [1, "x"]}), r"latencies\[1\] is 'x'"),
    "backwards": (text([{"queued_ts": 3, "first_token_ts": 2, "last_token_ts": 1}]), "first_token_ts is 2"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name, tmp_path, capsys):
    content, told = HOSTILE[name]
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(GambrelError, match=told) as caught:
        read_told(str(path))
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert main(["compare", "gpt2", "--device", "t4", "--file", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    for path in (tmp_path / "none", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(GambrelError, match="cannot read"):
            read_told(str(path))
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    with pytest.raises(GambrelError, match="UTF-8"):
        read_told(str(tmp_path / "latin"))
    (tmp_path / "half.gz").write_bytes(gzip.compress(text([VLLM]).encode())[:-20])
    with pytest.raises(GambrelError, match=r"half\.gz"):
        read_told(str(tmp_path / "half.gz"))
    from gambrel.measure import files

    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"[" * 10_000_000))
    for path in (tmp_path / "bomb.gz", tmp_path / "big"):
        path.exists() or path.write_bytes(b" " * 2_000_000)
        with pytest.raises(GambrelError, match="more than 1 MiB"):
            files.read_text(str(path), 2**20)


def test_no_control_characters_and_no_paths():
    (run,) = results_in(
        "x", json.dumps({**VLLM, "model_id": "/home/me/models/llama\u001b[31m-8b", "label": "a\u0007b"})
    )
    assert run.model_id == "llama[31m-8b"
    assert run.metadata["label"] == "ab"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from((0, -1, 10**400, 1e308, float("nan"), float("inf"), "inf", 5, 0.5, 1e9)),
)


def _places(value, at=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key)
            yield from _places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*at, index)
            yield from _places(inner, (*at, index))


SETUP = setup()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_change_gives_a_result_or_one_line(data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    document = json.loads(json.dumps(FILES[name][0]))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(_places(document)) or [None]))
        if place is None:
            break
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        if data.draw(st.booleans()):
            inner[place[-1]] = data.draw(VALUES)
        else:
            del inner[place[-1]]
    told = ""
    try:
        results = results_in("x", json.dumps(document))
        json.dumps([result.to_dict() for result in results], allow_nan=False)
        json.dumps([vars(row) for row in run_rows(SETUP, results)], allow_nan=False)
    except GambrelError as error:
        told = str(error)
    assert "\n" not in told


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text(content):
    with pytest.raises(GambrelError):
        results_in("x", content)


def test_every_tool_is_in_the_page():
    from pathlib import Path

    page = (Path(__file__).parent.parent / "docs" / "measurements-of-others.md").read_text()
    assert [tool for tool in TOOLS if f"`{tool}`" not in page] == []
