"""Operators traced from the model's own PyTorch code: built on the meta device, run without data, recorded.

For architectures that no table knows, and as the oracle of those that a table does. It needs torch and transformers
(the extra `torch`), runs only code that is installed with transformers, and allocates no weights.

What a trace cannot see, and what is done about it:

* Attention runs as "eager", so that QK^T and PV are products of their own; it multiplies every key that it is given and
  masks afterwards. Compare it with `causal=False`.
* Experts run as "batched_mm": a loop over experts would need data. Each token's experts are gathered and multiplied,
  so the products are exact, and the gathered copies are counted as the least weights: k experts of each matrix.
* MLA runs in its expanded form, which projects every cached key up again in every step.
"""

from __future__ import annotations

import re
import warnings

from gambrel.types import Cost, GambrelError, Op, one_line
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

#: Operators that only look at a tensor in another way, or make one from nothing.
FREE = (
    "view reshape _unsafe_view transpose t permute expand unsqueeze squeeze slice select split split_with_sizes chunk "
    "alias detach as_strided unbind empty empty_like new_empty zeros zeros_like ones ones_like full full_like arange "
    "scalar_tensor lift_fresh _to_copy_view unfold narrow broadcast_tensors"
).split()
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "_scaled_mm")
REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "_softmax",
    "native_layer_norm",
    "var",
    "norm",
    "topk",
    "sort",
)
MOVEMENTS = ("cat", "index", "index_select", "copy_", "clone", "embedding", "gather", "scatter", "_to_copy", "stack")
GATHERS = ("embedding", "index", "index_select", "gather")
#: Keys of a config that name code or a quantisation that building without weights has no use for.
DROPPED = (
    "quantization_config",
    "compression_config",
    "auto_map",
    "architectures",
    "torch_dtype",
    "dtype",
    "_name_or_path",
)


class TraceError(GambrelError):
    """A model that cannot be traced: no extra installed, a type that transformers lacks, code that needs data."""


@frozen
class Trace:
    """One forward pass as its module ran it.

    ops: operators with roles, equal ones of repeated layers together. params_total: unique parameters of the module.
    n_layers: layers found. batch, new_tokens, context_tokens: the step.
    """

    ops: tuple[Op, ...]
    params_total: int
    batch: int
    new_tokens: int
    context_tokens: int


def trace(config: Mapping[str, Any], batch: int, prompt_tokens: int) -> tuple[Trace, Trace]:
    """A prefill of `prompt_tokens` and the decode step after it. Raises TraceError with what is missing."""
    torch, module = _build(config)
    params = sum(p.numel() for p in {id(p): p for p in module.parameters()}.values())
    recorder = _recorder(torch, module)
    steps: list[Trace] = []
    cache = None
    for new, context in ((prompt_tokens, prompt_tokens), (1, prompt_tokens + 1)):
        recorder.book.records.clear()
        recorder.book.rows = batch * new
        cache = _forward(torch, module, recorder, batch, new, cache)
        steps.append(Trace(tuple(_merged(recorder.book.records)), params, batch, new, context))
    return steps[0], steps[1]


def _build(config: Mapping[str, Any]) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError:
        raise TraceError("tracing needs PyTorch and transformers: pip install 'gambrel[torch]'") from None
    transformers.logging.set_verbosity_error()
    kept = {key: value for key, value in config.items() if key not in DROPPED}
    model_type = kept.pop("model_type", None)
    if model_type not in transformers.models.auto.CONFIG_MAPPING:
        raise TraceError(f"transformers {transformers.__version__} has no model_type {model_type!r}")
    try:
        settings = transformers.AutoConfig.for_model(model_type, **kept)
        return torch, _module(torch, transformers, settings)
    except Exception as error:  # whatever the model's own code raises for a config that it cannot be built from
        raise TraceError(f"transformers cannot build this config: {one_line(error)}"[:300]) from None


def _module(torch: Any, transformers: Any, settings: Any) -> Any:
    text = settings.get_text_config()
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.bfloat16}
    if any(hasattr(text, key) for key in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "num_experts")):
        options["experts_implementation"] = "batched_mm"
    autos = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    auto = next((a for a in autos if type(settings) in a._model_mapping), None)
    if auto is None:
        raise TraceError(f"transformers has no causal language model for {settings.model_type}")
    with torch.device("meta"):
        return auto.from_config(settings, **options).eval()


def _forward(torch: Any, module: Any, recorder: Any, batch: int, new: int, cache: Any) -> Any:
    ids = torch.zeros(batch, new, dtype=torch.long, device="meta")
    try:
        with warnings.catch_warnings(), torch.no_grad(), recorder:
            warnings.simplefilter("ignore")
            out = module(input_ids=ids, past_key_values=cache, use_cache=True)
    except Exception as error:  # data-dependent code cannot run without data
        raise TraceError(f"the model's code cannot run without data: {one_line(error)}"[:300]) from None
    return getattr(out, "past_key_values", None)


def _recorder(torch: Any, module: Any) -> Any:
    """A dispatch mode that records every operator with the path of the module that ran it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    book = _Book(torch, {p.untyped_storage()._cdata for p in module.parameters()})
    for name, child in module.named_modules():
        child.register_forward_pre_hook(lambda *_, name=name: book.stack.append(name))
        child.register_forward_hook(lambda *_: book.stack.__delitem__(-1), always_call=True)

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            book.enter(func._overloadpacket, args, kwargs or {}, out)
            return out

    recorder: Any = Recorder()
    recorder.book = book
    return recorder


class _Book:
    """What was recorded: (path, operator, shapes, cost) in order.

    parameters: storages of the module's weights. copies: tensors gathered from them for single tokens, kept so that
    their storages stay theirs. rows: new tokens of the pass, over which gathered experts are shared at the least.
    """

    def __init__(self, torch: Any, parameters: set[int]) -> None:
        self.torch, self.parameters, self.rows = torch, parameters, 1
        self.stack: list[str] = []
        self.copies: dict[int, Any] = {}
        self.records: list[tuple[str, str, tuple[tuple[int, ...], ...], Cost]] = []

    def enter(self, packet: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record one operator, unless it only looks at a tensor in another way."""
        from torch.utils.flop_counter import flop_registry

        name, inputs = packet.__name__, list(_flat(self.torch, args))
        if name in FREE:
            return
        flops = flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0
        shapes = tuple(tuple(int(side) for side in tensor.shape) for tensor in inputs)
        cost = self._gather(out) if self._gathers(name, inputs) else self._cost(inputs, out, int(flops))
        self.records.append((self.stack[-1] if self.stack else "", name, shapes, cost))

    def _gathers(self, name: str, inputs: list[Any]) -> bool:
        return name in GATHERS and bool(inputs) and inputs[0].untyped_storage()._cdata in self.parameters

    def _gather(self, out: Any) -> Cost:
        """Rows of a table, or every token's experts, of which all tokens may share one set."""
        size = _bytes(out)
        if "expert" not in (self.stack[-1] if self.stack else ""):
            return Cost(act_bytes=2 * size)
        self.copies[out.untyped_storage()._cdata] = out
        least = -(-size // self.rows)
        return Cost(weight_bytes=least, expected_weight_bytes=least)

    def _cost(self, inputs: list[Any], out: Any, flops: int) -> Cost:
        """FLOPs by PyTorch's formula; parameters as weights, gathered copies left out, the rest as activations."""
        storages = [(tensor.untyped_storage()._cdata, _bytes(tensor)) for tensor in inputs]
        weights = sum(size for storage, size in storages if storage in self.parameters)
        acts = sum(size for storage, size in storages if storage not in self.parameters and storage not in self.copies)
        acts += sum(_bytes(tensor) for tensor in _flat(self.torch, (out,)))
        return Cost(flops=flops, weight_bytes=weights, expected_weight_bytes=weights, act_bytes=acts)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _flat(torch: Any, values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(torch, value)


def _role(path: str, name: str, shapes: Any, cost: Cost) -> str:
    """The role of an operator: a product with no parameter among its inputs, outside experts, is attention."""
    if name in PRODUCTS:
        batched = name in ("bmm", "baddbmm") and not cost.weight_bytes and "expert" not in path
        return "attention" if batched else "gemm"
    if name in REDUCTIONS:
        return "reduction"
    return "movement" if name in MOVEMENTS else "elementwise"


def _merged(records: Any) -> Iterator[Op]:
    """Equal operators of repeated layers as one, with their number: a layer's index is left out of its path."""
    kinds: dict[Any, list[Any]] = {}
    for path, name, shapes, cost in records:
        key = (re.sub(r"\.\d+(?=\.|$)", ".*", path), name, shapes, cost.values())
        kinds.setdefault(key, [0, cost])[0] += 1
    for (path, name, shapes, _), (count, cost) in kinds.items():
        shown = " x ".join("[" + ", ".join(map(str, shape)) + "]" for shape in shapes[:3])
        role = _role(path, name, shapes, cost)
        yield Op(f"{path}:{name}" if path else name, role, "bf16", cost, count, shown, path)
