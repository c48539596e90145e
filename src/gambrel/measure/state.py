"""A cache filled at the wanted context without running the prompt, and put back between repetitions.

One token goes through an empty cache, so that every layer of it takes its own shapes, dtypes and devices: dense keys
and values, windows, latents, indexers, convolution and recurrent states. Then random contents take the prompt's place.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings

from gambrel.types import GambrelError, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    #: Contents of a layer's cache: (layer, name, tensor to fill in place). name: "keys", "values", "indexer_keys", or a
    #: state with its key, such as "conv_states.0".
    Fill = Callable[[int, str, Any], None]

#: Where caches of the layers that are known here are defined; a family may bring kinds of its own.
HOME = "transformers.cache_utils"
#: What layers with a state call it.
STATES = ("conv_states", "recurrent_states")
#: Half-width of the random contents of recurrent states, small so that a repeated step stays finite.
STATE_SCALE = 0.1


class StateError(GambrelError):
    """A model whose state cannot be filled; the message names it."""


def cache_argument(module: Any) -> str:
    """What the module calls its cache. Raises StateError where it has none of transformers' caches."""
    names = inspect.signature(module.forward).parameters
    for name in ("cache", "past_key_values", "cache_params"):
        if name in names:
            return name
    raise StateError(f"{type(module).__name__} keeps a state of its own kind; only transformers' caches can be filled")


def encodes(module: Any) -> bool:
    """Whether the module is an encoder-decoder."""
    return bool(getattr(module.config, "is_encoder_decoder", False))


def inputs(torch: Any, module: Any, tokens: tuple[int, int], cache: Any) -> dict[str, Any]:
    """What one forward pass is given: `tokens` is (batch, new tokens). Only the last row goes through the head."""
    given = {"input_ids": _ids(torch, module, tokens), cache_argument(module): cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(module.forward).parameters:
        given["logits_to_keep"] = 1
    return given


def source_inputs(torch: Any, module: Any, batch: int, tokens: int, cache: Any, encode: bool) -> dict[str, Any]:
    """What one pass of an encoder-decoder is given: one token, and a source to encode or its encoder's output.

    tokens: of the source; a model of audio always has its own number.
    """
    from transformers.modeling_outputs import BaseModelOutput

    config = module.config
    frames = getattr(config, "max_source_positions", None) if module.main_input_name != "input_ids" else None
    given = {"decoder_input_ids": _ids(torch, module, (batch, 1)), cache_argument(module): cache, "use_cache": True}
    if not encode:
        shape = (batch, frames or tokens, config.hidden_size)
        hidden = torch.empty(shape, dtype=module.dtype, device=module.device).uniform_(-1.0, 1.0)
        return {**given, "encoder_outputs": BaseModelOutput(last_hidden_state=hidden)}
    if frames is None:
        return {**given, "input_ids": _ids(torch, module, (batch, tokens))}
    shape = (batch, config.num_mel_bins, 2 * frames)
    return {**given, module.main_input_name: torch.zeros(shape, dtype=module.dtype, device=module.device)}


def _ids(torch: Any, module: Any, shape: tuple[int, int]) -> Any:
    vocabulary = module.config.get_text_config().vocab_size
    return torch.arange(shape[0] * shape[1], device=module.device).reshape(shape) * 7919 % vocabulary


def layers(cache: Any) -> list[Any]:
    """The layers of a cache; of an encoder-decoder those of the text, then those of the source."""
    text = getattr(cache, "self_attention_cache", None)
    return list(cache.layers) if text is None else [*text.layers, *cache.cross_attention_cache.layers]


def empty_cache(torch: Any, module: Any, batch: int) -> Any:
    """A growing cache without contents, whose layers know their shapes: what a prefill begins with."""
    cache = _touched(torch, module, batch, static=None)
    if hasattr(cache, "is_updated"):
        cache.is_updated = dict.fromkeys(cache.is_updated, False)
    for index, layer in enumerate(layers(cache)):
        _check(index, layer)
        for name in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, name, None)
            if tensor is not None:
                setattr(layer, name, tensor.narrow(-2, 0, 0).clone())
        if isinstance(getattr(layer, "cumulative_length", None), int):
            layer.cumulative_length = 0
        if hasattr(layer, "has_previous_state"):
            layer.has_previous_state = dict.fromkeys(layer.has_previous_state, False)
    return cache


def filled_cache(torch: Any, module: Any, batch: int, context_tokens: int, fill: Fill | None = None) -> Any:
    """A cache of fixed size with context_tokens - 1 tokens in it: what the decode step to that context begins with.

    fill: writes contents into a layer's tensor in place; random by default.
    """
    cached = context_tokens - 1
    cache = _touched(torch, module, batch, static=context_tokens)
    fill = fill or _random(torch)
    text = len(getattr(cache, "self_attention_cache", cache).layers)
    for index, layer in enumerate(layers(cache)):
        _check(index, layer)
        if index >= text:  # of the source, which is whole
            fill(index, "keys", layer.keys)
            fill(index, "values", layer.values)
            continue
        for name in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, name, None)
            if tensor is not None:
                fill(index, name, tensor.narrow(-2, 0, min(cached, tensor.shape[-2])))
        _set_length(torch, layer, cached)
        for name in STATES:
            for key, state in getattr(layer, name, {}).items():
                if state is not None and cached:
                    fill(index, f"{name}.{key}", state)
    return cache


def _random(torch: Any) -> Fill:
    torch.manual_seed(1)

    def fill(layer: int, name: str, tensor: Any) -> None:
        scale = STATE_SCALE if name.startswith(STATES) else 1.0
        tensor.uniform_(-scale, scale)

    return fill


def _set_length(torch: Any, layer: Any, cached: int) -> None:
    for name in ("cumulative_length", "indexer_cumulative_length"):
        length = getattr(layer, name, None)
        if length is not None:
            length.fill_(cached)
    if hasattr(layer, "cumulative_length_int"):
        layer.cumulative_length_int = cached
        layer.slot = torch.tensor([cached % layer.max_cache_len], device=layer.keys.device)


def _touched(torch: Any, module: Any, batch: int, static: int | None) -> Any:
    """A cache through which one token went: static of this many tokens, or growing (None)."""
    import transformers

    if static is None:
        cache = transformers.DynamicCache(config=module.config)
    else:
        cache = transformers.StaticCache(config=module.config, max_cache_len=static)
        cache.layers = [_ring(layer, static) for layer in cache.layers]
        for layer in cache.layers:
            # Such layers get a mask, for places not filled yet. Here the step fills the last one, so every key is seen,
            # and without a mask attention runs as in serving: grouped heads are not expanded.
            if type(layer).__dict__.get("is_compileable", type(layer).is_compileable) is True:
                layer.is_compileable = False
    if encodes(module):
        cache = transformers.EncoderDecoderCache(cache, transformers.DynamicCache(config=module.config))
        given = source_inputs(torch, module, batch, static or 1, cache, encode=False)
    else:
        given = inputs(torch, module, (batch, 1), cache)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module(**given)
    except StateError:
        raise
    except Exception as error:  # whatever the model's own code raises
        raise StateError(f"one token cannot run: {one_line(error)}"[:300]) from None
    return cache


def _check(index: int, layer: Any) -> None:
    home = {base.__module__ for base in type(layer).__mro__[:2]}
    if HOME not in home:
        raise StateError(
            f"layer {index} keeps a {type(layer).__name__}, a kind of cache of its own family, which cannot be filled"
        )


def _ring(layer: Any, context_tokens: int) -> Any:
    """A window that is full as a ring: the new key takes the oldest one's place.

    transformers shifts the whole window instead, which moves it four times, and makes an index on the host, which no
    graph can capture. Every key of a full window is seen, so their order does not matter.
    """
    from transformers import cache_utils

    if type(layer) is not cache_utils.StaticSlidingWindowLayer or context_tokens <= layer.max_cache_len:
        return layer

    class Ring(cache_utils.StaticSlidingWindowLayer):  # type: ignore[misc]
        slot: Any = None

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if self.slot is None:
                updated: tuple[Any, Any] = super().update(key_states, value_states, *args, **kwargs)
                return updated
            self.cumulative_length_int += 1
            self.keys.index_copy_(2, self.slot, key_states)
            self.values.index_copy_(2, self.slot, value_states)
            return self.keys, self.values

    return Ring(context_tokens, layer.max_cache_len)


@contextlib.contextmanager
def unmasked() -> Iterator[None]:
    """While this holds, compiled passes get no mask where eager ones get none.

    transformers leaves out the mask of a single query, and of a prompt whose keys are its own, but not when it is
    compiled by a PyTorch before 2.14, which always seems to export (masking_utils says so). With a mask the keys are
    expanded to all heads, and scores above the diagonal are computed.
    """
    from transformers import masking_utils

    asked = getattr(masking_utils, "_ignore_causal_mask_sdpa", None)
    if asked is None:
        yield
        return
    masking_utils._ignore_causal_mask_sdpa = _needless(asked)
    try:
        yield
    finally:
        masking_utils._ignore_causal_mask_sdpa = asked


@functools.cache
def _needless(asked: Callable[..., Any]) -> Callable[..., Any]:
    """The question whether a mask is needless, answered without asking whether something exports."""
    names = tuple(inspect.signature(asked).parameters)

    def needless(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        queries = given.get("q_length", given.get("query_length"))
        keys, window = given.get("kv_length"), given.get("local_attention_size")
        plain = given.get("padding_mask") is None and (window is None or keys < window)
        return (plain and (queries == 1 or queries == keys)) or asked(*args, **kwargs)

    return needless


class Snapshot:
    """The state of a cache, to begin every repetition from the same one.

    Growing keys are put back by reference. Lengths on the device take one small kernel. Recurrent states are put back
    by `restore` alone, which is not timed.
    """

    def __init__(self, torch: Any, cache: Any) -> None:
        parts = [*layers(cache), *([cache] if hasattr(cache, "is_updated") else [])]
        self.torch, self.layers = torch, [(vars(part), _copied(vars(part))) for part in parts]
        tensors = [value for live, _ in self.layers for value in live.values() if isinstance(value, torch.Tensor)]
        self.lengths = [t for t in tensors if not t.is_floating_point() and t.numel() == 1 and t.dim() == 0]
        inner = (value for live, _ in self.layers for value in live.values() if isinstance(value, dict))
        self.states = [t for each in inner for t in each.values() if isinstance(t, torch.Tensor)]
        self.saved_lengths, self.saved_states = ([t.clone() for t in ts] for ts in (self.lengths, self.states))

    def reset(self) -> None:
        """Lengths and references as they were: cheap, and part of every repetition."""
        for live, saved in self.layers:
            live.update(_copied(saved))
        if self.lengths:
            self.torch._foreach_copy_(self.lengths, self.saved_lengths)

    def restore(self) -> None:
        """Recurrent states too, so that two engines begin from the same numbers."""
        self.reset()
        if self.states:
            self.torch._foreach_copy_(self.states, self.saved_states)


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes, with their dictionaries copied one level deep."""
    return {key: dict(value) if isinstance(value, dict) else value for key, value in attributes.items()}
