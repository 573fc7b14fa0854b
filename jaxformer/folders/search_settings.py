"""transformers' settings of how tokens are chosen: what is read of them, and what is not and could change a text."""

from collections.abc import Mapping
from typing import Any

from jaxformer.convert.model_type import OUTPUTS, SEARCH

READ = "bos_token_id decoder_start_token_id is_encoder_decoder no_repeat_ngram_size pad_token_id suppress_tokens"
LENGTHS = "max_length max_new_tokens"
RUNNING = """assistant_confidence_threshold assistant_early_exit assistant_lookbehind cache_config cache_implementation
compile_config continuous_batching_config disable_compile is_assistant low_memory max_cache_len max_matching_ngram_size
num_assistant_tokens num_assistant_tokens_schedule output_logits output_scores prefill_chunk_size prompt_lookup_num_tokens
remove_invalid_values return_dict_in_generate return_legacy_cache speculation_type target_lookbehind transformers_version
use_mtp"""
SILENT = frozenset(f"{READ} {LENGTHS} {OUTPUTS} {RUNNING}".split())
"""Settings that are read in whole, that every command has by itself, and that change no text."""
DRAWING = {"epsilon_cutoff", "eta_cutoff", "min_p", "temperature", "top_h", "top_k", "top_p", "typical_p"}
"""Settings that count where tokens are drawn."""
BEAMS = {"diversity_penalty", "early_stopping", "length_penalty", "num_beam_groups", "renormalize_logits"}
"""Settings that count where there are several beams."""
ONE = {
    *("assistant_ensemble_weight", "encoder_repetition_penalty", "guidance_scale", "length_penalty", "num_beam_groups"),
    *("num_beams", "num_return_sequences", "repetition_penalty", "temperature", "top_h", "top_p", "typical_p"),
}
"""Settings of which 1 changes nothing; of others it is 0, False, and what is empty."""


def of_search(config: Mapping[str, Any]) -> dict[str, Any]:
    """What older folders have of them in config.json."""
    return {name: config[name] for name in SEARCH.split() if name in config}


def rules(found: Mapping[str, Any], ends: tuple[int, ...]) -> dict[str, Any]:
    """Those that forbid or force tokens, as fields of TokenRules. No bad word is an end, as in transformers."""
    forced = [(place, found.get(f"forced_{name}_token_id")) for place, name in ((0, "bos"), (-1, "eos"))]
    words = [word[0] for word in found.get("bad_words_ids", ()) if len(word) == 1 and word[0] not in ends]
    return {
        "forced": tuple((place, token) for place, token in forced if isinstance(token, int)),
        "suppressed": tuple(sorted({*found.get("suppress_tokens", ()), *words})),
        "no_repeat_ngram": found.get("no_repeat_ngram_size", 0),
        "min_tokens": max(found.get("min_length", 0) - 1, 0) if found.get("is_encoder_decoder") else 0,  # counts the start
    }


def unread(settings: Mapping[str, Any], found: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that are not read and could change a text.

    `found` is all that the folder says. `chosen` has what the command takes in place of a setting, None where its user said so.
    """
    idle = SILENT | {name for name in chosen if chosen[name] in (None, settings.get(name))}
    idle |= set() if found.get("do_sample") else DRAWING
    idle |= set() if found.get("num_beams", 1) != 1 else BEAMS
    names = [name for name in settings if name not in idle and not name.startswith("_")]
    left = {name: unread_part(name, settings[name], found) for name in names}
    return {name: value for name, value in left.items() if (value != 1 if name in ONE else value)}


def unread_part(name: str, value: Any, found: Mapping[str, Any]) -> Any:
    """What `rules` and `read_ids` leave of a setting; nothing where they read it in whole."""
    match name:
        case "bad_words_ids":
            return [word for word in value if len(word) != 1]
        case "forced_bos_token_id" | "forced_eos_token_id" if isinstance(value, int):
            return None
        case "min_length" if found.get("is_encoder_decoder"):
            return None
        case "eos_token_id" if not (found.get("is_encoder_decoder") and isinstance(value, list) and len(value) > 1):
            return None
    return value
