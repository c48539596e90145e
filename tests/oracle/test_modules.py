"""Parameters and cache of small models of every family against the PyTorch modules, built on the meta device.

The small configs are in conftest.py; each is read by gambrel and built by transformers from the same keys.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gambrel.model import arch as totals
from gambrel.model.fields import ConfigError
from gambrel.model.reader import read_config

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

#: What a parameter of a module is for, by its name; the first pattern that is found says so.
GROUPS = {
    "vision": r"vision_tower|multi_modal_projector",
    "norm": r"norm|\.ln_",
    "head": r"lm_head|embed_out|project_out",
    "embedding": r"embed|wte|wpe|project_in",
    "experts": r"\.experts\.",
    "shared_experts": r"shared_expert",
    "router": r"\.gate\.|\.router\.",
    "attention": r"attn|attention",
    "mlp": r"mlp|\.fc[12]\.",
}

#: Where gambrel is right to differ.
RIGHT_TO_DIFFER = {
    (
        "gemma3",
        "vision_config",
    ): "without it the text model alone is counted, and a note says so; the class makes one up",
    ("mistral3", "vision_config"): "the same",
    ("gemma3", "text_config"): "flat keys beside model_type gemma3 are read as the text model's, not ignored",
    ("mistral3", "tie_word_embeddings"): "transformers 5.24.0 ties lm_head although the config does not say so",
}

WITHOUT = {
    "absent": lambda config, key: {k: v for k, v in config.items() if k != key},
    "null": lambda config, key: {**config, key: None},
}


def parameters(module: Any) -> dict[str, int]:
    """Unique parameters of a module by group; a tied head is named after the table that it is."""
    counts: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        group = next(group for group, pattern in GROUPS.items() if re.search(pattern, f".{name}"))
        counts[group] = counts.get(group, 0) + parameter.numel()
    return counts


def total(config: dict[str, Any]) -> int:
    return totals.params_total(read_config(config).arch.tensors())


def test_parameters(case, modules) -> None:
    """Every group has exactly the parameters of the module."""
    right = parameters(modules.build(modules.config(case.config)))
    assert totals.params_by_group(read_config(case.config).arch.tensors()) == right
    assert total(case.config) == sum(right.values())


def test_active_parameters(case, modules) -> None:
    """All parameters minus the routed experts that a token does not use."""
    config = modules.config(case.config)
    counts = parameters(modules.build(config))
    experts, unused = counts.get("experts", 0), 0
    if experts:
        n_experts = case.text.get("num_experts") or case.text.get("num_local_experts") or case.text["n_routed_experts"]
        unused = experts // n_experts * (n_experts - case.text["num_experts_per_tok"])
    arch = read_config(case.config).arch
    assert totals.params_active(arch.tensors()) == sum(counts.values()) - unused


def test_cache(case, modules) -> None:
    """The elements that the module caches of 2 sequences of 8 tokens, which every window holds."""
    cached = modules.forward(modules.build(modules.config(case.config)), 8).past_key_values
    cached = getattr(cached, "self_attention_cache", cached)  # beside which cross-attention has a cache of its own
    elements = sum(layer.keys.numel() + layer.values.numel() for layer in cached.layers)
    if case.config.get("new_decoder_architecture"):  # the module broadcasts KV heads to all query heads before caching
        elements = elements * case.config["num_kv_heads"] // case.config["num_attention_heads"]
    reading = read_config(case.config)
    bf16_bytes = 2
    assert 2 * totals.state_bytes(reading.arch.caches(reading.precision.numerics()), 8) == elements * bf16_bytes


@pytest.mark.parametrize("keys", ["all", "changed"])
def test_saved_by_transformers(case, keys, modules) -> None:
    """A config that transformers wrote, with all keys or those that it changed, is read as the same model."""
    config = modules.config(case.config)
    module = modules.build(config)
    saved = json.loads(config.to_json_string(use_diff=keys == "changed")) | {"architectures": [type(module).__name__]}
    assert totals.params_by_group(read_config(saved).arch.tensors()) == parameters(module)


def test_saved_by_transformers_warns_of_nothing(case, modules) -> None:
    """No key that transformers itself writes is reported as unknown."""
    assert read_config(json.loads(modules.config(case.config).to_json_string(use_diff=False))).unread == ()


def differs_without(case, key: str, how: str, modules) -> tuple[int, int] | None:
    """Parameters of gambrel and the module where a key is absent or null; None where equal or one of them refuses."""
    config = WITHOUT[how](case.config, key)
    try:
        got = total(config)
    except ConfigError:
        return None
    try:
        module = modules.build(modules.config(config))
    except Exception:  # whatever the strict dataclasses of transformers raise: there is nothing to compare with
        return None
    right = sum(parameters(module).values())
    return None if got == right else (got, right)


def test_key_left_out(case, modules) -> None:
    """Without one of its keys a config is read with the class's own default, or refused; null likewise."""
    places = [(key, how) for key in case.config if key not in ("model_type", "torch_dtype") for how in WITHOUT]
    wrong = {
        (key, how): differs_without(case, key, how, modules)
        for key, how in places
        if (case.family, key) not in RIGHT_TO_DIFFER
    }
    assert {place: counts for place, counts in wrong.items() if counts} == {}


def test_families_have_cases(cases) -> None:
    """Every family of the table that transformers has a module of has a small config here."""
    from gambrel.model.families.decoders import FAMILIES, NESTED

    assert {case.family for case in cases} >= {*FAMILIES, *NESTED} - {"kimi_k2"}
