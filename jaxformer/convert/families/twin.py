"""The PyTorch twin: names have the same paths, only the names of leaves and their layouts differ."""

from jaxformer.convert.family import Family, Rule

TOWERS = ("encoder.", "encoder.stack.", "decoder.", "vision.stack.", "text.stack.")
STACKS = ("", "stack.", "stack.parts.{part}.", *TOWERS)

TWIN = Family(
    name="twin",
    stacks={f"{stack}blocks.": f"{stack}blocks.{{layer}}." for stack in STACKS},
    rules=(
        *(Rule(f"experts.{each}.kernel", f"experts.{each}.weight", "e o i -> e i o") for each in ("gate", "up", "down")),
        *(Rule(f"stem.{each}.kernel", f"stem.{each}.weight", "o i w -> w i o") for each in ("conv1", "conv2")),
        Rule("patch.kernel", "patch.weight", "d c P Q -> (c P Q) d"),
        Rule("kernel", "weight", "transposed"),
        Rule("table", "weight"),
        Rule("scale", "weight"),
        Rule("bias", "bias"),
        Rule("logit_scale", "logit_scale"),
        Rule("logit_bias", "logit_bias"),
    ),
)
