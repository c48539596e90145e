"""A module of transformers from a config alone, with random weights: nothing is downloaded, no foreign code runs.

Matrices are built on the meta device and get their memory once, on the device where they stay; what is small (norms,
biases, decay rates, rotary tables) keeps the initialisation of its own module, which the results need to stay finite.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import warnings

from gambrel.measure.machine import use_huge_pages
from gambrel.types import GambrelError, one_line
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

#: Keys that hold the number of layers, as families spell it.
LAYERS = ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "n_layer", "num_layers", "n_layers")
#: And those that say it again, or of the encoder.
AGAIN = (*LAYERS, "encoder_layers", "num_blocks")
#: Keys whose lists name layers by their index (from 0, or from 1 inside linear_attn_config).
INDICES = ("full_attn_idxs", "hybrid_layer_ids", "mlp_only_layers", "attn_layer_indices", "cross_attention_layers")
#: Keys with an entry a layer that may go on for layers of another kind.
PER_LAYER = ("layer_types", "mlp_layer_types", "compress_ratios")
#: Keys that name code, a quantisation that random weights cannot have, or nothing that matters here.
DROPPED = (
    *("quantization_config", "compression_config", "quantization", "auto_map", "architectures"),
    *("torch_dtype", "dtype", "_name_or_path", "transformers_version"),
)
#: Names of dtypes here, and in PyTorch.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class BuildError(GambrelError):
    """A config that transformers cannot build, or a library that is not there."""


@frozen
class Built:
    """A module with random weights. n_params: unique ones. notes: what was left out."""

    torch: Any
    module: Any
    n_params: int
    notes: tuple[str, ...] = ()


def libraries() -> tuple[Any, Any]:
    """PyTorch and transformers. Raises BuildError with what to install."""
    try:
        import torch
        import transformers
    except ImportError:
        raise BuildError("running a model needs PyTorch and transformers: pip install 'gambrel[torch]'") from None
    transformers.logging.set_verbosity_error()
    return torch, transformers


# Layers ---------------------------------------------------------------------------------------


def text_key(config: Mapping[str, Any]) -> str | None:
    """The key under which a multimodal config keeps its text model; None where it is the config itself."""
    nested = (key for key in ("text_config", "llm_config", "language_config") if isinstance(config.get(key), dict))
    return next(nested, None)


def n_layers(config: Mapping[str, Any]) -> int:
    """Layers of the text model. Raises BuildError where the config does not say."""
    key = text_key(config)
    return int(_count(config[key] if key else config)[1])


def _count(config: Mapping[str, Any]) -> tuple[str, int]:
    for key in LAYERS:
        if _whole(config.get(key)):
            return key, config[key]
    raise BuildError(f"the config names no number of layers; looked for {', '.join(LAYERS)}")


def trim(config: Mapping[str, Any], layers: int | None) -> dict[str, Any]:
    """The config with its first `layers` layers alone: the number, lists with an entry a layer, and lists of indices.

    An encoder is cut to as many as the decoder. Layers that share the cache of others are left out of it: none shares.
    Raises BuildError for more than there are.
    """
    if layers is None:
        return dict(config)
    outer = text_key(config)
    if outer is not None:
        return {**config, outer: trim(config[outer], layers)}
    key, count = _count(config)
    if not 1 <= layers <= count:
        raise BuildError(f"--layers {layers}: accepted is 1 to {count}, the layers of this model")
    if layers == count:
        return dict(config)
    cut = {name: _cut(name, value, layers, count) for name, value in config.items()}
    if cut.get("num_kv_shared_layers"):
        cut["num_kv_shared_layers"] = 0
    again = {name: min(config[name], layers) for name in AGAIN if _whole(config.get(name))}
    return {**cut, **again, key: layers}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cut(name: str, value: Any, layers: int, count: int) -> Any:
    if name == "attention_types":  # GPT-Neo's: kinds in turn, and how often
        return [[_expanded(value)[:layers], 1]]
    if name in PER_LAYER and isinstance(value, list) and len(value) > count:  # with layers that predict more tokens
        return [*value[:layers], *value[count:]]
    if name in INDICES and isinstance(value, list):
        return [index for index in value if index < layers]
    if name == "linear_attn_config" and isinstance(value, dict):
        return {k: [i for i in v if i <= layers] if isinstance(v, list) else v for k, v in value.items()}
    if isinstance(value, list) and len(value) == count:
        return value[:layers]
    if name == "hybrid_override_pattern" and isinstance(value, str):
        return value[:layers]
    return value


def _expanded(kinds: Any) -> list[Any]:
    return [kind for pattern, times in kinds for kind in list(pattern) * times]


def config_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that a config names, by its name here; bf16 where it names none, or float32, as engines load those."""
    key = text_key(config)
    for level in (config, config[key] if key else {}):
        named = str(level.get("dtype") or level.get("torch_dtype") or "").removeprefix("torch.")
        found = next((short for short, full in DTYPES.items() if named in (short, full)), None)
        if found:
            return "bf16" if found == "fp32" else found
    return "bf16"


def config_hash(config: Mapping[str, Any]) -> str:
    """Twelve hex digits of a hash of the config, the order of its keys left out."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# The module -----------------------------------------------------------------------------------


def build(config: Mapping[str, Any], dtype: str, device: str, seed: int = 0) -> Built:
    """The causal language model of a config with random weights of `dtype` on `device`.

    Raises BuildError for a config that transformers cannot build, and for one that does not fit into memory.
    """
    torch, transformers = libraries()
    if dtype not in DTYPES:
        raise BuildError(f"--dtype {dtype}: accepted is {', '.join(DTYPES)}")
    kept = {key: value for key, value in config.items() if key not in DROPPED}
    model_type = kept.pop("model_type", None)
    if model_type not in transformers.models.auto.CONFIG_MAPPING:
        raise BuildError(f"transformers {transformers.__version__} has no model_type {model_type!r}")
    try:
        with warnings.catch_warnings(), _matrices_on_meta(torch):
            warnings.simplefilter("ignore")
            settings = transformers.AutoConfig.for_model(model_type, **kept)
            module = _class(transformers, settings).from_config(settings, dtype=getattr(torch, DTYPES[dtype]))
    except BuildError:
        raise
    except Exception as error:  # whatever the model's own code raises for a config that it cannot be built from
        raise BuildError(f"transformers cannot build this config: {one_line(error)}"[:300]) from None
    try:
        _materialise(torch, module.eval().requires_grad_(False), device, seed)
    except (RuntimeError, MemoryError) as error:
        raise BuildError(f"the weights do not fit on {device}: {one_line(error)}; try --layers N"[:300]) from None
    unique = {id(parameter): parameter.numel() for parameter in module.parameters()}
    quantised = any(config.get(key) for key in ("quantization_config", "compression_config", "quantization"))
    notes = (f"the config's quantisation is left out: every weight is {dtype}",) if quantised else ()
    return Built(torch, module, sum(unique.values()), notes)


def _class(transformers: Any, settings: Any) -> Any:
    """Which Auto class has it: a causal language model, alone or inside a multimodal one, or an encoder-decoder."""
    names = ("ForCausalLM", "ForImageTextToText", "ForSeq2SeqLM", "ForSpeechSeq2Seq")
    classes = [getattr(transformers, f"AutoModel{name}") for name in names]
    if getattr(settings, "is_encoder_decoder", False):
        classes.reverse()
    found = next((auto for auto in classes if type(settings) in auto._model_mapping), None)
    if found is None:
        raise BuildError(f"transformers has no language model for {settings.model_type}")
    return found


@contextlib.contextmanager
def _matrices_on_meta(torch: Any) -> Iterator[None]:
    """While this holds, a parameter with two dimensions or more keeps its shape alone; smaller ones are real."""
    base = torch.nn.Module
    register = base.register_parameter

    def shape_alone(self: Any, name: str, parameter: Any) -> None:
        if parameter is not None and parameter.dim() > 1 and parameter.device.type != "meta":
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(self, name, parameter)

    base.register_parameter = shape_alone
    try:
        yield
    finally:
        base.register_parameter = register


def _materialise(torch: Any, module: Any, device: str, seed: int) -> None:
    """Give every matrix its memory and fill it in place: uniform, scaled so that a product keeps the variance.

    The bound is sqrt(3 / n) for n the last side, of stacked experts the longer of the last two, since families store
    them either way. Tied weights stay one tensor.
    """
    generator = torch.Generator(device).manual_seed(seed)
    real: dict[int, Any] = {}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is None or parameter.device.type != "meta":
                continue
            if id(parameter) not in real:
                bound = math.sqrt(3 / max(parameter.shape[-1 if parameter.dim() == 2 else -2 :]))
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                use_huge_pages(empty)
                filled = torch.nn.Parameter(empty.uniform_(-bound, bound, generator=generator), requires_grad=False)
                real[id(parameter)] = filled
                real[-id(parameter)] = parameter  # kept, so that its id is not given to another
            child._parameters[name] = real[id(parameter)]
    module.to(device)
