"""BERT as transformers has it (`BertModel`, with its pooler)."""

from jaxformer.convert.family import Family, module_rules, projection_rules

_NAMES = {
    "embed.token": "embeddings.word_embeddings",
    "embed.position": "embeddings.position_embeddings",
    "embed.token_type": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
    "pooler": "pooler.dense",
}

BERT = Family(
    name="bert",
    stacks={"stack.blocks.": "encoder.layer.{layer}."},
    rules=(
        *projection_rules("attention", "attention", ("self.query", "self.key", "self.value"), "output.dense"),
        *(rule for ours, theirs in _NAMES.items() for rule in module_rules(ours, theirs)),
    ),
    ignored={"embeddings.position_ids": "0, 1, 2, ..., which the model counts", "embeddings.token_type_ids": "all 0"},
)
"""For `EncoderConfig(norm_position="post", norm_epsilon=1e-12, embedding_norm=True, token_types=2, pooler=True,
padding_idx=0)`."""
