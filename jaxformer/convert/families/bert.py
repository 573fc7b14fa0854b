"""BERT as transformers has it (`BertModel`, with its pooler)."""

from jaxformer.convert.rules import Family, Rule

_NAMES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}

BERT = Family(
    name="bert",
    stacks={"stack.blocks.": "encoder.layer.{layer}."},
    rules=(
        Rule("embed.token.table", "embeddings.word_embeddings.weight"),
        Rule("embed.position.table", "embeddings.position_embeddings.weight"),
        Rule("embed.token_type.table", "embeddings.token_type_embeddings.weight"),
        Rule("embed.norm.scale", "embeddings.LayerNorm.weight"),
        Rule("embed.norm.bias", "embeddings.LayerNorm.bias"),
        *(Rule(f"{ours}.kernel", f"{theirs}.weight", "transposed") for ours, theirs in _NAMES.items()),
        *(Rule(f"{ours}.scale", f"{theirs}.weight") for ours, theirs in _NAMES.items()),
        *(Rule(f"{ours}.bias", f"{theirs}.bias") for ours, theirs in _NAMES.items()),
        Rule("pooler.kernel", "pooler.dense.weight", "transposed"),
        Rule("pooler.bias", "pooler.dense.bias"),
    ),
)
"""For `EncoderConfig(norm_position="post", norm_epsilon=1e-12, embedding_norm=True, token_types=2, pooler=True)`."""
