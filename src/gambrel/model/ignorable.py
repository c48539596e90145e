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
    scale_embedding add_final_layer_norm normalize_before normalize_embedding static_position_embeddings
    add_bias_logits extra_pos_embeddings dropout_rate scale_decoder_outputs router_type router_dtype
    is_full_sparse forced_decoder_ids scalable_attention batch_prioritized_routing router_ignore_padding_tokens
    apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length
    mask_feature_min_masks median_filter_width use_weighted_layer_sum classifier_proj_size add_router_probs
    force_bos_token_to_be_generated is_multilingual max_initial_timestamp_index no_timestamps_token_id
    lang_to_id task_to_id alignment_heads
    audio_soft_tokens_per_image vision_soft_tokens_per_image ignore_index use_unified_vision_chunk video_placeholder
    use_routing_bias layernorm_full_attention_beta layernorm_linear_attention_beta layernorm_mlp_beta shared_moe_mode
    for_llm_compressor attn_scale attn_temperature_tuning floor_scale attention_value_scale load_balance_coeff
    mup_enabled num_expert_groups num_limited_groups route_norm use_grouped_mm moe_norm_min indexer_rope_interleave
    index_share_for_mtp_iteration moe_router_dtype hc_sinkhorn_iters norm_head input_jitter_noise att_impl_type
    moe_router_activation max_seq_len norm_expert_weight anyres_pooling_size anyres_vit_max_image_size
    anyres_vit_two_views dense_list im_end_id im_newline_id im_start_id mask_init_id org_vocab_size pad_id pool_type
    text_end_id text_start_id video_end_id video_start_id class_num skip_cls_token moe_router_enable_expert_bias
    moe_router_use_sigmoid enable_moe_fp32_combine enable_attention_fp32_softmax moe_random_routing_dropped_token
    moe_drop_tokens group_limited_greedy position_embedding_xdrope xdrope_section eod_token_id retrieved source
    time_step_min time_step_max time_step_floor time_step_limit time_step_init_scheme time_step_scale residual_in_fp32
    rescale_prenorm_residual use_mamba_kernels use_mambapy use_falcon_mambapy use_associative_scan mamba_chunk_size
    mamba_hidden_act mlp_hidden_act hidden_mamba_act ssm_multipliers mlp_multipliers mamba_norm_before_gate
    linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor linear_allow_neg_eigval
    normalization_function layernorm_full_attention_alpha layernorm_full_attention_beta
    layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta
    full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor linear_attn_beta_factor mlp_alpha_factor
    mlp_beta_factor z_loss_coefficient logits_soft_cap w_init_variance_scale final_w_init_variance_scale
    moe_capacity mla_scale_q_lora mla_scale_kv_lora need_fp32_gate
    """.split()
)


def ignorable(key: str) -> bool:
    """Whether a key is known to be free of cost."""
    return key in IGNORABLE or key.startswith("_") or key.endswith(SUFFIXES)
