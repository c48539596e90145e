"""FLOPs of matrix products and attention of whole forward passes against PyTorch's counter on the meta device.

Every small model runs a prefill, a chunk over the cache, a decode step over the cache, and a chunk of which only the
last row goes through the output head; gambrel's FLOPs, split into weight GEMMs and attention, equal the counter's
exactly. What makes the two comparable:

* Both count the products alone: norms, softmax, activations and rotary embeddings have none (in transformers 5.24 the
  rotary angles are an element-wise product, not a matrix product).
* FlopCounterMode knows mm, addmm, bmm, baddbmm. Attention runs as "eager", so that QK^T and PV are bmm or baddbmm;
  the fused kernel on the meta device or CPU is decomposed, or counted with every key, by version.
* FlopCounterMode has no formula for _grouped_mm, and the loop over experts needs data. Experts run as "batched_mm":
  one bmm row per token and expert, the same products. Their bmm are told from attention's by their module's name.
* Eager attention multiplies every key that it is given and masks afterwards: Step(causal=False). A prefill is given
  all keys whatever the window; later steps are given what the cache kept, W - 1 keys, and the new tokens' own, which
  is gambrel's min(s, W + q - 1). What causal masking leaves out is checked apart, by counting probabilities.
* The module expands MLA's latent for every cached key in every step; gambrel takes the cheaper of that and the
  absorbed form, so the module's count is corrected by the difference, from products that PyTorch counts as well.
"""

from __future__ import annotations

from typing import Any

import pytest
from compared import counted, gambrel_flops

from gambrel.types import Step

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BATCH = 2
#: Steps in order: name -> new tokens, rows that go through the output head. The windows of the small models are 12.
STEPS = {"prefill": (20, "all"), "chunk": (5, "all"), "decode": (1, "all"), "last row": (3, "last")}


def module_flops(module: Any, modules: Any, new_tokens: int, logits: str, cache: Any) -> tuple[dict[str, int], Any]:
    """FLOPs of one forward pass by role, and the cache after it."""
    kept = 0 if logits == "all" else 1
    flops, out = counted(lambda: modules.forward(module, new_tokens, cache, BATCH, logits_to_keep=kept))
    return flops, out.past_key_values


def mla_forms(config: dict[str, Any], modules: Any, new_tokens: int, context: int) -> dict[str, dict[str, int]]:
    """FLOPs of one layer's up-projection and scores in both forms of MLA, counted by PyTorch.

    h heads, latent c, n and r the widths of a head without and with rotation, v of its values; q new tokens, s keys.
    """
    empty = lambda *shape: modules.torch.empty(BATCH, *shape, device="meta")
    h, c = config["num_attention_heads"], config["kv_lora_rank"]
    n, r, v = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    q, s = new_tokens, context
    products = {
        "expanded": {
            "gemm": [((s, c), (c, h * (n + v)))],
            "attention": [((h, q, n + r), (h, n + r, s)), ((h, q, s), (h, s, v))],
        },
        "absorbed": {
            "gemm": [((h, q, n), (h, n, c)), ((h, q, c), (h, c, v))],
            "attention": [((h, q, c + r), (h, c + r, s)), ((h, q, s), (h, s, c))],
        },
    }
    flops: dict[str, dict[str, int]] = {}
    for form, roles in products.items():
        flops[form] = {}
        for role, pairs in roles.items():
            by_role, _ = counted(lambda pairs=pairs: [empty(*left) @ empty(*right) for left, right in pairs])
            flops[form][role] = sum(by_role.values())
    return flops


def cheaper_form(case: Any, modules: Any, new_tokens: int, context: int) -> tuple[str, dict[str, int]]:
    """The form of MLA that costs less, and by how much per role it differs from the expanded one, all layers."""
    forms = mla_forms(case.config, modules, new_tokens, context)
    form = min(("absorbed", "expanded"), key=lambda name: sum(forms[name].values()))
    layers = case.config["num_hidden_layers"]
    return form, {role: layers * (forms[form][role] - forms["expanded"][role]) for role in forms[form]}


def test_flops(case, modules) -> None:
    """Weight GEMMs and attention of every step, exactly."""
    module = modules.build(modules.config(case.config))
    cache, context = None, 0
    right, got = {}, {}
    for name, (new_tokens, logits) in STEPS.items():
        context += new_tokens
        right[name], cache = module_flops(module, modules, new_tokens, logits, cache)
        if "kv_lora_rank" in case.config:
            _, change = cheaper_form(case, modules, new_tokens, context)
            right[name] = {role: flops + change[role] for role, flops in right[name].items()}
        got[name] = gambrel_flops(case.config, Step(BATCH, new_tokens, context, causal=False, logits=logits))
    assert got == right


def test_both_forms_of_mla_occur(cases, modules) -> None:
    """The small models prefill in the expanded and in the absorbed form, and decode in the absorbed one."""
    latent = [case for case in cases if "kv_lora_rank" in case.config]
    assert {cheaper_form(case, modules, 20, 20)[0] for case in latent} == {"absorbed", "expanded"}
    assert {cheaper_form(case, modules, 1, 26)[0] for case in latent} == {"absorbed"}


def head_widths(case: Any) -> set[int]:
    """Widths of a head's keys and values together; MLA has one for each of its forms."""
    config = case.text
    if "kv_lora_rank" in config:
        latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        return {config["qk_nope_head_dim"] + rope + config["v_head_dim"], 2 * latent + rope}
    heads = config.get("num_attention_heads") or config["n_head"]
    hidden = config.get("hidden_size") or config.get("n_embd") or config["n_embed"]
    return {2 * (config.get("head_dim") or {"qwen3": 128, "gpt_oss": 64}.get(case.family, hidden // heads))}


def test_causal_scores(case, modules) -> None:
    """Attention FLOPs under the causal mask and the windows: as many scores as the module has probabilities above 0.

    Runs on the CPU, since the meta device has no values.
    """
    module = modules.build(modules.config(case.config), "cpu")
    cache, context = None, 0
    for new_tokens, logits in STEPS.values():
        context += new_tokens
        out = modules.forward(module, new_tokens, cache, BATCH, output_attentions=True)
        cache = out.past_key_values
        scores = sum(int((probabilities > 0).sum()) for probabilities in out.attentions)  # of all heads and sequences
        got = gambrel_flops(case.config, Step(BATCH, new_tokens, context, logits=logits))["attention"]
        assert got in {2 * scores * width for width in head_widths(case)}
