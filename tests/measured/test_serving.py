"""No served model that others measured was faster than gambrel's bound; capacity is what an engine had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report
import rows as measured
import serving

from gambrel import DeviceOverrides, load_device

AT_LEAST = {"LLM-Inference-Bench": 3_000, "TensorRT-LLM overview": 440, "aiconfigurator silicon sample": 5_800}


@pytest.fixture(scope="session")
def found(shared):
    return {name: read(shared / "measured") for name, read in serving.READERS.items()}


@pytest.mark.parametrize("name", serving.READERS)
def test_no_served_model_is_faster_than_its_bound(found, name, tell):
    rows = found[name]
    tell(measured.verdict(rows, name))
    tell(f"  set aside: {dict(measured.asides(rows))}")
    assert [measured.words(row) for row in measured.faster(rows)] == []
    assert len(measured.compared(rows)) >= AT_LEAST[name]


def test_rows_whose_output_was_not_generated(found):
    """They are faster than the same set-up with a quarter of the tokens, whatever any bound says."""
    stopped = [row for row in found["LLM-Inference-Bench"] if row.aside == serving.STOPPED]
    assert 0 < len(stopped) < 20


@pytest.mark.parametrize("row", serving.case_rows(), ids=lambda row: row.text)
def test_cases_of_tensorrt_llm_on_a100(row):
    assert 0.5 < row.ratio < 1


def test_kv_capacity_of_an_rtx_4090(shared):
    """vLLM 0.19 at 0.9 with Llama-3.1-8B in bf16 had 41,408 tokens of KV (its log says so)."""
    log = json.loads((shared / "requests" / "vllm_rtx4090__llama-3.1-8b" / "meta.json").read_text())
    fact, cache = log["kv_cache"]["num_kv_tokens"], log["kv_cache"]
    assert fact == 41_408
    dev = load_device("rtx-4090", DeviceOverrides(memory=log["hardware"]["device_total_memory_bytes"]))
    room = serving.model("llama-3.1-8b").capacity(dev, utilization=cache["gpu_memory_utilization"])
    assert room.max_tokens() == pytest.approx(fact, rel=0.01)


def test_the_page_is_what_the_script_writes(shared):
    page = Path(report.PAGE).read_text(encoding="utf-8")
    assert page == report.page(shared), "run python tests/measured/report.py"
