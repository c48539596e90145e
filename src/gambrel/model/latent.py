"""Multi-head latent attention: one cached latent vector in place of every head's keys and values."""

from __future__ import annotations

from gambrel.model.parts import Linear, Norm, Part, dims, rotary
from gambrel.types import Cache, Cost, Numerics, Op, Step, Tensor
from gambrel.units import Num, is_grid, total, where
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class LatentAttention(Part):
    """Multi-head latent attention (MLA): keys and values of all heads come from one cached latent vector.

    queries: projections before the heads, with their norm between, or one where queries are not compressed.
    kv_down: hidden to latent + rotary key. kv_up: latent to every head's keys and values. latent: width of the
    latent; d_nope, d_rope, d_v: widths of a head. form: "cheaper" of the two, or "expanded" always.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    queries: tuple[Linear | Norm, ...]
    kv_down: Linear
    kv_norm: Norm
    kv_up: Linear
    out: Linear
    n_heads: int
    latent: int
    d_nope: int
    d_rope: int
    d_v: int
    form: str = "cheaper"

    def tensors(self) -> Iterable[Tensor]:
        """Every projection and norm."""
        for part in (*self.queries, self.kv_down, self.kv_norm, self.kv_up, self.out):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, then per group of sequences the cheaper of the absorbed and the expanded form."""
        for part in (*self.queries, self.kv_down, self.kv_norm):
            yield from part.ops(step, numerics)
        yield from rotary(self.n_heads + 1, self.d_rope, step, numerics)
        yield from self._latent_ops(step, numerics)
        yield from self.out.ops(step, numerics)

    def _flops(self, g: Step, absorbed: bool) -> tuple[Num, Num]:
        """FLOPs of the up-projection and of the scores, one group of sequences.

        Absorbed: queries and outputs are multiplied by W_UK and W_UV instead, 2·latent·n_h·(d_nope + d_v) per new
        token, and scores run over the latent, 2·n_h·(2·latent + d_rope) each. Expanded: every key in context is
        projected up, 2·latent·n_h·(d_nope + d_v) per key, and scores cost 2·n_h·(d_nope + d_rope + d_v) each.
        """
        up = 2 * self.latent * self.n_heads * (self.d_nope + self.d_v)
        if absorbed:
            return g.rows * up, 2 * self.n_heads * (2 * self.latent + self.d_rope) * g.scores()
        keys = g.batch * where(g.context_tokens < g.new_tokens, g.new_tokens, g.context_tokens)
        return keys * up, 2 * self.n_heads * (self.d_nope + self.d_rope + self.d_v) * g.scores()

    def _latent_ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        up_flops, score_flops, forms = [], [], set()
        for group in step.groups:
            folded, expanded = self._flops(group, absorbed=True), self._flops(group, absorbed=False)
            cheaper = (folded[0] + folded[1]) <= (expanded[0] + expanded[1])
            cheaper = False if self.form == "expanded" else cheaper
            up_flops.append(where(cheaper, folded[0], expanded[0]))
            score_flops.append(where(cheaper, folded[1], expanded[1]))
            forms.add("·" if is_grid(cheaper) else "absorbed" if cheaper else "expanded")
        form = " and ".join(sorted(forms))
        per_token = self._kv_bytes(numerics)
        element = numerics.base.element_bytes
        width_in, width_out = self.d_nope + self.d_rope, self.d_v
        up = Cost(
            flops=total(up_flops),
            weight_bytes=self.kv_up.stored_bytes,
            expected_weight_bytes=self.kv_up.stored_bytes,
            act_bytes=step.rows * (self.latent + self.n_heads * (self.d_nope + self.d_v)) * element,
        )
        kernel = Cost(
            flops=total(score_flops),
            vector_flops=5 * self.n_heads * step.scores(),
            kv_read_bytes=step.keys_read() * per_token,
            kv_write_bytes=step.keys_written() * per_token,
            act_bytes=step.rows * self.n_heads * (width_in + width_out) * element,
        )
        up_shape = f"{dims(self.latent, self.kv_up.n_out)} {form}"
        yield Op(self.kv_up.name, "gemm", self.kv_up.format.compute, up, shape=up_shape, ways=self.n_heads)
        shape = f"{self.n_heads} heads over one latent, {form}"
        yield Op("attention", "attention", numerics.attention, kernel, shape=shape, ways=self.n_heads, kv_ways=1)

    def _kv_bytes(self, numerics: Numerics) -> Num:
        return (self.latent + self.d_rope) * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """One latent and one rotary key for all heads: latent + d_rope elements per token, on every device."""
        return Cache(self._kv_bytes(numerics), ways=1)
