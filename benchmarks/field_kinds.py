"""Tiny models that transformers 4.46 and diffusers 0.30 have in torch and in Flax, and the known differences.

Flax's Bloom fails where the number of heads is no power of 2: it calls jnp.cat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Given = Literal["ids", "masked ids", "pairs", "pixels", "speech", "waves", "ids and pixels", "noise, steps and text"]
"""Kinds of inputs of a model."""
VOCAB = 97


@dataclass(frozen=True)
class Kind:
    """Model that a package has in torch and in Flax."""

    name: str
    """Name by which the model is chosen: its module in transformers, and a suffix for variants."""
    model: str
    """Name of torch's class; Flax's class is the same with 'Flax' before it."""
    sizes: Mapping[str, Any]
    """Arguments of the configuration."""
    given: Given = "ids"
    """Kind of inputs."""
    gives: str = "logits"
    """Name of the output that is compared."""
    differs: str = ""
    """Text that the verdict has to contain if the Flax model differs from torch's; '' if both are equal."""
    because: str = ""
    """Reason of the difference, found by reading both sources."""
    package: Literal["transformers", "diffusers"] = "transformers"
    """Package that has both models."""
    file: str = ""
    """Module with Flax's source, if its name does not follow from the kind's."""


ENCODER = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
ENCODER |= {"max_position_embeddings": 31, "type_vocab_size": 2, "pad_token_id": 1}
BART = {"vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3}
BART |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "max_position_embeddings": 31}
BART |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}
T5 = {"vocab_size": VOCAB, "d_model": 24, "d_kv": 7, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
DECODER = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
DECODER |= {"max_position_embeddings": 31, "bos_token_id": 0, "eos_token_id": 2}
VISION = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "image_size": 24}
VISION |= {"patch_size": 6}
CONV = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 2]}
SPEECH = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
SPEECH |= {"conv_dim": (16, 16), "conv_kernel": (5, 3), "conv_stride": (4, 2), "num_feat_extract_layers": 2}
SPEECH |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"}
SPEECH |= {"do_stable_layer_norm": True, "conv_bias": True, "mask_time_prob": 0.0}
CLIP = {"vision_config": VISION, "projection_dim": 10}
CLIP |= {"text_config": {name: size for name, size in DECODER.items() if name != "bos_token_id"}}
VAE = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, "sample_size": 24}
VAE |= {"block_out_channels": (8, 12), "layers_per_block": 1, "latent_channels": 3, "norm_num_groups": 4}
UNET = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
UNET |= {"block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 20, "attention_head_dim": 4}
UNET |= {"sample_size": 8}

KINDS = (
    Kind("albert", "AlbertForMaskedLM", ENCODER | {"embedding_size": 10, "num_hidden_groups": 1}, "masked ids"),
    Kind("bert", "BertForMaskedLM", ENCODER, "masked ids"),
    Kind("bert-classes", "BertForSequenceClassification", ENCODER, "masked ids"),
    Kind("roberta", "RobertaForMaskedLM", ENCODER, "masked ids"),
    Kind("xlm_roberta", "XLMRobertaForMaskedLM", ENCODER, "masked ids"),
    Kind("roberta_prelayernorm", "RobertaPreLayerNormForMaskedLM", ENCODER, "masked ids"),
    Kind(
        "electra",
        "ElectraForMaskedLM",
        ENCODER | {"embedding_size": 10},
        "masked ids",
        differs="electra: input of electra.embeddings: jax looks up ids 1 higher than torch's",
        because="without token_type_ids, Flax's __call__ gives ones, torch's forward zeros",
    ),
    Kind("roformer", "RoFormerForMaskedLM", ENCODER | {"embedding_size": 24}, "masked ids"),
    Kind("big_bird", "BigBirdForMaskedLM", ENCODER | {"attention_type": "original_full"}, "masked ids"),
    Kind(
        "distilbert",
        "DistilBertForMaskedLM",
        {"vocab_size": VOCAB, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 31},
        "masked ids",
        differs="attention: torch's gradient is 0 in row 4 of 5, where jax's is not",
        because="row 4 is nothing but padding: masked_fill stops the gradient of torch's scores, Flax subtracts 1e30 from them",
    ),
    Kind("gpt2", "GPT2LMHeadModel", {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 31}),
    Kind(
        "gpt_neo",
        "GPTNeoForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "max_position_embeddings": 31}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    ),
    Kind(
        "gptj",
        "GPTJForCausalLM",
        {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 31, "rotary_dim": 4},
    ),
    Kind(
        "llama",
        "LlamaForCausalLM",
        DECODER | {"num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    Kind(
        "mistral",
        "MistralForCausalLM",
        DECODER | {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 6},
        differs="self_attn: torch applies the mask that it is given; jax has a window of 7 keys for 6",
        because="Flax's window keeps one key more, triu(k=-window)",
    ),
    Kind(
        "gemma",
        "GemmaForCausalLM",
        DECODER | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10},
    ),
    Kind("bloom", "BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 2, "n_head": 4}),
    Kind(
        "opt",
        "OPTForCausalLM",
        {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 40}
        | {"max_position_embeddings": 31, "word_embed_proj_dim": 24},
    ),
    Kind(
        "xglm",
        "XGLMForCausalLM",
        {
            "vocab_size": VOCAB,
            "d_model": 24,
            "num_layers": 2,
            "attention_heads": 3,
            "ffn_dim": 40,
            "max_position_embeddings": 31,
        },
    ),
    Kind("bart", "BartForConditionalGeneration", BART, "pairs"),
    Kind("mbart", "MBartForConditionalGeneration", BART, "pairs"),
    Kind("marian", "MarianMTModel", BART, "pairs"),
    Kind("pegasus", "PegasusForConditionalGeneration", BART, "pairs"),
    Kind("blenderbot", "BlenderbotForConditionalGeneration", BART, "pairs"),
    Kind("blenderbot_small", "BlenderbotSmallForConditionalGeneration", BART, "pairs"),
    Kind("t5", "T5ForConditionalGeneration", T5, "pairs"),
    Kind(
        "t5-gated",
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "pairs",
    ),
    Kind("mt5", "MT5ForConditionalGeneration", T5, "pairs"),
    Kind("longt5", "LongT5ForConditionalGeneration", T5 | {"local_radius": 4, "global_block_size": 4}, "pairs"),
    Kind(
        "whisper",
        "WhisperForConditionalGeneration",
        BART
        | {"num_mel_bins": 6, "max_source_positions": 14, "max_target_positions": 31}
        | {"suppress_tokens": None, "begin_suppress_tokens": None},
        "speech",
    ),
    Kind("wav2vec2", "Wav2Vec2ForCTC", SPEECH, "waves"),
    Kind("vit", "ViTForImageClassification", VISION, "pixels"),
    Kind("beit", "BeitForImageClassification", VISION | {"use_absolute_position_embeddings": True}, "pixels"),
    Kind("dinov2", "Dinov2ForImageClassification", VISION, "pixels"),
    Kind("resnet", "ResNetForImageClassification", CONV, "pixels"),
    Kind("regnet", "RegNetForImageClassification", CONV | {"groups_width": 4, "layer_type": "y"}, "pixels"),
    Kind("clip", "CLIPModel", CLIP, "ids and pixels", gives="logits_per_image"),
    Kind(
        "llama-theta",
        "LlamaForCausalLM",
        DECODER | {"num_key_value_heads": 3, "rope_theta": 5e5},
        differs="self_attn",
        because="Flax's table of rotations has the base 10000, whatever rope_theta says",
    ),
    Kind(
        "gpt2-layers",
        "GPT2LMHeadModel",
        {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 31}
        | {"scale_attn_by_inverse_layer_idx": True},
        differs="transformer.h.1.attn",
        because="Flax does not read scale_attn_by_inverse_layer_idx",
    ),
    Kind(
        "dinov2-scale",
        "Dinov2ForImageClassification",
        VISION | {"layerscale_value": 0.5},
        "pixels",
        differs="layer_scale",
        because="Flax multiplies lambda1 by layerscale_value twice, torch uses it to initialise lambda1 alone",
    ),
    Kind("diffusers-vae", "AutoencoderKL", VAE, "pixels", "sample", package="diffusers", file="diffusers.models.vae_flax"),
    Kind(
        "diffusers-unet",
        "UNet2DConditionModel",
        UNET,
        "noise, steps and text",
        "sample",
        differs="attentions_0.norm",
        because="the GroupNorm before attention has the epsilon 1e-5 in Flax, 1e-6 in torch; FlaxGEGLU calls nn.gelu, whose "
        "default is the tanh form, where torch's is exact",
        package="diffusers",
        file="diffusers.models.unets.unet_2d_condition_flax",
    ),
)
