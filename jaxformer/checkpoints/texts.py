"""Texts of a model in a folder: its tokenizer, its ids, and transformers' settings of how tokens are chosen."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxformer.checkpoints.opened import Opened, open_path
from jaxformer.checkpoints.translator import TooLong, Translator, load_translator
from jaxformer.convert.model_type import OUTPUTS, SEARCH
from jaxformer.data.tokenizers import Frame, Tokenizer
from jaxformer.errors import CheckpointError, InputError, first_line
from jaxformer.models import EncoderDecoder
from jaxformer.runs.folder import CONFIG, TOKENIZER
from jaxformer.validation.fields import parsed, read_small

GENERATION = "generation_config.json"
"""transformers' settings of a search; older folders have them in config.json."""
NONE_CHOSEN: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Ids:
    """The tokens that begin, end and fill a text, and the rules for those between."""

    start: int | None
    ends: tuple[int, ...]
    pad: int | None
    rules: Mapping[str, Any]
    """Fields of SamplingConfig and of BeamConfig."""


def read_ids(folder: Path, chosen: Mapping[str, Any] = NONE_CHOSEN) -> Ids:
    """What generation_config.json says; of ids, config.json where that says nothing, and without such a file of settings too.
    A warning names settings that are not read.

    `chosen` has what the command takes in place of a setting, None where its user said so.
    """
    config, settings = said_in(folder / CONFIG), said_in(folder / GENERATION)
    place = GENERATION if (folder / GENERATION).is_file() else CONFIG
    older = of_search(config) if place == GENERATION else {}
    found = {name: value for name, value in config.items() if name not in older} | settings
    end = found.get("eos_token_id", [])
    ends = tuple(end) if isinstance(end, list) else (end,)
    try:
        given, left = rules(found, ends), unread(settings if place == GENERATION else of_search(config), found, chosen)
    except (TypeError, AttributeError, LookupError) as error:
        raise CheckpointError(f"{folder / GENERATION} holds a list where a number is wanted, or the reverse: {error}") from None
    if left:
        listed = ", ".join(f"{name} = {value!r:.40}" for name, value in left.items())
        warnings.warn(f"{folder}: {listed} of its {place}: not read here, so texts may differ", stacklevel=3)
    return Ids(found.get("decoder_start_token_id", found.get("bos_token_id")), ends, found.get("pad_token_id"), given)


def said_in(path: Path) -> dict[str, Any]:
    """The settings of a file, without those that are null; none where it is not there."""
    try:
        said = parsed(read_small(path)) if path.is_file() else {}
        return {key: value for key, value in said.items() if value is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from None


def read_tokenizer(found: Opened) -> Tokenizer:
    """The tokenizer.json of a folder; InputError where there is none, or it is another model's."""
    path = found.place / TOKENIZER
    if not path.is_file():
        raise InputError(
            f"{found.place} has no {TOKENIZER}: its texts cannot be read; write one with "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    tokenizer = Tokenizer.load(path)
    tokenizer.backend.encode_special_tokens = False  # a prompt may have them, as in transformers
    size = tokenizer.backend.get_vocab_size(with_added_tokens=False)
    if size > found.model.config.vocab_size:  # a token that was added, as Gemma 3's <image>, may be one of another model
        sizes = f"{size} tokens, the model {found.model.config.vocab_size}"
        raise InputError(f"{path} has {sizes}: it is another model's; copy the model's own tokenizer into the folder")
    return tokenizer


def open_translator(
    path: Path, too_long: TooLong = "cut", first: str | None = None, chosen: Mapping[str, Any] = NONE_CHOSEN
) -> Translator:
    """What translates texts, of a run or of another folder; `first` is a token that every target begins with."""
    found = open_path(path)
    if found.words is not None:
        return load_translator(path, too_long)
    return translator_of(found, too_long, first, chosen)


def translator_of(
    found: Opened, too_long: TooLong = "cut", first: str | None = None, chosen: Mapping[str, Any] = NONE_CHOSEN
) -> Translator:
    """The same of a folder that no run left."""
    if not isinstance(found.model, EncoderDecoder):
        raise InputError(f"{found.place} holds a model that does not translate texts; use jaxformer generate")
    tokenizer, ids = read_tokenizer(found), read_ids(found.place, chosen)
    if ids.start is None or not ids.ends:
        raise InputError(f"{found.place}/{CONFIG} names no decoder_start_token_id or no eos_token_id; write them into it")
    given = dict(ids.rules)
    if first is not None:
        token = tokenizer.backend.token_to_id(first)
        if token is None:
            raise InputError(f"--first {first!r} is no token of {found.place}/{TOKENIZER}; give one that it has")
        given["forced"] = ((0, token), *(pair for pair in given["forced"] if pair[0] != 0))
    pad = ids.ends[0] if ids.pad is None else ids.pad
    return Translator(found.model, tokenizer, too_long, Frame(ids.start, ids.ends[0], pad), given)


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
