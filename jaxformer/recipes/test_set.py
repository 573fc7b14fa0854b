"""Translations of the test set: BLEU, and a table of all of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from jaxformer.config.settings import BeamConfig
from jaxformer.data.parallel import Parallel
from jaxformer.processes.group import is_first
from jaxformer.training.bleu import can_score, score
from jaxformer.training.runs import RunFolder
from jaxformer.training.translator import Translator
from jaxformer.whole_files import written_whole

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
