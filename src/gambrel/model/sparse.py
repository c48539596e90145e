"""Attention that reads a choice of keys, gated attention, and mixtures of experts that differ from the usual one.

B  sequences     q  new tokens     s  keys in context     k  keys that a query chooses     E  experts
h_i, d_i  heads and head width of an indexer              m  rows (new tokens of all sequences)
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.experts import MixtureOfExperts
from gambrel.model.latent import LatentAttention
from gambrel.model.parts import Attention, Elementwise, Linear, Norm, Part, activation, dims, rotary
from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, minimum, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar

    P = TypeVar("P", bound=Part)


def extended(kind: type[P], part: Part, **more: Any) -> P:
    """The same part as a subclass of its class that has more fields."""
    fields: dict[str, Any] = type(part).__dict__["__dataclass_fields__"]
    return kind(**{name: getattr(part, name) for name in fields}, **more)


def vector_op(name: str, stored_bytes: int, elements: Num, numerics: Numerics) -> Op:
    """An element-wise operator that reads a small learned vector, such as a bias of `stored_bytes` bytes."""
    cost = Cost(
        vector_flops=elements,
        weight_bytes=stored_bytes,
        expected_weight_bytes=stored_bytes,
        act_bytes=2 * elements * numerics.base.element_bytes,
    )
    return Op(name, "elementwise", numerics.base.name, cost, ways=1)


# Attention with a gate ------------------------------------------------------------------------


@frozen
class GatedAttention(Attention):
    """Attention whose output is multiplied by a gate, a projection of the layer's input, before the output projection.

    gate: hidden to one number per head or per element of the heads' output. Source: transformers 5.24, afmoe, laguna.
    """

    gate: Linear | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Those of the attention, and the gate's matrix."""
        yield from super().tensors()
        if self.gate is not None:
            yield from self.gate.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The gate's projection and product, and the attention."""
        if self.gate is not None:
            yield from self.gate.ops(step, numerics)
            yield from Elementwise("gate", self.n_heads * self.d_v, flops_per_element=4).ops(step, numerics)
        yield from super().ops(step, numerics)


# Sparse latent attention ----------------------------------------------------------------------


def chosen_scores(step: Step, top_k: int) -> Num:
    """Query-key pairs where a query meets the k keys that it chose, one head, summed over the sequences [1].

    Causal: query i of q over c cached keys meets min(c + i, k). Every key: q · min(s, k).
    """
    return total(
        g.scores(window=top_k) if g.causal else g.batch * g.new_tokens * minimum(g.context_tokens, top_k)
        for g in step.groups
    )


def chosen_keys(step: Step, top_k: int) -> Num:
    """Keys read at the least, where all queries of a sequence choose the same ones: B · min(s, k) [token]."""
    return total(g.batch * minimum(g.context_tokens, top_k) for g in step.groups)


@frozen
class Indexer(Part):
    """Scores every key with a few narrow heads, so that attention can read the best k alone (lightning indexer).

    queries: from the compressed query to h_i heads of d_i. key: hidden to one key of d_i, cached. weights: hidden to
    one weight per head. Source: DeepSeek-V3.2, arXiv:2512.02556, section 2.1; modules in transformers 5.24.
    """

    queries: Linear
    key: Linear
    norm: Norm
    weights: Linear
    n_heads: int
    width: int
    d_rope: int

    def tensors(self) -> Iterable[Tensor]:
        """Three projections and the key's norm."""
        for part in (self.queries, self.key, self.norm, self.weights):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, rotation, and the scores over all keys in context: 2·h_i·d_i FLOPs each.

        The weighted sum over the heads is a reduction (3·h_i vector FLOPs per score). Reads B·s·d_i cached elements.
        """
        for part in (self.queries, self.key, self.norm, self.weights):
            yield from part.ops(step, numerics)
        yield from rotary(self.n_heads + 1, self.d_rope, step, numerics)
        scores = step.scores()
        cost = Cost(
            flops=2 * self.n_heads * self.width * scores,
            vector_flops=3 * self.n_heads * scores,
            kv_read_bytes=step.keys_read() * self.key_bytes(numerics),
            kv_write_bytes=step.keys_written() * self.key_bytes(numerics),
            act_bytes=step.rows * self.n_heads * self.width * numerics.base.element_bytes,
        )
        shape = f"{self.n_heads} heads, {dims(step.rows, self.width)} x {dims(self.width, 's')}"
        yield Op("index_scores", "attention", numerics.attention, cost, shape=shape, ways=1, kv_ways=1)

    def key_bytes(self, numerics: Numerics) -> Num:
        """Bytes of the cached key of one token."""
        return self.width * numerics.kv.element_bytes


@frozen
class SparseLatentAttention(LatentAttention):
    """Multi-head latent attention in which each query meets the k keys that an indexer chose (DSA).

    top_k: k. indexer: None where the layer uses the choice of a layer before it. The latent cache grows with every
    token all the same. Both forms of MLA score min(s, k) keys per query; the expanded form projects up every key in
    context, since queries choose different ones.
    """

    top_k: int = 1
    indexer: Indexer | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Those of the latent attention, and the indexer's."""
        yield from super().tensors()
        if self.indexer is not None:
            yield from self.indexer.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The indexer, then the latent attention over its choice."""
        if self.indexer is not None:
            yield from self.indexer.ops(step, numerics)
        yield from super().ops(step, numerics)

    def _flops(self, g: Step, absorbed: bool) -> tuple[Num, Num]:
        up, _ = super()._flops(g, absorbed)
        width = 2 * self.latent + self.d_rope if absorbed else self.d_nope + self.d_rope + self.d_v
        return up, 2 * self.n_heads * width * chosen_scores(g, self.top_k)

    def _latent_ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        for op in super()._latent_ops(step, numerics):
            if op.role != "attention":
                yield op
                continue
            cost = replace(
                op.cost,
                vector_flops=5 * self.n_heads * chosen_scores(step, self.top_k),
                kv_read_bytes=chosen_keys(step, self.top_k) * self._kv_bytes(numerics),
            )
            yield replace(op, name=f"attention (best {self.top_k} keys)", cost=cost)

    def cache(self, numerics: Numerics) -> Cache:
        """The latent and the rotary key, and the indexer's key where the layer has one."""
        index = self.indexer.key_bytes(numerics) if self.indexer is not None else 0
        return Cache(self._kv_bytes(numerics) + index, ways=1)


# Mixtures of experts --------------------------------------------------------------------------


@frozen
class ZeroExperts(MixtureOfExperts):
    """A mixture of E experts and Z more that pass their input on; each token chooses of both.

    chosen: experts of either kind that a token chooses. zero: Z. top_k is the mean number of real ones under uniform
    routing, chosen · E / (E + Z), which training holds steady (LongCat-Flash, arXiv:2509.01322, section 2.1).
    """

    chosen: int = 1
    zero: int = 0

    def tensors(self) -> Iterable[Tensor]:
        """Router, E experts of which a token uses chosen / (E + Z), shared experts."""
        used = (self.chosen, self.n_experts + self.zero)
        for tensor in super().tensors():
            yield replace(tensor, used=used) if tensor.group == "experts" else tensor

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """As in the usual mixture; the mean may be below one expert per token, which no step can have as its rows."""
        yield from self.router.ops(step, numerics)
        for part in self.inner:
            yield self._expert_op(part, step.rows, numerics)
        for op in activation(self.width, self.gated).ops(step, numerics):
            yield replace(op, cost=op.cost * self.top_k)
        yield self._expert_op(self.down, step.rows, numerics)
        yield from Elementwise("combine", self.down.n_out, reads=self.chosen).ops(step, numerics)


@frozen
class BiasedExperts(MixtureOfExperts):
    """A mixture whose sum has one bias that all experts share (JetMoE).

    bias: its format.
    """

    bias: Format | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Those of the mixture, and the bias."""
        yield from super().tensors()
        yield Tensor("bias", "experts", self.down.n_out, self._bias_bytes, ways=1)

    @property
    def _bias_bytes(self) -> int:
        return self.bias.bytes(1, self.down.n_out) if self.bias else 0

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The mixture and the bias."""
        yield from super().ops(step, numerics)
        yield vector_op("bias", self._bias_bytes, step.rows * self.down.n_out, numerics)


@frozen
class MixtureOfAttention(MixtureOfExperts):
    """Attention whose query and output projections are experts; keys and values are shared by all (MoA).

    inner, down: the query and output projection of one expert. attention: the kernel with the shared key and value
    projection; its query heads are k times its KV heads. bias: of the sum. Source: JetMoE, arXiv:2404.07413, 2.2.
    The bias scales with the experts in the count of active parameters, as transformers keeps it among them.
    """

    attention: Attention | None = None
    bias: Format | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Router, experts, bias, shared projection."""
        yield from super().tensors()
        width, used = self.down.n_out, (self.top_k, self.n_experts)
        stored = self.bias.bytes(1, width) if self.bias else 0
        yield Tensor("bias", "experts", width, stored, ways=1, used=used)
        for part in self._kernel.projections:
            yield from part.tensors()

    @property
    def _kernel(self) -> Attention:
        assert self.attention is not None
        return self.attention

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Router, the queries of k experts, shared keys and values, attention, the outputs of k experts, their sum."""
        yield from self.router.ops(step, numerics)
        for part in self.inner:
            yield self._expert_op(part, step.rows, numerics)
        for part in self._kernel.projections:
            yield from part.ops(step, numerics)
        heads = self._kernel.n_heads + self._kernel.n_kv_heads
        yield from rotary(heads, self._kernel.d_qk, step, numerics)
        yield self._kernel.kernel(step, numerics)
        yield self._expert_op(self.down, step.rows, numerics)
        yield from Elementwise("combine", self.down.n_out, reads=self.top_k).ops(step, numerics)
        stored = self.bias.bytes(1, self.down.n_out) if self.bias else 0
        yield vector_op("bias", stored, step.rows * self.down.n_out, numerics)

    def cache(self, numerics: Numerics) -> Cache:
        """Keys and values of the shared heads."""
        return self._kernel.cache(numerics)
