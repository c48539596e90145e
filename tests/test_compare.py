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
