"""Checkpoints from their headers: what is stored, what it stands for, and whether the config predicts it.

The files are written here: safetensors by the ten lines of `safetensors`, with no data but holes of the right size
(a header reader never looks), GGUF by the gguf package.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gambrel
from gambrel.cli import main
from gambrel.model import checkpoint as reading
from gambrel.model.agreement import compare_checkpoint
from gambrel.model.checkpoint import (
    Checkpoint,
    CheckpointError,
    StoredTensor,
    checkpoint_of,
    parse_header,
    read_checkpoint,
)
from gambrel.model.model import Model
from gambrel.model.reader import read_config
from gambrel.model.stored import part_of, stored_weights
from gambrel.types import GambrelError

CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
D, WIDTH, KV, V = 128, 256, 64, 320
LINEARS = {
    "self_attn.q_proj": (D, D),
    "self_attn.k_proj": (KV, D),
    "self_attn.v_proj": (KV, D),
    "self_attn.o_proj": (D, D),
    "mlp.gate_proj": (WIDTH, D),
    "mlp.up_proj": (WIDTH, D),
    "mlp.down_proj": (D, WIDTH),
}


# Writing ----------------------------------------------------------------------------------------


def entries(tensors):
    """A header's entries of {name: (dtype, *shape)}, one after the other."""
    header, at = {}, 0
    for name, (dtype, *shape) in tensors.items():
        size = math.prod(shape) * reading.DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def raw(path, header, n_data=0):
    """A file with this header (JSON unless it is bytes) and a hole for its data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + n_data)
    return path


def safetensors(path, tensors, **metadata):
    header, size = entries(tensors)
    return raw(path, {"__metadata__": metadata, **header} if metadata else header, size)


def llama(quantise=None, head=True, linears=None, **more):
    """The tensors of CONFIG; quantise(path, n_out, n_in) gives those of a matrix instead of a plain one."""
    tensors = {"model.embed_tokens.weight": ("BF16", V, D)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for name, (n_out, n_in) in (linears or LINEARS).items():
            path = f"{prefix}.{name}"
            tensors |= quantise(path, n_out, n_in) if quantise else {f"{path}.weight": ("BF16", n_out, n_in)}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = ("BF16", D)
    tensors["model.norm.weight"] = ("BF16", D)
    if head:
        tensors["lm_head.weight"] = ("BF16", V, D)
    return {**tensors, **more}


def model(config=None, **changes):
    config = {**(config or CONFIG), **changes}
    return Model("tiny", "here", config, read_config(config))


def folder(path, tensors, config=None, **changes):
    """A checkpoint's folder with its config; returns the comparison."""
    safetensors(path / "model.safetensors", tensors)
    config = {**(config or CONFIG), **changes}
    (path / "config.json").write_text(json.dumps(config))
    return compare_checkpoint(model(config), read_checkpoint(str(path)))


def differing(agreement):
    return {row.group: (row.params_difference, row.bytes_difference) for row in agreement.rows if not row.agrees}


# Plain checkpoints ------------------------------------------------------------------------------


def test_a_dense_model_agrees_by_part(tmp_path):
    agreement = folder(tmp_path, llama())
    assert differing(agreement) == {}
    assert agreement.agrees
    assert agreement.unknown == ()
    rows = {row.group: row for row in agreement.rows}
    assert rows.keys() == {"embedding", "norm", "attention", "mlp", "head"}
    assert rows["mlp"].stored_params == rows["mlp"].predicted_params == 2 * 3 * WIDTH * D
    assert rows["mlp"].stored_bytes == rows["mlp"].predicted_bytes == 2 * 2 * 3 * WIDTH * D
    assert agreement.total.stored_params == model().params_total
    assert agreement.total.stored_bytes == model().weight_bytes()
    assert {"group": "head", "dtype": "BF16", "tensors": 1, "params": V * D, "bytes": 2 * V * D} in agreement.formats


def test_tied(tmp_path):
    assert folder(tmp_path / "a", llama(head=False), tie_word_embeddings=True).agrees
    both = folder(tmp_path / "b", llama(), tie_word_embeddings=True)
    assert differing(both) == {"head": (V * D, 2 * V * D)}
    assert any("stores both" in note for note in both.notes)
    missing = folder(tmp_path / "c", llama(head=False))
    assert differing(missing) == {"head": (-V * D, -2 * V * D)}


def test_a_disagreement_is_shown_by_part(tmp_path):
    deeper = folder(tmp_path, llama(), num_hidden_layers=3, intermediate_size=128)
    assert differing(deeper) == {
        "attention": (-(2 * D + 2 * KV) * D, -2 * (2 * D + 2 * KV) * D),
        "mlp": (2 * 3 * WIDTH * D - 3 * 3 * 128 * D, 2 * (2 * 3 * WIDTH * D - 3 * 3 * 128 * D)),
        "norm": (-2 * D, -4 * D),
    }


def test_another_dtype_differs_in_bytes_alone(tmp_path):
    tensors = {name: ("F32", *shape) for name, (_, *shape) in llama().items()}
    agreement = folder(tmp_path, tensors)
    assert {params for params, _ in differing(agreement).values()} == {0}
    assert agreement.total.stored_bytes == 2 * agreement.total.predicted_bytes


def test_what_no_pattern_knows_is_named(tmp_path):
    agreement = folder(tmp_path, llama(**{"model.layers.0.flux_capacitor.weight": ("BF16", 7)}))
    assert differing(agreement) == {"other": (7, 14)}
    assert agreement.unknown == ("model.layers.0.flux_capacitor.weight",)
    assert any("flux_capacitor" in note for note in agreement.notes)


def test_buffers_are_beside(tmp_path):
    buffers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", 16),
        "h.0.attn.bias": ("F32", 1, 1, 8, 8),
        "model.vision_model.embeddings.position_ids": ("I64", 1, 9),
        "model.layers.1.mlp.gate.e_score_correction_bias": ("F32", 8),
        "model.layers.1.self_attn.k_proj.k_scale": ("F32",),
    }
    agreement = folder(tmp_path, llama(**buffers))
    assert agreement.agrees
    assert {row["what"]: row["bytes"] for row in agreement.beside} == {
        "rotary tables": 64,
        "attention masks": 256,
        "indices": 72,
        "balancing biases": 32,
        "cache scales": 4,
    }


def test_layers_for_multi_token_prediction_are_apart(tmp_path):
    extra = {
        "model.layers.2.enorm.weight": ("BF16", D),
        "model.layers.2.eh_proj.weight": ("BF16", D, 2 * D),
        "model.layers.2.self_attn.q_proj.weight": ("BF16", D, D),
        "model.layers.2.shared_head.head.weight": ("BF16", V, D),
        "mtp.fc.weight": ("BF16", D, 2 * D),
    }
    agreement = folder(tmp_path, llama(**extra))
    assert agreement.agrees
    row = agreement.rows[-1]
    assert (row.group, row.compared, row.tensors) == ("mtp", False, 5)
    assert row.stored_params == D + 4 * D * D + D * D + V * D
    assert agreement.total.stored_params == model().params_total


# Packed checkpoints -----------------------------------------------------------------------------


def gptq(bits=4, group=64, order=True, zeros=True):
    def packed(path, n_out, n_in):
        tensors = {
            f"{path}.qweight": ("I32", n_in * bits // 32, n_out),
            f"{path}.scales": ("F16", n_in // group, n_out),
        }
        if zeros:
            tensors[f"{path}.qzeros"] = ("I32", n_in // group, n_out * bits // 32)
        return tensors | ({f"{path}.g_idx": ("I32", n_in)} if order else {})

    return packed


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("order", "zeros"), [(True, True), (False, True), (True, False), (False, False)])
def test_gptq(tmp_path, bits, order, zeros):
    config = {"quant_method": "gptq", "bits": bits, "group_size": 64}
    agreement = folder(tmp_path, llama(gptq(bits, 64, order, zeros)), quantization_config=config)
    assert {params for params, _ in differing(agreement).values()} <= {0}
    assert agreement.agrees == zeros
    assert [row["what"] for row in agreement.beside] == (["orders of inputs"] if order else [])


def test_awq(tmp_path):
    def packed(path, n_out, n_in):
        return {
            f"{path}.qweight": ("I32", n_in, n_out // 8),
            f"{path}.qzeros": ("I32", n_in // 64, n_out // 8),
            f"{path}.scales": ("F16", n_in // 64, n_out),
        }

    config = {"quant_method": "awq", "bits": 4, "group_size": 64}
    assert folder(tmp_path, llama(packed), quantization_config=config).agrees


def compressed(bits, group, dtype="I32", kind="int", **scales):
    words = {"I32": 32 // bits, "U8": 8 // bits}[dtype]

    def packed(path, n_out, n_in):
        return {
            f"{path}.weight_packed": (dtype, n_out, n_in // words),
            f"{path}.weight_scale": (scales.get("scale", "BF16"), n_out, n_in // group),
            **({f"{path}.weight_shape": ("I64", 2)} if dtype == "I32" else {}),
            **({f"{path}.weight_zero_point": ("I32", n_out // words, n_in // group)} if scales.get("zeros") else {}),
            **({f"{path}.weight_global_scale": ("F32", 1)} if kind == "float" else {}),
        }

    strategy = "group" if kind == "int" else "tensor_group"
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group}
    weights["symmetric"] = not scales.get("zeros", False)
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    return packed, config


def test_compressed_tensors(tmp_path):
    for name, (packed, config) in {
        "w4a16": compressed(4, 64),
        "w4a16-asymmetric": compressed(4, 32, zeros=True),
        "nvfp4": compressed(4, 16, "U8", "float", scale="F8_E4M3"),
    }.items():
        agreement = folder(tmp_path / name, llama(packed), quantization_config=config)
        assert differing(agreement) == {}, name
        assert {row["what"] for row in agreement.beside} <= {"quantisation tables", "second scales"}
    packed, config = compressed(8, 64)
    agreement = folder(tmp_path / "w8a16", llama(packed), quantization_config=config)
    assert {params for params, _ in differing(agreement).values()} <= {0}


def test_words_without_a_config_are_named_and_not_guessed(tmp_path):
    packed, _ = compressed(4, 64)
    agreement = folder(tmp_path, llama(packed))
    assert len(agreement.unknown) == 14
    assert any("packed in a way that is not known" in note for note in agreement.notes)


def test_nvfp4(tmp_path):
    def packed(path, n_out, n_in):
        return {
            f"{path}.weight": ("U8", n_out, n_in // 2),
            f"{path}.weight_scale": ("F8_E4M3", n_out, n_in // 16),
            f"{path}.weight_scale_2": ("F32",),
            f"{path}.input_scale": ("F32",),
        }

    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    agreement = folder(tmp_path, llama(packed), quantization_config=config)
    assert differing(agreement) == {}
    assert {row["what"]: row["tensors"] for row in agreement.beside} == {"second scales": 14, "activation scales": 14}


def test_fp8_blocks(tmp_path):
    def packed(path, n_out, n_in):
        tiles = [-(-n // 128) for n in (n_out, n_in)]
        return {f"{path}.weight": ("F8_E4M3", n_out, n_in), f"{path}.weight_scale_inv": ("F32", *tiles)}

    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert folder(tmp_path, llama(packed), quantization_config=config).agrees


def test_bitsandbytes(tmp_path):
    def packed(path, n_out, n_in):
        size = n_out * n_in
        return {
            f"{path}.weight": ("U8", size // 2, 1),
            f"{path}.weight.absmax": ("U8", size // 64),
            f"{path}.weight.nested_absmax": ("F32", -(-size // 64 // 256)),
            f"{path}.weight.nested_quant_map": ("F32", 256),
            f"{path}.weight.quant_map": ("F32", 16),
            f"{path}.weight.quant_state.bitsandbytes__nf4": ("U8", 80),
        }

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    double = {**config, "bnb_4bit_use_double_quant": True}
    assert folder(tmp_path, llama(packed), quantization_config=double).agrees


def test_bitsandbytes_int8(tmp_path):
    def packed(path, n_out, n_in):
        return {f"{path}.weight": ("I8", n_out, n_in), f"{path}.SCB": ("F32", n_out), f"{path}.weight_format": ("U8",)}

    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    assert folder(tmp_path, llama(packed), quantization_config=config).agrees


def test_mlx(tmp_path):
    def packed(path, n_out, n_in):
        return {
            f"{path}.weight": ("U32", n_out, n_in * 4 // 32),
            **{f"{path}.{name}": ("BF16", n_out, n_in // 64) for name in ("scales", "biases")},
        }

    tensors = llama(packed)
    for name in ("model.embed_tokens", "lm_head"):
        del tensors[f"{name}.weight"]
        tensors |= packed(name, V, D)
    agreement = folder(tmp_path, tensors, quantization_config={"group_size": 64, "bits": 4})
    assert {params for params, _ in differing(agreement).values()} <= {0}
    assert agreement.unknown == ()


GPT_OSS = {
    **CONFIG,
    "model_type": "gpt_oss",
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "sliding_window": 16,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}


def gpt_oss(config):
    """The tensors of a gpt-oss checkpoint."""
    d, width, n_experts = (config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts"))
    heads, d_head = config["num_attention_heads"], config["head_dim"]
    q, kv, vocab = heads * d_head, config["num_key_value_heads"] * d_head, config["vocab_size"]
    tensors = {f"{name}.weight": ("BF16", vocab, d) for name in ("model.embed_tokens", "lm_head")}
    tensors["model.norm.weight"] = ("BF16", d)
    for layer in range(config["num_hidden_layers"]):
        path = f"model.layers.{layer}"
        for name, n_out, n_in in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
            tensors[f"{path}.self_attn.{name}_proj.weight"] = ("BF16", n_out, n_in)
            tensors[f"{path}.self_attn.{name}_proj.bias"] = ("BF16", n_out)
        tensors |= {
            f"{path}.input_layernorm.weight": ("BF16", d),
            f"{path}.post_attention_layernorm.weight": ("BF16", d),
            f"{path}.self_attn.sinks": ("BF16", heads),
            f"{path}.mlp.router.weight": ("BF16", n_experts, d),
            f"{path}.mlp.router.bias": ("BF16", n_experts),
        }
        for name, n_out, n_in in (("gate_up_proj", 2 * width, d), ("down_proj", d, width)):
            tensors |= {
                f"{path}.mlp.experts.{name}_blocks": ("U8", n_experts, n_out, n_in // 32, 16),
                f"{path}.mlp.experts.{name}_scales": ("U8", n_experts, n_out, n_in // 32),
                f"{path}.mlp.experts.{name}_bias": ("BF16", n_experts, n_out),
            }
    return tensors


def test_gpt_oss_20b(tmp_path):
    """As published: 20.9 B parameters, not the 11.96 B elements that its tensors have."""
    config = gambrel.load_model("gpt-oss-20b").config
    path = safetensors(tmp_path / "model.safetensors", gpt_oss(config))
    found = read_checkpoint(str(path))
    agreement = compare_checkpoint(model(config), found)
    assert differing(agreement) == {}
    assert agreement.total.stored_params == 20_914_757_184
    assert sum(t.elements for t in found.tensors) == 11_956_805_184


def test_mxfp4(tmp_path):
    tensors = gpt_oss(GPT_OSS)
    agreement = folder(tmp_path, tensors, GPT_OSS)
    assert differing(agreement) == {}
    row = next(row for row in agreement.rows if row.group == "experts")
    assert row.stored_params == 2 * 4 * (3 * WIDTH * D + 2 * WIDTH + D)


# Names ------------------------------------------------------------------------------------------

PARTS = {
    "model.language_model.layers.3.self_attn.k_norm.weight": "norm",
    "model.layers.3.self_attn.q_a_layernorm.weight": "norm",
    "transformer.h.0.ln_1.bias": "norm",
    "gpt_neox.layers.0.attention.query_key_value.weight": "attention",
    "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": "mlp",
    "gpt_neox.embed_in.weight": "embedding",
    "embed_out.weight": "head",
    "transformer.h.0.attn.c_attn.weight": "attention",
    "transformer.h.0.mlp.c_fc.weight": "mlp",
    "transformer.wte.weight": "embedding",
    "transformer.word_embeddings_layernorm.weight": "norm",
    "transformer.h.1.self_attention.dense.bias": "attention",
    "model.layers.0.block_sparse_moe.gate.weight": "router",
    "model.layers.0.block_sparse_moe.experts.7.w1.weight": "experts",
    "model.layers.0.mlp.gate.weight": "router",
    "model.layers.0.mlp.gate_proj.weight": "mlp",
    "model.layers.0.mlp.gate.wg.weight": "router",
    "model.layers.0.mlp.shared_expert.up_proj.weight": "shared_experts",
    "model.layers.0.mlp.shared_experts.up_proj.weight": "shared_experts",
    "model.layers.0.mlp.shared_expert_gate.weight": "shared_experts",
    "model.layers.0.mlp.experts.12.down_proj.weight": "experts",
    "model.layers.0.feed_forward.router.weight": "router",
    "model.layers.0.feed_forward.experts.gate_up_proj": "experts",
    "model.layers.0.mlp.experts.gate_up_proj_bias": "experts",
    "model.layers.0.self_attn.sinks": "attention",
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": "attention",
    "visual.blocks.0.attn.qkv.weight": "vision",
    "vision_tower.vision_model.encoder.layers.0.layer_norm1.weight": "vision",
    "multi_modal_projector.mm_input_projection_weight": "projector",
    "model.decoder.layers.0.fc1.weight": "mlp",
    "model.decoder.embed_positions.weight": "embedding",
    "layers.0.attention.wq.weight": "attention",
    "layers.0.feed_forward.w1.weight": "mlp",
    "layers.0.attention_norm.weight": "norm",
    "tok_embeddings.weight": "embedding",
    "output.weight": "head",
    "backbone.layers.0.mixer.in_proj.weight": "recurrent",
    "backbone.layers.0.mixer.q_proj.weight": "attention",
    "backbone.layers.0.mixer.up_proj.weight": "mlp",
    "model.layers.0.mamba.A_log": "recurrent",
    "model.layers.0.linear_attn.in_proj_qkvz.weight": "recurrent",
    "model.layers.0.linear_attn.norm.weight": "norm",
    "model.encoder.conv1.weight": "embedding",
    "mtp.layers.0.mlp.up_proj.weight": "mtp",
    "model.layers.0.mystery.weight": "other",
    "": "other",
    "....": "other",
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(name):
    assert part_of(name) == PARTS[name]


def test_neighbours_tell_of_a_module():
    """A projector belongs to the tower that there is; attention with A_log is recurrent."""

    def groups(*names):
        stored = tuple(StoredTensor(name, "BF16", (1,), 2) for name in names)
        return [w.group for w in stored_weights(Checkpoint(stored, "x"))]

    projector = "multi_modal_projector.linear_1.weight"
    assert groups(projector, "audio_tower.conv1.weight") == ["audio", "audio"]
    assert groups(projector, "vision_tower.conv1.weight") == ["vision", "vision"]
    names = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.A_log")
    assert groups(*names, "model.layers.1.self_attn.q_proj.weight") == ["recurrent", "recurrent", "attention"]


def test_balancing_biases_where_they_are_predicted(tmp_path):
    """Some classes of transformers hold them as parameters, most as buffers; a checkpoint cannot tell."""
    from gambrel.model.agreement import _with_balancing
    from gambrel.model.stored import BALANCING, StoredWeight

    bias = StoredWeight(
        StoredTensor("model.layers.0.mlp.gate.e_score_correction_bias", "F32", (4,), 16), "router", BALANCING, 0
    )
    for predicted, kind in ((4, "weight"), (0, BALANCING)):
        stand_in = type("Stand", (), {"params_by_group": {"router": predicted}})()
        assert [w.kind for w in _with_balancing(stand_in, (bias,))] == [kind]


def test_small_models_of_the_bundle_are_wholly_known():
    """Every module that transformers has for the small configs of the oracle is attributed as predicted."""
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    for changes in ({}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}):
        config = {**CONFIG, **changes}
        keys = {key: value for key, value in config.items() if key != "model_type"}
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **keys), dtype=torch.bfloat16)
        tensors = [StoredTensor(n, "BF16", tuple(p.shape), 2 * p.numel()) for n, p in module.named_parameters()]
        assert compare_checkpoint(model(config), Checkpoint(tuple(tensors), "module")).agrees, changes


# Shards -----------------------------------------------------------------------------------------


def sharded(path, tensors, index=None):
    """Two shards and their index; `index` changes the weight map."""
    names = list(tensors)
    halves = {"a-1-of-2.safetensors": names[::2], "a-2-of-2.safetensors": names[1::2]}
    for shard, own in halves.items():
        safetensors(path / shard, {name: tensors[name] for name in own}, format="pt")
    places = {name: shard for shard, own in halves.items() for name in own}
    places.update(index or {})
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": places})
    (path / "model.safetensors.index.json").write_text(text)
    return path


def test_shards(tmp_path):
    found = read_checkpoint(str(sharded(tmp_path, llama())))
    assert compare_checkpoint(model(), found).agrees
    assert found.source.startswith("2 files of ")
    assert found.metadata == {"format": "pt"}


def test_shards_without_an_index(tmp_path):
    sharded(tmp_path, llama())
    (tmp_path / "model.safetensors.index.json").unlink()
    assert compare_checkpoint(model(), read_checkpoint(str(tmp_path))).agrees


def test_one_file_as_it_is(tmp_path):
    path = safetensors(tmp_path / "x.safetensors", llama())
    assert len(read_checkpoint(str(path)).tensors) == len(llama())


def test_the_index_names_less_than_the_shards_hold(tmp_path):
    sharded(tmp_path, llama())
    where = tmp_path / "model.safetensors.index.json"
    index = json.loads(where.read_text())
    del index["weight_map"]["lm_head.weight"]
    where.write_text(json.dumps(index))
    agreement = compare_checkpoint(model(), read_checkpoint(str(tmp_path)))
    assert agreement.agrees
    assert any("1 tensors that the index does not name" in note for note in agreement.notes)


def fails(path, *needles):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(str(path))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 700
    assert message.isprintable()
    for needle in needles:
        assert needle in message, message


def test_broken_indices(tmp_path):
    fails(
        sharded(tmp_path / "a", llama(), {"lm_head.weight": "a-3-of-2.safetensors"}), "a-3-of-2.safetensors", "not the"
    )
    fails(sharded(tmp_path / "b", llama(), {"more": "a-1-of-2.safetensors"}), "lacks more, which the index promises")
    for shard in ("../x.safetensors", "/etc/passwd", "..", "", "a\\b.safetensors", "x.bin", 3, None, "a\0.safetensors"):
        fails(sharded(tmp_path / "c", llama(), {"lm_head.weight": shard}), "accepted is the name of a .safetensors")
    for text in ("", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": 1, "weight_map": 2}'):
        (tmp_path / "c" / "model.safetensors.index.json").write_text(text)
        fails(tmp_path / "c", "model.safetensors.index.json")


def test_a_name_in_two_files(tmp_path):
    for name in ("a", "b"):
        safetensors(tmp_path / f"{name}.safetensors", {"x": ("F32", 1)})
    fails(tmp_path, "x is in a.safetensors and in b.safetensors")


def test_nothing_to_read(tmp_path):
    fails(tmp_path, "has no .safetensors and no .gguf file")
    fails(tmp_path / "nowhere", "cannot read")
    (tmp_path / "weights.bin").write_bytes(b"x")
    fails(tmp_path / "weights.bin", "is no .safetensors and no .gguf")
    fails("a\0b", "cannot read")
    (tmp_path / "x.safetensors").mkdir()
    fails(tmp_path, "x.safetensors is no regular file")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.safetensors")
        fails(tmp_path / "pipe.safetensors", "no regular file")


# Broken headers ---------------------------------------------------------------------------------

GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
BROKEN = {
    "negative": ({"a": {**GOOD, "data_offsets": [-16, 0]}}, "two whole numbers"),
    "backwards": ({"a": {**GOOD, "data_offsets": [16, 0]}}, "end before they begin"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2, 2]}}, "data_offsets"),
    "bool offsets": ({"a": {**GOOD, "data_offsets": [False, 16]}}, "two whole numbers"),
    "beyond": ({"a": {**GOOD, "shape": [4, 2], "data_offsets": [0, 32]}}, "truncated"),
    "left over": ({"a": {**GOOD, "shape": [1], "data_offsets": [0, 4]}}, "no tensor owns"),
    "overlap": ({"a": GOOD, "b": {**GOOD, "shape": [2], "data_offsets": [8, 16]}}, "overlaps"),
    "hole": ({"a": {**GOOD, "shape": [3], "data_offsets": [4, 16]}}, "leaves a hole"),
    "size": ({"a": {**GOOD, "shape": [3, 2]}}, "which F32 [3, 2] has not"),
    "huge side": ({"a": {**GOOD, "shape": [2**63, 2]}}, "list of whole numbers"),
    "side": ({"a": {**GOOD, "shape": [-2, -2]}}, "list of whole numbers"),
    "float side": ({"a": {**GOOD, "shape": [2.0, 2]}}, "list of whole numbers"),
    "many sides": ({"a": {**GOOD, "shape": [1] * 65}}, "list of whole numbers"),
    "dtype": ({"a": {**GOOD, "dtype": "Q4_K"}}, "accepted is F64, "),
    "no dtype": ({"a": {"shape": [2, 2], "data_offsets": [0, 16]}}, "dtype None"),
    "list dtype": ({"a": {**GOOD, "dtype": []}}, "dtype []"),
    "no entry": ({"a": 1}, "data_offsets None"),
    "metadata": ({"__metadata__": {"format": 1}, "a": GOOD}, "no object of strings"),
    "metadata list": ({"__metadata__": [], "a": GOOD}, "no object of strings"),
    "list": ([], "one JSON object"),
    "no json": (b"x" * 40, "no JSON"),
    "not utf-8": (b"\xff\xfe{}", "no JSON in UTF-8"),
    "nan": (b'{"a": NaN}', "NaN is no number"),
    "twice": (b'{"a": 1, "a": 2}', "'a' is there twice"),
    "deep": (b"[" * 100_000, "RecursionError"),
    "long number": (b'{"a": ' + b"9" * 5000 + b"}", "ValueError"),
    "surrogate": (b'{"\\ud800": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', "surrogate"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_headers(tmp_path, case):
    header, told = BROKEN[case]
    fails(raw(tmp_path / "x.safetensors", header, 16), "x.safetensors", told)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "truncated: 0 bytes"),
        (b"1234567", "truncated: 7 bytes"),
        ((2**60).to_bytes(8, "little") + b"{}", f"its header would have {2**60} bytes"),
        (b"\xff" * 16, "no safetensors file"),
        ((1000).to_bytes(8, "little") + b"{}", "a header of 1000 bytes in a file of 10"),
    ],
)
def test_broken_files(tmp_path, data, told):
    (tmp_path / "x.safetensors").write_bytes(data)
    fails(tmp_path / "x.safetensors", told)


def test_empty_tensors_and_scalars(tmp_path):
    safetensors(tmp_path / "x.safetensors", {"a": ("F32", 0, 5), "b": ("BF16",), "c": ("F4", 3, 2), "d": ("F32", 0)})
    assert [t.stored_bytes for t in read_checkpoint(str(tmp_path)).tensors] == [0, 2, 3, 0]


HOSTILE = ("a\x1b[31mred", "a\nb", "x" * 10_000, "|", "../../etc", "model.layers.99999999999999999999.mlp.w", "‮")


def test_hostile_names(tmp_path, capsys):
    agreement = folder(tmp_path, llama(**dict.fromkeys(HOSTILE, ("BF16", 1))))
    assert len(agreement.unknown) == len(HOSTILE) - 1
    assert main(["params", str(tmp_path), "--checkpoint"]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert "x" * 200 not in out


def test_no_data_is_read(tmp_path, monkeypatch):
    """A header of 1 kB before a terabyte, which is a hole."""
    path = tmp_path / "x.safetensors"
    try:
        safetensors(path, {"a": ("F32", 2**38)})
    except OSError:
        pytest.skip("this file system has no files of a terabyte")
    read = []
    real = reading.open_regular

    def spy(name):
        file = real(name)
        inner = file.read
        file_read = lambda n: read.append(n) or inner(n)
        return type(
            "Spy",
            (),
            {
                "__enter__": lambda self: self,
                "__exit__": lambda self, *_: file.close(),
                "fileno": lambda self: file.fileno(),
                "read": lambda self, n: file_read(n),
            },
        )()

    monkeypatch.setattr(reading, "open_regular", spy)
    assert read_checkpoint(str(path)).stored_bytes == 2**40
    assert sum(read) < 200


def read_or_refuse(path, config):
    """Compares, or is told why not in one line; anything but a GambrelError is an error of this test."""
    message = ""
    try:
        compare_checkpoint(model(config), read_checkpoint(str(path)))
    except GambrelError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*reading.DTYPE_BITS, "Q"]) | JSON,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON,
    },
)


@given(st.dictionaries(st.text(max_size=8) | st.just("__metadata__"), ENTRY | JSON, max_size=4), st.integers(0, 64))
def test_any_header_is_read_or_refused(header, size):
    try:
        tensors, _ = parse_header(header, "x", size)
    except CheckpointError:
        return
    assert sum(t.stored_bytes for t in tensors) == size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(data=st.data())
def test_any_change_of_a_file_is_read_or_refused(tmp_path, data):
    path = safetensors(tmp_path / "x.safetensors", llama(gptq()))
    content = bytearray(path.read_bytes()[: 8 + 6000])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    read_or_refuse(path, CONFIG)


NAMES = st.sampled_from([*llama(gptq()), *llama(compressed(4, 64)[0]), "a.weight", "a.weight_scale", "a.scales"])


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(list(reading.DTYPE_BITS)), st.lists(st.integers(0, 9)))))
def test_any_tensors_are_attributed(tensors):
    """Whatever the shapes beside each other are: no division by zero, every byte in one row."""
    stored = tuple(StoredTensor(name, dtype, tuple(shape), 8) for name, (dtype, shape) in tensors.items())
    quantization = {"bits": 4, "group_size": 64, "config_groups": {"a": {"weights": {"num_bits": 4}}}}
    for kind in ("safetensors", "gguf"):
        for config in ({}, quantization, {"bits": "4", "group_size": 0}):
            agreement = compare_checkpoint(model(), Checkpoint(stored, "x", kind, quantization=config))
            beside = sum(row["bytes"] for row in agreement.beside)
            assert sum(row.stored_bytes for row in agreement.rows) + beside == 8 * len(stored)
    assert len(stored_weights(Checkpoint(stored, "x"))) == len(stored)


# GGUF -------------------------------------------------------------------------------------------

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
#: Rows of whole Q4_K blocks.
WIDE = {**CONFIG, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}


def write_gguf(path, layers=2, skip=(), **extra):
    """A Llama of WIDE as llama.cpp stores it: Q4_K matrices, Q6_K head, F32 norms, a vocabulary in the header."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_name("tiny")
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_token_list([f"token {i}" for i in range(V)])
    writer.add_token_scores([0.0] * V)
    kinds = gguf.GGMLQuantizationType

    def add(name, n_out, n_in, kind=kinds.Q4_K):
        if name in skip:
            return
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (n_out, n_in // block * size) if n_in else (n_out,)
        dtype = numpy.float32 if kind == kinds.F32 else numpy.uint8
        if kind == kinds.F32 and n_in:
            shape = (n_out, n_in)
        writer.add_tensor(name, numpy.zeros(shape, dtype), raw_dtype=None if kind == kinds.F32 else kind)

    add("token_embd.weight", V, 256)
    for layer in range(layers):
        for name, (n_out, n_in) in LINEARS.items():
            add(f"blk.{layer}.{GGUF_NAMES[name]}.weight", 2 * n_out, 2 * n_in)
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}.weight", 256, 0, kinds.F32)
    add("output_norm.weight", 256, 0, kinds.F32)
    add("output.weight", V, 256, kinds.Q6_K)
    add("rope_freqs.weight", 16, 0, kinds.F32)
    for name, n_out in extra.items():
        add(name, n_out, 0, kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = write_gguf(tmp_path / "tiny.gguf")
    found = read_checkpoint(str(tmp_path))
    assert found.source == f"file {path}"
    agreement = compare_checkpoint(model(WIDE), found)
    assert agreement.agrees
    assert agreement.unknown == ()
    assert agreement.total.stored_params == model(WIDE).params_total
    assert agreement.total.bytes_difference is None
    assert {row["dtype"] for row in agreement.formats} == {"Q4_K", "Q6_K", "F32"}
    assert [row["what"] for row in agreement.beside] == ["rotary tables"]
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["llama.block_count"] == "2"
    theirs = {t.name: (t.tensor_type.name, t.n_elements, t.n_bytes) for t in gguf.GGUFReader(str(path)).tensors}
    assert {t.name: (t.dtype, t.elements, t.stored_bytes) for t in found.tensors} == theirs
    assert next(t.shape for t in found.tensors if t.name == "blk.0.ffn_up.weight") == (512, 256)


def test_gguf_disagrees(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", 1, mystery=3)
    agreement = compare_checkpoint(model(WIDE), read_checkpoint(str(path)))
    assert differing(agreement).keys() == {"attention", "mlp", "norm", "other"}
    assert any("1 blocks, the config 2 layers" in note for note in agreement.notes)


def test_gguf_tied(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", skip=("output.weight",))
    assert compare_checkpoint(model(WIDE, tie_word_embeddings=True), read_checkpoint(str(path))).agrees


def test_several_gguf_files(tmp_path):
    for name in ("a", "b"):
        write_gguf(tmp_path / f"{name}.gguf")
    fails(tmp_path, "2 GGUF files, give one of them: a.gguf, b.gguf")
    os.rename(tmp_path / "a.gguf", tmp_path / "c-00001-of-00002.gguf")
    (tmp_path / "b.gguf").unlink()
    fails(tmp_path, "c-00002-of-00002.gguf is not there")
    write_gguf(tmp_path / "c-00002-of-00002.gguf")
    fails(tmp_path, "token_embd.weight is in c-00001-of-00002.gguf and in c-00002-of-00002.gguf")


def test_gguf_without_the_package(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    fails(tmp_path, "pip install 'gambrel[gguf]'")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "truncated"),
        (b"GGML" + bytes(20), "does not begin with GGUF"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "version 9; accepted is 2 or 3"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "truncated"),
        (b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\xff" * 8, "a name of"),
        (b"GGUF\0\0\0\x03" + bytes(15) + b"\x01", "truncated"),
    ],
)
def test_broken_gguf(tmp_path, data, told):
    pytest.importorskip("gguf")
    (tmp_path / "x.gguf").write_bytes(data)
    fails(tmp_path / "x.gguf", told)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(data=st.data())
def test_any_change_of_a_gguf_file_is_read_or_refused(tmp_path, data):
    path = tmp_path / "x.gguf"
    original = tmp_path / "tiny.gguf"
    if not original.exists():
        write_gguf(original)
    content = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 63) | st.integers(0, 9000))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
    read_or_refuse(path, WIDE)


# The command line -------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def call(*arguments):
        try:
            status = main(["params", *map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_command(run, tmp_path):
    folder(tmp_path / "a", llama())
    status, out, err = run(tmp_path / "a", "--checkpoint", "--strict")
    assert (status, err) == (0, "")
    assert "the checkpoint agrees with the config" in out
    assert run(tmp_path / "a" / "config.json", "--checkpoint")[1] != ""
    folder(tmp_path / "b", llama(), num_hidden_layers=3)
    for more, status in (((), 0), (("--strict",), 1)):
        got, out, err = run(tmp_path / "b", "--checkpoint", tmp_path / "a", *more)
        assert (got, err) == (status, "")
        assert "they differ in norm, attention, mlp" in out
        assert max(map(len, out.splitlines())) <= 120


def test_command_formats(run, tmp_path):
    folder(tmp_path, llama(), num_hidden_layers=3)
    _, out, _ = run(tmp_path, "--checkpoint", "--format", "json")
    document = json.loads(out)
    assert (document["schema"], document["schema_version"]) == ("gambrel.checkpoint", 1)
    assert document["agrees"] is False
    part = next(row for row in document["parts"] if row["group"] == "mlp")
    assert part["params_difference"] == -3 * WIDTH * D
    assert part["bytes_difference"] == -2 * 3 * WIDTH * D
    assert sum(row["bytes"] for row in document["tensors"]) == document["total"]["stored_bytes"]
    norms = next(row for row in document["tensors"] if row["name"] == "model.layers.#.input_layernorm.weight")
    assert (norms["tensors"], norms["params_each"], norms["bytes"]) == (2, D, 4 * D)
    _, out, _ = run(tmp_path, "--checkpoint", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["table"] for row in rows} == {"checkpoint", "formats"}
    _, out, _ = run(tmp_path, "--checkpoint", "--format", "markdown")
    assert "| mlp | " in out


def test_command_errors(run, tmp_path):
    for arguments, told in (
        (["llama-3-8b", "--checkpoint"], "no folder; give --checkpoint a folder or file"),
        (["llama-3-8b", "--checkpoint", tmp_path / "none"], "cannot read"),
        (["llama-3-8b", "--checkpoint", "hub"], "HF_HUB_OFFLINE"),
        (["llama-3-8b", "--strict"], "needs --checkpoint"),
        (["llama-3-8b", "--checkpoint", "x", "--explain", "flops"], "do not go together"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert told in err, err


# The hub ----------------------------------------------------------------------------------------


class Hub:
    """A server with the files of one repository that understands ranges and remembers what it sent."""

    def __init__(self, root):
        self.root, self.sent = root, []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.removeprefix("/org/name/resolve/main/").partition("?")[0]
                path = hub.root / name
                if not path.is_file():
                    self.send_response(404)
                    self.send_header("X-Error-Code", "EntryNotFound")
                    self.send_header("X-Repo-Commit", "0" * 40)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                size = path.stat().st_size
                first, last = 0, size - 1
                asked = self.headers.get("Range")
                if asked:
                    first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
                    last = min(last, size - 1)
                with open(path, "rb") as file:
                    file.seek(first)
                    body = file.read(last - first + 1)
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", f'"{name}"')
                self.send_header("X-Repo-Commit", "0" * 40)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)
                    hub.sent.append((name, len(body)))

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hub(tmp_path):
    server = Hub(tmp_path / "repository")
    yield server
    server.close()


def ask(hub, home, *arguments):
    """What a fresh process prints, for the library reads its environment when it is imported."""
    home.mkdir(exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    clean |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PYTHONPATH": str(Path(gambrel.__file__).parents[1])}
    clean |= {"HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "gambrel", "params", *(arguments or ("org/name", "--checkpoint", "hub"))]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60, cwd=home, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_the_hub_by_ranges(hub, tmp_path):
    big = {**CONFIG, "vocab_size": 2**20}
    tensors = llama(**dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), ("BF16", 2**20, D)))
    safetensors(hub.root / "model.safetensors", tensors)
    (hub.root / "config.json").write_text(json.dumps(big))
    done = ask(hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert "the checkpoint agrees with the config" in done.stdout
    assert "hub: headers of org/name, revision main" in done.stdout
    assert sum(size for name, size in hub.sent if name == "model.safetensors") <= 100_001


def test_shards_on_the_hub(hub, tmp_path):
    sharded(hub.root, llama())
    (hub.root / "config.json").write_text(json.dumps(CONFIG))
    done = ask(hub, tmp_path / "home")
    assert "agrees with the config" in done.stdout, done.stderr
    (hub.root / "a-2-of-2.safetensors").unlink()
    done = ask(hub, tmp_path / "home")
    assert done.returncode == 2
    assert done.stderr.endswith("names a-2-of-2.safetensors, which is not there\n")


def test_what_the_hub_has_not(hub, tmp_path):
    hub.root.mkdir()
    (hub.root / "config.json").write_text(json.dumps(CONFIG))
    assert "has no model.safetensors and no model.safetensors.index.json" in ask(hub, tmp_path / "home").stderr
    for content in (b"\xff" * 100, b"\x08" + bytes(7) + b"nonsense", b"", b"\x02" + bytes(7) + b"[]"):
        (hub.root / "model.safetensors").write_bytes(content)
        done = ask(hub, tmp_path / "home")
        assert (done.returncode, done.stdout) == (2, "")
        assert "model.safetensors of org/name" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_hub_needs_an_id(tmp_path):
    safetensors(tmp_path / "model.safetensors", llama())
    with pytest.raises(CheckpointError, match="needs a hub id or a bundled name"):
        checkpoint_of(str(tmp_path), "hub", CONFIG)
