"""Mixture of experts: a router, experts of which each token uses a few, and shared experts."""

from __future__ import annotations

from gambrel.model.parts import Elementwise, FeedForward, Linear, Part, activation
from gambrel.types import Cost, Numerics, Op, Step, Tensor
from gambrel.units import Num, minimum
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class MixtureOfExperts(Part):
    """A router and E experts, of which each token uses k; shared experts serve every token.

    inner, down: the projections of one expert. shared: the shared experts as one feed-forward; shared_gate: the
    projection that weighs it. Source for the expected coverage: each of m tokens leaves out a given expert with
    probability 1 - k/E, so E·(1 - (1 - k/E)^m) distinct experts are read under uniform, independent routing.
    """

    router: Linear
    inner: tuple[Linear, ...]
    down: Linear
    width: int
    gated: bool
    n_experts: int
    top_k: int
    shared: FeedForward | None = None
    shared_gate: Linear | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Router, E experts, shared experts."""
        yield from self.router.tensors()
        for part in (*self.inner, self.down):
            yield from part.tensors(copies=self.n_experts, used=(self.top_k, self.n_experts))
        if self.shared is not None:
            yield from self.shared.tensors()
        if self.shared_gate is not None:
            yield from self.shared_gate.tensors()

    def experts_hit(self, rows: Num) -> tuple[Num, Num]:
        """Distinct experts read by `rows` tokens: at the least (all agree), and expected under uniform routing."""
        missed = (1 - self.top_k / self.n_experts) ** rows
        return minimum(self.top_k, self.n_experts), self.n_experts * (1 - missed)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Router, the experts' products over m·k rows, shared experts, the weighted sum."""
        yield from self.router.ops(step, numerics)
        rows = step.rows * self.top_k
        for part in self.inner:
            yield self._expert_op(part, step.rows, numerics)
        yield from activation(self.width, self.gated).ops(Step(batch=rows), numerics)
        yield self._expert_op(self.down, step.rows, numerics)
        yield from Elementwise("combine", self.down.n_out, reads=self.top_k).ops(step, numerics)
        if self.shared is not None:
            yield from self.shared.ops(step, numerics)
        if self.shared_gate is not None:
            yield from self.shared_gate.ops(step, numerics)

    def _expert_op(self, part: Linear, rows: Num, numerics: Numerics) -> Op:
        least, expected = self.experts_hit(rows)
        op = part.op(rows * self.top_k, numerics)
        cost = Cost(
            flops=op.cost.flops,
            weight_bytes=least * part.stored_bytes,
            expected_weight_bytes=expected * part.stored_bytes,
            act_bytes=op.cost.act_bytes,
        )
        shape = f"{self.top_k} of {self.n_experts} experts, {op.shape}"
        return Op(part.name, "gemm", op.dtype, cost, shape=shape, ways=part.ways)
