"""FLOPs of forward and backward against PyTorch's counter on the meta device.

One training step of a small model: forward with every row through the output head, then backward from the logits.
Attention runs as "eager" and multiplies every key, so gambrel counts with causal=False; its backward pass has two
products of the size of each forward one, as in the exact convention. Experts run as "batched_mm", as in test_flops.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from gambrel.api import Model
from gambrel.cost.training import CONVENTIONS, Recompute, Work, executed
from gambrel.model.reader import read_config

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BATCH, SEQ = 2, 20
FAMILIES = (
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "olmo2",
    "gpt2",
    "opt",
    "falcon-40b-like",
    "gpt_neox",
    "bloom",
)


def counted(config: dict[str, Any], modules: Any, checkpoint: bool) -> int:
    """FLOPs of one forward and backward pass, by PyTorch."""
    from torch.utils.checkpoint import set_checkpoint_early_stop
    from torch.utils.flop_counter import FlopCounterMode

    module = modules.build(modules.config(config)).train()
    if checkpoint:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    ids = modules.torch.zeros(BATCH, SEQ, dtype=modules.torch.long, device="meta")
    # A mask that is made already: making one looks at values, which the meta device has not.
    given = config["model_type"] not in ("opt", "bloom")  # these two derive positions from a mask of another shape
    mask = modules.torch.zeros(BATCH, 1, SEQ, SEQ, device="meta") if given else None
    # PyTorch would stop recomputing at the last tensor that it saved, and so spare the last product of most layers.
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False):
        module(input_ids=ids, attention_mask=mask, use_cache=False).logits.sum().backward()
    return int(counter.get_total_flops())


def work_of(config: dict[str, Any]) -> Work:
    """The same step; MLA expanded, as the module runs it."""
    reading = read_config(config)
    return Work(Model("small", "test", config, reading), SEQ, BATCH, attention="materialised")


@pytest.mark.parametrize("name", FAMILIES)
def test_forward_and_backward(name: str, cases: Any, modules: Any) -> None:
    config = next(case.config for case in cases if case.name == name)
    work = work_of(config)
    exact = 3 * sum(op.cost.flops * op.count for op in work.ops(causal=False))
    assert counted(config, modules, checkpoint=False) == exact


@pytest.mark.parametrize("name", ["mistral", "qwen3", "gpt2", "olmo2"])
def test_full_recomputation(name: str, cases: Any, modules: Any) -> None:
    """The layers run forward once more; the output head does not."""
    config = next(case.config for case in cases if case.name == name)
    work = work_of(config)
    ops = work.ops(causal=False)
    again = sum(op.cost.flops * op.count for op in ops if op.block.startswith("layer"))
    assert counted(config, modules, checkpoint=True) == 3 * sum(op.cost.flops * op.count for op in ops) + again


def test_exact_is_three_forward_passes_and_full_repeats_the_layers() -> None:
    import gambrel

    work = Work(gambrel.load_model("llama-3-8b"), 1024, attention="materialised")
    ops = work.ops()
    forward = sum(op.cost.flops * op.count for op in ops) / work.tokens
    head = sum(op.cost.flops * op.count for op in ops if op.block == "head") / work.tokens
    done = executed(work, CONVENTIONS["exact"], Recompute("full", 1.0))
    assert done.model == pytest.approx(3 * forward)
    assert done.flops == pytest.approx(4 * forward - head)
