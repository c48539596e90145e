"""Tracing: what the module's own code does is recorded exactly, and compared with the tables."""

from __future__ import annotations

import json

import pytest

import gambrel
from gambrel import GambrelError
from gambrel.cli import main

pytest.importorskip("torch", reason="needs CPU PyTorch (pip install gambrel[oracle])")
pytest.importorskip("transformers", reason="needs transformers (pip install gambrel[oracle])")

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

NAMES = (
    "qwen2.5-0.5b",
    "gpt2",
    "opt-125m",
    "gemma-3-1b",
    "deepseek-v2-lite",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "falcon-40b",
)


@pytest.mark.parametrize("name", NAMES)
def test_tables_equal_the_trace(name):
    from gambrel.cost.verify import verify

    result = verify(gambrel.load_model(name), batch=2, tokens=40)
    assert result.equal, [row for row in result.rows if row["difference"]]
    assert {row["phase"] for row in result.rows} == {"prefill", "decode"}


def test_weights_of_a_traced_step_are_those_of_the_module():
    """A dense decode step reads every matrix once, and one row of the embedding."""
    from gambrel.model.trace import trace

    model = gambrel.load_model("qwen2.5-0.5b")
    _, decode = trace(model.config, 1, 8)
    assert sum(op.cost.weight_bytes * op.count for op in decode.ops) == model.weight_bytes(streamed_only=True)


def test_gathered_experts_count_once():
    """Eight of 128 experts a layer, whatever the batch: the least that a step must read."""
    from gambrel.model.trace import trace

    model = gambrel.load_model("qwen3-30b-a3b")
    _, decode = trace(model.config, 4, 8)
    read = sum(op.cost.weight_bytes * op.count for op in decode.ops)
    table = model.ops(gambrel.Step(4, 1, 9))
    assert read == sum(op.cost.weight_bytes * op.count for op in table)


def test_a_changed_table_is_noticed():
    """The comparison can fail."""
    from gambrel.api import Model
    from gambrel.cost.verify import verify
    from gambrel.model.reader import read_config

    config = gambrel.load_model("gpt2").config
    wider = {**config, "n_inner": 3000}
    model = Model("wrong", "test", config, read_config(wider))
    assert not verify(model, tokens=8).equal


def test_what_cannot_be_traced_is_named():
    from gambrel.model.trace import trace

    with pytest.raises(GambrelError, match="no model_type 'nothing'"):
        trace({"model_type": "nothing"}, 1, 8)
    with pytest.raises(GambrelError, match="cannot build"):
        trace({"model_type": "llama", "hidden_size": "wide"}, 1, 8)


def test_command_line(capsys):
    assert main(["verify", "gpt2", "--prefill", "16", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert main(["verify", "gpt2", "--prefill", "16"]) == 0
    assert "equal to the unit" in capsys.readouterr().out
    assert main(["ops", "gpt2", "--trace", "--context", "16", "--device", "h100-sxm"]) == 0
    assert "transformer.h.*.attn.c_attn" in capsys.readouterr().out
    assert main(["ops", "gpt2", "--trace", "--chunk", "4"]) == 2
