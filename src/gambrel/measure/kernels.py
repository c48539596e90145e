"""What a kernel is for: its role by the operator that launched it, else by its name. All of it is data.

Roles: gemm attention elementwise reduction movement communication, and other where neither says. Names of operators are
those of PyTorch and of the engines' own libraries; names of kernels those of CUDA, ROCm, Triton and their libraries.
"""

from __future__ import annotations

import functools
import re

ROLES = ("gemm", "attention", "elementwise", "reduction", "movement", "communication", "other")

#: Operators by role, without their namespace and without the underscore of those that work in place.
OPERATORS = {
    "gemm": """
        mm addmm bmm baddbmm addbmm linear matmul mv addmv dot _scaled_mm _scaled_grouped_mm _grouped_mm _int_mm einsum
        _addmm_activation mkldnn_linear mkl_linear _weight_int4pack_mm _weight_int8pack_mm linear_backward
        mm_backward scaled_mm cutlass_scaled_mm cutlass_scaled_fp4_mm cutlass_moe_mm gptq_gemm awq_gemm
        marlin_gemm gptq_marlin_gemm moe_wna16_gemm rocm_unquantized_gemm LLMM1 wvSplitK wvSplitKQ
        gemm_a8w8 gemm_a8w8_blockscale gemm_a16w16 convolution _convolution cudnn_convolution miopen_convolution
        mkldnn_convolution conv1d conv2d conv3d convolution_backward _slow_conv2d_forward thnn_conv2d
        convolution_overrideable fused_moe inplace_fused_experts outplace_fused_experts""",
    "attention": """
        scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
        _scaled_dot_product_attention_math_for_mps
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
        _flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
        _cudnn_attention_forward _flash_attn_forward _flash_attn_varlen_forward _flash_attn_backward FlashAttnFunc
        FlashAttnVarlenFunc flash_attn_varlen_func flash_attn_func fmha_v3_fwd fmha_v3_varlen_fwd mha_fwd mha_varlen_fwd
        fwd_kvcache varlen_fwd paged_attention paged_attention_v1 paged_attention_v2 paged_attention_rocm
        pa_fwd_asm mla_decode_fwd flash_mla_decode unified_attention unified_attention_with_output
        unified_mla_attention unified_mla_attention_with_output flex_attention memory_efficient_attention_forward""",
    "elementwise": """
        add sub mul div neg pow rsqrt sqrt exp log cos sin abs sign reciprocal square silu gelu relu sigmoid tanh
        softplus hardtanh leaky_relu elu mish clamp clamp_min clamp_max maximum minimum where masked_fill eq ne lt le
        gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not bitwise_xor addcmul addcdiv lerp
        dropout native_dropout rsub remainder floor ceil round trunc erf floor_divide fmod isnan isinf
        threshold_backward
        silu_backward gelu_backward silu_and_mul gelu_and_mul gelu_tanh_and_mul rotary_embedding
        batched_rotary_embedding static_scaled_fp8_quant dynamic_scaled_fp8_quant dynamic_per_token_scaled_fp8_quant
        static_scaled_int8_quant scaled_fp4_quant glu swiglu rope_cached_thd_positions_2c_fwd_impl uniform normal
        bernoulli random exponential atan2 expm1 log1p special_expit __and__ __or__ triu tril""",
    "reduction": """
        mean sum prod amax amin max min argmax argmin all any norm linalg_vector_norm var std var_mean softmax _softmax
        log_softmax _log_softmax _safe_softmax native_layer_norm layer_norm rms_norm _fused_rms_norm fused_add_rms_norm
        native_group_norm group_norm batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm cumsum cumprod topk
        sort logsumexp count_nonzero multinomial max_pool2d_with_indices max_pool2d avg_pool2d _adaptive_avg_pool2d
        adaptive_avg_pool2d rms_norm_static_fp8_quant fused_add_rms_norm_static_fp8_quant topk_softmax grouped_topk
        rmsnorm2d_fwd rmsnorm2d_fwd_with_add layernorm2d_fwd nll_loss_forward cross_entropy_loss unique2
        _softmax_backward_data native_layer_norm_backward _fused_rms_norm_backward bincount histc""",
    "movement": """
        copy _to_copy to clone contiguous cat stack embedding index_select index index_put _index_put_impl gather
        scatter scatter_add index_add index_copy fill zero zeros ones full arange constant_pad_nd pad repeat
        repeat_interleave roll flip masked_select nonzero take _local_scalar_dense item reshape_and_cache
        reshape_and_cache_flash concat_and_cache_mla copy_blocks swap_blocks gather_cache moe_align_block_size
        moe_permute moe_unpermute one_hot split_with_sizes_copy _foreach_copy embedding_dense_backward pin_memory""",
    "communication": """
        all_reduce all_gather reduce_scatter all_to_all all_to_all_single broadcast allreduce allgather
        _allgather_base _reduce_scatter_base all_gather_into_tensor reduce_scatter_tensor alltoall_base alltoall
        multimem_all_reduce multimem_one_shot_all_reduce one_shot_all_reduce two_shot_all_reduce record_param_comms
        wait_tensor send recv all_reduce_reg all_reduce_unreg custom_all_reduce qr_all_reduce barrier
        all_gather_into_tensor_coalesced allreduce_coalesced reduce scatter_comm""",
    # Views and allocations do nothing to the data; on a CPU they take time all the same.
    "other": """
        view reshape as_strided transpose t permute expand unsqueeze squeeze slice select narrow split chunk
        split_with_sizes unbind empty empty_like empty_strided resize detach alias _unsafe_view unflatten flatten
        movedim lift_fresh resolve_conj resolve_neg result_type is_nonzero set_ view_as expand_as unfold diagonal
        _reshape_alias _has_compatible_shallow_copy_type numpy_T""",
}
OPERATOR_ROLES = {name: role for role, names in OPERATORS.items() for name in names.split()}

#: Libraries' own names and telling templates: tried on the whole name first.
TELLING = (
    (
        "communication",
        r"nccl|rccl|msccl|nvshmem|rocshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem"
        r"|cross_device_reduce",
    ),
    ("movement", r"^Mem(cpy|set)\b|^Copy(Host|Device)|rocclr_(copy|fill)|reshape_and_cache|concat_and_cache"),
    ("elementwise", r"\btriton_poi_|quantize_with|quant_kernel"),
    ("reduction", r"\btriton_(red|per)_"),
    (
        "attention",
        r"fmha|flash(?!infer::(norm|sampling|activation))|attn_(fwd|bwd)|attention_(kernel|fwd|bwd|2d|3d)|paged_attn"
        r"|paged_attention|\bmha_|_mha_|mla_(decode|fwd|prefill)|\bpa_(fwd|kernel|bf16|fp16)|unified_attn"
        r"|unified_attention|_kernel_stage[12]$|Batch(Prefill|Decode)|Single(Prefill|Decode)|decode_att",
    ),
    ("movement", r"(direct|float16|bfloat16|float8\w*|bool)_copy_kernel|CatArray|indexSelect|FillFunctor|arange_cuda"),
)
#: Words that many use: tried on the function's own name, then on the whole, since a template names its types.
WORDS = (
    ("elementwise", r"rotary|rope_|_and_mul|fp8_quant|quantize_|_quant_kernel|epilogue"),
    ("reduction", r"softmax|reduce_kernel|splitK?reduce|reduction_|layer_?norm|rms_?norm|batch_?norm|group_?norm"),
    (
        "movement",
        r"nchwToNhwc|nhwcToNchw|computeOffsets|moe_align|routing\w*(Offsets|Histogram)|copy_?buffer|copy_page",
    ),
    (
        "gemm",
        r"gemm|Cijk_|nvjet|xmma|cutlass|cublas|matmul|gemv|\bbmm_|_mm_kernel|_mfma_|Tensile|wvSplitK|LLGemm|marlin"
        r"|scudnn|wgrad|dgrad|fprop|convolve|conv(2d|_depthwise|olution)|miopenSp|igemm|winograd|fft2d|fused_moe|fmoe"
        r"|moe_kernel|dot_kernel|\btriton_tem_",
    ),
    ("attention", r"(?<!linear_)attention"),
    (
        "movement",
        r"index_select|gather|scatter|transpose|permute|embedding|index_elementwise|index_kernel|_pad_|contiguous"
        r"|concat|copy|fill|memset|memcpy",
    ),
    ("elementwise", r"elementwise|pointwise|silu|gelu|relu|sigmoid|dropout|clamp|masked_fill|activation|swiglu"),
    ("reduction", r"reduce|norm|mean|argmax|topk|sort|pool|cumsum|scan|finalize|sampling|radix"),
    ("elementwise", r"quant|rope|(?<![a-z])(add|mul|neg)(?![a-z])|cast|convert|Functor"),
)


def _compiled(table: tuple[tuple[str, str], ...]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((role, re.compile(pattern, re.IGNORECASE)) for role, pattern in table)


_TELLING, _WORDS = _compiled(TELLING), _compiled(WORDS)
_OWN_NAME = re.compile(r"^(?:void |\(anonymous namespace\)::)*(?:[\w~]+::|\(anonymous namespace\)::)*[\w~]+")
#: Patterns are tried on this much of a name: demangled templates can have thousands of characters.
READ_CHARS = 600

#: Calls that replay a captured graph: one launch, many kernels.
GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch(_ptsz)?$")
#: Calls that put one kernel, copy or fill on a device.
LAUNCH = re.compile(
    r"^(cuda|cu|hip)(Ext|Drv|Hcc)?(Module)?Launch(Cooperative)?Kernel|^(cuda|cu|hip)Mem(cpy|set)|^zeCommandList|launchKernel"
)
KERNEL_LAUNCH = re.compile(r"^(cuda|cu|hip)(Ext|Drv|Hcc)?(Module)?Launch(Cooperative)?Kernel|launchKernel")
#: Modules in which a product of two activations is attention's.
ATTENTION_MODULE = re.compile(r"attention|attn|mla", re.IGNORECASE)


@functools.lru_cache(maxsize=8192)
def operator_role(name: str) -> str | None:
    """The role of an operator by its name, such as "aten::add_"; None where it is not known."""
    if name.startswith("nccl:"):
        return "communication"
    bare = name.rsplit("::", 1)[-1]
    return OPERATOR_ROLES.get(bare) or OPERATOR_ROLES.get(bare.rstrip("_")) or OPERATOR_ROLES.get(bare.split(".", 1)[0])


@functools.lru_cache(maxsize=8192)
def kernel_role(name: str) -> str | None:
    """The role of a kernel by its name; None where no pattern knows it."""
    whole = name[:READ_CHARS]
    return _first(_TELLING, whole) or _first(_WORDS, _qualified(whole)) or _first(_WORDS, whole)


def own_name(name: str) -> str:
    """A kernel's name without what it returns, its namespaces, its template and its arguments."""
    return _qualified(name[:READ_CHARS]).rsplit("::", 1)[-1].removeprefix("void ")


def _qualified(name: str) -> str:
    found = _OWN_NAME.match(name)
    return found[0] if found else name


def _first(table: tuple[tuple[str, re.Pattern[str]], ...], name: str) -> str | None:
    return next((role for role, pattern in table if pattern.search(name)), None)
