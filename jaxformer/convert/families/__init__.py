"""One file for each family of checkpoints."""

from jaxformer.convert.families.annotated import ANNOTATED
from jaxformer.convert.families.bart import BART, MARIAN
from jaxformer.convert.families.bert import BERT
from jaxformer.convert.families.gpt2 import GPT2
from jaxformer.convert.families.nanogpt import MINGPT, NANOGPT
from jaxformer.convert.families.torch_attention import TORCH_ATTENTION, TORCH_ATTENTION_WIDTHS
from jaxformer.convert.families.torch_encoder import TORCH_ENCODER
from jaxformer.convert.families.torch_transformer import TORCH_TRANSFORMER
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family

_ALL = (TWIN, GPT2, NANOGPT, MINGPT, BERT, BART, MARIAN, ANNOTATED)
_TORCH = (TORCH_ATTENTION, TORCH_ATTENTION_WIDTHS, TORCH_ENCODER, TORCH_TRANSFORMER)

FAMILIES: dict[str, Family] = {family.name: family for family in (*_ALL, *_TORCH)}
"""By name."""
