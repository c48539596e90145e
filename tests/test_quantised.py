"""Which modules of a quantised checkpoint stay in the base dtype, whichever way their names are written."""

from __future__ import annotations

import pytest

import gambrel

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}
LAYER = 4 * 512 * 512 + 3 * 512 * 1024
UP = 512 * 1024


def weight_bytes(tmp_path, **quantization):
    import json

    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "fp8", **quantization}}))
    return gambrel.load_model(str(path)).weight_bytes()


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["model.layers.1"], LAYER),
        (["model.layers.1.*"], LAYER),
        (["model.layers.0*"], LAYER),
        (["model.layers.1*"], 5 * LAYER),
        (["model.layers.1[23]*"], 2 * LAYER),
        (["model.layers.*.mlp.up_proj"], 14 * UP),
        (["mlp.up_proj"], 14 * UP),
        (["model.layers.3.mlp.up_proj", "model.layers.5.mlp.up_proj", "model.layers.13.mlp.up_proj"], 3 * UP),
        (["re:.*layers\\.(2|11)\\.mlp\\.up_proj"], 2 * UP),
        (["model.language_model.layers.3.mlp.up_proj"], UP),
        (["up"], 0),
    ],
)
def test_what_stays_in_the_base_dtype(tmp_path, names, kept):
    """A kept weight takes one byte more and loses its scale, 4 bytes a tensor of any size."""
    everything = weight_bytes(tmp_path)
    grown = weight_bytes(tmp_path, modules_to_not_convert=names) - everything
    assert kept - 4 * 7 * 14 <= grown <= kept
    assert (grown > 0) == (kept > 0)
