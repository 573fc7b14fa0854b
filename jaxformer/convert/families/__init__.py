"""One file for each family of checkpoints."""

import difflib

from jaxformer.convert.families.annotated import ANNOTATED
from jaxformer.convert.families.bart import BART, MARIAN
from jaxformer.convert.families.bert import BERT
from jaxformer.convert.families.gpt2 import GPT2
from jaxformer.convert.families.nanogpt import MINGPT, NANOGPT
from jaxformer.convert.families.torch_attention import TORCH_ATTENTION, TORCH_ATTENTION_WIDTHS
from jaxformer.convert.families.torch_encoder import TORCH_ENCODER
from jaxformer.convert.families.torch_transformer import TORCH_TRANSFORMER
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.family import Family
from jaxformer.errors import ConfigError, InputError

_ALL = (TWIN, GPT2, NANOGPT, MINGPT, BERT, BART, MARIAN, ANNOTATED)
_TORCH = (TORCH_ATTENTION, TORCH_ATTENTION_WIDTHS, TORCH_ENCODER, TORCH_TRANSFORMER)

FAMILIES: dict[str, Family] = {family.name: family for family in (*_ALL, *_TORCH)}
"""By name."""


def find_family(family: Family | str, name: str = "family") -> Family:
    """The family of that name; a family is itself. ConfigError for a name that is not known, InputError for anything else."""
    if isinstance(family, Family):
        return family
    known = ", ".join(FAMILIES)
    if not isinstance(family, str):
        raise InputError(f"{name} is a {type(family).__name__}; give a Family, or one of {known}")
    if family not in FAMILIES:
        near = difflib.get_close_matches(family, FAMILIES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"{name} = {family!r} is not known; {hint}choose one of {known}")
    return FAMILIES[family]
