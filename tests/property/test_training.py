"""Training: what shares must add up to, what grows with what, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import gambrel
from gambrel.cost.activations import korthikanti_terms
from gambrel.cost.footprint import OPTIMIZERS, Adapter, Plan, footprint, largest_micro_batch
from gambrel.cost.parallel import SENT, Layout, Network
from gambrel.cost.training import CONVENTIONS, Rate, Work, check_possible, executed, recompute, utilisation
from gambrel.cost.trainstep import step_bound, traffic
from gambrel.types import GambrelError

model = cache(gambrel.load_model)
NAMES = ("llama-3-8b", "gpt2", "qwen3-30b-a3b", "deepseek-v3", "gemma-2-9b", "qwen3-next-80b-a3b")


@pytest.mark.parametrize("name", NAMES)
def test_sixteen_bytes_a_parameter(name):
    """AdamW with a master copy: 2 + 2 + 4 + 8, whatever the model."""
    found = footprint(Plan(model(name), 1024))
    state = found.parameters_bytes + found.gradients_bytes + found.optimizer_bytes
    assert state == pytest.approx(16 * model(name).params_total)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_divides_what_it_says(zero):
    one, many = (footprint(Plan(model("llama-3-8b"), layout=Layout(dp=dp), zero=zero)) for dp in (1, 8))
    kinds = ("optimizer_bytes", "gradients_bytes", "parameters_bytes")
    for place, kind in enumerate(kinds, 1):
        assert getattr(one, kind) == pytest.approx(getattr(many, kind) * (8 if zero >= place else 1))


@pytest.mark.parametrize("name", ["llama-3-70b", "qwen3-30b-a3b"])
def test_pipeline_stages_hold_the_model_together(name):
    """Without the tables at both ends every stage has its share of the layers."""
    whole = footprint(Plan(model(name))).parameters_bytes
    part = footprint(Plan(model(name), layout=Layout(pp=4), micro_batches=8))
    tables = 2 * 2 * model(name).params_embedding
    assert part.parameters_bytes <= (whole - tables) / 4 + tables
    assert part.in_flight in (1, 4)


def test_experts_are_divided_apart():
    plain, shared = (footprint(Plan(model("qwen3-30b-a3b"), layout=Layout(dp=8, ep=ep))) for ep in (1, 8))
    experts = 2 * model("qwen3-30b-a3b").params_by_group["experts"]
    assert plain.parameters_bytes - shared.parameters_bytes == pytest.approx(experts * 7 / 8)


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_published_formula_under_tensor_parallelism(t, sequence_parallel):
    """sbh(10 + 24/t + 5as/(ht)), and sbh/t·(34 + 5as/h) with sequence parallelism (equations 2 and 4)."""
    h, a, s, b = 12288, 96, 2048, 1
    terms = korthikanti_terms(h, a)
    got = sum(x.total_bytes(b * s, b * s * s) / (t if x.split or sequence_parallel else 1) for x in terms)
    rest = 34 / t if sequence_parallel else 10 + 24 / t
    assert got == pytest.approx(s * b * h * (rest + 5 * a * s / (h * t)))


@pytest.mark.parametrize("name", NAMES)
def test_recomputation_keeps_less_and_executes_more(name):
    plans = [Plan(model(name), 2048, attention="materialised", recompute=recompute(r)) for r in RECOMPUTES]
    kept = [footprint(plan).activations_bytes for plan in plans]
    assert kept[0] >= kept[1]
    assert kept[0] >= kept[2] >= kept[3]
    work = Work(model(name), 2048, attention="materialised")
    done = [executed(work, CONVENTIONS["exact"], plan.recompute).flops for plan in plans]
    assert done[0] < done[2] < done[3]
    assert done[0] <= done[1]


RECOMPUTES = ("none", "selective", "every:2", "full")


@pytest.mark.parametrize("rule", CONVENTIONS.values(), ids=list(CONVENTIONS))
@pytest.mark.parametrize("name", NAMES)
def test_conventions_agree_within_reason(rule, name):
    """At a short sequence all count the same matrices, but for tables and routers."""
    count = rule.count(Work(model(name), 128))
    assert count.flops == pytest.approx(6 * model(name).params_active, rel=0.35)


def test_documents_shorten_attention():
    whole, packed = (CONVENTIONS["exact"].count(Work(model("llama-3-8b"), 8192, 1, doc)) for doc in (None, 1024))
    assert packed.weights == whole.weights
    assert packed.attention == pytest.approx(whole.attention / 8, rel=1e-3)


def test_6n_and_8n():
    work = Work(model("llama-3-8b"))
    assert executed(work, CONVENTIONS["6n"], recompute("none")).flops == 6 * 8030261248
    assert executed(work, CONVENTIONS["6n"], recompute("full")).flops == 8 * 8030261248


def test_more_than_peak_is_an_error():
    rate = Rate("h100-sxm", 989e12, "bf16", 30_000)
    found = utilisation(Work(model("llama-3-8b")), rate, CONVENTIONS["exact"], recompute("none"))
    with pytest.raises(GambrelError, match=r"MFU 156% .* fp8 \(78%\).*node of 8"):
        check_possible(found, rate, {"bf16": 989e12, "fp8": 1979e12})


def test_lora_has_little_state():
    full, adapted = (footprint(Plan(model("llama-3-8b"), adapter=a)) for a in (None, Adapter(16)))
    assert adapted.gradients_bytes < full.gradients_bytes / 100
    quantised = footprint(Plan(model("llama-3-8b"), adapter=Adapter(16, True)))
    assert quantised.parameters_bytes < adapted.parameters_bytes / 3


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    plan = Plan(model("llama-3-8b"), layout=Layout(dp=8), zero=3, recompute=recompute("full"))
    best = largest_micro_batch(plan, 85e9)
    sizes = [footprint(replace(plan, micro_batch=b)).total_bytes for b in (best, best + 1)]
    assert sizes[0] <= 0.9 * 85e9 < sizes[1]


@pytest.mark.parametrize("kind", SENT)
def test_one_device_sends_nothing(kind):
    assert SENT[kind](1) == 0


def test_traffic_of_one_device_is_none():
    assert traffic(Plan(model("qwen3-30b-a3b"))) == []


def test_step_bound():
    plan = Plan(model("llama-3-70b"), 8192, 1, 32, Layout(dp=8, tp=8, pp=4), 1)
    fast = step_bound(plan, 989e12, Network(450e9))
    slow = step_bound(plan, 989e12, Network(450e9, 8, 1e9))
    assert fast.binding == "compute"
    assert slow.binding == "network"
    assert fast.mfu_serial < fast.mfu_ceiling <= 1 / (1 + 3 / 32)
    assert slow.bound_s > fast.bound_s


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Layout(dp=3, ep=2),
        lambda: Layout(virtual=2),
        lambda: Layout(tp=0),
        lambda: Plan(model("gpt2"), layout=Layout(pp=99)),
        lambda: Plan(model("gpt2"), zero=4),
        lambda: recompute("every:0"),
        lambda: Work(model("gpt2"), 128, doc_tokens=256),
        lambda: Adapter(0),
    ],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(GambrelError):
        wrong()


def test_optimizers_are_named():
    assert all(name == row.name and row.source for name, row in OPTIMIZERS.items())


# The page ---------------------------------------------------------------------------------------


def told(heading):
    """Cells of the table of docs/training.md whose first heading is this."""
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    rows = text.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return {cells[0].strip("`"): cells[1:] for cells in ([c.strip() for c in r.strip("|").split("|")] for r in rows)}


def test_the_page_lists_every_convention():
    assert told("convention") == {name: [row.formula, row.source] for name, row in CONVENTIONS.items()}


def test_the_page_lists_every_optimizer():
    page = told("optimizer | weight")
    assert page.keys() == OPTIMIZERS.keys()
    for name, row in OPTIMIZERS.items():
        *_, state, what = page[name]
        assert [float(x) for x in page[name][:3]] == [row.param_bytes, row.grad_bytes, row.master_bytes]
        assert float(state.split(",")[0]) == row.state_bytes
        assert what == row.source
