"""Quantised checkpoints: what a quantization_config says of every module, scales and zero points included.

Sources: GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978) checkpoints (16-bit scales and packed zero points per
group), the configuration formats of compressed-tensors and modelopt, and DeepSeek-V3's FP8 blocks of 128 x 128
(arXiv:2412.19437).
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.fields import HIGHEST, ConfigError, Fields
from gambrel.model.precision import BF16, FORMATS
from gambrel.types import Format
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ONE_PER_OUTPUT, ONE = (HIGHEST, 1), (HIGHEST, HIGHEST)


@frozen
class Scheme:
    """A checkpoint's quantisation: the format of quantised matrices, and which modules stay in the base dtype.

    only: groups that are quantised, where the method quantises some alone. modules: formats of single modules.
    tables: embedding tables are quantised too.
    """

    name: str
    format: Format
    keep: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    kv: str | None = None
    modules: tuple[tuple[str, Format], ...] = ()
    tables: bool = False


def marker(scheme: Scheme) -> Callable[[int], Any]:
    """What tells a layer from others by the patterns that name it: layers of equal marks can be counted together."""
    found: dict[str, list[str]] = {}
    regex = False
    for pattern in (*scheme.keep, *(name for name, _ in scheme.modules)):
        before, named, rest = pattern.partition("layers.")
        if before.startswith("re:"):
            regex = regex or "layers" in pattern
        elif named:
            number, _, part = rest.partition(".")
            found.setdefault(number, []).append(f"{before}#.{part}")
    own = {int(number): tuple(sorted(parts)) for number, parts in found.items() if number.isdecimal()}
    wild = tuple(number.partition("*")[0] for number in found if not number.isdecimal())

    each = regex or any(letter in number for number in found for letter in "?[")

    def mark(layer: int) -> Any:
        return layer if each else (own.get(layer), tuple(s for s in wild if str(layer).startswith(s)))

    return mark


class Patterns:
    """Module patterns of any of the checkpoint formats, of which a checkpoint may list hundreds.

    A plain pattern means a run of a path's names and one that ends in its only star a prefix: both are looked up.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._runs: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._wild: list[tuple[int, str]] = []
        for i, pattern in enumerate(patterns):
            regex = pattern.startswith("re:")
            name = pattern if regex else pattern.replace("language_model.", "")
            if not (regex or "*" in name or "?" in name or "[" in name):
                self._runs.setdefault(name, i)
            elif regex or set("*?[") & set(name[:-1]) or name[-1] != "*":
                self._wild.append((i, name))
            else:
                self._prefixes.setdefault(name[:-1], i)
        self._lengths = {len(prefix) for prefix in self._prefixes}

    def first(self, path: str) -> int | None:
        """The place of the first pattern that means this path, or None."""
        dots = [i for i, letter in enumerate(path) if letter == "."]
        runs = (path[i:j] for i in (0, *(dot + 1 for dot in dots)) for j in (*dots, len(path)) if i < j)
        found = [self._runs[run] for run in runs if run in self._runs] if self._runs else []
        found += [self._prefixes[path[:n]] for n in self._lengths if path[:n] in self._prefixes]
        found += [i for i, pattern in self._wild if _wild(pattern, path)]
        return min(found, default=None)


def _wild(pattern: str, path: str) -> bool:
    if not pattern.startswith("re:"):
        from fnmatch import fnmatchcase

        return fnmatchcase(path, pattern) or fnmatchcase(path, pattern + ".*")
    import re

    try:
        return re.match(pattern[3:], path) is not None
    except re.error as error:
        raise ConfigError(f"quantization_config has a broken pattern {pattern!r}: {error}") from None


def read_scheme(quant: dict[str, Any]) -> Scheme:
    """The scheme of a quantization_config. Raises ConfigError that names the method and what is accepted."""
    method = quant.get("quant_method") or ("modelopt" if "quant_algo" in quant else "mlx" if "bits" in quant else None)
    reader = METHODS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise ConfigError(
            f"quantization_config.quant_method is {method!r}; accepted is {', '.join(METHODS)}, "
            "or override it with --weight-dtype"
        )
    fields = Fields(quant, where="quantization_config.")
    keep: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"):
        keep += [str(name) for name in fields.items(key) or ()]
    scheme = reader(fields)
    return replace(scheme, keep=(*scheme.keep, *keep), kv=_kv_scheme(quant))


def _kv_scheme(quant: dict[str, Any]) -> str | None:
    scheme = quant.get("kv_cache_scheme") or quant.get("kv_cache_quant_algo")
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8:
        return "fp8" if scheme.get("type", "float") == "float" else "int8"
    return "fp8" if isinstance(scheme, str) and scheme.upper() == "FP8" else None


def _fp8(f: Fields) -> Scheme:
    """Float8 weights and activations; weight_block_size [128, 128] has one 32-bit scale per block."""
    block = f.items("weight_block_size", length=2)
    tile = ONE if not block else (_whole(block[1], f), _whole(block[0], f))
    return Scheme("fp8", Format("fp8", 8, "fp8", tile, 32), keep=("lm_head",))


def _whole(value: Any, f: Fields) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{f.where}weight_block_size holds {value!r}; accepted is two whole numbers")
    return value


def _fbgemm(f: Fields) -> Scheme:
    return Scheme("fp8", Format("fp8", 8, "fp8", ONE_PER_OUTPUT, 32), keep=("lm_head",))


def _mxfp4(f: Fields) -> Scheme:
    """gpt-oss: the experts alone, weight-only."""
    return Scheme("mxfp4 experts", FORMATS["mxfp4"], only=("experts",))


def _integer_groups(f: Fields) -> Scheme:
    """GPTQ and AWQ: packed integers, per group a 16-bit scale and a packed zero point; GPTQ adds an index per input."""
    bits = f.choice("bits", f.whole("bits"), (2, 3, 4, 8))
    group = f.whole("group_size", 128, low=-1)
    tile = ONE_PER_OUTPUT if group < 1 else (group, 1)
    return Scheme(f"int{bits}", Format(f"int{bits}", bits, "base", tile, 16, bits), keep=("lm_head",))


def _bitsandbytes(f: Fields) -> Scheme:
    if f.flag("load_in_8bit", False):
        return Scheme("int8", Format("int8", 8, "base", ONE_PER_OUTPUT, 32), keep=("lm_head",))
    double = f.flag("bnb_4bit_use_double_quant", False)
    kind = f.text("bnb_4bit_quant_type", "fp4")
    return Scheme(kind, Format(kind, 4, "base", (64, 1), 8 if double else 32), keep=("lm_head",))


def _mlx(f: Fields) -> Scheme:
    """MLX: affine groups with 16-bit scale and bias, embeddings and head included."""
    bits = f.choice("bits", f.whole("bits"), (2, 3, 4, 6, 8))
    return Scheme(f"int{bits}", Format(f"int{bits}", bits, "base", (f.whole("group_size", 64), 1), 16, 16), tables=True)


def _bitnet(f: Fields) -> Scheme:
    """Ternary weights packed four to a byte, multiplied with 8-bit activations."""
    return Scheme("ternary", Format("ternary", 2, "int8", ONE, 16), keep=("lm_head",))


ALGORITHMS = {
    "FP8": Format("fp8", 8, "fp8", ONE, 32),
    "FP8_PER_CHANNEL_PER_TOKEN": Format("fp8", 8, "fp8", ONE_PER_OUTPUT, 32),
    "FP8_PB_WO": Format("fp8", 8, "base", (128, 128), 32),
    "NVFP4": FORMATS["nvfp4"],
    "W4A16_NVFP4": replace(FORMATS["nvfp4"], compute="base"),
    "W4A16_AWQ": Format("int4", 4, "base", (128, 1), 16),
    "INT8_SQ": Format("int8", 8, "int8", ONE_PER_OUTPUT, 32),
}


def _modelopt(f: Fields) -> Scheme:
    algorithm = f.text("quant_algo")
    if algorithm == "MIXED_PRECISION":
        layers = f.raw("quantized_layers")
        if not isinstance(layers, dict):
            raise ConfigError(f"{f.where}quantized_layers is {layers!r:.60}; accepted is an object")
        modules = tuple((name, _algorithm(f, entry)) for name, entry in layers.items())
        return Scheme("mixed", BF16, modules=modules)
    return Scheme(algorithm.lower(), _algorithm(f, {"quant_algo": algorithm}))


def _algorithm(f: Fields, entry: Any) -> Format:
    name = entry.get("quant_algo") if isinstance(entry, dict) else None
    return ALGORITHMS[f.choice("quant_algo", name, tuple(ALGORITHMS))]


def _compressed_tensors(f: Fields) -> Scheme:
    groups = f.raw("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise ConfigError(f"{f.where}config_groups is {groups!r:.60}; accepted is one group that targets Linear")
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise ConfigError(f"{f.where}config_groups has no weights object")
    w = Fields(weights, where=f"{f.where}config_groups.weights.")
    return Scheme(str(f.text("format", "compressed-tensors")), _tensors_format(w, group.get("input_activations")))


def _tensors_format(w: Fields, activations: Any) -> Format:
    bits, kind = w.choice("num_bits", w.whole("num_bits"), (4, 8)), w.choice("type", w.text("type"), ("int", "float"))
    strategy = w.text("strategy", "tensor")
    size = w.maybe("group_size", low=-1)
    name = f"{'int' if kind == 'int' else 'fp'}{bits}"
    both = isinstance(activations, dict) and activations.get("num_bits") == bits
    tiles = {"tensor": ONE, "channel": ONE_PER_OUTPUT, "block": (128, 128)}
    tile = (size, 1) if strategy in ("group", "tensor_group") and size else tiles.get(strategy or "")
    if tile is None:
        raise ConfigError(f"{w.where}strategy is {strategy!r}; accepted is group, tensor_group, {', '.join(tiles)}")
    zero = 0 if w.flag("symmetric", True) else bits
    scale = (8 if kind == "float" else 16) if bits == 4 else 32
    return Format(name, bits, name if both else "base", tile, scale, zero)


METHODS: dict[str, Callable[[Fields], Scheme]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "gptq": _integer_groups,
    "awq": _integer_groups,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "bitnet": _bitnet,
    "mlx": _mlx,
}
