"""Keys of config.json that are no single field, as rotary positions: read as transformers reads them, and written for it."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import jaxformer as jf
from jaxformer.checkpoints.describe import cache_bytes
from jaxformer.checkpoints.hf import describe, names_written
from jaxformer.convert.config_values import normal_form
from jaxformer.convert.heads import with_head
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.errors import ConfigError, ConversionError
from jaxformer.pytree import count_parameters

HEAD = {"lm_head.weight"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
WINDOWS = {"use_sliding_window": True, "sliding_window": 7, "num_hidden_layers": 4}
BASES = {"rope_theta": 2e6, "rope_local_base_freq": 5e3}
KINDS = {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "linear", "factor": 8.0}}
OLDER = {
    "llama3": ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "heads": ("llama", {"num_attention_heads": 16, "num_key_value_heads": 2, "pad_token_id": 0}),
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "a base inside": ("llama", {"rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}),
    "both": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7.0}}),
    "yarn": ("mistral", {"rope_scaling": YARN, "sliding_window": None}),
    "yarn, its numbers": ("qwen3", {"rope_scaling": YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False}}),
    "yarn, an amplitude": ("qwen2", {"rope_scaling": YARN | {"attention_factor": 1.3}, "rope_theta": 1e6}),
    "yarn, a quotient": ("llama", {"rope_scaling": YARN | {"mscale": 1.2, "mscale_all_dim": 0.8}}),
    "yarn, a scale of scores": ("deepseek_v3", {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    "kinds of layers": ("glm4_moe_lite", {"num_hidden_layers": 3, "mlp_layer_types": ["dense", "dense", "sparse"]}),
    "late windows": ("qwen2", WINDOWS | {"max_window_layers": 3}),
    "no late windows": ("qwen3", WINDOWS | {"max_window_layers": 4}),
    "no windows": ("qwen2", WINDOWS | {"use_sliding_window": False, "max_window_layers": 1}),
    "gemma2": ("gemma2", {"num_hidden_layers": 3, "query_pre_attn_scalar": 168, "hidden_act": "gelu_pytorch_tanh"}),
    "gemma3": ("gemma3_text", BASES | {"sliding_window_pattern": 3, "num_hidden_layers": 7}),
    "gemma3, linear": ("gemma3_text", BASES | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3, by kind": ("gemma3_text", {"rope_parameters": KINDS, "_sliding_window_pattern": 3}),
    "gemma3, windows alone": ("gemma3_text", BASES | {"num_hidden_layers": 2}),
    "gemma3, no window": ("gemma3_text", BASES | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}),
    "gemma4": (
        "gemma4_text",
        {"num_hidden_layers": 7, "global_head_dim": 64, "attention_k_eq_v": True, "num_kv_shared_layers": 0},
    ),
    "gemma4, all layers alike": ("gemma4_text", {"global_head_dim": 256, "num_kv_shared_layers": 8}),
    "neox": ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 5e4}),
    "neox, whole heads": ("gpt_neox", {"rotary_pct": 1.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "dynamic": ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 512}),
    "a part of a head": ("stablelm", {"partial_rotary_factor": 0.5, "rope_theta": 3e4}),
    "all of a head": ("nemotron", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
    "gemma": ("gemma", {"hidden_act": "gelu", "rope_theta": 2e4}),
    "granite": ("granite", {"logits_scaling": 13.0, "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 3, "num_hidden_layers": 7}),
    "smollm3, window": ("smollm3", {"use_sliding_window": True, "sliding_window": 9, "num_hidden_layers": 8}),
    "exaone4": ("exaone4", {"num_hidden_layers": 6, "sliding_window_pattern": 3, "rope_scaling": LLAMA3}),
    "olmo3": ("olmo3", {"num_hidden_layers": 6, "rope_scaling": YARN | {"rope_type": "yarn"}, "rope_theta": 5e5}),
    "modernbert": ("modernbert", {"global_attn_every_n_layers": 2, "num_hidden_layers": 5, "local_rope_theta": 160000.0}),
    "modernbert-decoder": ("modernbert-decoder", {"num_hidden_layers": 5, "local_rope_theta": 160000.0, "local_attention": 65}),
    "modernbert-decoder, its own": ("modernbert-decoder", {"sliding_window": 9, "global_attn_every_n_layers": 2}),
    "falcon, slopes": ("falcon", {"alibi": True, "rope_theta": 5e4, "multi_query": False, "parallel_attn": False}),
    "modernbert, all layers": ("modernbert", {"global_attn_every_n_layers": 1, "global_rope_theta": 1e4}),
    "minicpm3": ("minicpm3", {"scale_depth": 1.0, "dim_model_base": None, "v_head_dim": 32}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_layer_start_index": 3, "rope_theta": 1e4, "moe_layer_end_index": 27}),
    "t5 1.1": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5, an activation": ("t5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}),
    "mt5": ("mt5", {"tie_word_embeddings": False, "num_decoder_layers": 3, "feed_forward_proj": "gated-silu"}),
}


def by_transformers(name: str, described: dict) -> dict:
    """What transformers makes of a copy, which it writes into: all keys written out."""
    return CONFIG_MAPPING[name].from_dict(deepcopy(described)).to_dict()


@pytest.mark.parametrize("case", OLDER)
def test_what_transformers_reads(case):
    """Reading a file is reading what transformers writes of it; and what we write is the same to both."""
    name, described = OLDER[case]
    kind, described = MODEL_TYPES[name], described | {"model_type": name}
    names = HEAD if kind.name != "t5" or described.get("tie_word_embeddings") is False else set()
    config = normal_form(kind.read(described, names))
    assert config == normal_form(kind.read(by_transformers(name, described), names))
    assert config != normal_form(kind.read({"model_type": name}, names))
    written = kind.write(config, names)
    assert normal_form(kind.read(by_transformers(name, written), names)) == config


@pytest.mark.parametrize("case", [case for case in OLDER if "yarn" not in case and "by kind" not in case])
def test_versions_before_5_are_told_the_same(case):
    """They know `rope_theta` and `rope_scaling`, and no `rope_parameters` and `layer_types`."""
    name, described = OLDER[case]
    kind = MODEL_TYPES[name]
    config = normal_form(kind.read(described | {"model_type": name}, HEAD))
    written = kind.write(config, names_written(config, kind.family_of(config)))
    newer = {"rope_parameters", "scale_decoder_outputs"} | ({"layer_types"} if "window" in case else set())
    older = {key: value for key, value in written.items() if key not in newer}
    if name != "gemma3_text" or "layer_types" in older:
        assert normal_form(kind.read(older, HEAD)) == config


REFUSED = {
    "another scaling": (
        "llama",
        {"rope_scaling": {"type": "proportional", "factor": 2.0}},
        "rope_type = 'proportional' is not supported",
    ),
    "an unknown number": (
        "llama",
        {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1]}},
        "mrope_section of its rotary",
    ),
    "a part of a head": ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "heads would be rotated as a whole"),
    "another kind of layer": ("qwen3", {"layer_types": ["chunked_attention"] * 32}, "layer_types has chunked_attention, which"),
    "too few layers": ("qwen3", {"layer_types": ["full_attention"]}, "layer_types has 1 layers, and the model 32"),
    "a window of null": ("gemma2", {"sliding_window": None}, "layers with a window, and sliding_window is null"),
    "both directions": ("gemma3_text", {"use_bidirectional_attention": True}, "every token would see the later ones there"),
    "a scaled window": (
        "gemma3_text",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        "rope_type = 'linear' of layers with a window is not supported",
    ),
    "a ramp that is not truncated": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": YARN | {"rope_type": "yarn", "truncate": False}}},
        "truncate = False of rotary positions by layer is not read by transformers",
    ),
    "both directions, a later Gemma": ("gemma4_text", {"use_bidirectional_attention": "all"}, "= 'all' is not known"),
    "ids of two vocabularies": (
        "gemma4_text",
        {"vocab_size": 9},
        "vocab_size_per_layer_input = 262144 differs from vocab_size",
    ),
    "layers of a third shape": (
        "gemma4_text",
        {"per_layer_config": {"0": {"head_dim": 8}}},
        "layers of other sizes than those",
    ),
    "a width of one layer": (
        "gemma4_text",
        {"per_layer_config": {"5": {"intermediate_size": 8}}},
        "has intermediate_size, which",
    ),
    "sizes of no layers": ("gemma4_text", {"per_layer_config": [1, 2]}, "= [1, 2] is no table of layers; give each layer's"),
    "angles that are a number": (
        "gemma4_text",
        {"rope_parameters": {"full_attention": 3, "sliding_attention": {}}},
        "= 3; give its",
    ),
    "angles of half the layers": (
        "gemma4_text",
        {"rope_parameters": {"full_attention": {}}},
        "has no sliding_attention, which",
    ),
    "a switch that is a word": ("gemma4_text", {"use_double_wide_mlp": "yes"}, "mlp = 'yes' is neither true nor false"),
    "sizes of a layer past the end": (
        "gemma4_text",
        {"per_layer_config": {"30": {"head_dim": 4}}},
        "has layer 30, and num_hidden",
    ),
    "experts without a number": ("gemma4_text", {"enable_moe_block": True}, "needs num_experts, top_k_experts and moe_inter"),
    "heads that are not read": (
        "falcon",
        {"num_kv_heads": 3, "multi_query": False},
        "num_kv_heads = 3 differs from num_attention_heads = 71",
    ),
    "a number by its own name": ("gemma4_text", {"num_kv_shared_layers": 31}, "num_kv_shared_layers = 31"),
    "a window that turns in part": (
        "gemma4_text",
        {"rope_parameters": {"sliding_attention": {"rope_type": "proportional"}, "full_attention": {}}},
        "rope_type = 'proportional' is not supported",
    ),
    "two bases": (
        "gpt_neox",
        {"rotary_emb_base": 10.0, "rope_theta": 20.0},
        "rope_theta = 20.0 differs from 10.0, which its rotary",
    ),
    "two readings of a base": ("olmo3", {"rope_theta": 1e4}, "rope_theta = 10000.0 is read for all layers by transformers 4"),
    "too few layers that rotate": (
        "smollm3",
        {"no_rope_layers": [1, 0]},
        "rotary positions are told of 2 layers, and the model",
    ),
    "other heads of keys": (
        "deepseek_v3",
        {"num_key_value_heads": 2},
        "num_key_value_heads = 2 is not num_attention_heads = 128",
    ),
    "code of others": (
        "deepseek_v3",
        {"auto_map": {"AutoModel": "modeling_mine.Model"}},
        "auto_map names code in modeling_mine, which would not run",
    ),
    "normalised weights": ("deepseek_v2", {"norm_topk_prob": True}, "transformers does not divide the weights of experts"),
    "another choice": ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc' is not known"),
    "experts in turn": (
        "glm4_moe_lite",
        {"num_hidden_layers": 2, "mlp_layer_types": ["sparse", "dense"]},
        "mlp_layer_types = ['sparse', 'dense'] is not supported; give 2, 'dense' for the first layers",
    ),
    "no experts": ("glm4_moe", {"first_k_dense_replace": 46}, "first_k_dense_replace = 46 leaves none of 46 layers to experts"),
    "no experts in the last layers": (
        "ernie4_5_moe",
        {"moe_layer_end_index": 20},
        "moe_layer_end_index = 20 is not supported (-1 is): the last layers have no experts, and would",
    ),
    "a third kind of layers": (
        "modernbert",
        {"rope_parameters": {"full_attention": {"rope_type": "default"}, "chunked_attention": {}}},
        "chunked_attention of its rotary positions is not known",
    ),
    "no registers": ("dinov2_with_registers", {"num_register_tokens": 0}, "an empty tensor; write model_type = 'dinov2'"),
    "no window": ("modernbert-decoder", {"local_attention": None}, "layers with a window, and sliding_window is null"),
    "no causal mask": ("modernbert-decoder", {"is_causal": False}, "is_causal = False is not supported (True is): every token"),
    "an unknown activation": ("t5", {"feed_forward_proj": "gated-mish"}, "has the activation 'mish', which is not known"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_we_have_not_is_refused_by_name(case):
    name, described, said = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        MODEL_TYPES[name].read(described, HEAD)
    assert said in str(caught.value)


SIZES = {"vocab_size": 9, "context": 16, "d_model": 12, "n_layers": 4, "n_heads": 3, "d_ff": 20, "head_dim": 4}
MODERN = SIZES | {"norm": "rms", "positions": "none", "rotary": "half", "gated": True, "activation": "silu"}
NO_BIAS = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}
SANDWICH = {"norm_position": "sandwich", "norm_unit_offset": True, "embedding_scale": True, "tied": True}
PATTERN = {"window": 5, "layer_pattern": ("window", "full", "window", "full")}
OURS = {
    "llama": jf.GPTConfig(**MODERN | NO_BIAS, n_kv_heads=1, attention_scale=0.5),
    "mistral": jf.GPTConfig(**MODERN | NO_BIAS, window=5, layer_pattern=("window",)),
    "qwen2": jf.GPTConfig(**MODERN | NO_BIAS | {"qkv_bias": True}),
    "qwen3": jf.GPTConfig(**MODERN | NO_BIAS | PATTERN, qk_norm=True, rotary_base=1e6),
    "gemma2": jf.GPTConfig(**MODERN | NO_BIAS | SANDWICH | PATTERN, attention_softcap=50.0),
    "gemma3_text": jf.GPTConfig(**MODERN | NO_BIAS | SANDWICH | PATTERN, qk_norm=True, rotary_window_base=10.0),
    "gpt_neox": jf.GPTConfig(**MODERN | {"norm": "layer", "gated": False}, rotary_dim=2, parallel_residual=True),
    "deepseek_v3": jf.preset("deepseek_v3.tiny"),
    "t5": jf.EncoderDecoderConfig(
        **SIZES | NO_BIAS, norm="rms", positions="none", relative_bias="t5", attention_scale=1.0, activation="relu"
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_a_model_of_ours_finds_its_type(name):
    assert describe(OURS[name])[0].name == name


E2B = {"model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35}
E2B |= {"num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True}
E2B |= {"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7}
GEMMA4 = {"model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60}
GEMMA4 |= {"num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": True}
GEMMA4 |= {"hidden_size_per_layer_input": 0, "sliding_window": 1024, "use_bidirectional_attention": "vision"}
EXPERTS = GEMMA4 | {"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16}
EXPERTS |= {"num_key_value_heads": 8, "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 128}
EXPERTS |= {"top_k_experts": 8, "moe_intermediate_size": 704}
PUBLISHED: dict[str, tuple[dict[str, Any], int, int]] = {
    "DeepSeek-V2-Lite": (
        {"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408}
        | {"num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": None, "first_k_dense_replace": 1}
        | {"num_experts_per_tok": 6, "vocab_size": 102400},
        15_706_484_224,
        27 * 576,
    ),
    "DeepSeek-V3": ({"model_type": "deepseek_v3"}, 671_026_404_352 + 58 * 256, 61 * 576),
    "Gemma 4 E2B": (E2B, 4_628_569_379, 12 * 2 * 256 + 3 * 2 * 512),
    "Gemma 4 31B": (GEMMA4, 30_697_345_340, 50 * 2 * 16 * 256 + 10 * 2 * 4 * 512),
    "Gemma 4 26B-A4B": (EXPERTS, 25_233_141_790, 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512),
}
"""Keys of models -> their parameters, to which the corrections of V3's routers are added, and numbers of a cached token."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_published_models(name):
    described, parameters, cached = PUBLISHED[name]
    config = MODEL_TYPES[described["model_type"]].read(described, HEAD)
    assert count_parameters(jf.abstract(config)) == parameters
    assert cache_bytes(config, 1) == cached * config.context


def test_what_no_type_has_is_named():
    with pytest.raises(ConversionError, match=r"has no place for sinks = True"):
        describe(jf.GPTConfig(**MODERN | NO_BIAS, sinks=True))


def test_a_type_that_needs_an_id_of_padding():
    kind = MODEL_TYPES["modernbert-decoder"]
    config = replace(kind.read({"vocab_size": 9, "pad_token_id": 3}, HEAD), padding_idx=None)
    with pytest.raises(ConversionError, match=r"^padding_idx = None: transformers' modernbert-decoder needs the id"):
        kind.write(config, HEAD)


def test_the_nearest_type_tells_what_it_has_not():
    """A head of 3 units cannot be rotated at all, which is no answer to somebody whose model has learned positions."""
    sizes = {"vocab_size": 9, "context": 16, "d_model": 9, "n_layers": 1, "n_heads": 3, "d_ff": 20}
    with pytest.raises(ConversionError, match=r"^transformers' gpt2 has no place for head_bias = True .*; logits_scale = 0.5 "):
        describe(jf.GPTConfig(**sizes, tied=True, head_bias=True, logits_scale=0.5))


def test_labels_of_another_number_are_refused():
    kind = with_head(MODEL_TYPES["bert"], "sequence_classification")
    with pytest.raises(ConfigError, match="num_labels = 3 differs from the 2 labels of id2label; take the wrong one out"):
        kind.read({"id2label": {"0": "no", "1": "yes"}, "num_labels": 3}, HEAD)
