"""A live profile: hooks name the modules, ranges name the phases, and the trace is read as any other."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest

from gambrel.api import Model
from gambrel.cli import main
from gambrel.cost.workload import prefill_step
from gambrel.measure import live
from gambrel.measure.attribute import attribute, class_of, path_of
from gambrel.measure.kineto import read_trace
from gambrel.measure.profile import profile
from gambrel.measure.run import Setup
from gambrel.model.reader import read_config
from gambrel.types import GambrelError

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
NEEDED = "needs CPU PyTorch and transformers (pip install gambrel[oracle])"


def setup(config=TINY, **options):
    known = {"dtype": "fp32", "prompt_tokens": 16, "context_tokens": 32, "threads": 1}
    return Setup("tiny", config, config["num_hidden_layers"], **{**known, **options})


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("transformers", reason=NEEDED)
    torch = pytest.importorskip("torch", reason=NEEDED)
    before = torch.get_num_threads()
    yield torch
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kept(torch, tmp_path_factory):
    return str(tmp_path_factory.mktemp("live") / "trace.json.gz")


@pytest.fixture(scope="module")
def found(kept):
    return live.profile_live(setup(), keep=kept)


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def event(category, name, start, duration, **args):
    """A complete event of a trace, on one thread [us]."""
    times = {"pid": 1, "tid": 7, "ts": start, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, **times, "args": args}


def test_both_phases_are_found_and_nothing_else(found):
    assert [row["phase"] for row in found.phases] == ["prefill", "decode"]
    assert {row["name"]: row["count"] for row in found.ranges} == {"prefill": 1, "decode": live.DECODE_STEPS}


def test_every_layer_has_the_same_operators(found):
    rows = {row["phase"]: row for row in found.layers}
    assert {row["layer"] for row in rows.values()} == {"LlamaDecoderLayer"}
    assert rows["prefill"]["layers"] == rows["decode"]["layers"] == 3
    assert (rows["prefill"]["calls"], rows["decode"]["calls"]) == (3, 3 * live.DECODE_STEPS)
    for row in rows.values():
        assert row["activities_least"] == row["activities_most"] > 20


def test_products_are_those_of_the_analytic_model(found):
    model = Model("tiny", "here", TINY, read_config(TINY))
    ops = model.ops(prefill_step(model.arch, 1, 16))
    expected = sum(op.cost.flops * op.count for op in ops if op.role == "gemm")
    assert expected > 0
    for phase, times in (("prefill", 1), ("decode", live.DECODE_STEPS)):
        rows = [row for row in found.operators if row["phase"] == phase and row["role"] == "gemm" and row["flops"]]
        labels = {row["label"].split()[0] for row in rows}
        assert {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"} <= labels
        assert all(row["count"] == times * (1 if row["label"].startswith("lm_head") else 3) for row in rows)
        if phase == "prefill":
            assert sum(row["flops"] for row in rows) == expected


def test_the_kept_trace_reads_the_same(found, kept):
    again = profile(kept)
    assert again.operators == found.operators
    assert again.layers == found.layers
    with gzip.open(kept) as file:
        assert b"nn.Module: model.layers.2.mlp.up_proj (Linear)" in file.read()


def test_operators_do_not_overlap(found, kept):
    activities = attribute(read_trace(kept))
    assert {each.layer_name for each in activities if each.layer} == {f"model.layers.{i}" for i in range(3)}
    for one, other in pairwise(activities):
        assert one.end_s <= other.start_s + 1e-9


def test_no_hook_is_left(torch, tmp_path):
    built = live.record(setup(phases=("prefill",)), str(tmp_path / "t.json"))
    for child in built.module.modules():
        assert not any(hook.__module__ == live.__name__ for hook in child._forward_pre_hooks.values())
        assert not any(hook.__module__ == live.__name__ for hook in child._forward_hooks.values())


def test_hooks_go_and_ranges_close_where_a_module_fails(torch):
    class Broken(torch.nn.Module):
        def forward(self, given):
            raise ValueError("broken")

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), Broken())

    def fails():
        with live.module_ranges(torch, module):
            assert all(child._forward_hooks for child in module.modules())
            module(torch.ones(1, 2))

    with pytest.raises(ValueError, match="broken"):
        fails()
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())


def test_names_say_path_and_class():
    name = live.range_name("model.layers.3.mlp.up_proj", "Linear")
    assert (path_of(name), class_of(name)) == ("model.layers.3.mlp.up_proj", "Linear")
    assert path_of("nn.Module: Linear_7") == ""
    assert class_of(live.range_name("", "LlamaForCausalLM")) == "LlamaForCausalLM"


def test_the_command(torch, tiny, tmp_path, capfd):
    chart = tmp_path / "chart.json"
    line = ["profile", tiny, "--on", "cpu", "--prompt", "16", "--context", "32", "--layers", "2", "--steps", "1"]
    assert main([*line, "--device", "cpu-epyc-9654", "-o", str(chart), "--format", "json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["source"] == "live, tiny (2 of 3 layers)"
    assert {row["layers"] for row in document["layers"]} == {2}
    assert "only the first 2 of 3 layers" in " ".join(document["notes"])
    assert "hollow: predicted" in chart.read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--on", "tpu"], "--on tpu: accepted is cpu or cuda:0"),
        (["--phase", "train"], "--phase train: accepted is"),
        (["--layers", "9"], "--layers 9: accepted is 1 to 3"),
        (["--keep", "trace.txt"], "ends in .json or .json.gz"),
        (["--keep", "none/trace.json"], "no file can be written there"),
        (["--tp", "2"], "MODEL runs on one device"),
        (["--eager", "e.json"], "--eager: only with --trace"),
        (["--trace", "t.json", "--batch", "2"], "leave out --batch"),
        (["--trace", "t.json"], "MODEL and --trace"),
        (["-o", "x.svg"], "needs --device"),
    ],
)
def test_what_cannot_be_is_one_line(torch, tiny, capfd, line, message):
    assert main(["profile", tiny, *line]) == 2
    told = capfd.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_other_engines_are_refused(torch):
    with pytest.raises(live.LiveError, match="runs eagerly"):
        live.profile_live(setup(engines=("graph",)))


def test_what_a_models_code_raises_is_one_line(torch, monkeypatch):
    def fail(step, call=None):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(live.engines.Pass, "forward", fail)
    with pytest.raises(GambrelError, match=r"^tiny cannot run: RuntimeError: first line$"):
        live.profile_live(setup())


def test_ranges_named_as_modules_are_modules_of_any_trace(tmp_path):
    """As hooks write them on a GPU: on the host, and again on the device, where they say nothing more."""
    events = [event("user_annotation", "decode", 0, 900), event("gpu_user_annotation", "decode", 20, 900)]
    for layer in range(2):
        at, block = 100 + 400 * layer, live.range_name(f"model.layers.{layer}", "Block")
        linear = live.range_name(f"model.layers.{layer}.up", "Linear")
        events += [event("user_annotation", block, at, 300), event("user_annotation", linear, at + 1, 200)]
        events += [event("gpu_user_annotation", block, at + 20, 300)]
        events += [
            event("cpu_op", "aten::mm", at + 2, 100, **{"Input Dims": [[1, 64], [64, 8]], "Input type": ["float"] * 2})
        ]
        events += [event("cuda_runtime", "cudaLaunchKernel", at + 3, 5, correlation=9 + layer)]
        events += [event("kernel", "gemv", at + 30, 9, correlation=9 + layer, device=0, stream=7)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = profile(str(path))
    (row,) = found.layers
    assert (row["layer"], row["layers"], row["kernels_per_layer"], row["phase"]) == ("Block", 2, 1, "decode")
    assert [row["name"] for row in found.ranges] == ["decode"]
    assert [row["label"] for row in found.operators] == ["up 64→8"]
    assert found.notes == ()


def test_a_product_on_a_cpu_is_counted_once_with_what_it_calls(tmp_path):
    def op(name, start, duration, *dims):
        args = {"Input Dims": [list(each) for each in dims], "Input type": ["float"] * len(dims)}
        return event("cpu_op", name, start, duration, **args)

    linear = [op("aten::linear", 0, 100, (4, 64), (8, 64)), op("aten::t", 1, 9, (8, 64)), op("aten::as_strided", 2, 3)]
    linear += [op("aten::mm", 20, 60, (4, 64), (64, 8)), op("aten::resolve_conj", 21, 2, (4, 64))]
    copy = [
        op("aten::_to_copy", 200, 50, (4, 8)),
        op("aten::empty_strided", 201, 5),
        op("aten::copy_", 210, 30, (4, 8)),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": linear + copy}))
    found = attribute(read_trace(str(path)))
    assert [each.name for each in found] == ["aten::as_strided", "aten::mm", "aten::empty_strided", "aten::copy_"]
    assert sum(each.work.flops for each in found if each.work) == 2 * 4 * 64 * 8
    assert found[1].duration_s == pytest.approx(60e-6)
    assert found[2].work is None
