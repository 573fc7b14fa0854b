"""Tokenizer of a translation: that of the run to resume, a given one, or one trained on both languages."""

from pathlib import Path
from typing import Any

from jaxformer.checkpoints.trained import load_tokenizer
from jaxformer.data.parallel import Parallel
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.runs.folder import RunFolder


def tokenizer_of(recipe: Any, out: Path, pairs: Parallel, *, is_given: bool) -> Tokenizer:
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


def read_tokenizer(recipe: Any, pairs: Parallel) -> Tokenizer:
    """Read the tokenizer of --tokenizer, or train one on both languages."""
    if recipe.tokenizer is None:
        return Tokenizer.train_bpe([*pairs.sources, *pairs.targets], recipe.model.vocab_size)
    return (Tokenizer.wordpiece if recipe.tokenizer.suffix == ".txt" else Tokenizer.load)(recipe.tokenizer)
