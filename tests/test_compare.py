"""A measured time against its bound."""

from __future__ import annotations

import json

import pytest

import gambrel
from gambrel import GambrelError, Step
from gambrel.cli import main
from gambrel.cost.compare import BelowBound, Conditions, compare

ARTICLE = ["compare", "llama-3.2-1b", "--device", "rtx-6000-ada", "--batch", "1", "--context", "0"]


def device():
    return gambrel.load_device("h100-sxm")


def test_the_articles_case(capsys):
    """vLLM with CUDA graphs: 2.47 GB, 2.57 ms, 75 % of the floor."""
    assert main([*ARTICLE, "--measured", "3.43ms", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["weight_bytes"] / 1e9 == pytest.approx(2.47, abs=0.005)
    assert document["bound_s"] * 1e3 == pytest.approx(2.57, abs=0.005)
    assert document["fraction"] == pytest.approx(0.75, abs=0.005)
    assert document["kv_bytes"] == 0
    main([*ARTICLE, "--measured", "3.43ms"])
    assert "2.47 GB" in capsys.readouterr().out


def test_below_the_bound_is_an_error(capsys):
    assert main([*ARTICLE, "--measured", "2ms"]) == 2
    error = capsys.readouterr().err
    assert "an error, not a good result" in error
    assert all(f"({i})" in error for i in (1, 2, 3, 4))
    with pytest.raises(BelowBound):
        compare(gambrel.load_model("llama-3-8b"), device(), Step(1, 1, 8192), 1e-3)


def test_exit_status_for_gates(capsys):
    assert main([*ARTICLE, "--measured", "3.43ms", "--require", "0.7"]) == 0
    assert main([*ARTICLE, "--measured", "3.43ms", "--require", "0.8"]) == 1
    assert main(ARTICLE) == 2
    assert "--measured" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
@pytest.mark.parametrize("step", [Step(1, 1, 100), Step(64, 1, 4096), Step(1, 8192, 8192)])
@pytest.mark.parametrize("times", [1.0, 1.01, 1.4, 5.0])
def test_parts_add_up(name, step, times):
    model = gambrel.load_model(name)
    bound = model.bound(step, device()).time_s
    known = Conditions(launch_s=1e-4, mem_bytes_per_s=3e12)
    for conditions in (Conditions(), known):
        result = compare(model, device(), step, bound * times, known=conditions)
        assert all(part.time_s >= 0 for part in result.parts if part.name != "overlap")
        assert sum(part.time_s for part in result.parts) == pytest.approx(result.measured_s)
        gains = [suggestion.gain_s for suggestion in result.suggestions]
        assert gains == sorted(gains, reverse=True)
        assert result.fault is (times > 2)


def test_no_time_is_no_measurement():
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(GambrelError):
            compare(gambrel.load_model("gpt2"), device(), Step(1, 1, 1), wrong)


def test_what_to_try_is_what_the_bound_would_fall_by():
    """Where arithmetic binds fewer bytes gain nothing, and where memory binds faster products gain nothing."""
    model = gambrel.load_model("llama-3-8b")
    prefill, decode = Step(1, 8192, 8192), Step(1, 1, 8192)
    bound = model.bound(prefill, device()).limits_s
    found = {s.what: s.gain_s for s in compare(model, device(), prefill, 1.0).suggestions}
    assert not {"weights in 8 bit", "weights in 4 bit", "KV cache in fp8"} & found.keys()
    assert found["products in fp8 or int8"] == pytest.approx(bound["compute"] / 2, rel=1e-3)
    found = {s.what: s.gain_s for s in compare(model, device(), decode, 1.0).suggestions}
    assert not [what for what in found if what.startswith("products")]
    weights = model.bound(Step(1, 1, 0), device()).time_s
    assert found["weights in 8 bit"] == pytest.approx(weights / 2, rel=1e-3)


CALIBRATED = """
id = "mine"
name = "Mine"
peak_flops_per_s.fp32 = { value = 1e12, source = "calibration" }
memory.advertised_bytes = { value = 80e9, source = "calibration" }
memory.bandwidth_bytes_per_s = { value = 100e9, source = "calibration" }
[sources.calibration]
title = "gambrel calibrate"
url = "this file"
date = "2026-11-30"
"""


@pytest.mark.parametrize(
    ("step", "first"), [(Step(1, 1, 64), "calibrated bandwidth"), (Step(1, 512, 512), "calibrated dense peak")]
)
@pytest.mark.parametrize("times", [0.8, 1.0, 1.3])
def test_measured_ceilings_are_no_bound(tmp_path, step, first, times):
    (tmp_path / "mine.toml").write_text(CALIBRATED)
    mine = gambrel.load_device(str(tmp_path / "mine.toml"))
    model = gambrel.load_model("llama-3.2-1b", weight_dtype="fp32", kv_dtype="fp32", compute_dtype="fp32")
    result = compare(model, mine, step, model.bound(step, mine).time_s * times)
    assert (result.ceilings, result.fraction) == (True, pytest.approx(1 / times))
    assert result.parts[0].kind == "ceiling"
    assert first in result.parts[0].why
    assert sum(part.time_s for part in result.parts) == pytest.approx(result.measured_s)
    assert ("above the ceilings" in {part.name for part in result.parts}) is (times < 1)
    known = Conditions(mem_bytes_per_s=50e9)
    parts = {part.name: part.why for part in compare(model, mine, step, result.measured_s * 9, known=known).parts}
    if step.new_tokens == 1:
        assert parts["bandwidth below calibration"] == "by reads in turn with the run"
