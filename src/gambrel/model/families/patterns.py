"""Layer patterns and slots that several families share."""

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
