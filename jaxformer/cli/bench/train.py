"""`jaxformer bench train`: a training step beside PyTorch's and Flax's."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.bench.shared_flags import BenchFlags
from jaxformer.flags import parse
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class Train(BenchFlags):
    """Time training steps of jaxformer and its peers: the same weights, each side in a process of its own, in turn."""

    steps: int | None = None
    """Steps a round. None: as many as the item says."""
    dropout: bool | None = None
    """Train with the presets' dropout, or without. None: as the item says."""
    data: Path | None = None
    """A text file, or sentence pairs with a tab in each line, in the place of the corpus."""
    validate: bool = False
    """Measure the loss on held-out data at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            check_size("steps", self.steps, least=2)


def main(arguments: list[str]) -> None:
    """Measure and show."""
    flags = parse(Train, arguments, prog="jaxformer bench train")
    options = {"dropout": flags.dropout, "data": None if flags.data is None else str(flags.data)}
    flags.bench("train", options, count=flags.steps, validate=flags.validate)
