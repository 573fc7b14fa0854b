"""One file for each family of checkpoints; a new file is found by itself."""

import pkgutil
from importlib import import_module

from jaxformer.convert.family import Family
from jaxformer.convert.model_type import ModelType
from jaxformer.errors import ConfigError, InputError, type_of
from jaxformer.validation.fields import nearest

_FILES = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]

FAMILIES: dict[str, Family] = {
    found.name: found for file in _FILES for found in vars(file).values() if isinstance(found, Family)
}
"""By name: every Family in a file of this folder."""
MODEL_TYPES: dict[str, ModelType] = {
    found.name: found for file in _FILES for found in vars(file).values() if isinstance(found, ModelType)
}
"""The same of transformers' model types, by what config.json calls them."""


def find_family(family: Family | str, name: str = "family") -> Family:
    """The family of that name; a family is itself. ConfigError for a name that is not known, InputError for anything else."""
    if isinstance(family, Family):
        return family
    known = ", ".join(FAMILIES)
    if not isinstance(family, str):
        raise InputError(f"{name} is {type_of(family)}; give a Family, or one of {known}")
    if family not in FAMILIES:
        near = nearest(family, FAMILIES)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"{name} = {family!r} is not known; {hint}choose one of {known}")
    return FAMILIES[family]
