"""DeepSeek-V4: windows with compressed attention, hyper-connections, and experts stored in 4 bit.

Class defaults are those of DeepseekV4Config in transformers 5.24. The names of the kinds of layer are its too.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.builder import Builder, Family, Layer, MoE
from gambrel.model.compressed import CompressedAttention, Compressor, GroupedLinear, HyperConnection, HyperHead
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Elementwise, Linear, Norm, Part
from gambrel.model.precision import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.types import Format

WINDOW, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
#: What compress_ratios means per layer, and how many tokens become one entry.
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}
RATES = {SPARSE: 4, HEAVY: 128}


def _layers(b: Builder) -> list[Layer]:
    """The kind of each layer: layer_types, compress_ratios, or two heavily compressed ones and both in turn."""
    f, n = b.fields, b.n_layers
    kinds = f.items("layer_types", length=n)
    for kind in kinds:
        f.choice("layer_types", kind, (WINDOW, SPARSE, HEAVY))
    ratios = f.items("compress_ratios")
    predict = f.whole("num_nextn_predict_layers", 1, low=0)
    if ratios and len(ratios) not in (n, n + predict):
        raise ConfigError(f"{f.label('compress_ratios')} has {len(ratios)} entries for {n} layers and {predict} beyond")
    told = [RATIOS[f.choice("compress_ratios", ratio, tuple(RATIOS))] for ratio in ratios]
    kinds = kinds or told[:n] or [HEAVY, HEAVY, *(SPARSE if i % 2 else HEAVY for i in range(n - 2))][:n]
    if predict:
        b.notes.append(f"num_nextn_predict_layers = {predict}: multi-token-prediction weights are not counted")
    _hash_layers(b)
    return [Layer(sparse=True, kind=kind) for kind in kinds]


def _hash_layers(b: Builder) -> None:
    """Layers that look their experts up by token id: the same products, and a table of ids that is not counted."""
    kinds = b.fields.items("mlp_layer_types", length=b.n_layers)
    for kind in kinds:
        b.fields.choice("mlp_layer_types", kind, ("hash_moe", "moe"))
    hashed = kinds.count("hash_moe") if kinds else min(b.fields.whole("num_hash_layers", 3, low=0), b.n_layers)
    if hashed:
        b.notes.append(f"{hashed} layers look experts up by token id; the table of ids is not counted")


def _spec(b: Builder) -> MoE:
    """One shared expert of the routed experts' width; more are not in the class."""
    f = b.fields
    width = f.whole("moe_intermediate_size")
    f.choice("n_shared_experts", f.whole("n_shared_experts", 1, low=0), (1,))
    return MoE(f.whole("n_routed_experts"), f.whole("num_experts_per_tok"), width, width)


class CompressedBuilder(Builder):
    """Builds layers of which every slot stands between hyper-connections instead of residual adds."""

    def __init__(self, family: Family, fields: Fields, precision: Any, tied: bool | None = None) -> None:
        super().__init__(family, fields, precision, tied)
        self.fields.choice("attention_bias", self.fields.flag("attention_bias", False), (False,))
        self.fields.choice("num_key_value_heads", self.n_kv, (1,))
        self.streams = self.fields.whole("hc_mult", high=64)
        self.rates = self._rates()
        self.expert_format = self._expert_format()

    def _rates(self) -> dict[str, int]:
        """Tokens per entry of each kind of layer: compress_rates, or the older spellings."""
        f = self.fields
        told = f.nested("compress_rates") if f.has("compress_rates") else Fields({})
        for kind in told.data:
            f.choice("compress_rates", kind, tuple(RATES))
        sparse = f.whole("compress_rate_csa", told.whole(SPARSE, RATES[SPARSE]))
        return {SPARSE: sparse, HEAVY: f.whole("compress_rate_hca", told.whole(HEAVY, RATES[HEAVY]))}

    def _expert_format(self) -> Format | None:
        """Routed experts in a checkpoint of fp8 matrices: expert_dtype fp4 has an 8-bit scale per 32, as mxfp4 has."""
        f = self.fields
        quant = f.data.get("quantization_config")
        quant = quant if isinstance(quant, dict) else {}
        told = quant.get("expert_dtype", f.raw("expert_dtype", None))
        f.choice("expert_dtype", told, (None, "fp4", "fp8"))
        if self.precision.scheme is None or quant.get("quant_method") != "fp8":
            return None
        if quant.get("moe_quant_algo") is not None:
            f.choice("quantization_config.moe_quant_algo", quant["moe_quant_algo"], ("NVFP4",))
            found = FORMATS["nvfp4"]
        elif told == "fp4":
            found = replace(FORMATS["mxfp4"], compute="fp8")
        else:
            return None
        return replace(found, compute=self.precision.overrides.compute or found.compute)

    def linear(
        self, path: str, group: str, n_in: int, n_out: int, bias: bool | str = False, ways: int | None = None
    ) -> Linear:
        """As the core has it, with the experts' own format."""
        part = super().linear(path, group, n_in, n_out, bias, ways)
        own = self.expert_format if group == "experts" else None
        return replace(part, format=own) if own is not None else part

    def layer_parts(self, layer: Layer, index: int) -> tuple[Part, ...]:
        """Streams in, norm, compressors and attention, streams out; then the same around the experts."""
        path = f"model.layers.{index}"
        attention = self.compressed_attention(layer, f"{path}.self_attn")
        experts = self.moe(f"{path}.mlp", _spec(self))
        return (
            self.connection(f"{path}.attn_hc", "attention"),
            self.norm("input_layernorm"),
            *attention,
            self.connection(f"{path}.ffn_hc", "mlp"),
            self.norm("post_attention_layernorm"),
            experts,
        )

    def connection(self, path: str, group: str) -> Part:
        """The hyper-connection around one slot."""
        n = self.streams
        mix = self.linear(f"{path}.fn", group, n * self.hidden, (2 + n) * n, ways=1)
        mix = replace(mix, name=path.rsplit(".", 1)[-1], format=self.base)
        return HyperConnection(mix, n, self.hidden, (2 + n) * n + 3, self.base)

    def compressed_attention(self, layer: Layer, path: str) -> tuple[Part, ...]:
        """The attention over window and entries, behind the compressors that make them."""
        f, d, h = self.fields, self.head_dim, self.n_heads
        rank, groups, narrow = f.whole("q_lora_rank"), f.whole("o_groups"), f.whole("o_lora_rank")
        if h * d % groups:
            raise ConfigError(f"{f.label('o_groups')} is {groups}; accepted is a divisor of {h * d}")
        queries = (
            self.linear(f"{path}.q_a_proj", "attention", self.hidden, rank, ways=1),
            self.norm("q_a_norm", rank),
            self.linear(f"{path}.q_b_proj", "attention", rank, h * d, ways=h),
            Norm("q_b_norm", d, self.base, per_row=h, affine=False),
        )
        grouped = self.linear(f"{path}.o_a_proj", "attention", h * d // groups, groups * narrow, ways=groups)
        fields = {name: getattr(grouped, name) for name in Linear.__dict__["__dataclass_fields__"]}
        out = (
            GroupedLinear(**fields, groups=groups),
            self.linear(f"{path}.o_b_proj", "attention", groups * narrow, self.hidden, ways=groups),
        )
        rate = self.rates.get(layer.kind)
        top_k = f.whole("index_topk") if layer.kind == SPARSE else None
        attention = CompressedAttention(
            queries,
            self.linear(f"{path}.kv_proj", "attention", self.hidden, d, ways=1),
            self.norm("kv_norm", d),
            out,
            h,
            d,
            self._rotated(),
            f.whole("sliding_window"),
            self.base,
            rate,
            top_k,
        )
        return (*self.compressors(layer.kind, f"{path}.compressor"), attention)

    def _rotated(self) -> int:
        """Elements of a head that are rotated: qk_rope_head_dim, else an eighth of the head."""
        return self.fields.whole("qk_rope_head_dim", max(self.head_dim // 8, 1))

    def compressors(self, kind: str, path: str) -> tuple[Part, ...]:
        """What makes a layer's entries; a sparse layer has a second, narrow one with an indexer."""
        if kind == WINDOW:
            return ()
        own = self.compressor(path, self.head_dim, self.rates[kind], 2 if kind == SPARSE else 1)
        if kind == HEAVY:
            return (own,)
        f, path = self.fields, f"{path}.indexer"
        heads, width = f.whole("index_n_heads"), f.whole("index_head_dim")
        index = replace(
            self.compressor(path, width, self.rates[kind], 2),
            queries=self.linear(f"{path}.q_b_proj", "attention", f.whole("q_lora_rank"), heads * width, ways=1),
            weights=self.linear(f"{path}.scorer.weights_proj", "attention", self.hidden, heads, ways=1),
            n_heads=heads,
        )
        return (own, index)

    def compressor(self, path: str, width: int, rate: int, overlap: int) -> Compressor:
        """One compressor of entries of `width`."""
        keys, gates = (
            self.linear(f"{path}.{name}", "attention", self.hidden, overlap * width, ways=1)
            for name in ("kv_proj", "gate_proj")
        )
        return Compressor(keys, gates, self.norm("kv_norm", width), width, rate, self.base)


def _first(b: Builder) -> tuple[Part, ...]:
    streams = b.fields.whole("hc_mult")
    return (b.table(), Elementwise("copy_streams", b.hidden, reads=1, writes=streams, flops_per_element=0))


def _last(b: Builder) -> tuple[Part, ...]:
    n = b.fields.whole("hc_mult")
    mix = Linear("hc_head", "head", n * b.hidden, n, b.base, ways=1)
    return (HyperHead(mix, n + 1, b.base), b.norm("final_norm", last_rows=True), b.head())


_V4 = Family(
    names={
        "n_routed_experts": ("n_routed_experts", "num_local_experts"),
        "moe_intermediate_size": ("moe_intermediate_size", "intermediate_size"),
        "intermediate_size": ("moe_intermediate_size", "intermediate_size"),
    },
    mlp_bias="mlp_bias",
    layers=_layers,
    first=_first,
    last=_last,
    defaults={"num_key_value_heads": 1, "hc_mult": 4, "sliding_window": 128},
    builder=CompressedBuilder,
)

#: deepseek_ref is the same model under the name that sgl-project's FP8 copy of DeepSeek-V4-Pro has.
FAMILIES: dict[str, Family] = {"deepseek_v4": _V4, "deepseek_ref": _V4}

ARCHITECTURES: dict[str, tuple[str, ...]] = {"DeepseekV4ForCausalLM": tuple(FAMILIES)}
