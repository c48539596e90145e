"""Layer patterns, slots and class defaults that several families share."""

from __future__ import annotations

from gambrel.model.builder import Builder, Layer
from gambrel.model.fields import ConfigError, Fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.model.parts import Part


def typed(b: Builder, window: int | None, otherwise: list[Layer]) -> list[Layer]:
    """Layers by `layer_types` where the config has it, else the family's own pattern."""
    types = b.fields.items("layer_types", length=b.n_layers)
    if not types:
        return otherwise
    for kind in types:
        b.fields.choice("layer_types", kind, ("full_attention", "sliding_attention"))
    if window is None and "sliding_attention" in types:
        raise ConfigError("layer_types has sliding_attention but sliding_window is missing or null")
    return [Layer(window if kind == "sliding_attention" else None) for kind in types]


def window_of(f: Fields, key: str = "sliding_window", absent: int | None = None) -> int | None:
    """The window; an explicit null is no window, an absent key is the family's default."""
    return (f.maybe(key, low=0) or None) if key in f.data else absent


def all_windowed(absent: int | None) -> Any:
    """Every layer has the window, `absent` where the config has no key for it."""

    def layers(b: Builder) -> list[Layer]:
        window = window_of(b.fields, absent=absent)
        return typed(b, window, [Layer(window)] * b.n_layers)

    return layers


def every(period_key: str, default: int, window_default: int) -> Any:
    """Every n-th layer is full, the others windowed."""

    def layers(b: Builder) -> list[Layer]:
        window = window_of(b.fields, absent=window_default)
        period = b.fields.whole(period_key, default)
        pattern = [Layer(window if (i + 1) % period else None) for i in range(b.n_layers)]
        return typed(b, window, pattern)

    return layers


def sparse_or_dense(spec: Any) -> Any:
    """Experts in sparse layers, the plain feed-forward in others."""

    def ffn(b: Builder, layer: Layer, path: str) -> Part:
        return b.moe(path, spec(b)) if layer.sparse else b.dense(path)

    return ffn


#: Settings that many families share: biases that the config speaks of, or that are always there; GPT-2's layers.
BIASED: dict[str, Any] = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
LLAMA: dict[str, Any] = {**BIASED, "mlp_bias": "mlp_bias"}
ALL_BIASED: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
GPT: dict[str, Any] = {**ALL_BIASED, "norm": "layer", "gated": False, "rotary": False, "tied": True}
GPT_NAMES = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions", "max_position_embeddings"),
}

#: Class defaults of text models in transformers 5.24, for keys that a nested config leaves out as it equals them.
TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    name: dict(
        zip(
            (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "max_position_embeddings",
            ),
            values,
            strict=True,
        )
    )
    for name, values in {
        "llama": (32_000, 4096, 11_008, 32, 32, 2048),
        "mistral": (32_000, 4096, 14_336, 32, 32, 131_072),
        "qwen2": (151_936, 4096, 22_016, 32, 32, 32_768),
        "qwen3": (151_936, 4096, 22_016, 32, 32, 32_768),
        "cohere2": (256_000, 8192, 22_528, 40, 64, 8192),
        "gemma": (256_000, 3072, 24_576, 28, 16, 8192),
        "gemma2": (256_000, 2304, 9216, 26, 8, 8192),
        "phi3": (32_064, 3072, 8192, 32, 32, 4096),
        "persimmon": (262_144, 4096, 16_384, 36, 64, 16_384),
        "exaone4": (102_400, 4096, 16_384, 32, 32, 2048),
        "exaone4_5_text": (102_400, 4096, 16_384, 32, 32, 2048),
        "lfm2": (65_536, 2560, 12_288, 32, 32, 128_000),
        "llama4_text": (202_048, 5120, 8192, 48, 40, 131_072),
        "mllama_text_model": (128_256, 4096, 14_336, 40, 32, 131_072),
    }.items()
}
