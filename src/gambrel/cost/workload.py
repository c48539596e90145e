"""The steps of a workload: what decode and prefill mean for a decoder and for an encoder-decoder."""

from __future__ import annotations

from gambrel.types import GambrelError, Step
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.model.arch import Arch
    from gambrel.model.model import Model
    from gambrel.units import Num


@frozen
class Beside:
    """What stands beside the text of a sequence: tokens of an encoder's source, patches or frames of media [token].

    source_tokens: None for as many as the context (or as the model always has).
    """

    source_tokens: int | None = None
    media_tokens: int = 0


NOTHING = Beside()


def decode_step(arch: Arch, batch: Num, context_tokens: Num, beside: Beside = NOTHING) -> Step:
    """One new token for each of `batch` sequences; an encoder-decoder attends to its source too."""
    if not arch.encodes:
        return Step(batch, 1, context_tokens, source_tokens=beside.source_tokens or 0)
    return Step(batch, 1, context_tokens, source_tokens=_source(arch, context_tokens, beside))


def prefill_step(
    arch: Arch, batch: Num, tokens: Num, causal: bool = True, logits: str = "last", beside: Beside = NOTHING
) -> Step:
    """A fresh prompt of `tokens`. An encoder-decoder reads it with its encoder and makes the first token."""
    if not arch.encodes:
        source = beside.source_tokens or 0
        return Step(batch, tokens, tokens, causal, logits, source, source > 0, beside.media_tokens)
    return Step(batch, 1, 1, causal, logits, _source(arch, tokens, beside), True, beside.media_tokens)


def check_beside(model: Model, beside: Beside) -> None:
    """Raise GambrelError for a source without an encoder, or media without a tower whose work is known."""
    crosses = any(cache.source_bytes_per_token for cache, _ in model.caches)
    if beside.source_tokens is not None and not crosses:
        raise GambrelError("--source is for models that attend to an encoder's output; this one does not")
    if beside.media_tokens and not any(
        getattr(part, "over", "") == "media" for part in (*model.arch.first, *model.arch.extras)
    ):
        raise GambrelError("--media is for models with a tower whose operators are known; this one has none")


def _source(arch: Arch, tokens: Num, beside: Beside) -> Num:
    """The source's length: what the model always has, what the user says, or the length asked about."""
    if arch.source_tokens is not None:
        return arch.source_tokens
    return tokens if beside.source_tokens is None else beside.source_tokens
