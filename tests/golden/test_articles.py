"""Every number that the source articles state, from the public API."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import gambrel
from gambrel import DeviceOverrides, Step, load_device
from gambrel.cost.report import Options, capacity
from gambrel.cost.request import Rig, request, serving
from gambrel.cost.roofline import op_intensity

NUMBERS = tomllib.loads((Path(__file__).parent / "articles.toml").read_text())["number"]
GIVEN_DEVICES = {
    "h100-sxm": DeviceOverrides(memory="80GB"),
    "a100-80gb": DeviceOverrides(memory="80GB"),
    "rtx-6000-ada": DeviceOverrides(memory="48GB"),
}

model = cache(gambrel.load_model)


def device(given):
    name = given.get("hardware", "h100-sxm")
    return load_device(name, GIVEN_DEVICES[name])


def loaded(given):
    return model(given["model"], given.get("weight_dtype"), given.get("kv_dtype"))


def group(given, name):
    return loaded(given).params_by_group[name]


def decode(given, batch=None, context=None):
    report = loaded(given).report(
        device(given),
        batches=(batch or given["batch"],),
        contexts=(given["context"] if context is None else context,),
        prefills=(),
        weights=given.get("weights", "streamed"),
        tp=given.get("tp", 1),
        utilization=1,
        reserve_bytes=0,
    )
    return report.decode[0]


def prefill(given):
    report = loaded(given).report(
        device(given),
        prefills=(given["seq"],),
        logits="all",
        efficiency=given.get("mfu", 0.6),
        weights=given.get("weights", "streamed"),
    )
    return report.prefill[0 if given.get("causal", True) else 1]


def prefill_ops(given, causal=True):
    return loaded(given).ops(Step(1, given["seq"], given["seq"], causal, "all"))


def op(given, step, name):
    return next(o for o in loaded(given).ops(step) if o.name == name)


def role_flops(ops, role):
    return sum(o.cost.flops * o.count for o in ops if o.role == role)


def attention(given, context=None):
    return loaded(given).flops_per_token(given["context"] if context is None else context)["attention"]


def attention_op(given, step=None):
    ops = loaded(given).ops(step or Step(1, 1, given["context"]))
    return next(o for o in ops if o.role == "attention")


def weights_flops(given):
    return 2 * loaded(given).params_gemm


def head(given):
    return op(given, Step(1, 1, 1), "lm_head").cost


def room(given):
    options = Options(utilization=1, reserve_bytes=0)
    plain = capacity(loaded(given), device(given), options)
    return replace(plain, stated_budget_bytes=given["kv_budget_bytes"])


def kv_heads(given):
    base = model("llama-3-8b")
    config = {**base.config, "num_key_value_heads": given["n_kv_heads"]}
    from gambrel.api import Model
    from gambrel.model.reader import read_config

    return Model("as MHA", "test", config, read_config(config)).kv_bytes_per_token


def cache_as_mha(given):
    """DeepSeek-V3 if it cached its 128 heads of 128 in full."""
    from gambrel.model.parts import Attention, Linear
    from gambrel.model.precision import BF16

    m = loaded(given)
    none = Linear("none", "attention", 1, 1, BF16)
    full = Attention((), none, m.arch.n_heads, m.arch.n_heads, 128, 128, BF16)
    return m.arch.n_layers * full.cache(m.numerics).bytes_per_token


def ratio(given):
    one, many = decode(given, 1, 8192), decode(given, 64, 8192)
    return many.tokens_per_s / one.tokens_per_s


def rig(given):
    return Rig(loaded(given), device(given), weights="resident", efficiency=given["mfu"])


def gemm_intensity(given):
    ops = [o for o in loaded(given).ops(Step(given["batch"], 1, 0)) if o.role == "gemm"]
    matrices = sum(t.stored_bytes * t.copies for t in loaded(given).tensors if t.gemm and t.streamed)
    return sum(o.cost.flops * o.count for o in ops) / matrices


def kv_intensity(given):
    cost = attention_op(given).cost
    return cost.flops / cost.kv_read_bytes


def prefill_over_weights(given):
    return prefill(given).flops / prefill(given).weight_bytes


def crossover(given):
    return loaded(given).crossover(device(given), given.get("context", 8192))


def fused_qkv_intensity(given):
    """The article fuses Q, K and V into one matrix: inputs, weights and outputs once each."""
    from gambrel.model.parts import Linear
    from gambrel.model.precision import BF16

    m = loaded(given)
    width = sum(p.n_out for p in m.arch.blocks[0].parts[1].projections)
    fused = Linear("qkv_proj", "attention", 2048, width, BF16)
    return op_intensity(fused.op(given["seq"], m.numerics))


def training(given):
    from gambrel.cost.training import Work

    return Work(loaded(given), given.get("seq", 8192))


def run_of(given, mfu=0.4):
    """The articles count 6ND, and 8ND at the same share of peak under full recomputation."""
    from gambrel.cost.training import CONVENTIONS, Fleet, recompute, training_run

    again = recompute(given.get("recompute", "none"))
    fleet = Fleet(1, device(given).peak("bf16"), given.get("mfu", mfu), of_executed=True)
    return training_run(training(given), fleet, CONVENTIONS["6n"], again, given["tokens"])


def mfu_of(given):
    from gambrel.cost.training import CONVENTIONS, Rate, recompute, utilisation

    rate = Rate("h100-sxm", device(given).peak("bf16"), "bf16", given["tokens_per_s"])
    return utilisation(training(given), rate, CONVENTIONS["6n"], recompute("none")).mfu


def mfu_of_hfu(given):
    from gambrel.cost.training import mfu_from_hfu, recompute

    return mfu_from_hfu(given["hfu"], recompute(given["recompute"]))


def shape(given):
    from gambrel.cost.training import hidden_width

    return hidden_width(loaded(given)), loaded(given).arch.n_heads


def kept(given, scores=True, linear=True):
    """Bytes of one layer by the published formula: its linear and its quadratic part."""
    from gambrel.cost.activations import korthikanti_terms

    s, terms = given["seq"], korthikanti_terms(*shape(given), flash=given.get("attention") == "flash")
    return sum(t.total_bytes(s, s * s) for t in terms if (scores and t.per_score) or (linear and t.per_token))


def equal_seq_of(given):
    from gambrel.cost.activations import equal_seq

    return equal_seq(*shape(given))


COMPUTED = {
    "train.mfu_from_hfu": mfu_of_hfu,
    "train.act_layer": kept,
    "train.act_flash": kept,
    "train.act_all": lambda g: kept(g) * loaded(g).arch.n_layers,
    "train.act_quad_over_linear": lambda g: kept(g, linear=False) / kept(g, scores=False),
    "train.act_quad_share": lambda g: kept(g, linear=False) / kept(g),
    "train.act_equal_seq": equal_seq_of,
    "params.attn_per_layer": lambda g: group(g, "attention") / 32,
    "params.ffn_per_layer": lambda g: group(g, "mlp") / 32,
    "params.layers": lambda g: group(g, "attention") + group(g, "mlp") + group(g, "norm"),
    "params.embedding": lambda g: loaded(g).params_embedding,
    "params.total": lambda g: loaded(g).params_total,
    "params.total_exact": lambda g: loaded(g).params_total,
    "params.gemm": lambda g: loaded(g).params_gemm,
    "params.total.70b": lambda g: loaded(g).params_total,
    "params.gemm.70b": lambda g: loaded(g).params_gemm,
    "params.total.1b": lambda g: loaded(g).params_total,
    "flops.weights_per_token": weights_flops,
    "flops.weights_per_token.70b": weights_flops,
    "flops.lm_head": lambda g: head(g).flops,
    "flops.lm_head_share": lambda g: head(g).flops / weights_flops(g),
    "flops.attn_layer_8k": lambda g: attention_op(g).cost.flops,
    "flops.attn_8k": attention,
    "flops.attn_128k": attention,
    "flops.attn_over_weights_128k": lambda g: attention(g) / weights_flops(g),
    "flops.attn_8k.70b": attention,
    "flops.attn_128k.70b": attention,
    "flops.decode_8k": lambda g: decode(g, 1).flops,
    "flops.prefill_weights_8k": lambda g: role_flops(prefill_ops(g), "gemm"),
    "flops.prefill_attn_8k_causal": lambda g: role_flops(prefill_ops(g), "attention"),
    "flops.prefill_over_decode_8k": lambda g: prefill(g).flops / decode(g, 1, g["seq"]).flops,
    "flops.prefill_attn_over_weights_128k": lambda g: (
        role_flops(prefill_ops(g), "attention") / role_flops(prefill_ops(g), "gemm")
    ),
    "bytes.weights_streamed": lambda g: loaded(g).weight_bytes(streamed_only=True),
    "bytes.lm_head": lambda g: head(g).weight_bytes,
    "bytes.kv_per_token.mha": kv_heads,
    "bytes.kv_per_token.dsv3_as_mha": cache_as_mha,
    "bytes.act_ffn_b64": lambda g: 64 * op(g, Step(1, 1, 1), "up_proj").cost.flops / 2 / 4096 * 2,
    "bytes.act_ffn_prefill_8k": lambda g: g["seq"] * 14336 * loaded(g).numerics.base.element_bytes,
    "bytes.logits_per_token": lambda g: head(g).flops / 2 / 4096 * loaded(g).numerics.base.element_bytes,
    "roof.intensity_1": lambda g: min(device(g).peak("bf16"), g["intensity"] * device(g).mem_bytes_per_s),
    "intensity.rmsnorm": lambda g: (c := op(g, Step(8192, 1, 1), "input_layernorm").cost).vector_flops / c.act_bytes,
    "intensity.prefill_qkv.1b": fused_qkv_intensity,
    "intensity.limit_8k": lambda g: crossover(g).intensity_limit,
    "measured.1b_rtx.fraction": lambda g: decode(g, 1, 0).bound_s / g["measured_s"],
    "batch_gain.8b": ratio,
    "kv_over_weights.b64_8k": lambda g: decode(g).kv_bytes / loaded(g).weight_bytes(),
    "bytes_growth.b64_8k": lambda g: (decode(g).kv_bytes + loaded(g).weight_bytes()) / loaded(g).weight_bytes(),
    "prefill.8b.8k.floor": lambda g: prefill(g).bound_s,
    "prefill.8b.8k.floor_full": lambda g: prefill(g).bound_s,
    "prefill.8b.8k.intensity": lambda g: prefill(g).flops / loaded(g).weight_bytes(),
    "request.8b.8k_512": lambda g: request(rig(g), g["seq"], g["new_tokens"], logits="all").total_s,
    "request.8b.8k_512.decode_share": lambda g: request(rig(g), g["seq"], g["new_tokens"], logits="all").decode_share,
    "chunked.8b.1k_chunk": lambda g: serving(rig(g), g["seq"], 64, g["chunk"], logits="all").chunk_s,
    "crossover.h100.by_time": lambda g: crossover(g).resident_batch,
    "capacity.tokens_64gib": lambda g: room(g).max_tokens(),
    "selftest.b64_4k.kv": lambda g: decode(g).kv_bytes,
    "selftest.b64_4k.intensity": lambda g: decode(g).intensity_flop_per_byte,
}

#: Families of entries that one computation answers, by the start of their id.
BY_PREFIX = {
    "train.6nd": lambda g: run_of(g).flops,
    "train.gpu_hours": lambda g: run_of(g).device_hours,
    "train.mfu_": mfu_of,
    "flops.prefill_": lambda g: prefill(g).flops,
    "bytes.weights_resident": lambda g: loaded(g).weight_bytes(),
    "bytes.kv_per_token": lambda g: loaded(g).kv_bytes_per_token,
    "bytes.kv_read": lambda g: decode(g).kv_bytes,
    "ridge.": lambda g: device(g).ridge(g["dtype"]),
    "intensity.weights": gemm_intensity,
    "intensity.kv": kv_intensity,
    "floor.": lambda g: decode(g, g["batch"], g["context"]).bound_s,
    "prefill.": lambda g: prefill(g).estimate_s,
    "crossover.": lambda g: crossover(g).weights_batch,
    "capacity.batch_": lambda g: room(g).max_batch(g["context"]),
    "capacity.flops_": lambda g: decode(g, 1).flops,
    "capacity.intensity_": lambda g: decode(g).intensity_flop_per_byte,
    "capacity.step_": lambda g: decode(g).bound_s,
}
DECODE_FIELDS = {
    "intensity": "intensity_flop_per_byte",
    "memory_time": "memory_s",
    "compute_time": "compute_s",
    "tokens_per_s": "tokens_per_s",
}


def compute(number):
    name, given = number["id"], number["given"]
    if name in COMPUTED:
        return COMPUTED[name](given)
    if name.startswith("decode."):
        return getattr(decode(given), DECODE_FIELDS[name.rsplit(".", 1)[1]])
    if name.startswith("floor.") and number["unit"] == "token/s":
        return decode(given).tokens_per_s
    return next(f for prefix, f in BY_PREFIX.items() if name.startswith(prefix))(given)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n["id"])
def test_number(number):
    value = compute(number)
    if number["rel_tol"] == 0:
        assert value == number["value"]
    else:
        assert value == pytest.approx(number["value"], rel=number["rel_tol"])
