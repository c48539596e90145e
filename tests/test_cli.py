"""The command line as a user meets it: answers, formats, exit statuses, errors."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from gambrel.cli import COMMANDS, main

REPORT = ["report", "llama-3-8b", "--device", "h100-sxm"]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments):
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_report_answers_first(run):
    status, out, err = run(*REPORT)
    assert (status, err) == (0, "")
    assert out.startswith("llama-3-8b on NVIDIA H100 SXM5 80 GB cannot decode one sequence at 8,192 tokens")
    assert "no, 9.50 GB short" in out
    assert max(map(len, out.splitlines())) <= 120


def test_report_json_has_the_documented_keys(run):
    _, out, _ = run(*REPORT, "--batch", "1,8", "--format", "json")
    document = json.loads(out)
    assert (
        document["model"].items()
        >= {
            "name": "llama-3-8b",
            "params_total": 8_030_261_248,
            "params_gemm": 7_504_658_432,
            "params_active": 8_030_261_248,
            "params_embedding": 525_336_576,
            "weight_bytes_resident": 16_060_522_496,
            "weight_bytes_streamed": 15_009_849_344,
            "kv_bytes_per_token": 131_072,
        }.items()
    )
    assert document["device"]["ridge_flop_per_byte"] == pytest.approx(989e12 / 3.35e12)
    row = document["decode"][1]
    assert row["bound_s"] == row["expected_bound_s"] == max(row["memory_s"], row["compute_s"])
    assert row["kv_bytes"] == 8 * 8192 * 131_072
    assert row["tokens_per_s"] == 8 / row["bound_s"]
    assert {row["causal"] for row in document["prefill"]} == {True, False}


def test_every_command_gives_every_format(run, tmp_path):
    calls = {
        "report": REPORT[1:],
        "params": ["gpt-oss-20b"],
        "ops": ["deepseek-v3", "--device", "h200"],
        "roofline": ["qwen3-8b", "--device", "h200", "-o", "x.svg"],
        "crossover": ["llama-3-8b", "--device", "h100-sxm", "--context", "128,8192"],
        "fit": ["gpt-oss-20b", "--device", "h100-sxm"],
        "request": ["llama-3-8b", "--device", "h100-sxm", "--new-tokens", "16"],
        "compare": ["llama-3-8b", "--device", "h100-sxm", "--measured", "10ms"],
        "models": [],
        "devices": [],
    }
    assert calls.keys() <= COMMANDS.keys()  # those that measure, and verify, have tests of their own
    for command, arguments in calls.items():
        status, text, _ = run(command, *arguments)
        assert status == 0, command
        assert text, command
        _, out, _ = run(command, *arguments, "--format", "json")
        document = json.loads(out)
        assert document["schema"] == f"gambrel.{command}"
        assert document["schema_version"] == 1
        _, out, _ = run(command, *arguments, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert rows, command
        _, out, _ = run(command, *arguments, "--format", "markdown")
        assert "| --" in out, command


def test_explanations_put_the_numbers_in(run):
    from gambrel.cost.explain import EXPLANATIONS

    for key in EXPLANATIONS:
        status, out, _ = run("report", "qwen3-30b-a3b", "--device", "h200", "--batch", "8", "--explain", key)
        assert status == 0
        assert out.startswith(key)
        assert "formula" in out
        assert "source" in out
    _, out, _ = run(*REPORT, "--explain", "memory_s")
    assert "(15.01 GB weights + 1.07 GB KV read + 131 kB written) / 3.35 TB/s = 4.80 ms" in out
    status, _, err = run(*REPORT, "--explain", "nothing")
    assert status == 2
    assert "accepted is params_total" in err


def test_overrides(run):
    _, out, _ = run(
        *REPORT, "--bandwidth", "3.0TB/s", "--peak", "bf16=800TFLOP/s", "--memory", "80GB", "--format", "json"
    )
    device = json.loads(out)["device"]
    assert (device["mem_bytes_per_s"], device["peak_flops_per_s"]["bf16"], device["usable_bytes"]) == (3e12, 8e14, 8e10)
    assert device["changed"] == ["memory 80.00 GB", "bandwidth 3.00 TB/s", "bf16 peak 800 TFLOP/s"]


def test_overrides_are_the_users_own(run):
    for key, option in (("mem_bytes_per_s", "--bandwidth=3.0TB/s"), ("ridge_flop_per_byte", "--peak=bf16=800TFLOP/s")):
        _, out, _ = run(*REPORT, option, "--explain", key)
        assert "your own figure" in out
        assert "datasheet" not in out


def test_misspelt_keys_of_a_device_file(run, tmp_path):
    (tmp_path / "mine.toml").write_text("[peak_flops_per_s]\nbf16 = 1e14\n[memory]\nadvertised_byte = 1e9\n")
    status, _, err = run("report", "llama-3-8b", "--device", "./mine.toml")
    assert status == 2
    assert "advertised_byte; accepted is kind, advertised_bytes" in err


def test_what_is_beside_the_text_needs_something_to_read_it(run):
    assert "--source is for models that attend to an encoder's output" in run(*REPORT, "--source", "100")[2]
    assert "--media is for models with a tower" in run(*REPORT, "--media", "100")[2]


def test_own_device_file(run, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'id = "mine"\n[peak_flops_per_s]\nbf16 = "100TFLOP/s"\n'
        '[memory]\nadvertised_bytes = "24GB"\nbandwidth_bytes_per_s = 1e12\n'
    )
    _, out, _ = run("report", "llama-3-8b", "--device", "./mine.toml", "--format", "json")
    assert json.loads(out)["device"]["ridge_flop_per_byte"] == 100


def test_strict_says_no(run):
    assert run(*REPORT, "--batch", "1", "--strict")[0] == 0
    assert run(*REPORT, "--batch", "64", "--strict")[0] == 1
    assert run(*REPORT, "--batch", "1", "--prefill", "131072", "--strict")[0] == 1
    assert run("fit", "llama-3-8b", "--device", "h100-sxm", "--batch", "1", "--context", "8192", "--strict")[0] == 0
    assert run("fit", "llama-3-8b", "--device", "h100-sxm", "--strict")[0] == 1


WRONG = [
    (["report", "llama-3-8b", "--device", "h1000"], "did you mean"),
    (["report", "llama-3-8b"], "--device"),
    (["report", "llama-9-8b", "--device", "h100"], "llama-3-8b"),
    ([*REPORT, "--batch", "0"], "whole number from 1"),
    ([*REPORT, "--batch", "x"], "write for example 8192, 8K"),
    ([*REPORT, "--tp", "3"], "possible here: 1, 2, 4, 8, 16, 32"),
    ([*REPORT, "--weight-dtype", "fp9"], "accepted is fp32, bf16"),
    ([*REPORT, "--efficiency", "1.5"], "at most 1"),
    ([*REPORT, "--utilization", "0"], "above 0"),
    ([*REPORT, "--bandwidth", "3TW"], "3.35TB/s"),
    ([*REPORT, "--bandwidth", "0"], "positive"),
    ([*REPORT, "--peak", "bf16"], "bf16=800TFLOP/s"),
    ([*REPORT, "--memory", "80 parsecs"], "80GB"),
    (["report", "llama-3-8b", "--device", "a100-80gb", "--weight-dtype", "fp8"], "a100-80gb has no fp8 peak; it has"),
    (["ops", "llama-3-8b", "--chunk", "100", "--context", "10"], "cannot be smaller than new_tokens"),
    (["ops", "llama-3-8b", "--tp", "5"], "possible here"),
    (["roofline", "llama-3-8b", "--device", "h100", "-o", "x.gif"], ".svg"),
    (["nonsense"], "nonsense"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_wrong_input_is_named(run, arguments, told):
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert told in err
    assert "Traceback" not in err


def test_broken_files_are_named(run, tmp_path):
    broken = tmp_path / "config.json"
    for content, told in [
        (b'{"a": ', "line 1"),
        (b"[]", "object"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"model_type": "llama", "hidden_size": "big"}', "hidden_size is 'big'; accepted is a whole number"),
        (b'{"model_type": "nothing"}', "model_type is 'nothing'"),
        (b"{}", "missing key model_type"),
    ]:
        broken.write_bytes(content)
        status, out, err = run("params", broken)
        assert (status, out) == (2, ""), content
        assert told in err, (content, err)


def test_help_shows_an_example(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "gambrel report llama-3-8b" in out
    for name, command in COMMANDS.items():
        status, out, _ = run(name, "--help")
        assert status == 0
        assert command.example in out
    assert run("--version")[1].startswith("gambrel 0.")
    assert run()[0] == 0


def test_unknown_keys_are_warned_of(run, tmp_path):
    import gambrel

    config = {**gambrel.load_model("llama-3-8b").config, "secret_experts": 12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, _, err = run("params", tmp_path)
    assert status == 0
    assert "secret_experts" in err


def test_module_and_closed_pipe():
    """python -m gambrel works, and a reader that stops early is no error."""
    command = [sys.executable, "-m", "gambrel", "models"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0
