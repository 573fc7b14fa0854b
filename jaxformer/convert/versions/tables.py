"""Keys of config.json that transformers 4 and 5 treat differently, measured with 4.57.6 and 5.24.0."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.convert.model_type import Field, ModelType


class Changed(NamedTuple):
    """Key that one version reads and the other does not, or not in this form."""

    matters: Callable[[Any], bool]
    """True for the values that are read differently."""
    four: str
    five: str
    remedy: str
    types: tuple[str, ...] = ()
    """Model types that it concerns; empty: all."""


def is_set(value: Any) -> bool:
    """True for every value but null, False and empty ones."""
    return bool(value)


BERTS = (
    *(
        "align_text_model",
        "altclip_text_model",
        "bert",
        "bert-generation",
        "bridgetower_text_model",
        "camembert",
        "chinese_clip",
    ),
    *("data2vec-text", "electra", "ernie", "layoutlm", "lilt", "markuplm", "megatron-bert", "mra", "nystromformer", "roberta"),
    *("roberta-prelayernorm", "splinter", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso"),
)
"""Model types that had relative positions in transformers 4."""
TWO_STACKS = ("bart", "blenderbot", "led", "m2m_100", "marian", "mbart", "mt5", "mvp", "pegasus", "plbart", "t5", "umt5")

CHANGED: Mapping[str, Changed] = {
    "per_layer_config": Changed(is_set, "does not read it", "gives single layers their own settings", "use version 5"),
    "position_embedding_type": Changed(
        lambda value: value not in ("absolute", None),
        "adds relative positions to the scores",
        "does not read it and has absolute positions alone",
        "use version 4, or train again without them",
        BERTS,
    ),
    "pruned_heads": Changed(
        is_set,
        "takes these heads out, or refuses the model type",
        "does not read it and expects every head",
        "write the heads back with 0, and take the key out",
    ),
    "quantization_config": Changed(lambda value: value is None, "refuses null", "takes null for none", "take the key out"),
    "tie_encoder_decoder": Changed(
        is_set,
        "shares the weights of both stacks, or refuses the model type",
        "does not share them",
        "save both stacks, and write false",
        TWO_STACKS,
    ),
}
"""Keys of any model type whose values the versions treat differently."""

NUMBERS = """attn_logit_softcapping final_logit_softcapping init_std initializer_factor initializer_range layer_norm_eps
layer_norm_epsilon rms_norm_eps"""
SIZES = """d_ff d_kv d_model decoder_attention_heads decoder_ffn_dim decoder_layers dim encoder_attention_heads encoder_ffn_dim
encoder_layers head_dim hidden_dim hidden_size intermediate_size max_position_embeddings max_window_layers n_embd n_head n_heads
n_layer n_layers n_positions num_attention_heads num_heads num_hidden_layers num_key_value_heads num_layers
query_pre_attn_scalar relative_attention_max_distance relative_attention_num_buckets type_vocab_size vocab_size"""
SWITCHES = """attention_bias mlp_bias reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights scale_embedding
share_encoder_decoder_embeddings sinusoidal_pos_embds tie_word_embeddings use_cache use_parallel_residual use_sliding_window"""
STRICT: Mapping[str, type] = {
    **dict.fromkeys(("bos_token_id", "pad_token_id"), int),
    **dict.fromkeys(NUMBERS.split(), float),
    **dict.fromkeys(SIZES.split(), int),
    **dict.fromkeys(SWITCHES.split(), bool),
}
"""Keys -> the one type that transformers 5 takes: 1 is no float to it. Version 4 takes what torch takes."""
NULLABLE = {
    "attn_logit_softcapping": ("gemma2", "gemma3_text"),
    "final_logit_softcapping": ("gemma2", "gemma3_text", "gemma4_text", "nanochat"),
    "head_dim": (
        *("arcee", "ernie4_5", "glm", "llama", "mistral", "mixtral", "nemotron", "olmoe", "qwen2_moe", "qwen3_moe"),
        *("hunyuan_v1_dense", "nomic_bert", "seed_oss"),
    ),
    "intermediate_size": ("gpt_neo",),
    "layer_norm_eps": ("cohere",),
    "layer_norm_epsilon": ("falcon",),
    "num_key_value_heads": (
        *("arcee", "cohere", "cohere2", "ernie4_5", "glm", "granite", "llama", "nemotron", "olmo", "olmo2", "olmo3", "olmoe"),
        *("hunyuan_v1_dense", "nanochat", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "seed_oss", "smollm3"),
    ),
    "use_cache": ("ernie4_5",),
}
"""Keys of `STRICT` -> model types in which they may be null; in BART nearly every key may, and ids in nearly all types."""
NEEDED_IDS = {"modernbert-decoder": ("bos_token_id", "pad_token_id")}
"""Model types -> ids that may not be null."""
UNTYPED = {
    "bos_token_id": ("t5",),
    "head_dim": ("qwen2",),
    "n_positions": ("t5", "mt5"),
    "num_hidden_layers": ("bart", "marian", "mbart", "m2m_100"),
    "tie_word_embeddings": ("t5",),
    "use_cache": ("distilbert",),
}
"""Keys of `STRICT` -> model types in which transformers 5 takes any value for them."""
INITIAL = {"init_std": ("bart", "marian", "mbart", "m2m_100"), "initializer_factor": ("t5", "mt5")}
"""Keys of initial weights -> model types that have them; `initializer_range` is of the types with one stack."""


def is_typed(kind: ModelType, key: str) -> bool:
    """True if transformers 5 checks the type of this key in this model type."""
    if key == "initializer_range":
        return kind.config is not EncoderDecoderConfig
    if key in INITIAL:
        return kind.name in INITIAL[key]
    known = key in ("bos_token_id", "pad_token_id", "tie_word_embeddings", "use_cache") or isinstance(kind.keys.get(key), Field)
    return known and kind.name not in UNTYPED.get(key, ())


def may_be_null(kind: ModelType, key: str) -> bool:
    """True if transformers 5 takes null for this key."""
    everywhere = kind.name == "bart" and key not in ("tie_word_embeddings", "use_cache")
    an_id = key.endswith("_token_id") and key not in NEEDED_IDS.get(kind.name, ())
    return everywhere or an_id or kind.name in NULLABLE.get(key, ())


LAYERS = """full_attention sliding_attention chunked_attention linear_attention indexed_attention window_attention
compressed_sparse_attention heavily_compressed_attention minimax_m3_sparse conv moe hybrid hybrid_sliding mamba attention
reference_sliding_attention deepseek_sparse_attention qwen_sparse_attention"""
"""Names in `layer_types` that transformers 5 takes, for every model type."""


class Windows(NamedTuple):
    """Windows by layer in both versions, where version 4 has the same window in every layer."""

    four: str
    five: str
    remedy: str
    by_turns: bool = False
    """True if version 5 has the window in every other layer before `max_window_layers`, if `layer_types` is missing."""


WINDOWS: Mapping[str, Windows] = {
    "mistral": Windows(
        "does not read it before 4.57, and since then only in AutoModelForCausalLM",
        "reads it in AutoModelForCausalLM",
        "write model_type = ministral, which 4.57 and 5 read alike",
    ),
    "qwen2_moe": Windows(
        "has the window in every layer",
        "in those of layer_types, or in every other one before max_window_layers",
        "write sliding_attention for every layer in layer_types, if 4 is right",
        by_turns=True,
    ),
}
"""Model types -> windows by layer."""

GENERATION: Mapping[str, Any] = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "length_penalty": 1.0,
    "max_length": 20,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "output_scores": False,
    "remove_invalid_values": False,
    "repetition_penalty": 1.0,
    "return_dict_in_generate": False,
    "suppress_tokens": None,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
}
"""Settings of generation that config.json may hold -> their neutral values, the same in both versions."""
FORCED_ENDS = {"marian": 0, "pegasus": 1, "pegasus_x": 1} | dict.fromkeys(
    ("bart", "blenderbot", "blenderbot-small", "mbart", "mvp", "plbart"), 2
)
"""Model types -> `forced_eos_token_id` that transformers 4 takes where config.json has none."""

NEW_CLASSES = ("MistralCommonBackend", "PythonBackend", "SentencePieceBackend", "TokenizersBackend")
"""Values of `tokenizer_class` that only transformers 5 knows."""
