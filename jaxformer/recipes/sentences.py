"""Sentence pairs of a translation: tokenizer, batches, the checksums that bind a run to them, and the translated test set."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from jaxformer.checkpoints.trained import load_tokenizer
from jaxformer.checkpoints.translator import Translator
from jaxformer.config.settings import BeamConfig
from jaxformer.data.batches import Buckets
from jaxformer.data.parallel import Parallel, Splits, encode_pairs
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.io.atomic import written_whole
from jaxformer.parallel.group import is_first
from jaxformer.recipes.settings import Translate
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder

EVALUATION_SHAPES = 4
"""Maximum number of batch shapes of the held-out pairs."""
BEAM = BeamConfig(width=5, early_stopping=True)
"""Beam search for the test set, which is also translated greedily."""


def tokenizer_of(recipe: Translate, out: Path, pairs: Parallel, *, is_given: bool) -> Tokenizer:
    """Return the tokenizer of a run.

    A resumed run keeps its own. If that file is missing, or --tokenizer is given again, the named file may have moved but must
    have the same content: otherwise InputError.
    """
    if not recipe.resume:
        return read_tokenizer(recipe, pairs)
    run, path = RunFolder.open(out), recipe.tokenizer
    if run.tokenizer.exists() and not is_given:
        return load_tokenizer(run)
    if path is not None and not path.exists():
        raise InputError(f"{path} is not there; give a copy of the tokenizer that {out} began with: --tokenizer FILE")
    tokenizer = read_tokenizer(recipe, pairs)
    if path is not None and tokenizer.sha256 != run.config.get("tokenizer_sha256"):
        raise InputError(f"--tokenizer is not what {out} began with: the sha256 of {path} differs; give a copy of that one")
    return tokenizer


def read_tokenizer(recipe: Translate, pairs: Parallel) -> Tokenizer:
    """Read the tokenizer of --tokenizer, or train one on both languages."""
    if recipe.tokenizer is None:
        return Tokenizer.train_bpe([*pairs.sources, *pairs.targets], recipe.model.vocab_size)
    return (Tokenizer.wordpiece if recipe.tokenizer.suffix == ".txt" else Tokenizer.load)(recipe.tokenizer)


def make_buckets(recipe: Translate, tokenizer: Tokenizer, splits: Splits) -> tuple[Buckets, Buckets]:
    """Encode the training and the held-out pairs, and sort them into batches."""
    train, held_out = (encode_pairs(tokenizer, pairs, recipe.longest) for pairs in (splits.train, splits.validation))
    sizes = {"pad": tokenizer.frame.pad, "budget": recipe.batch, "multiple": recipe.row_parts}
    return (
        Buckets(*train, shapes=recipe.shapes, parts=recipe.parts, **sizes),
        Buckets(*held_out, shapes=min(EVALUATION_SHAPES, recipe.shapes), **sizes),
    )


def facts_of(tokenizer: Tokenizer, pairs: Buckets, splits: Splits) -> dict[str, str]:
    """Return checksums of the data that a run is bound to: tokenizer, training pairs, validation and test set."""
    held_out = {"validation_sha256": splits.validation, "test_sha256": splits.test}
    measured = {name: sha256(repr(texts).encode()).hexdigest() for name, texts in held_out.items()}
    return {"tokenizer_sha256": tokenizer.sha256, "sha256": digest([pairs.sources, pairs.targets]), **measured}


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
