"""Settings of generation, special tokens and tokenizers."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxformer.convert.model_type import BEAMS, DRAWING
from jaxformer.convert.versions.finding import ABSENT, Finding, shown
from jaxformer.convert.versions.folder import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, Folder, mapping
from jaxformer.convert.versions.tables import FORCED_ENDS, NEW_CLASSES
from jaxformer.convert.versions.tables import GENERATION as NEUTRAL

IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""Special tokens that have a name in the files of a tokenizer."""


def check_generation(folder: Folder) -> Iterator[Finding]:
    """Yield settings of config.json that version 4 prefers to those of generation_config.json.

    It does so if `_from_model_config` marks that file as a copy, and config.json has since been changed.
    """
    forced, key = FORCED_ENDS.get(folder.model_type), "forced_eos_token_id"
    if forced is not None and key not in folder.config and not folder.has(GENERATION):
        remedy = f"write {key} = {forced}, or null"
        yield Finding("differs", CONFIG, key, shown(ABSENT), f"ends every text with {forced}", "forces no end", remedy)
    default = {**NEUTRAL, key: forced}
    config, copy = default | set_values(folder.config), {**NEUTRAL, **set_values(folder.generation)}
    if not copy.get("_from_model_config") or all(config[key] == default[key] for key in NEUTRAL):
        return
    idle = set() if config["do_sample"] or copy["do_sample"] else DRAWING
    idle |= BEAMS if config["num_beams"] == copy["num_beams"] == 1 else set()
    for key in NEUTRAL:
        if config[key] != copy[key] and key not in idle:
            value, remedy = shown(folder.config.get(key, ABSENT)), f"write into {GENERATION} alone what is meant"
            yield Finding("differs", CONFIG, key, value, f"generates with {config[key]}", f"generates with {copy[key]}", remedy)


def set_values(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not null."""
    return {key: value for key, value in said.items() if value is not None}


def check_ids(folder: Folder) -> Iterator[Finding]:
    """Yield special ids that no token has, and ids of the tokenizer that generation does not use."""
    size = folder.config.get("vocab_size")
    for file, said in ((CONFIG, folder.config), (GENERATION, folder.generation)):
        for key in IDS:
            ids = listed_ids(said.get(key))
            if ids and isinstance(size, int) and max(ids) >= size:
                is_refused = (file, key) == (CONFIG, "pad_token_id") or key == "decoder_start_token_id"
                does = "refuses it" if is_refused else "never reads or writes this token"
                remedy = f"give one below vocab_size = {size}, or null"
                yield Finding("wrong" if is_refused else "note", file, key, shown(said[key]), does, does, remedy)
    ends = {*listed_ids(folder.config.get("eos_token_id")), *listed_ids(folder.generation.get("eos_token_id"))}
    end = tokens_of(folder).get(special(folder).get("eos_token", ""))
    if end is not None and ends and end not in ends:
        does = f"ends a text at {sorted(ends)}"
        remedy = f"add {end} to eos_token_id of {GENERATION} if a text ends with it"
        yield Finding("note", TOKENIZER_CONFIG, "eos_token", f"has the id {end}", does, does, remedy)


def check_tokenizer(folder: Folder) -> Iterator[Finding]:
    """Yield settings of the tokenizer that a version refuses, and tokens for which the model has no row."""
    config, size = folder.tokenizer_config, folder.config.get("vocab_size")
    if (name := config.get("tokenizer_class")) in NEW_CLASSES:
        remedy = "write PreTrainedTokenizerFast, which both know"
        yield Finding("differs", TOKENIZER_CONFIG, "tokenizer_class", shown(name), "knows no such class", "loads it", remedy)
    if isinstance(more := config.get("extra_special_tokens"), list) and more:
        remedy = "call the list additional_special_tokens, which both read"
        yield Finding("differs", TOKENIZER_CONFIG, "extra_special_tokens", shown(more), "refuses a list", "reads it", remedy)
    model = mapping(folder.tokenizer.get("model"))
    if model.get("type") == "BPE" and config.get("clean_up_tokenization_spaces") is True:
        yield Finding(
            "differs",
            TOKENIZER_CONFIG,
            "clean_up_tokenization_spaces",
            "= true",
            "takes spaces before punctuation out of a decoded text",
            "leaves them in, for a BPE",
            "write false",
        )
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict | list) and isinstance(size, int) and (held := len(vocabulary)) > size:
        does = "fails at a text with one of the other ids"
        remedy = "copy the model's own tokenizer into the folder"
        yield Finding("wrong", TOKENIZER, "model.vocab", f"has {held} tokens, vocab_size = {size}", does, does, remedy)


def listed_ids(value: Any) -> list[int]:
    """Return ids as a list."""
    return [token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)]


def special(folder: Folder) -> dict[str, str]:
    """Return the special tokens by name; those of special_tokens_map.json come first, in both versions."""
    found = {name: said[name] for said in (folder.tokenizer_config, folder.special) for name in NAMES if name in said}
    tokens = {name: mapping(token).get("content", token) for name, token in found.items()}
    return {name: token for name, token in tokens.items() if isinstance(token, str)}


def tokens_of(folder: Folder) -> Mapping[str, int]:
    """Return ids by token: those of the vocabulary, and those added to it."""
    vocabulary, added = mapping(folder.tokenizer.get("model")).get("vocab"), folder.tokenizer.get("added_tokens")
    pairs = enumerate(vocabulary) if isinstance(vocabulary, list) else ()
    listed = {str(entry[0]): i for i, entry in pairs if isinstance(entry, list) and entry}
    more = [mapping(token) for token in (added if isinstance(added, list) else ())]
    return {**listed, **mapping(vocabulary), **{str(it["content"]): it["id"] for it in more if {"content", "id"} <= it.keys()}}
