"""Small models of transformers with random excited weights, of every model type: as it writes and as we load them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import transformers
from transformers.models.bloom import modeling_bloom

import jaxformer as jf
from jaxformer.checkpoints.hf import Checkpoint
from jaxformer.checkpoints.opened import open_path
from jaxformer.convert.families.m2m_100 import fairseq_sinusoids
from jaxformer.convert.model_type import ModelType
from jaxformer.nn.positions import sinusoid_blocks
from jaxformer.parity.numerics.float64 import torch_float64
from parity_tests.support.helpers import noise

D, V, PAD, EOS, START = 12, 23, 1, 2, 3
BERT = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
DISTILBERT = {"vocab_size": V, "dim": D, "n_layers": 2, "n_heads": 3, "hidden_dim": 20}
LABELS = {"id2label": {0: "LOC", 1: "PER", 2: "O"}, "label2id": {"LOC": 0, "PER": 1, "O": 2}}
SEQ2SEQ = {"vocab_size": V, "d_model": D, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 22}
SEQ2SEQ |= {f"{stack}_attention_heads": 3 for stack in ("encoder", "decoder")}
SEQ2SEQ |= {f"{stack}_ffn_dim": 20 for stack in ("encoder", "decoder")}
IDS = {"bos_token_id": 0, "eos_token_id": EOS, "pad_token_id": PAD}
SEQ2SEQ |= IDS | {"decoder_start_token_id": START}
WHISPER = {key: value for key, value in SEQ2SEQ.items() if key != "max_position_embeddings"}
WHISPER |= {"num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 22}
MPNET = BERT | IDS | {"max_position_embeddings": 20}
GPT2 = {"vocab_size": V, "n_positions": 21, "n_embd": D, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": EOS}
T5 = {"vocab_size": V, "d_model": D, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 3}
T5 |= {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 7} | IDS | {"decoder_start_token_id": START}

MODERN = BERT | IDS | {"num_key_value_heads": 1, "head_dim": 6, "max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 |= {"low_freq_factor": 0.5, "high_freq_factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 8}
YARN |= {"beta_fast": 1.0, "beta_slow": 0.1, "truncate": False}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
WINDOW, FULL = "sliding_attention", "full_attention"
GEMMA = MODERN | {"sliding_window": 4, "query_pre_attn_scalar": 7}
BASES = {WINDOW: {"rope_type": "default", "rope_theta": 30.0}, FULL: LINEAR}
GEMMA4 = MODERN | {
    "num_hidden_layers": 5,
    "layer_types": [WINDOW, WINDOW, FULL, WINDOW, FULL],
    "sliding_window": 4,
    "global_head_dim": 8,
}
GEMMA4 |= {"vocab_size_per_layer_input": V, "hidden_size_per_layer_input": 5, "num_kv_shared_layers": 2}
GEMMA4 |= {"use_double_wide_mlp": True, "final_logit_softcapping": 3.0}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.5, "factor": 2.0}
GEMMA4 |= {"rope_parameters": BASES | {FULL: PROPORTIONAL}}
GEMMA4_DENSE = GEMMA4 | {"num_hidden_layers": 4, "layer_types": [WINDOW, WINDOW, FULL, FULL], "num_kv_shared_layers": 0}
GEMMA4_DENSE |= {"hidden_size_per_layer_input": 0, "num_key_value_heads": 3, "num_global_key_value_heads": 1}
GEMMA4_DENSE |= {"attention_k_eq_v": True, "attention_bias": True, "global_head_dim": 10}
GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 8}
MOE = MODERN | {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "sliding_window": 3}
OLMOE = MODERN | {"num_experts": 5, "num_experts_per_tok": 2}
del OLMOE["head_dim"]
OSS_ROPE = {"num_experts_per_tok": 2, "rope_parameters": YARN | {"rope_theta": 70.0}}
NEOX = BERT | IDS | {"hidden_size": 24, "max_position_embeddings": 32}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2 | {"n_inner": 20, "layer_norm_epsilon": 1e-3, "activation_function": "relu"}),
    "gpt2, untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    "gpt2, base": ("GPT2Model", GPT2),
    "bert": ("BertModel", BERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-4, "type_vocab_size": 3, "pad_token_id": 2}),
    "bert, masked": ("BertForMaskedLM", BERT | {"hidden_act": "gelu_new"}),
    "bert, sequence": ("BertForSequenceClassification", BERT | LABELS | {"classifier_dropout": 0.3}),
    "bert, tokens": ("BertForTokenClassification", BERT | LABELS),
    "bert, answers": ("BertForQuestionAnswering", BERT),
    "distilbert": ("DistilBertModel", DISTILBERT),
    "distilbert, masked": ("DistilBertForMaskedLM", DISTILBERT),
    "distilbert, sequence": ("DistilBertForSequenceClassification", DISTILBERT | LABELS),
    "distilbert, tokens": ("DistilBertForTokenClassification", DISTILBERT | LABELS),
    "distilbert, answers": ("DistilBertForQuestionAnswering", DISTILBERT),
    "roberta": ("RobertaModel", BERT | IDS | {"max_position_embeddings": 20}),
    "roberta, masked": ("RobertaForMaskedLM", BERT | IDS | {"max_position_embeddings": 20}),
    "roberta, sequence": ("RobertaForSequenceClassification", BERT | IDS | LABELS | {"max_position_embeddings": 20}),
    "roberta, tokens": ("RobertaForTokenClassification", BERT | IDS | LABELS | {"max_position_embeddings": 20}),
    "roberta, answers": ("RobertaForQuestionAnswering", BERT | IDS | {"max_position_embeddings": 20}),
    "xlm-roberta": ("XLMRobertaModel", BERT | IDS | {"max_position_embeddings": 20}),
    "xlm-roberta, sequence": ("XLMRobertaForSequenceClassification", BERT | IDS | {"max_position_embeddings": 20}),
    "roberta-prelayernorm": ("RobertaPreLayerNormModel", BERT | IDS | {"max_position_embeddings": 20}),
    "roberta-prelayernorm, masked": ("RobertaPreLayerNormForMaskedLM", BERT | IDS | {"max_position_embeddings": 20}),
    "roberta-prelayernorm, sequence": (
        "RobertaPreLayerNormForSequenceClassification",
        BERT | IDS | {"max_position_embeddings": 20},
    ),
    "xlm-roberta-xl": ("XLMRobertaXLModel", BERT | IDS | {"max_position_embeddings": 20}),
    "xlm-roberta-xl, masked": ("XLMRobertaXLForMaskedLM", BERT | IDS | {"max_position_embeddings": 20}),
    "xlm-roberta-xl, tokens": ("XLMRobertaXLForTokenClassification", BERT | IDS | {"max_position_embeddings": 20}),
    "camembert": ("CamembertModel", BERT | IDS | {"max_position_embeddings": 20}),
    "camembert, masked": ("CamembertForMaskedLM", BERT | IDS | {"max_position_embeddings": 20}),
    "data2vec-text": ("Data2VecTextModel", BERT | IDS | {"max_position_embeddings": 20}),
    "data2vec-text, tokens": ("Data2VecTextForTokenClassification", BERT | IDS | {"max_position_embeddings": 20}),
    "nomic_bert": ("NomicBertModel", BERT | {"rope_parameters": LINEAR}),
    "nomic_bert, masked": ("NomicBertForMaskedLM", BERT),
    "nomic_bert, sequence": ("NomicBertForSequenceClassification", BERT | LABELS),
    "nomic_bert, tokens": ("NomicBertForTokenClassification", BERT | LABELS),
    "ernie": ("ErnieModel", BERT),
    "ernie, masked": ("ErnieForMaskedLM", BERT),
    "electra": ("ElectraModel", BERT | {"embedding_size": 8}),
    "electra, masked": ("ElectraForMaskedLM", BERT | {"embedding_size": 8, "hidden_act": "relu"}),
    "electra, sequence": ("ElectraForSequenceClassification", BERT | LABELS | {"embedding_size": D}),
    "electra, tokens": ("ElectraForTokenClassification", BERT | LABELS | {"embedding_size": 8}),
    "electra, answers": ("ElectraForQuestionAnswering", BERT | {"embedding_size": 8}),
    "albert": ("AlbertModel", BERT | IDS | {"embedding_size": 8}),
    "albert, masked": ("AlbertForMaskedLM", BERT | IDS | {"embedding_size": 8}),
    "albert, sequence": ("AlbertForSequenceClassification", BERT | IDS | LABELS | {"embedding_size": D}),
    "albert, tokens": ("AlbertForTokenClassification", BERT | IDS | {"embedding_size": 8}),
    "albert, answers": ("AlbertForQuestionAnswering", BERT | IDS | {"embedding_size": 8}),
    "mpnet": ("MPNetModel", MPNET),
    "mpnet, masked": ("MPNetForMaskedLM", MPNET),
    "mpnet, sequence": ("MPNetForSequenceClassification", MPNET | LABELS),
    "mpnet, tokens": ("MPNetForTokenClassification", MPNET),
    "mpnet, answers": ("MPNetForQuestionAnswering", MPNET),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ | {"scale_embedding": True}),
    "bart, base": ("BartModel", SEQ2SEQ),
    "bart, heads": ("BartForConditionalGeneration", SEQ2SEQ | {"decoder_attention_heads": 2, "activation_function": "relu"}),
    "marian": ("MarianMTModel", SEQ2SEQ | {"activation_function": "swish", "scale_embedding": True}),
    "marian, two": ("MarianMTModel", SEQ2SEQ | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": V + 2}),
    "mbart": ("MBartForConditionalGeneration", SEQ2SEQ),
    "m2m_100": ("M2M100ForConditionalGeneration", SEQ2SEQ),
    "pegasus": ("PegasusForConditionalGeneration", SEQ2SEQ | {"activation_function": "relu", "scale_embedding": True}),
    "blenderbot": ("BlenderbotForConditionalGeneration", SEQ2SEQ),
    "blenderbot-small": ("BlenderbotSmallForConditionalGeneration", SEQ2SEQ | {"scale_embedding": True}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "whisper, base": ("WhisperModel", WHISPER),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5, untied": ("T5ForConditionalGeneration", T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    "mt5": ("MT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1}),
    "umt5": ("UMT5ForConditionalGeneration", T5 | {"num_decoder_layers": 1, "feed_forward_proj": "relu"}),
    "umt5, untied": ("UMT5ForConditionalGeneration", T5 | {"tie_word_embeddings": False}),
    "t5, encoder": ("T5EncoderModel", T5),
    "umt5, encoder": ("UMT5EncoderModel", T5),
    "mt5, encoder": ("MT5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu"}),
    "llama": ("LlamaForCausalLM", MODERN | {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama, base": ("LlamaModel", MODERN | {"tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", MODERN | {"sliding_window": 4, "rope_parameters": YARN}),
    "mistral, all": ("MistralForCausalLM", MODERN | {"sliding_window": None, "rope_parameters": LINEAR}),
    "qwen2": ("Qwen2ForCausalLM", MODERN | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", MODERN | {"rope_parameters": YARN | {"attention_factor": 1.5}, "attention_bias": True}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3_text": ("Gemma3ForCausalLM", GEMMA | {"layer_types": [FULL, WINDOW], "rope_parameters": BASES}),
    "gemma4_text": ("Gemma4ForCausalLM", GEMMA4),
    "gemma4_text, keys as values": ("Gemma4ForCausalLM", GEMMA4_DENSE),
    "gemma4_text, experts": ("Gemma4ForCausalLM", GEMMA4_DENSE | GEMMA4_MOE),
    "mixtral": ("MixtralForCausalLM", MODERN | {"num_local_experts": 4, "sliding_window": 4}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", MOE | {"shared_expert_intermediate_size": 14, "use_sliding_window": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", MOE | {"norm_topk_prob": True, "num_experts_per_tok": 1, "head_dim": 6}),
    "qwen3_moe, window": ("Qwen3MoeForCausalLM", MOE | {"use_sliding_window": True, "attention_bias": True}),
    "olmoe": ("OlmoeForCausalLM", OLMOE | {"clip_qkv": 1.5}),
    "gpt_oss": ("GptOssForCausalLM", MODERN | {"num_local_experts": 5, "swiglu_limit": 0.5, "sliding_window": 3} | OSS_ROPE),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX | {"rotary_pct": 0.75}),
    "gpt_neox, in turn": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": False, "attention_bias": False}),
}

NARROW = {name: value for name, value in MODERN.items() if name != "head_dim"} | {"hidden_size": 24}
"""Sizes of models whose heads are as wide as the model in all: 8 units each."""
PART = {"partial_rotary_factor": 0.5}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.25, 1.5], "long_factor": [1.5, 4.0]} | PART
LONGROPE_ALL = {name: value for name, value in LONGROPE.items() if name not in PART}
ORIGINAL = {"original_max_position_embeddings": 8}
OPT = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 20} | IDS
OPT |= {"max_position_embeddings": 32, "word_embed_proj_dim": D}
MPT = {"vocab_size": V, "d_model": D, "n_layers": 2, "n_heads": 3, "max_seq_len": 32}
MPT |= {"attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.4}}
FALCON = {name: value for name, value in NARROW.items() if name not in ("intermediate_size", "num_key_value_heads")}
FALCON |= {"ffn_hidden_size": 20}
GPTJ = GPT2 | {"n_embd": 24, "rotary_dim": 4}
NEO = {"vocab_size": V, "hidden_size": D, "num_layers": 2, "num_heads": 3, "window_size": 4, "max_position_embeddings": 32}
NEO |= {"bos_token_id": 0, "eos_token_id": EOS}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
CASES |= {
    "gemma": ("GemmaForCausalLM", MODERN | {"rope_parameters": LINEAR, "attention_bias": True}),
    "gemma, base": ("GemmaModel", MODERN),
    "olmo": ("OlmoForCausalLM", NARROW | {"clip_qkv": 1.5}),
    "olmo2": ("Olmo2ForCausalLM", NARROW | {"rope_parameters": YARN}),
    "olmo3": ("Olmo3ForCausalLM", NARROW | {"sliding_window": 4, "layer_types": [WINDOW, FULL], "rope_parameters": BASES}),
    "exaone4": ("Exaone4ForCausalLM", MODERN | {"sliding_window": 4, "layer_types": [FULL, WINDOW]}),
    "exaone4, all": (
        "Exaone4ForCausalLM",
        MODERN | {"sliding_window": None, "sliding_window_pattern": 0, "layer_types": [FULL] * 2},
    ),
    "arcee": ("ArceeForCausalLM", MODERN | {"mlp_bias": True}),
    "helium": ("HeliumForCausalLM", MODERN | {"hidden_size": 18, "attention_bias": True}),
    "ernie4_5": ("Ernie4_5ForCausalLM", MODERN | {"use_bias": True}),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", MODERN | {"rope_parameters": YARN, "attention_bias": True}),
    "persimmon": ("PersimmonForCausalLM", {key: it for key, it in NARROW.items() if key != "num_key_value_heads"} | PART),
    "seed_oss": ("SeedOssForCausalLM", MODERN | {"residual_dropout": 0.0}),
    "granite": (
        "GraniteForCausalLM",
        NARROW | {"embedding_multiplier": 3.0, "logits_scaling": 7.0, "residual_multiplier": 0.6, "attention_multiplier": 0.2},
    ),
    "nemotron": ("NemotronForCausalLM", NARROW | PART),
    "stablelm": ("StableLmForCausalLM", NARROW | PART | {"use_parallel_residual": True, "use_qkv_bias": True}),
    "stablelm, in turn": ("StableLmForCausalLM", NARROW | {"tie_word_embeddings": True, "qk_layernorm": True}),
    "smollm3": ("SmolLM3ForCausalLM", NARROW | {"no_rope_layers": [1, 0], "attention_bias": True}),
    "smollm3, window": (
        "SmolLM3ForCausalLM",
        NARROW | {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 4},
    ),
    "cohere": ("CohereForCausalLM", NARROW | {"logit_scale": 0.3, "attention_bias": True}),
    "cohere, norms": ("CohereForCausalLM", NARROW | {"use_qk_norm": True}),
    "cohere2": ("Cohere2ForCausalLM", NARROW | {"sliding_window": 4, "layer_types": [WINDOW, FULL]}),
    "glm": ("GlmForCausalLM", NARROW | PART | {"head_dim": 8}),
    "glm4": ("Glm4ForCausalLM", NARROW | {"head_dim": 8, "rope_parameters": LINEAR | PART}),
    "phi": ("PhiForCausalLM", NARROW | PART | {"num_key_value_heads": 3}),
    "phi, norms": ("PhiForCausalLM", NARROW | {"qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", NARROW | {"rope_parameters": LONGROPE, "sliding_window": 5} | ORIGINAL),
    "phi3, short": ("Phi3ForCausalLM", NARROW | {"rope_parameters": LONGROPE} | {"original_max_position_embeddings": 30}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT2),
    "gpt_bigcode, heads": ("GPTBigCodeForCausalLM", GPT2 | {"multi_query": False, "n_inner": 20}),
    "starcoder2": ("Starcoder2ForCausalLM", NARROW | {"sliding_window": 4}),
    "opt": ("OPTForCausalLM", OPT),
    "opt, post-norm": ("OPTForCausalLM", OPT | {"do_layer_norm_before": False, "enable_bias": False}),
    "opt, narrow": ("OPTForCausalLM", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 8}),
    "opt, base": ("OPTModel", OPT | {"layer_norm_elementwise_affine": False}),
    "bloom": ("BloomForCausalLM", {"vocab_size": V, "hidden_size": D, "n_layer": 2, "n_head": 3} | IDS),
    "mpt": ("MptForCausalLM", MPT | IDS),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon, two norms": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 3, "bias": True}),
    "falcon, in turn": ("FalconForCausalLM", FALCON | {"multi_query": False, "parallel_attn": False}),
    "falcon, slopes": (
        "FalconForCausalLM",
        FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "nanochat": ("NanoChatForCausalLM", NARROW | {"rope_parameters": YARN, "final_logit_softcapping": 2.0}),
    "nanochat, biases": ("NanoChatForCausalLM", NARROW | {"attention_bias": True, "tie_word_embeddings": True}),
    "gptj": ("GPTJForCausalLM", GPTJ | {"n_inner": 20}),
    "codegen": ("CodeGenForCausalLM", GPTJ | {"n_head": 4}),
    "gpt_neo": ("GPTNeoForCausalLM", NEO | {"attention_types": [[["local", "global"], 1]]}),
    "llama, dynamic": ("LlamaForCausalLM", MODERN | {"rope_parameters": DYNAMIC, "max_position_embeddings": 8}),
}
IMAGE = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 3, "num_channels": 2}
OBLONG = IMAGE | {"intermediate_size": 20, "image_size": [9, 16], "patch_size": [3, 4]}
SQUARE = IMAGE | {"image_size": 13, "patch_size": 4}
DINOV3 = OBLONG | {"hidden_size": 24, "rope_theta": 20.0, "layerscale_value": 0.5}
TOWER = SQUARE | {"intermediate_size": 20}
TEXT = BERT | {"num_hidden_layers": 1, "max_position_embeddings": 16, "bos_token_id": 0, "pad_token_id": PAD}
CASES |= {
    "vit": ("ViTModel", OBLONG | {"pooler_act": "gelu"}),
    "vit, images": ("ViTForImageClassification", OBLONG | LABELS | {"qkv_bias": False, "hidden_act": "relu"}),
    "deit": ("DeiTModel", OBLONG),
    "deit, images": ("DeiTForImageClassification", OBLONG | LABELS),
    "deit, teacher": ("DeiTForImageClassificationWithTeacher", OBLONG | LABELS),
    "dinov2": ("Dinov2Model", SQUARE | {"layerscale_value": 0.5}),
    "dinov2, images": ("Dinov2ForImageClassification", SQUARE | LABELS | {"use_swiglu_ffn": True, "mlp_ratio": 2}),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", SQUARE | {"num_register_tokens": 3, "use_swiglu_ffn": True}),
    "dinov2_with_registers, images": ("Dinov2WithRegistersForImageClassification", SQUARE | LABELS),
    "dinov3_vit": ("DINOv3ViTModel", DINOV3 | {"num_register_tokens": 3, "use_gated_mlp": True, "hidden_act": "silu"}),
    "dinov3_vit, bare": ("DINOv3ViTModel", DINOV3 | {"num_register_tokens": 1, "query_bias": False, "value_bias": False}),
    "clip": (
        "CLIPModel",
        {"projection_dim": 10, "text_config": TEXT | {"hidden_size": 6, "eos_token_id": START}, "vision_config": TOWER},
    ),
    "clip, highest": (
        "CLIPModel",
        {"text_config": TEXT | {"eos_token_id": EOS, "hidden_act": "gelu"}, "vision_config": TOWER},
    ),
    "siglip": ("SiglipModel", {"text_config": TEXT | {"hidden_size": 6, "projection_size": D}, "vision_config": TOWER}),
    "clip_vision_model": ("CLIPVisionModel", TOWER),
    "siglip_vision_model": ("SiglipVisionModel", TOWER),
    "siglip_vision_model, no head": ("SiglipVisionModel", TOWER | {"vision_use_head": False}),
}


LATENT = BERT | IDS | {"num_hidden_layers": 3, "max_position_embeddings": 32, "kv_lora_rank": 10, "rms_norm_eps": 1e-5}
LATENT |= {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "num_key_value_heads": 3}
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 8}
MSCALE = YARN | {"mscale": 0.707, "mscale_all_dim": 0.9}
CASES |= {
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        LATENT
        | GROUPS
        | {"topk_method": "group_limited_greedy", "q_lora_rank": None, "first_k_dense_replace": 1, "rope_parameters": MSCALE},
    ),
    "deepseek_v2, greedy": (
        "DeepseekV2ForCausalLM",
        LATENT | GROUPS | {"q_lora_rank": 7, "n_shared_experts": 1, "routed_scaling_factor": 1.7},
    ),
    "deepseek_v2, dense": (
        "DeepseekV2ForCausalLM",
        LATENT | GROUPS | {"q_lora_rank": 7, "first_k_dense_replace": 3, "attention_bias": True},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        LATENT
        | GROUPS
        | {"q_lora_rank": 7, "first_k_dense_replace": 2, "attention_bias": True, "rope_parameters": MSCALE | {"mscale": 1.0}},
    ),
    "deepseek_v3, halves": (
        "DeepseekV3ForCausalLM",
        LATENT
        | GROUPS
        | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "rope_interleave": False},
    ),
}
GLM = MODERN | GROUPS | {"num_hidden_layers": 3}
MODERNBERT = BERT | IDS | {"num_hidden_layers": 3, "max_position_embeddings": 32, "cls_token_id": 0, "sep_token_id": EOS}
MODERNBERT |= {"local_attention": 6}
DEBERTA = BERT | {"relative_attention": True, "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 6}
DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "max_position_embeddings": 20}
CASES |= {
    "deberta-v2": ("DebertaV2Model", DEBERTA | {"position_biased_input": True, "type_vocab_size": 2}),
    "deberta-v2, masked": ("DebertaV2ForMaskedLM", DEBERTA | {"norm_rel_ebd": "none"}),
    "deberta-v2, sequence": ("DebertaV2ForSequenceClassification", DEBERTA | LABELS | {"pooler_hidden_act": "relu"}),
    "deberta-v2, tokens": ("DebertaV2ForTokenClassification", DEBERTA | {"num_attention_heads": 1, "hidden_size": 16}),
    "deberta-v2, answers": ("DebertaV2ForQuestionAnswering", DEBERTA),
    "modernbert": ("ModernBertModel", MODERNBERT | {"layer_types": [WINDOW, FULL, WINDOW], "rope_parameters": BASES}),
    "modernbert, biases": (
        "ModernBertModel",
        MODERNBERT | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "num_hidden_layers": 1},
    ),
    "modernbert, masked": ("ModernBertForMaskedLM", MODERNBERT | {"classifier_bias": True, "classifier_activation": "relu"}),
    "modernbert, sequence": ("ModernBertForSequenceClassification", MODERNBERT | LABELS),
    "modernbert, mean": (
        "ModernBertForSequenceClassification",
        MODERNBERT
        | LABELS
        | {
            "classifier_pooling": "mean",
            "layer_types": [WINDOW, FULL, WINDOW],
            "rope_parameters": BASES,
            "classifier_bias": True,
        },
    ),
    "modernbert, tokens": ("ModernBertForTokenClassification", MODERNBERT | LABELS | {"num_hidden_layers": 2}),
    "modernbert, answers": ("ModernBertForQuestionAnswering", MODERNBERT | {"num_hidden_layers": 2}),
    "modernbert-decoder": (
        "ModernBertDecoderForCausalLM",
        MODERNBERT | {"layer_types": [WINDOW, FULL, WINDOW], "rope_parameters": BASES, "classifier_activation": "relu"},
    ),
    "modernbert-decoder, biases": (
        "ModernBertDecoderForCausalLM",
        MODERNBERT
        | dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
        | {"decoder_bias": False, "tie_word_embeddings": False, "num_hidden_layers": 1},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteForCausalLM",
        LATENT | GROUPS | {"q_lora_rank": 7, "mlp_layer_types": ["dense", "dense", "sparse"], "n_shared_experts": 2},
    ),
    "youtu": (  # transformers zeroes the row of padding, also that of a folder
        "YoutuForCausalLM",
        LATENT | {"q_lora_rank": 7, "rope_parameters": MSCALE, "pad_token_id": None},
    ),
    "minicpm3": (
        "MiniCPM3ForCausalLM",
        LATENT | {"q_lora_rank": 7, "rope_parameters": LONGROPE_ALL | ORIGINAL, "attention_bias": True, "mlp_bias": True},
    ),
    "minicpm3, plain": (
        "MiniCPM3ForCausalLM",
        LATENT | {"q_lora_rank": None, "v_head_dim": None, "scale_depth": None, "dim_model_base": None},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeForCausalLM",
        NARROW | {"num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 8},
    ),
    "ernie4_5_moe, all": (
        "Ernie4_5_MoeForCausalLM",
        NARROW | {"moe_num_experts": 4, "moe_k": 1, "moe_layer_start_index": 0, "moe_num_shared_experts": 0},
    ),
    "glm4_moe": ("Glm4MoeForCausalLM", GLM | PART | {"head_dim": 8, "use_qk_norm": True, "attention_bias": True}),
    "dots1": (
        "Dots1ForCausalLM",
        GLM | {"n_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 4, "max_window_layers": 2},
    ),
}

BIASES = "final_logits_bias", "e_score_correction_bias"
"""Buffers that models start with zeros in."""


class BloomGelu(torch.nn.Module):
    """BLOOM's activation with autograd's derivative, from which its own is 1e-12 away: there a constant is rounded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return modeling_bloom.bloom_gelu_forward(x)


class Case(NamedTuple):
    """What is in a folder, as transformers loads it and as we do."""

    kind: ModelType
    folder: Path
    torch: Any
    jax: Any


def make_case(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> Case:
    """Write a model, with these changes of its configuration, into the folder, and load it twice."""
    cls = getattr(transformers, CASES[name][0])
    model = jf.excite(cls(cls.config_class(**CASES[name][1] | dict(changes or {}))), seed=5)
    if name in ("t5, untied", "umt5, untied"):
        model.lm_head.weight = torch.nn.Parameter(torch.from_numpy(noise(V, D, seed=8)))
    with torch.no_grad():
        ends = "final_logits_bias", "e_score_correction_bias", "layer_scalar"
        for i, buffer in enumerate(it for key, it in model.named_buffers() if key.endswith(ends)):
            buffer += torch.from_numpy(noise(*buffer.shape, seed=7 + i))
    model.save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models without a head of their own, which other tests read
        found = open_path(folder)
    kind = cast(Checkpoint, found.checkpoint).kind
    return Case(kind, folder, loaded(kind, folder), found.model)


def loaded(kind: ModelType, folder: Path) -> Any:
    """transformers' model of a folder; only stock attention has Gemma 2's soft cap, and Falcon's adds ALiBi's bias twice."""
    attention = "sdpa" if kind.name == "falcon" else "eager"
    return getattr(transformers, kind.model).from_pretrained(folder, attn_implementation=attention).eval()


def in_float64(case: Case) -> Any:
    """transformers' model in float64, with tables that are not rounded to float32."""
    model = loaded(case.kind, case.folder).double()
    with torch_float64():
        tables = dict(type(model)(model.config).named_buffers())
    for name in tables.keys() - model.state_dict().keys():
        model.get_buffer(name).data = tables[name]
    if case.kind.name == "bloom":
        for block in model.transformer.h:
            block.mlp.gelu_impl = BloomGelu()
    for stack in ("encoder", "decoder"):
        if case.kind.name == "m2m_100":
            positions = getattr(model.model, stack).embed_positions
            positions.weights = torch.from_numpy(fairseq_sinusoids(*positions.weights.shape, PAD).array.copy())
        if case.kind.name == "marian":
            weight = getattr(model.model, stack).embed_positions.weight.requires_grad_(False)
            weight.copy_(torch.from_numpy(sinusoid_blocks(*weight.shape)))
    return model


def pictures(config: Any, rows: int = 3) -> np.ndarray:
    """Images for a model of this configuration, ours or transformers', of one class or of two towers."""
    config = getattr(config, "vision_config", getattr(config, "vision", config))
    size = config.image_size if not isinstance(config.image_size, int) else [config.image_size] * 2
    return noise(rows, IMAGE["num_channels"], *size, seed=12)


def hidden_patches(config: Any, rows: int = 3) -> np.ndarray:
    """A mask of the patches of these images; no row hides all."""
    sizes = (np.broadcast_to(it, 2) for it in (config.image_size, config.patch_size))
    return np.random.default_rng(13).random((rows, np.prod(np.floor_divide(*sizes)))) < 0.3


def texts() -> np.ndarray:
    """Texts `4 14` with an end, each at another place, and ids after it."""
    found = ids(4, 14, 14)
    found[range(4), [13, 9, 5, 1]] = START
    return found


def ids(rows: int, length: int, seed: int) -> np.ndarray:
    """Ids of which none is special."""
    return np.random.default_rng(seed).integers(4, V, (rows, length)).astype(np.int32)
