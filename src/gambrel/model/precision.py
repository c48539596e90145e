"""Which format every weight is stored in: the base dtype, what a quantization_config says, and overrides.

Sources: OCP Microscaling Formats v1.0 (mxfp4: one 8-bit scale per 32), NVIDIA's NVFP4 (one 8-bit scale per 16),
bitsandbytes NF4 (arXiv:2305.14314: one 32-bit scale per 64). int4 by name is the usual group of 128 with a 16-bit
scale and a 16-bit zero point, 4.25 bit.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.fields import ConfigError, Fields
from gambrel.types import Format, GambrelError, Numerics
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gambrel.model.quantized import Scheme

FP32, BF16, FP16 = Format("fp32", 32, "fp32"), Format("bf16", 16, "bf16"), Format("fp16", 16, "fp16")
PLAIN = {"fp32": FP32, "bf16": BF16, "fp16": FP16}

#: Formats that can be asked for by name. "base" as the compute dtype means weight-only: products run in the base dtype.
FORMATS = {
    **PLAIN,
    "fp8": Format("fp8", 8, "fp8"),
    "int8": Format("int8", 8, "int8"),
    "int4": Format("int4", 4, "base", (128, 1), scale_bits=16, zero_bits=16),
    "mxfp4": Format("mxfp4", 4, "base", (32, 1), scale_bits=8),
    "nvfp4": Format("nvfp4", 4, "fp4", (16, 1), scale_bits=8),
    "nf4": Format("nf4", 4, "base", (64, 1), scale_bits=32),
}
KV_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4")
COMPUTE_DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4")
STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}


@frozen
class Overrides:
    """What the user asks for instead of what the config says; None keeps the config's."""

    weight: str | None = None
    kv: str | None = None
    compute: str | None = None

    def __post_init__(self) -> None:
        for option, value, accepted in (
            ("--weight-dtype", self.weight, tuple(FORMATS)),
            ("--kv-dtype", self.kv, KV_FORMATS),
            ("--compute-dtype", self.compute, COMPUTE_DTYPES),
        ):
            if value is not None and value not in accepted:
                raise GambrelError(f"{option} {value}: accepted is {', '.join(accepted)}")


class Precision:
    """Answers, for a module path such as "model.layers.3.mlp.up_proj", in which format it is stored."""

    def __init__(self, base: Format, scheme: Scheme | None, overrides: Overrides, notes: tuple[str, ...] = ()) -> None:
        plain = PLAIN.get(overrides.weight or "")
        self.base = plain or base
        self.scheme = None if overrides.weight else scheme
        self.override = FORMATS[overrides.weight] if overrides.weight else None
        self.overrides = overrides
        self.notes = notes
        self._mark: Callable[[int], Any] = lambda layer: None
        if self.scheme:
            from gambrel.model import quantized

            self._mark = quantized.marker(self.scheme)
            self._kept = quantized.Patterns(self.scheme.keep)
            self._named = quantized.Patterns(tuple(name for name, _ in self.scheme.modules))

    def matrix(self, path: str, group: str) -> Format:
        """The format of a weight matrix. Routers are never quantised by a scheme."""
        chosen = self.override or self._by_scheme(path, group)
        compute = self.overrides.compute or (self.base.compute if chosen.compute == "base" else chosen.compute)
        return chosen if chosen.compute == compute else replace(chosen, compute=compute)

    def _by_scheme(self, path: str, group: str) -> Format:
        scheme = self.scheme
        if scheme is None or group in ("router", "vision") or (group == "embedding" and not scheme.tables):
            return self.base
        if scheme.modules:
            named = self._named.first(path)
            return self.base if named is None else scheme.modules[named][1]
        if scheme.only and group not in scheme.only:
            return self.base
        return scheme.format if self._kept.first(path) is None else self.base

    def layer_mark(self, layer: int) -> Any:
        """Equal for layers that the scheme treats alike, so that they can be counted together."""
        return self._mark(layer)

    def numerics(self) -> Numerics:
        """The dtypes of activations, cache and scores."""
        kv = FORMATS[self.overrides.kv] if self.overrides.kv else self._stored_kv()
        kv = replace(kv, compute=self.base.compute) if kv.compute == "base" else kv
        attention = kv.name if kv.name == "fp8" else self.base.compute
        return Numerics(self.base, kv, self.overrides.compute or attention)

    def _stored_kv(self) -> Format:
        return FORMATS[self.scheme.kv] if self.scheme and self.scheme.kv else self.base

    @property
    def weights_name(self) -> str:
        """The dtype of the weights in one word: the override, the scheme, or the base dtype."""
        return self.override.name if self.override else self.scheme.name if self.scheme else self.base.name


def read_precision(fields: Fields, overrides: Overrides) -> Precision:
    """Base dtype and quantisation of a config; unknown quantisation is refused unless overridden."""
    notes: list[str] = []
    stored = fields.raw("torch_dtype", None) or fields.raw("dtype", None)
    if stored is None or not isinstance(stored, str):
        base = BF16
        notes.append("config.json names no dtype: counted as bf16")
    else:
        name = stored.removeprefix("torch.")
        fields.choice("torch_dtype", name, list(STORED))
        base = PLAIN[STORED[name]]
    if base is FP32 and overrides.weight not in PLAIN:
        base = BF16
        notes.append(
            "config.json stores float32: counted as bf16, which engines load; --weight-dtype fp32 for the file"
        )
    quant = fields.raw("quantization_config", None) or fields.raw("compression_config", None)
    mlx = fields.raw("quantization", None)
    quant = mlx if quant is None and isinstance(mlx, dict) and "bits" in mlx else quant
    if quant is None or overrides.weight:
        return Precision(base, None, overrides, tuple(notes))
    if not isinstance(quant, dict):
        raise ConfigError(f"quantization_config is {quant!r:.60}; accepted is an object")
    from gambrel.model.quantized import read_scheme

    return Precision(base, read_scheme(quant), overrides, tuple(notes))
