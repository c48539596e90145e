"""Properties that hold for every step, scalar or grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gambrel
from gambrel import Step, load_device
from gambrel.api import Model
from gambrel.cost.parallel import shard
from gambrel.cost.roofline import demand
from gambrel.model.reader import read_config
from gambrel.types import Cost, WorkloadError

NAMES = ("llama-3-8b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "qwen3-30b-a3b", "falcon-40b", "opt-125m")
MODELS = {name: gambrel.load_model(name) for name in NAMES}
H100 = load_device("h100-sxm")

names = st.sampled_from(NAMES)
batches = st.integers(1, 4096)
contexts = st.integers(1, 300_000)


@st.composite
def steps(draw):
    context = draw(contexts)
    new = draw(st.one_of(st.just(1), st.integers(1, context)))
    return Step(draw(batches), new, context, draw(st.booleans()), draw(st.sampled_from(["last", "all"])))


def needs(model, step):
    return demand(model.ops(step))


@given(st.integers(1, 200), st.integers(0, 200), st.one_of(st.none(), st.integers(1, 250)))
def test_scores_count_every_pair(new, cached, window):
    seen = [min(cached + i, window or 10**9) for i in range(1, new + 1)]
    assert Step(3, new, cached + new).scores(window) == 3 * sum(seen)


@given(st.integers(1, 200), st.integers(0, 200), st.one_of(st.none(), st.integers(1, 250)))
def test_keys_read_are_those_that_any_query_sees(new, cached, window):
    step = Step(2, new, cached + new)
    visible = {k for q in range(cached, cached + new) for k in range(max(0, q + 1 - (window or 10**9)), q + 1)}
    assert step.keys_read(window) == 2 * len(visible)
    assert step.keys_written(window) == 2 * min(new, window or new)


def test_context_zero_leaves_the_cache_out():
    need = needs(MODELS["llama-3-8b"], Step(1, 1, 0))
    assert need.kv_read_bytes == need.kv_write_bytes == 0
    assert need.flops == 2 * MODELS["llama-3-8b"].params_gemm


@settings(deadline=None, max_examples=60)
@given(names, st.lists(batches, min_size=1, max_size=4), st.lists(contexts, min_size=1, max_size=4))
def test_grid_equals_scalar(name, batch, context):
    model = MODELS[name]
    grid = needs(model, Step(np.array(batch)[:, None], 1, np.array(context)[None, :]))
    for i, b in enumerate(batch):
        for j, s in enumerate(context):
            one = needs(model, Step(b, 1, s))
            for field in ("weight_bytes", "expected_weight_bytes", "kv_read_bytes", "kv_write_bytes", "flops"):
                whole = np.broadcast_to(getattr(grid, field), (len(batch), len(context)))
                assert whole[i, j] == pytest.approx(getattr(one, field), rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(names, st.integers(1, 64), st.lists(st.integers(1, 4096), min_size=2, max_size=5))
def test_prefill_grid_equals_scalar(name, batch, tokens):
    model, lengths = MODELS[name], np.array(tokens)
    grid = needs(model, Step(batch, lengths, lengths + 100))
    for j, s in enumerate(tokens):
        one = needs(model, Step(batch, s, s + 100))
        assert np.broadcast_to(grid.flops, lengths.shape)[j] == pytest.approx(one.flops, rel=1e-12)


def test_grids_are_not_changed_in_place():
    batch, context = np.arange(1.0, 5.0), np.arange(10.0, 14.0)
    kept = batch.copy(), context.copy()
    step = Step(batch, 1, context)
    first, second = (MODELS["gpt-oss-20b"].bound(step, H100).time_s for _ in range(2))
    assert (batch == kept[0]).all()
    assert (context == kept[1]).all()
    assert (first == second).all()


@settings(deadline=None, max_examples=80)
@given(names, steps(), st.integers(1, 64), st.integers(1, 5000))
def test_cost_grows_with_batch_and_context(name, step, more, longer):
    model = MODELS[name]
    base = needs(model, step)
    wider = needs(model, Step(step.batch + more, *step._own[1:]))
    deeper = needs(model, Step(step.batch, step.new_tokens, step.context_tokens + longer, *step._own[3:]))
    for other in (wider, deeper):
        assert other.flops >= base.flops
        assert other.bytes() >= base.bytes()
    assert base.weight_bytes <= base.expected_weight_bytes * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(names, steps(), steps())
def test_a_mixed_batch_shares_weights_and_adds_the_rest(name, one, other):
    model = MODELS[name]
    mixed, a, b = (needs(model, step) for step in (one + other, one, other))
    assert mixed.flops == a.flops + b.flops
    assert mixed.kv_read_bytes == a.kv_read_bytes + b.kv_read_bytes
    assert mixed.weight_bytes == a.weight_bytes == b.weight_bytes
    assert mixed.expected_weight_bytes <= a.expected_weight_bytes + b.expected_weight_bytes


@settings(deadline=None, max_examples=40)
@given(names, steps(), st.sampled_from([1, 2, 4, 8]))
def test_sharding_keeps_totals(name, step, tp):
    """What is split adds up to the whole; what is replicated is no less than its share."""
    model = MODELS[name]
    ops = model.ops(step)
    for whole, part in zip(ops, shard(ops, tp), strict=True):
        assert part.cost.flops * tp >= whole.cost.flops * (1 - 1e-12)
        if whole.ways is None or whole.ways % tp == 0:
            assert part.cost.flops * tp == pytest.approx(whole.cost.flops)
            assert part.cost.weight_bytes * tp == pytest.approx(whole.cost.weight_bytes)
    assert demand(shard(ops, 1)) == demand(ops)


def variant(name, **keys):
    config = {**MODELS[name].config, **keys}
    return Model("variant", "test", config, read_config(config))


def test_gqa_with_as_many_kv_heads_is_mha():
    model = variant("llama-3-8b", num_key_value_heads=32)
    assert model.kv_bytes_per_token == 4 * MODELS["llama-3-8b"].kv_bytes_per_token
    op = next(o for o in model.ops(Step(1, 1, 1000)) if o.role == "attention")
    assert op.cost.flops / op.cost.kv_read_bytes == 1


def test_window_as_long_as_the_context_is_full():
    windowed = variant("gpt-oss-20b", sliding_window=5000)
    full = variant("gpt-oss-20b", layer_types=["full_attention"] * 24)
    step = Step(3, 1, 5000)
    assert needs(windowed, step) == needs(full, step)
    assert windowed.state_bytes(5000) == full.state_bytes(5000)


def test_all_experts_is_dense():
    model = variant("qwen3-30b-a3b", num_experts_per_tok=128)
    need = needs(model, Step(1, 1, 0))
    assert need.weight_bytes == pytest.approx(need.expected_weight_bytes)
    assert need.weight_bytes == model.weight_bytes(streamed_only=True)
    assert model.params_active == model.params_total


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-27b", "falcon-40b", "opt-125m"])
def test_streamed_weights_are_what_the_operators_read(name):
    model = MODELS[name]
    assert needs(model, Step(7, 1, 100)).weight_bytes == model.weight_bytes(streamed_only=True)


def test_tied_table_is_streamed():
    model = gambrel.load_model("llama-3.2-1b")
    assert model.weight_bytes() == model.weight_bytes(streamed_only=True)


def test_costs_add_and_multiply():
    cost = Cost(flops=3, weight_bytes=5)
    assert cost + cost == cost * 2
    assert Cost.sum([]) == Cost()


@pytest.mark.parametrize(
    "fields",
    [{"batch": 0}, {"batch": -1}, {"new_tokens": 0}, {"context_tokens": -1}, {"new_tokens": 5, "context_tokens": 4}],
)
def test_impossible_workloads(fields):
    with pytest.raises(WorkloadError):
        Step(**fields)


def test_impossible_grid():
    with pytest.raises(WorkloadError):
        Step(np.array([1, 0]), 1, 10)
    with pytest.raises(WorkloadError):
        Step(1, np.array([5, 5]), np.array([5, 4]))
