"""The PyTorch twin: the same paths, only leaf names and layouts differ."""

from jaxformer.convert.rules import Family, Rule

TWIN = Family(
    name="twin",
    stacks={"blocks.": "blocks.{layer}.", "stack.blocks.": "stack.blocks.{layer}."},
    rules=(
        Rule("kernel", "weight", "transposed"),
        Rule("table", "weight"),
        Rule("scale", "weight"),
        Rule("bias", "bias"),
    ),
)
