"""A model as loaded: where it came from, how it was read, and its totals."""

from __future__ import annotations

from functools import cached_property

from gambrel.model import arch as totals
from gambrel.model.precision import Overrides
from gambrel.model.reader import Reading, read_config
from gambrel.model.sources import find_config
from gambrel.types import Step
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from gambrel.model.arch import Arch
    from gambrel.types import Cache, Numerics, Op, Tensor
    from gambrel.units import Num


@frozen
class Model:
    """A language model: its config, the reading of it, and everything that follows from shapes alone.

    name: as asked for. source: where the config came from, for people. reading: the model that it describes.
    """

    name: str
    source: str
    config: Mapping[str, Any]
    reading: Reading

    @property
    def arch(self) -> Arch:
        """The composition of parts."""
        return self.reading.arch

    @cached_property
    def numerics(self) -> Numerics:
        """Dtypes of activations, cache and scores."""
        return self.reading.precision.numerics()

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every weight tensor."""
        return tuple(self.arch.tensors())

    @cached_property
    def caches(self) -> tuple[tuple[Cache, int], ...]:
        """What one sequence keeps, by kind of layer, with the number of such layers."""
        return tuple(self.arch.caches(self.numerics))

    @cached_property
    def params_total(self) -> int:
        """All parameters, tied ones once."""
        return totals.params_total(self.tensors)

    @cached_property
    def params_gemm(self) -> int:
        """Parameters in the matrix products of a text token: all layer matrices and the output head."""
        return totals.params_gemm(self.tensors)

    @cached_property
    def params_active(self) -> int:
        """All parameters minus the routed experts that a token does not use."""
        return totals.params_active(self.tensors)

    @cached_property
    def params_by_group(self) -> dict[str, int]:
        """Parameters by what they are for."""
        return totals.params_by_group(self.tensors)

    @property
    def params_embedding(self) -> int:
        """Parameters of the input embedding and of learned positions."""
        return self.params_by_group.get("embedding", 0)

    @cached_property
    def kv_bytes_per_token(self) -> Num:
        """Cache bytes of one token, every layer counted as growing [byte]."""
        return totals.kv_bytes_per_token(self.caches)

    @cached_property
    def kv_bytes_per_token_reserved(self) -> Num:
        """What a paged engine sets aside for one token: every layer a page of the widest layer's size [byte]."""
        return totals.reserved_bytes_per_token(self.caches)

    def weight_bytes(self, streamed_only: bool = False, tp: int = 1) -> Num:
        """Resident weights on one of `tp` devices, or only those that a step of text reads [byte]."""
        return totals.weight_bytes(self.tensors, streamed_only, tp)

    def state_bytes(self, context_tokens: Num, reserved: bool = False) -> Num:
        """Cache of one sequence [byte]; `reserved` as a paged engine sets aside for it.

        An encoder's source is as long as the model always has it, or as the context.
        """
        source = self.arch.source_tokens or context_tokens
        return totals.state_bytes(self.caches, context_tokens, reserved=reserved, source_tokens=source)

    @property
    def fixed_state_bytes(self) -> Num:
        """State of one sequence that does not grow with it: recurrent layers, and a source of fixed length [byte]."""
        return totals.state_bytes(self.caches, 0, source_tokens=self.arch.source_tokens or 0)

    def flops_per_token(self, context_tokens: int) -> dict[str, float]:
        """Matrix FLOPs of one decoded token by role: "gemm" and "attention" [FLOP]."""
        roles: dict[str, float] = {}
        source = (self.arch.source_tokens or context_tokens) if self.arch.encodes else 0
        for op in self.ops(Step(1, 1, context_tokens, source_tokens=source)):
            roles[op.role] = roles.get(op.role, 0) + op.cost.flops * op.count
        return {role: roles.get(role, 0) for role in ("gemm", "attention")}

    def ops(self, step: Step, numerics: Numerics | None = None) -> list[Op]:
        """Every operator of one forward pass."""
        return self.arch.ops(step, numerics or self.numerics)

    @classmethod
    def load(
        cls,
        name: str,
        weight_dtype: str | None = None,
        kv_dtype: str | None = None,
        compute_dtype: str | None = None,
        like: str = "",
    ) -> Self:
        """A model by file, folder, bundled name, Hugging Face cache or hub id, in that order.

        The dtypes override what the config says; like names a known model type to read it as. Raises GambrelError
        (ModelNotFound, ConfigError) with what to do.
        """
        overrides = Overrides(weight_dtype, kv_dtype, compute_dtype)
        found = find_config(name)
        return cls(found.name, found.source, found.config, read_config(found.config, overrides, like))
