"""Translate the test set: BLEU, and a table of the translations."""

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
"""Beam search for the test set, which is also translated greedily."""


def translate_test_set(folder: RunFolder, translator: Translator, pairs: Parallel, console: Console, *, show: int) -> None:
    """Translate the test set greedily and by beam search, save both, print some, and print BLEU."""
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
    """Write translations.tsv by an atomic write: column names, then a line for each test pair."""
    if not is_first():
        return
    rows = [columns, *zip(*columns.values(), strict=True)]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    with written_whole(table_of(folder.path)) as unfinished:
        unfinished.write_text(text, "utf-8")


def table_of(folder: Path) -> Path:
    """Path of the translations of the test set, the last file that a run writes."""
    return folder / "translations.tsv"


class Score(NamedTuple):
    """BLEU of a corpus, and how it was measured."""

    bleu: float
    """BLEU, 0 to 100."""
    signature: str
    """sacrebleu's signature; scores with equal signatures are comparable."""


def can_score() -> bool:
    """True if sacrebleu is installed."""
    return find_spec("sacrebleu") is not None


def score(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Compute BLEU with sacrebleu's defaults: cased, raw text, one reference each."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    found = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(found.score, str(metric.get_signature()))
