"""`jaxformer bench start`: whole processes beside PyTorch and transformers."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.bench.shared_flags import BenchFlags
from jaxformer.flags import parse


@dataclass(frozen=True, kw_only=True)
class Start(BenchFlags):
    """Time whole processes of jaxformer and its peers, from their start to their end, with a compilation cache and without."""

    data: Path | None = None
    """Sentence pairs with a tab in each line, in the place of the corpus."""


def main(arguments: list[str]) -> None:
    """Measure and show."""
    flags = parse(Start, arguments, prog="jaxformer bench start")
    flags.bench("start", {"data": None if flags.data is None else str(flags.data.resolve())})
