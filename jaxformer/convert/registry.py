"""Registry of families of checkpoints: every file in `families/` and its folders is registered automatically."""

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from jaxformer.config.models import EncoderConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert import families
from jaxformer.convert.family import Family, module_rules
from jaxformer.convert.heads import with_head
from jaxformer.convert.model_type import ModelType
from jaxformer.errors import ConfigError, InputError, type_of
from jaxformer.validation.fields import check_kind, nearest

_FILES = [import_module(file.name) for file in pkgutil.walk_packages(families.__path__, f"{families.__name__}.")]

FAMILIES: dict[str, Family] = {
    found.name: found for file in _FILES for found in vars(file).values() if isinstance(found, Family)
}
"""Name -> family, for every Family in a file in `families/`."""
MODEL_TYPES: dict[str, ModelType] = {
    found.name: found
    for file in _FILES
    for variable, found in vars(file).items()
    if isinstance(found, ModelType) and not variable.startswith("_")
}
"""Name in config.json -> model type of transformers, for every ModelType in a file in `families/` but those that another is
made of, whose variables begin with _."""


def find_family(family: Family | str, name: str = "family", *, model: Any = None) -> Family:
    """Return the family of this name; a Family is returned as it is.

    Of an encoder with a head, given as `model`, it is the family of transformers' class with that head. ConfigError for an
    unknown name, InputError for anything else.
    """
    if isinstance(family, Family):
        return family
    known = ", ".join(FAMILIES)
    if not isinstance(family, str):
        raise InputError(f"{name} is {type_of(family)}; give a Family, or one of {known}")
    if family not in FAMILIES:
        near = nearest(family, FAMILIES)
        remedy = f"did you mean {near!r}? docs/models.md lists all" if near else f"choose one of {known}"
        raise ConfigError(f"{name} = {family!r} is not known; {remedy}")
    config = getattr(model, "config", None)
    if isinstance(config, EncoderConfig | VisionEncoderConfig) and config.head != "none" and family in MODEL_TYPES:
        return with_head(MODEL_TYPES[family], config.head).family
    return FAMILIES[family]


def within(family: Family | str, start: str, beside: Mapping[str, str]) -> Family:
    """Return the family of a torch model that contains a model of another family as a module.

    Names of the contained torch model begin with `start`. `beside` describes further `torch.nn.Linear`, `LayerNorm` or
    `Embedding` modules: start of JAX names -> start of torch names.

        within("torch_transformer", "transformer.", {"embed.token.": "embedding.", "head.": "generator."})
    """
    family = find_family(family)
    check_kind("start", start, str, "what the torch names begin with, as 'transformer.'")
    check_kind("beside", beside, Mapping, "a dict: what JAX names begin with -> what torch's do")
    stacks = {"": start} | {ours: start + theirs for ours, theirs in family.stacks.items()} | dict(beside)
    tied = {start + alias: start + held for alias, held in family.tied.items()}
    name = f"{family.name} within {start.rstrip('.')}"
    return replace(family, name=name, stacks=stacks, tied=tied, rules=(*family.rules, *module_rules("", "")))
