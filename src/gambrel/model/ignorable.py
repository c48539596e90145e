"""Keys of a config.json that cannot change what a forward pass computes, moves or keeps.

A key that no reader used and that is not here is named in a warning, since it might.
"""

from __future__ import annotations

#: Endings: dropout rates, token ids, tokenizer and initialisation settings, loss weights, rotary parameters.
SUFFIXES = (
    "_dropout",
    "_dropout_prob",
    "_dropout_rate",
    "_pdrop",
    "_layerdrop",
    "_token_id",
    "_token_ids",
    "_token_index",
    "_loss_coef",
    "_init_std",
    "_eps",
    "_epsilon",
    "_softcapping",
    "_implementation",
    "_multiplier",
    "_theta",
    "_scaling_factor",
)

IGNORABLE = frozenset(
    """
    adapter_layer_norm_eps activation_function activation apply_query_key_layer_scaling architectures
    apply_residual_connection_post_layernorm attention_softmax_in_fp32 attn_pdrop auto_map aux_loss_alpha bad_words_ids
    begin_suppress_tokens bf16 bias_dropout_fusion bos_token_id cache_implementation chunk_size_feed_forward
    classifier_dropout cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dropout dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id ep_size eps exponential_decay_length_penalty
    finetuning_task fp16 gradient_checkpointing hidden_act hidden_activation id2label initial_context_length
    initializer_factor initializer_range interpolate_factor is_composition is_decoder is_encoder_decoder label2id
    layer_norm_eps layerdrop length_penalty logits_scaling loss_type lm_head_bias masked_softmax_fusion max_length
    min_length mm_tokens_per_image mscale model_max_length model_type multimodal_projector_bias n_ctx n_group
    name_or_path no_repeat_ngram_size norm_topk_prob num_beam_groups num_beams num_experts_per_token
    num_logits_to_keep num_return_sequences offset_alibi original_max_position_embeddings output_attentions
    output_hidden_states output_past output_router_logits output_scores pad_token_id partial_rotary_factor prefix
    pretraining_tp problem_type projector_hidden_act pruned_heads query_pre_attn_scalar quantization
    remove_invalid_values reorder_and_upcast_attn repetition_penalty reset_attention_mask reset_position_ids
    resid_pdrop return_dict return_dict_in_generate rope_interleave rope_parameters rope_scaling rope_theta rotary_dim
    rotary_emb_base rotary_pct route_scale routed_scaling_factor router_aux_loss_coef router_jitter_noise
    router_z_loss_coef scale_attn_by_inverse_layer_idx scale_attn_weights scale_attention_softmax_in_fp32 scale_depth
    scale_emb score_func scoring_func sep_token_id seq_aux skip_bias_add skip_bias_add_qkv slow_but_exact
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    swiglu_alpha swiglu_limit task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class
    tokenizer_name top_k top_p topk_group topk_method torch_dtype torchscript transformers_version typical_p
    unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_bidirectional_attention use_cache use_flash_attn
    use_mrope verbose version vision_feature_layer bos_token eos_token num_key_value_groups transformers.js_config
    tokenizer init_std rope_local_base_freq mask_value full_attn_mod init_method num_labels
    """.split()
)


def ignorable(key: str) -> bool:
    """Whether a key is known to be free of cost."""
    return key in IGNORABLE or key.startswith("_") or key.endswith(SUFFIXES)
