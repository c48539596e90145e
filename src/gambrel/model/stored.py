"""What the tensors of a checkpoint are: which part they belong to, and how many parameters they stand for.

A packed tensor holds several parameters in one element; its scales and zero points belong to it and hold none. What is
stored beside the weights (buffers, scales of activations, orders of inputs) is listed, not counted, because the
prediction leaves it out too. Everything here is a table: a name that no row knows goes to "other" and is named.
Sources: the formats of GPTQ (AutoGPTQ), AWQ (AutoAWQ), compressed-tensors, modelopt, bitsandbytes, MLX and gpt-oss as
their published checkpoints have them, and the tensor names of gguf-py.
"""

from __future__ import annotations

import re

from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from gambrel.model.checkpoint import Checkpoint, StoredTensor

OTHER, MTP = "other", "mtp"
#: Between a tower and the text; counted as the tower is.
PROJECTOR = "projector"
#: What some model classes hold as parameters, others as buffers.
BALANCING = "balancing biases"


@frozen
class StoredWeight:
    """One tensor of a checkpoint with its meaning.

    group: the part that it belongs to, as in gambrel.types.Tensor. kind: "weight", "scale" (scales and zero points of
    a weight: bytes, no parameters), or what it is beside the weights ("rotary tables", …). params: what it stands
    for, unpacked. known: whether the packing is understood; if not, params are the elements as stored.
    """

    tensor: StoredTensor
    group: str
    kind: str
    params: int
    known: bool = True

    @property
    def beside(self) -> bool:
        """Whether it is stored beside the weights and not compared."""
        return self.kind not in ("weight", "scale")


def stored_weights(checkpoint: Checkpoint) -> tuple[StoredWeight, ...]:
    """Every tensor of a checkpoint with its part and its parameters."""
    return tuple(_classified(checkpoint))


def _classified(checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    by_name = {t.name: t for t in checkpoint.tensors}
    groups = _groups(checkpoint)
    for t, group in zip(checkpoint.tensors, groups, strict=True):
        kind = _beside(t)
        if kind:
            yield StoredWeight(t, group, kind, 0)
        elif checkpoint.kind != "gguf" and _is_scale(t.name, by_name):
            yield StoredWeight(t, group, "scale", 0)
        else:
            params = t.elements if checkpoint.kind == "gguf" else unpacked(t, by_name, checkpoint.quantization)
            yield StoredWeight(t, group, "weight", t.elements if params is None else params, params is not None)


# Parts ------------------------------------------------------------------------------------------

LAYER = re.compile(r"(.*?\b(?:layers|blk|h|blocks)\.\d+)\.")
#: Modules that only a layer for multi-token prediction has; such layers stand behind the model's own.
PREDICTION = re.compile(r"\.(enorm|hnorm|eh_proj|shared_head|nextn)\.")


def _groups(checkpoint: Checkpoint) -> list[str]:
    """The part of every tensor: by its name, and by what its neighbours tell of the module that it is in."""
    names = [t.name for t in checkpoint.tensors]
    table = GGUF_PARTS if checkpoint.kind == "gguf" else PARTS
    groups = [part_of(name, table) for name in names]
    tower = "audio" if "audio" in groups and "vision" not in groups else "vision"
    extra_layers = _prediction_layers(names)
    decays = (_modules(name) for name in names if name.endswith(".A_log"))
    recurrent = {module for modules in decays for module in modules if module.endswith("attn.")}
    found = []
    for name, group in zip(names, groups, strict=True):
        layer = LAYER.match(name)
        if layer and layer[1] in extra_layers:
            group = MTP
        elif group == "attention" and _modules(name) & recurrent:
            group = "recurrent"
        found.append(tower if group == PROJECTOR else group)
    return found


def _modules(name: str) -> set[str]:
    """The modules that a tensor is in, each with a dot behind it."""
    parts = name.split(".")
    return {".".join(parts[:n]) + "." for n in range(1, min(len(parts), 16))}


def _prediction_layers(names: Iterable[str]) -> set[str]:
    found = (LAYER.match(name) for name in names if PREDICTION.search(name))
    return {layer[1] for layer in found if layer}


#: Part and the pattern that says so, the first that is found, in the module path between dots: ".model.norm.".
#: Towers come first, because they have attention and norms too; norms before what they stand in.
PARTS = (
    (MTP, r"\.(mtp\w*|nextn\w*)\."),
    (
        "vision",
        r"\.(visual\w*|\w*vision\w*|vit|vit_large_projector|image_newline|view_seperator|patch_merger|embed_vision|aligner|"
        r"connector)\.|^\.mlp1\.",
    ),
    ("audio", r"\.(audio\w*|speech\w*|embed_audio)\."),
    (PROJECTOR, r"\.(multi_?modal_projector|mm_projector|projector)\."),
    ("router", r"\.(router|moe_statics)\.|\.gate\.wg\.|\.(mlp|block_sparse_moe|feed_forward|moe|ffn|mixer)\.gate\.$"),
    ("shared_experts", r"\.shared_(expert|experts|mlp|expert_gate)\."),
    ("experts", r"\.experts\.|\.(block_sparse_moe|mlp)\.(input|output)_linear\.|\.mlp\.$"),
    ("norm", r"\.[^.]*norm[^.]*\.(\d+\.)?$|\.(ln|\w+_ln|ln\d|ln_\w+)\.$"),
    (
        "embedding",
        r"\.(embed_tokens\w*|embed_in|embed_positions|wte|wpe|word_embeddings|tok_embeddings|token_type_embeddings|"
        r"position_embeddings|embeddings|project_in|\w*relative_attention_bias|per_layer_\w+)\.|^\.(\w+\.)?shared\.|^\.embed\.|"
        r"\.encoder\.conv\d\.|^\.transformer\.w\.",
    ),
    (
        "head",
        r"\.(lm_head|embed_out|output_layer|project_out|score|classifier|qa_outputs|hc_head)\.|^\.(model\.)?output\.$|^\.head\.",
    ),
    ("latent", r"\.mixer\.fc\d_latent_proj\."),
    ("attention", r"\.mixer\.[qkvo]_proj\."),
    ("mlp", r"\.mixer\.(gate|up|down)_proj\."),
    (
        "recurrent",
        r"\.(mixer|mamba|ssm|linear_attn|temporal_block|time_mix\w*|mlstm_layer)\.|\.layers\.\d+\.conv\.|"
        r"^\.rwkv\.blocks\.\d+\.(attention|feed_forward)\.",
    ),
    ("attention", r"\.[^.]*(attn|attention)[^.]*\."),
    (
        "mlp",
        r"\.(mlps?|feed_forward|ffn\w*|fc1|fc2|densereludense|intermediate)\.|\.output\.dense\.|\.layers\.\d+\.linear\.",
    ),
)
#: The same for the names of gguf-py (MODEL_TENSOR).
GGUF_PARTS = (
    (MTP, r"\.nextn\."),
    ("vision", r"^\.(v|mm)\."),
    ("audio", r"^\.a\."),
    ("router", r"\.ffn_gate_inp\."),
    ("shared_experts", r"\.ffn_\w+_shexp\."),
    ("experts", r"\.ffn_\w+_exps\.|\.ffn_(gate|up|down)\.\d+\."),
    ("norm", r"\.[^.]*norm(_\d)?\.$"),
    ("embedding", r"^\.(token_embd|position_embd|token_types|per_layer_token_embd)\."),
    ("head", r"^\.(output|cls\w*)\."),
    ("recurrent", r"\.(ssm|time_mix|shortconv)_\w+\."),
    ("attention", r"\.(cross_)?attn_\w+\."),
    ("mlp", r"\.ffn_\w+\."),
)
#: What stands behind the module path in a tensor's name.
ENDINGS = re.compile(r"\.(weight|bias|gamma|beta|qweight|weight_packed)$|_(blocks|bias)$")


def part_of(name: str, table: tuple[tuple[str, str], ...] = PARTS) -> str:
    """The part that a tensor belongs to, by the modules in its name; "other" where no pattern knows them."""
    path = f".{ENDINGS.sub('', SCALE.sub('', name))}."
    return next((group for group, pattern in table if re.search(pattern, path, re.IGNORECASE)), OTHER)


# Beside the weights -----------------------------------------------------------------------------

#: What is stored beside the weights, and the names of it.
BESIDE = (
    ("rotary tables", r"rotary_(pos_)?emb\.|\binv_freq$|^rope_freqs\.|\brope_(freqs|factors_\w+)\."),
    ("attention masks", r"\bmasked_bias$"),
    ("indices", r"\b(position_ids|token_type_ids|num_batches_tracked|relative_position_index|tid2eid)$"),
    (BALANCING, r"\be_score_correction_bias$|\bexpert_bias$|\bexp_probs_b(\.bias)?$"),
    ("constants", r"\b(final_logits_bias|layer_scalar|std_bias|std_scale)$|\bact_fn\.(beta|eps)$"),
    ("activation scales", r"[._](input|activation|act|output|prob_output|pre_quant)_(global_)?scale(_inv)?$"),
    ("cache scales", r"\.(q|k|v|kv)_(cache_)?scale$"),
    ("second scales", r"[._]weight_(scale_2|global_scale)$|\.weight\.nested_absmax$"),
    ("orders of inputs", r"\.(weight_)?g_idx$"),
    ("quantisation tables", r"\.weight\.((nested_)?quant_map|quant_state\..*)$|\.weight_(shape|format)$"),
)
MASK = re.compile(r"\b(attn|attention)\.bias$")


def _beside(t: StoredTensor) -> str:
    if MASK.search(t.name) and len(t.shape) == 4:
        return "attention masks"
    return next((kind for kind, pattern in BESIDE if re.search(pattern, t.name)), "")


# Scales and packings ----------------------------------------------------------------------------

#: Ending of a tensor with scales or zero points -> endings of the weight that they may belong to.
SCALES = {
    "_scales": ("_blocks",),
    ".scales": (".qweight", ".weight"),
    ".qzeros": (".qweight",),
    ".biases": (".weight",),
    ".weight_scale": (".weight_packed", ".weight"),
    ".weight_zero_point": (".weight_packed", ".weight"),
    ".weight_scale_inv": (".weight",),
    ".scale": (".weight",),
    ".SCB": (".weight",),
    ".weight.absmax": (".weight",),
    "_weight_scale": ("",),
    "_scale_inv": ("",),
    "_scale": ("",),
}
SCALE = re.compile("(" + "|".join(re.escape(ending) for ending in SCALES) + r"|\.weight\.\w+(\.\w+)?)$")
#: Dtypes of weights that need scales.
NARROW = ("I8", "U8", "I32", "U32", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


def _is_scale(name: str, by_name: Mapping[str, StoredTensor]) -> bool:
    for ending, owners in SCALES.items():
        if name.endswith(ending):
            base = name[: -len(ending)]
            found = (by_name.get(base + owner) for owner in owners)
            if any(owner is not None and owner.dtype in NARROW for owner in found):
                return True
    return False


def unpacked(t: StoredTensor, by_name: Mapping[str, StoredTensor], quantization: Mapping[str, Any]) -> int | None:
    """Parameters that a weight stands for; None where its packing is not understood.

    Bits come from the shapes of the scales and zero points beside it where these settle it, else from the
    quantization_config. Never guessed.
    """
    if t.dtype.startswith(("F", "BF", "C")) or t.dtype == "I8":
        return t.elements
    base = ENDINGS.sub("", t.name)
    if t.name.endswith(".qweight"):
        return _packed_columns(t, by_name, base, quantization)
    if t.dtype == "U8":
        return _packed_bytes(t, by_name, base, quantization)
    if t.dtype in ("I32", "U32"):
        bits = _bits_of_words(t, by_name, base, quantization)
        return t.elements * 32 // bits if bits else None
    return None


def _packed_columns(
    t: StoredTensor, by_name: Mapping[str, StoredTensor], base: str, quantization: Mapping[str, Any]
) -> int | None:
    """GPTQ packs inputs, [n_in·b/32, n_out]; AWQ packs outputs, [n_in, n_out·b/32]; scales are [groups, n_out]."""
    scales, zeros, order = (by_name.get(f"{base}.{name}") for name in ("scales", "qzeros", "g_idx"))
    if scales is None or len(t.shape) != 2 or not scales.shape or t.dtype not in ("I32", "U32"):
        return None
    n_out = scales.shape[-1]
    if t.shape[1] != n_out:
        return t.shape[0] * n_out
    if order is not None and len(order.shape) == 1:
        return order.elements * n_out
    if zeros is not None and n_out and zeros.shape and zeros.shape[-1]:
        bits = 32 * zeros.shape[-1] // n_out
    else:
        bits = _whole(quantization.get("bits"))
    return t.elements * 32 // bits if bits else None


def _packed_bytes(
    t: StoredTensor, by_name: Mapping[str, StoredTensor], base: str, quantization: Mapping[str, Any]
) -> int | None:
    """Two parameters in a byte (mxfp4, nvfp4, 4-bit integers, bitsandbytes), or four (bitnet)."""
    if t.name.endswith((".weight_packed", "_blocks")) or f"{base}.weight.absmax" in by_name:
        return 2 * t.elements
    scale = by_name.get(f"{base}.weight_scale") or by_name.get(f"{base}_weight_scale")
    if scale is None:
        return None
    if quantization.get("quant_method") == "bitnet":
        return 4 * t.elements
    if len(scale.shape) != len(t.shape) or not t.shape:
        return None
    groups = any(tile * scale.shape[-1] == 2 * t.shape[-1] for tile in (16, 32))
    rows = len(t.shape) > 1 and scale.shape[-2] == 2 * t.shape[-2]
    columns = len(t.shape) > 1 and scale.shape[-2] == t.shape[-1] * 2
    return 2 * t.elements if groups or rows or columns else None


def _bits_of_words(
    t: StoredTensor, by_name: Mapping[str, StoredTensor], base: str, quantization: Mapping[str, Any]
) -> int:
    """Bits of a parameter in 32-bit words, [n_out, n_in·b/32]: those that fit the groups, [n_out, n_in/g]; or 0.

    compressed-tensors names the bits of each of its groups, MLX the size of a group, for all modules or one by one.
    """
    scale = by_name.get(f"{base}.weight_scale") or by_name.get(f"{base}.scales")
    if scale is None or not t.shape or not scale.shape:
        return 0
    words, n_groups = 32 * t.shape[-1], scale.shape[-1]
    groups = quantization.get("config_groups")
    if isinstance(groups, dict):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
        pairs = {(_whole(w.get("num_bits")), _whole(w.get("group_size"))) for w in weights if isinstance(w, dict)}
        fitting = {b for b, g in pairs if b and (not g or abs(words - b * g * n_groups) < b * g + 32)}
        return fitting.pop() if len(fitting) == 1 else 0
    own = quantization.get(base)
    group = _whole((own if isinstance(own, dict) else quantization).get("group_size"))
    inputs = group * n_groups
    return words // inputs if inputs and words % inputs == 0 else 0


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
