"""What turns a model in a folder into one that reads and writes text: its tokenizer, and the ids that begin and end a text."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.data.tokenizers import Frame, Tokenizer
from jaxformer.errors import CheckpointError, InputError, first_line
from jaxformer.folders.opened import Opened, open_path
from jaxformer.models import EncoderDecoder
from jaxformer.training.runs import CONFIG, TOKENIZER
from jaxformer.training.translator import TooLong, Translator, load_translator
from jaxformer.validation.fields import parsed, read_small

GENERATION = "generation_config.json"
"""transformers' settings of a search; older folders have them in config.json."""
UNREAD = (
    *("begin_suppress_tokens", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"),
    *("exponential_decay_length_penalty", "forced_decoder_ids", "guidance_scale", "min_new_tokens", "sequence_bias"),
)
"""Settings that choose other tokens, and that are not known here."""


@dataclass(frozen=True)
class Ids:
    """The tokens that begin, end and fill a text, and the rules for those between."""

    start: int | None
    ends: tuple[int, ...]
    pad: int | None
    rules: Mapping[str, Any]
    """Fields of SamplingConfig and of BeamConfig."""


def read_ids(folder: Path) -> Ids:
    """What generation_config.json says, and config.json where that says nothing."""
    found: dict[str, Any] = {}
    for name in (CONFIG, GENERATION):
        try:
            more = parsed(read_small(folder / name)) if (folder / name).is_file() else {}
            found |= {key: value for key, value in more.items() if value is not None}
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {first_line(error)}") from None
    if unread := [f"{name} = {found[name]!r:.40}" for name in UNREAD if found.get(name)]:
        warnings.warn(f"{folder}: {', '.join(unread)} of its {GENERATION} is not read here: texts may differ", stacklevel=3)
    end = found.get("eos_token_id", [])
    ends = tuple(end) if isinstance(end, list) else (end,)
    try:
        forbidden = rules(found)
    except (TypeError, AttributeError, LookupError) as error:
        raise CheckpointError(f"{folder / GENERATION} holds a list where a number is wanted, or the reverse: {error}") from None
    return Ids(found.get("decoder_start_token_id", found.get("bos_token_id")), ends, found.get("pad_token_id"), forbidden)


def rules(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of transformers' settings, those that forbid or force tokens."""
    forced = [(place, found.get(f"forced_{name}_token_id")) for place, name in ((0, "bos"), (-1, "eos"))]
    words = [word[0] for word in found.get("bad_words_ids", ()) if len(word) == 1]
    return {
        "forced": tuple((place, token) for place, token in forced if isinstance(token, int)),
        "suppressed": tuple(sorted({*found.get("suppress_tokens", ()), *words})),
        "no_repeat_ngram": found.get("no_repeat_ngram_size", 0),
        "min_tokens": max(found.get("min_length", 0) - 1, 0) if found.get("is_encoder_decoder") else 0,  # counts the start
    }


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


def open_translator(path: Path, too_long: TooLong = "cut", first: str | None = None) -> Translator:
    """What translates texts, of a run or of another folder; `first` is a token that every target begins with."""
    found = open_path(path)
    if found.words is not None:
        return load_translator(path, too_long)
    return translator_of(found, too_long, first)


def translator_of(found: Opened, too_long: TooLong = "cut", first: str | None = None) -> Translator:
    """The same of a folder that no run left."""
    if not isinstance(found.model, EncoderDecoder):
        raise InputError(f"{found.place} holds a model that does not translate texts; use jaxformer generate")
    tokenizer, ids = read_tokenizer(found), read_ids(found.place)
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
