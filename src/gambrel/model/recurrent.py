"""Mixers that keep a state of fixed size in place of keys and values: state spaces, delta rules, linear attention.

    m  rows (new tokens of all sequences)     H  heads     d_k, d_v  width of a head's keys and values
    K  taps of a short convolution            S  elements of state that one sequence keeps in one layer

Every kernel here can run step by step or in chunks. Both forms multiply every token with the state equally often; the
chunked form, which engines use in prefill, has products within a chunk besides. An engine may choose either for any
number of tokens, so the step form's FLOPs count, for decode, chunk and prefill alike: m times those of one token. What
the chunked form adds is in the docstring of each kernel. Source of the step forms: the recurrent functions of
transformers 5.24 (models/mamba2, qwen3_next, kimi_linear, minimax, xlstm, rwkv, recurrent_gemma).

The state is read once and written once per sequence and step; a step with context 0 leaves it out, as it does the KV
cache.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.parts import Linear, Part, dims
from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, total, where
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def states_moved(step: Step) -> Num:
    """Sequences whose state a pass reads and writes: all that have a context [seq]."""
    return total(g.batch * where(g.context_tokens == 0, 0, 1) for g in step.groups)


@frozen
class ShortConvolution(Part):
    """A causal depthwise convolution along the sequence: K taps for each of `channels` channels.

    It keeps the last K - 1 inputs of every channel, in the base dtype (transformers keeps K of them). Its 2·K FLOPs per
    channel and row run on no matrix unit (no channel meets another), so they are vector_flops; FlopCounterMode counts
    them. bias: one per channel. ways: as in Linear.
    """

    name: str
    group: str
    channels: int
    kernel: int
    base: Format
    bias: bool = False
    ways: int | None = None

    @property
    def params(self) -> int:
        """Taps and biases."""
        return self.channels * (self.kernel + self.bias)

    @property
    def state_elements(self) -> int:
        """Elements that one sequence keeps."""
        return self.channels * (self.kernel - 1)

    def tensors(self) -> Iterable[Tensor]:
        """Taps and biases together."""
        stored = self.base.bytes(1, self.params)
        yield Tensor(self.name, self.group, self.params, stored, ways=self.ways)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """One kernel: inputs and outputs once, the kept inputs in and out."""
        stored = self.base.bytes(1, self.params)
        moved = states_moved(step) * self._state_bytes(numerics)
        cost = Cost(
            vector_flops=2 * self.kernel * self.channels * step.rows,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            kv_read_bytes=moved,
            kv_write_bytes=moved,
            act_bytes=2 * step.rows * self.channels * numerics.base.element_bytes,
        )
        shape = f"{dims(step.rows, self.channels)}, {self.kernel} taps"
        yield Op(self.name, "elementwise", numerics.base.name, cost, shape=shape, ways=self.ways, kv_ways=self.ways)

    def _state_bytes(self, numerics: Numerics) -> Num:
        return self.state_elements * numerics.base.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """(K - 1)·channels elements, whatever the context."""
        return Cache(0, fixed_bytes=self._state_bytes(numerics), ways=self.ways)


@frozen
class Recurrence(Part):
    """A kernel that updates a state of fixed size with every token and reads it.

    flops_per_token: of products with the state [FLOP]. vector_flops_per_token: decays and gates [FLOP].
    state_elements: what one sequence keeps. state: the state's own format; None is the base dtype. vectors: learned
    parameters of the kernel (decay rates, skips, biases). io_elements: activations in and out per row.
    ways: over how many devices tensor parallelism can split it.
    """

    name: str
    group: str
    flops_per_token: int
    vector_flops_per_token: int
    state_elements: int
    base: Format
    state: Format | None = None
    vectors: int = 0
    io_elements: int = 0
    ways: int | None = None

    def tensors(self) -> Iterable[Tensor]:
        """The learned vectors together."""
        if self.vectors:
            stored = self.base.bytes(1, self.vectors)
            yield Tensor(self.name, self.group, self.vectors, stored, ways=self.ways)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """One kernel over all rows; the state is read and written once per sequence."""
        stored = self.base.bytes(1, self.vectors)
        moved = states_moved(step) * self._state_bytes(numerics)
        cost = Cost(
            flops=step.rows * self.flops_per_token,
            vector_flops=step.rows * self.vector_flops_per_token,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            kv_read_bytes=moved,
            kv_write_bytes=moved,
            act_bytes=step.rows * self.io_elements * numerics.base.element_bytes,
        )
        role = "attention" if self.flops_per_token else "elementwise"
        shape = f"{dims(step.rows)} rows, state of {self.state_elements}"
        yield Op(self.name, role, _multiplied(numerics), cost, shape=shape, ways=self.ways, kv_ways=self.ways)

    def _state_bytes(self, numerics: Numerics) -> Num:
        return self.state_elements * (self.state or numerics.base).element_bytes

    def cache(self, numerics: Numerics) -> Cache | None:
        """The state in its own dtype, whatever the context."""
        if not self.state_elements:
            return None
        return Cache(0, fixed_bytes=self._state_bytes(numerics), ways=self.ways)


def _multiplied(numerics: Numerics) -> str:
    """The dtype of the products: a quantised KV cache is not this layer's, its state stays as it is."""
    return numerics.base.compute if numerics.attention == numerics.kv.name else numerics.attention


@frozen
class Shape:
    """Heads of a recurrent kernel: H of them, keys d_k and values d_v wide; groups share their keys."""

    heads: int
    d_k: int
    d_v: int
    groups: int = 1

    @property
    def state_elements(self) -> int:
        """H·d_k·d_v."""
        return self.heads * self.d_k * self.d_v


def state_space(name: str, group: str, shape: Shape, base: Format, state: Format, vectors: int) -> Recurrence:
    """A selective state space: Mamba (H channels, d_v = 1) and Mamba 2 / SSD; d_k is the state size N.

        h = a·h + B·x,  y = C·h:  4·H·N·d_v FLOPs per token

    2·H·N·d_v update the state, 2·H·N·d_v read it; the decay a (and in Mamba the step of every state) is element-wise.
    SSD in chunks of c adds c·(2·N·groups + 2·H·d_v) per token (arXiv:2405.21060, section 6). Mamba's scan multiplies
    every state apart and has no chunked form (arXiv:2312.00752, section 3.3).
    """
    elements = shape.state_elements
    io = 2 * shape.heads * shape.d_v + 2 * shape.groups * shape.d_k + shape.heads
    return Recurrence(name, group, 4 * elements, 3 * elements, elements, base, state, vectors, io, shape.heads)


def delta_rule(name: str, group: str, shape: Shape, base: Format, state: Format, vectors: int) -> Recurrence:
    """The gated delta rule: gated delta net (one decay per head) and Kimi delta attention (one per channel).

        v' = beta·(v - k·(a·S)),  S = a·S + k·v',  o = q·S:  6·H·d_k·d_v FLOPs per token

    Three products with the state. In chunks of c it adds c·(5·d_k + 3·d_v) per head and token: two score matrices,
    a triangular solve for the d_k + d_v columns, and the scores with the values (arXiv:2412.06464, section 3.3).
    `groups` is the number of key heads.
    """
    elements = shape.state_elements
    io = 2 * shape.groups * shape.d_k + 2 * shape.heads * shape.d_v + 2 * shape.heads
    return Recurrence(name, group, 6 * elements, 2 * elements, elements, base, state, vectors, io, shape.heads)


def linear_attention(name: str, group: str, shape: Shape, base: Format, state: Format | None) -> Recurrence:
    """Linear attention with a fixed decay per head, as Lightning attention has it.

        S = a·S + k·v,  o = q·S:  4·H·d_k·d_v FLOPs per token

    In chunks of c it adds 2·c·(d_k + d_v) per head and token (arXiv:2401.04658, section 3.2). The state is in the
    base dtype where `state` is None.
    """
    elements = shape.state_elements
    io = 2 * shape.heads * (shape.d_k + shape.d_v)
    return Recurrence(name, group, 4 * elements, elements, elements, base, state, 0, io, shape.heads)


def matrix_lstm(name: str, group: str, shape: Shape, base: Format, state: Format) -> Recurrence:
    """The mLSTM cell: linear attention with a normaliser n and a stabiliser m.

        C = f·C + i·k·v,  n = f·n + i·k,  h = q·C / max(|q·n|, 1):  4·H·d_k·d_v + 2·H·d_k FLOPs per token

    The state is C, n and m: H·(d_k·d_v + d_k + 1) elements. In chunks of c it adds 2·c·(d_k + d_v) per head and token
    (arXiv:2405.04517, section 2.3; arXiv:2503.14376).
    """
    h, matrix = shape.heads, shape.state_elements
    elements = matrix + h * shape.d_k + h
    io = 2 * h * (shape.d_k + shape.d_v) + 2 * h
    flops = 4 * matrix + 2 * h * shape.d_k
    return Recurrence(name, group, flops, matrix, elements, base, state, 0, io, h)


def wkv(name: str, group: str, width: int, base: Format, state: Format) -> Recurrence:
    """RWKV-4's time mixing: numerator, denominator and maximum of every channel; element-wise throughout.

    3·width elements of state, 2·width learned (decay and bonus), some 15 operations a channel, no matrix product
    (arXiv:2305.13048, equations 16 to 18 and appendix D).
    """
    return Recurrence(name, group, 0, 15 * width, 3 * width, base, state, 2 * width, 4 * width, width)


def token_shift(name: str, group: str, width: int, mixes: int, base: Format) -> Recurrence:
    """RWKV's mix of every token with the one before: one learned vector per mixture, the last token kept."""
    io = width * (1 + mixes)
    return Recurrence(name, group, 0, 3 * mixes * width, width, base, None, mixes * width, io, 1)


def gated_unit(name: str, group: str, width: int, base: Format, state: Format, ways: int) -> Recurrence:
    """The RG-LRU of Griffin: h = a·h + sqrt(1 - a²)·(i·x) on every channel, element-wise (arXiv:2402.19427, 2.4)."""
    return Recurrence(name, group, 0, 12 * width, width, base, state, width, 4 * width, ways)


@frozen
class Blockwise(Part):
    """A block-diagonal matrix: `blocks` equal matrices, each for its own part of the input, in one kernel."""

    linear: Linear
    blocks: int

    def tensors(self) -> Iterable[Tensor]:
        """All blocks."""
        yield from self.linear.tensors(copies=self.blocks)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """One batched product: `blocks` times that of one block."""
        op = self.linear.op(step.rows, numerics)
        yield replace(op, cost=op.cost * self.blocks, shape=f"{self.blocks} x {op.shape}", ways=self.blocks)


@frozen
class Again(Part):
    """A part whose weights an earlier layer of the same pass has: it computes and caches, but owns and reads none.

    Like every weight, the shared ones are counted as read once a step, which no run can beat.
    """

    part: Part

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The operators without their weight bytes."""
        for op in self.part.ops(step, numerics):
            yield replace(op, cost=replace(op.cost, weight_bytes=0, expected_weight_bytes=0))

    def cache(self, numerics: Numerics) -> Cache | None:
        """Its own keys and values."""
        return self.part.cache(numerics)
