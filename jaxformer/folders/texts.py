"""What turns a model in a folder into one that reads and writes text: its tokenizer, and the ids that begin and end a text."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxformer.data.tokenizers import Frame, Tokenizer
from jaxformer.errors import CheckpointError, InputError, first_line
from jaxformer.folders.opened import Opened, open_path
from jaxformer.folders.search_settings import of_search, rules, unread
from jaxformer.models import EncoderDecoder
from jaxformer.training.runs import CONFIG, TOKENIZER
from jaxformer.training.translator import TooLong, Translator, load_translator
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
