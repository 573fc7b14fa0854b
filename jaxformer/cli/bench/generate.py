"""`jaxformer bench generate`: writing beside PyTorch and transformers."""

from dataclasses import dataclass

from jaxformer.cli.bench.shared_flags import BenchFlags
from jaxformer.flags import parse
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class Generate(BenchFlags):
    """Time the writing of jaxformer and its peers: the same weights and the same text, each side in a process of its own."""

    sentences: int = 32
    """Sentences of the beam search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("sentences", self.sentences, least=2)


def main(arguments: list[str]) -> None:
    """Measure and show."""
    flags = parse(Generate, arguments, prog="jaxformer bench generate")
    sentences = 2 if flags.short else flags.sentences
    flags.bench("generate", {"sentences": sentences}, count=sentences)
