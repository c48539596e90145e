"""Parts of dense decoders that the common ones do not cover: Doge's mask and experts, Yuan's filters.

m  rows (new tokens of all sequences)     d  hidden width     n_h, n_kv  query and KV heads
E, k  experts in a table, experts per token
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.parts import Attention, Elementwise, Linear, Norm, Part, Vectors
from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, maximum, minimum, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class DynamicMaskAttention(Part):
    """Doge's attention: of all keys in context each query meets the `keep` that a learned mask ranks highest.

    core: the attention. dt: projection of the cached values to one mask score per KV head. mask: its learned decay.
    Nothing of the mask is cached, so every step projects all cached values again, as the module does.
    Source: transformers models/doge/modeling_doge.py; arXiv:2508.02124.
    """

    core: Attention
    dt: Linear
    mask: Vectors
    keep: int

    def tensors(self) -> Iterable[Tensor]:
        """The attention's, and the mask's."""
        yield from self.core.tensors()
        yield from self.dt.tensors()
        yield from self.mask.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The attention's operators; before its kernel the mask over every cached value."""
        for op in self.core.ops(step, numerics):
            if op.role == "attention":
                yield self.dt.op(maximum(step.keys_read(self.core.window), step.rows), numerics)
                yield from self.mask.ops(step, numerics)
                yield self._kernel(step, numerics)
            else:
                yield op

    def _kernel(self, step: Step, numerics: Numerics) -> Op:
        """The kernel over min(s, keep) keys: values of all keys are read (the mask needs them), keys of the kept."""
        core = self.core
        kept = self.keep if core.window is None else min(self.keep, core.window)
        op = replace(core, window=kept).kernel(step, numerics)
        element = core.n_kv_heads * numerics.kv.element_bytes
        read = step.keys_read(kept) * core.d_qk * element + step.keys_read(core.window) * core.d_v * element
        write = step.keys_written(core.window) * (core.d_qk + core.d_v) * element
        name = f"attention (keeps {self.keep})"
        return replace(op, name=name, cost=replace(op.cost, kv_read_bytes=read, kv_write_bytes=write))

    def cache(self, numerics: Numerics) -> Cache:
        """Keys and values, as of any attention."""
        return self.core.cache(numerics)


@frozen
class RetrievedExperts(Part):
    """Experts that are rows of two lookup tables: of E rows each token picks k by a product of two sets of keys.

    router: hidden to both sets of keys. width: d. A picked expert is one product with its row of the first table and
    one multiple of its row of the second: 4·d FLOPs. The tables are embeddings, which stay in active parameters.
    Source: transformers DogeCDMoE; arXiv:2407.04153 (product-key retrieval of a million experts).
    """

    router: Linear
    width: int
    n_experts: int
    top_k: int
    format: Format

    def tensors(self) -> Iterable[Tensor]:
        """The router and both tables."""
        yield from self.router.tensors()
        stored = self.format.bytes(self.width, self.n_experts)
        yield Tensor("expert_tables", "experts", self.n_experts * self.width, stored, 2, gemm=True)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The router, and the picked rows of both tables: 4·m·k·d FLOPs; at the least k rows are read."""
        yield from self.router.ops(step, numerics)
        row_bytes = 2 * self.format.bytes(self.width, 1)
        missed = (1 - self.top_k / self.n_experts) ** step.rows
        cost = Cost(
            flops=4 * step.rows * self.top_k * self.width,
            weight_bytes=minimum(self.top_k, self.n_experts) * row_bytes,
            expected_weight_bytes=self.n_experts * (1 - missed) * row_bytes,
            act_bytes=2 * step.rows * self.width * numerics.base.element_bytes,
        )
        shape = f"{self.top_k} of {self.n_experts} rows of {self.width}"
        yield Op("retrieved_experts", "gemm", self.format.compute, cost, shape=shape, ways=1)


@frozen
class LocalizedFiltering(Part):
    """Yuan 2.0's filter before queries and keys: two causal convolutions over two tokens each, and a norm.

    first, second: both taps of a convolution as one matrix, [2·d, d/2] and [d, d]: a token is 2·(2·d)·(d/2) + 2·d·d
    FLOPs. Between steps it keeps the last input of each convolution (d + d/2 elements), which a step reads and writes.
    core: the attention whose queries and keys are filtered. Source: Yuan 2.0, arXiv:2311.15786, and the
    engine that its publisher ships (vLLM's yuan.py).
    """

    first: Linear
    second: Linear
    norm: Norm
    core: Attention

    def tensors(self) -> Iterable[Tensor]:
        """Both convolutions, the norm, the attention."""
        for part in (self.first, self.second, self.norm, self.core):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Both convolutions over the new tokens, the norm, the attention."""
        op = self.first.op(step.rows, numerics)
        kept = self._state_bytes(numerics)
        read = total(g.batch * minimum(1, maximum(g.context_tokens - g.new_tokens, 0)) for g in step.groups)
        cost = replace(op.cost, kv_read_bytes=read * kept, kv_write_bytes=step.sequences * kept)
        yield replace(op, cost=cost)
        yield from self.second.ops(step, numerics)
        yield from Elementwise("residual_add", self.norm.width).ops(step, numerics)
        yield from self.norm.ops(step, numerics)
        yield from self.core.ops(step, numerics)

    def _state_bytes(self, numerics: Numerics) -> Num:
        return (self.first.n_in + self.second.n_in) // 2 * numerics.base.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """Keys and values of the attention, and the last input of each convolution."""
        return replace(self.core.cache(numerics), fixed_bytes=self._state_bytes(numerics))
