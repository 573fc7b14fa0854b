"""Text settings of a model folder: its tokenizer, special ids, and transformers' generation settings."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxformer.checkpoints.hf import KEPT
from jaxformer.checkpoints.opened import Opened, open_path
from jaxformer.checkpoints.translator import TooLong, Translator, load_translator
from jaxformer.config.models import ModelConfig
from jaxformer.convert.model_type import BEAMS, DRAWING, OUTPUTS, SEARCH
from jaxformer.data.tokenizers import Frame, Tokenizer
from jaxformer.errors import CheckpointError, InputError
from jaxformer.models import EncoderDecoder
from jaxformer.runs.folder import CONFIG, TOKENIZER
from jaxformer.validation.fields import read_settings, without_null

GENERATION = "generation_config.json"
"""File name of transformers' generation settings; older folders have them in config.json."""
NONE_CHOSEN: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Ids:
    """Special tokens that begin, end and pad a text, and rules for choosing the tokens between."""

    start: int | None
    ends: tuple[int, ...]
    pad: int | None
    rules: Mapping[str, Any]
    """Fields of SamplingConfig and of BeamConfig."""


def read_ids(folder: Path, chosen: Mapping[str, Any] = NONE_CHOSEN) -> Ids:
    """Read special ids and generation settings from generation_config.json.

    Ids that are missing there come from config.json; settings come from config.json only if there is no generation_config.json.
    A warning names ignored settings. `chosen` holds the command's replacements for settings; None: chosen by the user.
    """
    config, settings = read_settings(folder / CONFIG), read_settings(folder / GENERATION)
    if KEPT in config:  # a folder of ours, of a model that came from one of transformers
        config = without_null(config[KEPT]["config"])
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


def text_config(found: Opened) -> ModelConfig:
    """Return the configuration of a model of texts; InputError for one that sees images."""
    if not isinstance(found.model.config, ModelConfig):
        kind = type(found.model).__name__
        raise InputError(f"{found.place} holds a {kind}, which writes no texts; give a GPT or an EncoderDecoder")
    return found.model.config


def read_tokenizer(found: Opened) -> Tokenizer:
    """Load a folder's tokenizer.json; InputError if there is none, or it belongs to another model."""
    path = found.place / TOKENIZER
    if not path.is_file():
        raise InputError(
            f"{found.place} has no {TOKENIZER}: its texts cannot be read; write one with "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    tokenizer = Tokenizer.load(path)
    tokenizer.backend.encode_special_tokens = False  # prompts may contain special tokens, as in transformers
    config = text_config(found)
    size = tokenizer.backend.get_vocab_size(with_added_tokens=False)
    if size > config.vocab_size:  # added tokens, as Gemma 3's <image>, may be another model's
        sizes = f"{size} tokens, the model {config.vocab_size}"
        raise InputError(f"{path} has {sizes}: it is another model's; copy the model's own tokenizer into the folder")
    return tokenizer


def open_translator(
    path: Path, too_long: TooLong = "cut", first: str | None = None, chosen: Mapping[str, Any] = NONE_CHOSEN
) -> Translator:
    """Open a translator from a run or another folder; `first` is a token that every target begins with."""
    found = open_path(path)
    if found.words is not None:
        return load_translator(path, too_long)
    return translator_of(found, too_long, first, chosen)


def translator_of(
    found: Opened, too_long: TooLong = "cut", first: str | None = None, chosen: Mapping[str, Any] = NONE_CHOSEN
) -> Translator:
    """Build a translator from a folder that is not a run folder."""
    if not isinstance(found.model, EncoderDecoder):
        raise InputError(f"{found.place} holds a model that does not translate texts; use jaxformer generate")
    if found.model.stem is not None:
        raise InputError(f"{found.place} holds a model that reads audio; use jaxformer transcribe")
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
"""Settings that are read completely, that every command replaces, or that change no text."""
ONE = {
    *("assistant_ensemble_weight", "encoder_repetition_penalty", "guidance_scale", "length_penalty", "num_beam_groups"),
    *("num_beams", "num_return_sequences", "repetition_penalty", "temperature", "top_h", "top_p", "typical_p"),
}
"""Settings whose neutral value is 1; the neutral values of others are 0, False and empty."""


def of_search(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation settings that older folders keep in config.json."""
    return {name: config[name] for name in SEARCH.split() if name in config}


def rules(found: Mapping[str, Any], ends: tuple[int, ...]) -> dict[str, Any]:
    """Return the settings that forbid or force tokens, as fields of TokenRules.

    End tokens are never bad words, as in transformers; min_length counts the start token.
    """
    forced = [(place, found.get(f"forced_{name}_token_id")) for place, name in ((0, "bos"), (-1, "eos"))]
    words = [word[0] for word in found.get("bad_words_ids", ()) if len(word) == 1 and word[0] not in ends]
    return {
        "forced": tuple((place, token) for place, token in forced if isinstance(token, int)),
        "suppressed": tuple(sorted({*found.get("suppress_tokens", ()), *words})),
        "no_repeat_ngram": found.get("no_repeat_ngram_size", 0),
        "min_tokens": max(found.get("min_length", 0) - 1, 0) if found.get("is_encoder_decoder") else 0,
    }


def unread(settings: Mapping[str, Any], found: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are ignored here although they could change a text.

    `found` holds all settings of the folder. `chosen` holds the command's replacements for settings; None: chosen by the user.
    """
    idle = SILENT | {name for name in chosen if chosen[name] in (None, settings.get(name))}
    idle |= set() if found.get("do_sample") else DRAWING
    idle |= set() if found.get("num_beams", 1) != 1 else BEAMS
    names = [name for name in settings if name not in idle and not name.startswith("_")]
    left = {name: unread_part(name, settings[name], found) for name in names}
    return {name: value for name, value in left.items() if (value != 1 if name in ONE else value)}


def unread_part(name: str, value: Any, found: Mapping[str, Any]) -> Any:
    """Return the part of a setting that `rules` and `read_ids` ignore; None or empty if they read it completely."""
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
