"""One file for each family of checkpoints."""

from jaxformer.convert.families.bert import BERT
from jaxformer.convert.families.gpt2 import GPT2
from jaxformer.convert.families.torch_encoder import TORCH_ENCODER
from jaxformer.convert.families.torch_transformer import TORCH_TRANSFORMER
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family

FAMILIES: dict[str, Family] = {family.name: family for family in (TWIN, GPT2, BERT, TORCH_ENCODER, TORCH_TRANSFORMER)}
"""By name."""
