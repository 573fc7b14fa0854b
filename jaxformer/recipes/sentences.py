"""Sentence pairs of a translation: its tokenizer, its batches, and the checksums that bind a run to them."""

from hashlib import sha256
from pathlib import Path

from jaxformer.checkpoints.trained import load_tokenizer
from jaxformer.data.batches import Buckets
from jaxformer.data.parallel import Parallel, Splits, encode_pairs
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.recipes.settings import Translate
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder

EVALUATION_SHAPES = 4
"""Maximum number of batch shapes of the held-out pairs."""


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
