"""Analytic operators against traced ones: what a table says a model does, and what its PyTorch code does."""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.trace import trace
from gambrel.types import Step
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from gambrel.model.arch import Arch
    from gambrel.model.model import Model
    from gambrel.model.trace import Trace
    from gambrel.types import Op

ROLES = ("gemm", "attention")


@frozen
class Verification:
    """Parameters and FLOPs of both, and the rows that compare them.

    rows: phase, role, operator, analytic and traced FLOPs, difference. Operators with the same name on both sides have
    a row each; the others of a role share one.
    """

    model_name: str
    params_analytic: int
    params_traced: int
    rows: tuple[Mapping[str, Any], ...]

    @property
    def equal(self) -> bool:
        """Whether parameters and the FLOPs of every role agree to the unit."""
        return self.params_analytic == self.params_traced and not any(row["difference"] for row in self.rows)


def verify(model: Model, batch: int = 1, tokens: int = 512) -> Verification:
    """Compare a prefill of `tokens` and the decode step after it. Raises TraceError where nothing can be traced.

    The traced module multiplies every key, puts every row through the head, and expands MLA's latent; so does the
    analytic side here.
    """
    rows: list[Mapping[str, Any]] = []
    arch = _expanded(model.arch)
    traces = trace(model.config, batch, tokens)
    for phase, traced in zip(("prefill", "decode"), traces, strict=True):
        step = Step(batch, traced.new_tokens, traced.context_tokens, causal=False, logits="all")
        rows += _compare(phase, arch.ops(step, model.numerics), traced)
    return Verification(model.name, model.params_total, traces[0].params_total, tuple(rows))


def _expanded(arch: Arch) -> Arch:
    """The model with latent attention in the form that its module runs."""

    def forced(part: Any) -> Any:
        return replace(part, form="expanded") if hasattr(part, "form") else part

    return replace(arch, blocks=tuple(replace(b, parts=tuple(map(forced, b.parts))) for b in arch.blocks))


def _compare(phase: str, analytic: Iterable[Op], traced: Trace) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for role in ROLES:
        ours, theirs = _by_name(analytic, role), _by_name(traced.ops, role)
        same = sorted(name for name in ours if ours[name] == theirs.get(name))
        rows += [_row(phase, role, name, ours[name], theirs[name]) for name in same]
        mine, others = ({n: f for n, f in side.items() if n not in same} for side in (ours, theirs))
        if mine or others:
            names = f"{', '.join(mine) or 'nothing'} | {', '.join(others) or 'nothing'}"
            rows.append(_row(phase, role, names, sum(mine.values()), sum(others.values())))
    return rows


def _by_name(ops: Iterable[Op], role: str) -> dict[str, int]:
    """FLOPs by the last part of an operator's name, which is the module's in both."""
    flops: dict[str, int] = {}
    for op in ops:
        if op.role == role and op.cost.flops:
            name = op.name.split(":")[0].removesuffix(".*").rsplit(".", 1)[-1]
            flops[name] = flops.get(name, 0) + op.cost.flops * op.count
    return flops


def _row(phase: str, role: str, name: str, analytic: int, traced: int) -> dict[str, Any]:
    return {
        "phase": phase,
        "role": role,
        "operator": name,
        "analytic_flops": analytic,
        "traced_flops": traced,
        "difference": analytic - traced,
    }
