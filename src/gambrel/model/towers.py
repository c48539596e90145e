"""Weights beside the text path, such as a vision tower."""

from __future__ import annotations

from gambrel.model.parts import Linear, Part
from gambrel.types import Format, Tensor
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Extra(Part):
    """Weights that a forward pass of text does not touch, such as a vision tower: resident, not streamed."""

    name: str
    group: str
    linears: tuple[tuple[Linear, int], ...] = ()
    vectors: int = 0
    base: Format | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Matrices with how often they occur, and the remaining vectors and tables together."""
        for linear, copies in self.linears:
            yield from linear.tensors(copies=copies, streamed=False)
        if self.vectors and self.base is not None:
            stored = self.base.bytes(1, self.vectors)
            yield Tensor(self.name, self.group, self.vectors, stored, streamed=False)
