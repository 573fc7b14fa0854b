"""Translations of the test set: BLEU, and a table of all of them."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from jaxformer.checkpoints.translator import Translator
from jaxformer.config.settings import BeamConfig
from jaxformer.data.parallel import Parallel
from jaxformer.io.atomic import written_whole
from jaxformer.parallel.group import is_first
from jaxformer.runs.folder import RunFolder

BEAM = BeamConfig(width=5, early_stopping=True)
"""The test set is translated greedily and by this beam search."""


def translate_test_set(folder: RunFolder, translator: Translator, pairs: Parallel, console: Console, *, show: int) -> None:
    """Translate it greedily and by beam search, save both, show some, and print BLEU."""
    sources, references = pairs
    greedy = translator.greedy(sources)
    beam = [found[0].text for found in translator.beam(sources, BEAM)]
    for source, reference, hypothesis in list(zip(sources, references, beam, strict=True))[:show]:
        console.print(f"\nsource      {source}\nreference   {reference}\nhypothesis  {hypothesis}")
    console.print()
    translated = {"greedy": greedy, f"beam {BEAM.width}": beam}
    for name, texts in translated.items() if can_score() else ():
        found = score(texts, references)
        console.print(f"BLEU {found.bleu:.2f} {name} · {len(sources):,} sentences · {found.signature}")
    write_table(folder, {"source": sources, "reference": references, **translated})


def write_table(folder: RunFolder, columns: Mapping[str, Sequence[str]]) -> None:
    """translations.tsv: a line for each test pair, under the names of its columns."""
    if not is_first():
        return
    rows = [columns, *zip(*columns.values(), strict=True)]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    with written_whole(table_of(folder.path)) as unfinished:
        unfinished.write_text(text, "utf-8")


def table_of(folder: Path) -> Path:
    """The file with the translations of the test set: the last one that a run writes."""
    return folder / "translations.tsv"


class Score(NamedTuple):
    """BLEU of a corpus, and how it was measured."""

    bleu: float
    """From 0 to 100."""
    signature: str
    """sacrebleu's own, by which scores are comparable."""


def can_score() -> bool:
    """Whether there is a sacrebleu."""
    return find_spec("sacrebleu") is not None


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacrebleu's default: cased, raw text, one reference each."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(found.score, str(metric.get_signature()))
