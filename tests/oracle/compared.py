"""What the tests here share: published configs with their true counts, small configs, FLOPs on both sides."""

from __future__ import annotations

import csv
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from gambrel.model import arch as totals
from gambrel.model.fields import ConfigError
from gambrel.model.reader import read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gambrel.model.reader import Reading
    from gambrel.types import Op, Step

#: Products that eager attention is made of.
ATTENTION = ("aten.bmm", "aten.baddbmm")

#: Widths of latent attention in small configs.
MLA = {
    "num_key_value_heads": 12,
    "q_lora_rank": 48,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

#: Groups of parameters that mean the same: gambrel's name -> column of truth.csv.
GROUPS = {
    "attention": "attention",
    "mlp": "mlp",
    "experts": "experts_routed",
    "shared_experts": "shared_experts",
    "router": "router",
    "norm": "norm",
}


# Published configs ----------------------------------------------------------------------------


def published(shared: Path, name: str) -> dict[str, Any]:
    """A shared config by its file, with or without the suffix."""
    path = shared / "configs" / "models" / f"{name.removesuffix('.json')}.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


@cache
def _truths(shared: Path) -> dict[str, dict[str, str]]:
    with (shared / "configs" / "truth.csv").open(newline="", encoding="utf-8") as lines:
        return {row["file"]: row for row in csv.DictReader(lines)}


def truth(shared: Path, name: str) -> dict[str, str]:
    """The true counts of a shared config, its row of truth.csv."""
    return _truths(shared)[f"{name.removesuffix('.json')}.json"]


def counts(reading: Reading) -> dict[str, float]:
    """Total and active parameters, KV bytes per token as read."""
    tensors = list(reading.arch.tensors())
    return {
        "total": totals.params_total(tensors),
        "active": totals.params_active(tensors),
        "kv_bytes_per_token": totals.kv_bytes_per_token(reading.arch.caches(reading.precision.numerics())),
    }


def assert_refused(config: dict[str, Any], words: Iterable[str]) -> None:
    """It is refused with a ConfigError that has these words."""
    with pytest.raises(ConfigError) as refusal:
        read_config(config)
    assert [word for word in words if word not in str(refusal.value)] == []


# Small configs --------------------------------------------------------------------------------


def base(**keys: Any) -> dict[str, Any]:
    """The keys that most small configs have."""
    return {
        "vocab_size": 320,
        "hidden_size": 96,
        "intermediate_size": 176,
        "num_hidden_layers": 3,
        "num_attention_heads": 12,
        "num_key_value_heads": 3,
        "max_position_embeddings": 128,
        **keys,
    }


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A config that leaves keys out."""
    return {key: value for key, value in config.items() if key not in keys}


# FLOPs ----------------------------------------------------------------------------------------


def flops_of(ops: Iterable[Op]) -> dict[str, Any]:
    """gambrel's FLOPs by role; no other role than these two has any."""
    flops = {"gemm": 0, "attention": 0}
    for op in ops:
        if op.role in flops:
            flops[op.role] = flops[op.role] + op.cost.flops * op.count
        else:
            assert isinstance(op.cost.flops, int), f"{op.name} has FLOPs in role {op.role}"
            assert op.cost.flops == 0, f"{op.name} has FLOPs in role {op.role}"
    return flops


def gambrel_flops(config: dict[str, Any], step: Step) -> dict[str, Any]:
    """gambrel's FLOPs of one step by role."""
    reading = read_config(config)
    return flops_of(reading.arch.ops(step, reading.precision.numerics()))


def counted(run: Callable[[], Any]) -> tuple[dict[str, int], Any]:
    """PyTorch's FLOPs of what a function runs, by role, and what it returns; experts' products are no attention."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = run()
    by_module = {
        name: {str(operator): flops for operator, flops in counts.items()}
        for name, counts in counter.get_flop_counts().items()
    }
    products = lambda counts: sum(counts.get(product, 0) for product in ATTENTION)
    experts = sum(products(counts) for name, counts in by_module.items() if name.endswith(".experts"))
    attention = products(by_module.get("Global", {})) - experts
    return {"gemm": counter.get_total_flops() - attention, "attention": attention}, out
