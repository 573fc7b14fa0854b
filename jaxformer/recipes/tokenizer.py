"""The tokenizer of a translation: that of the run that goes on, one that is given, or one that is trained on both languages."""

from pathlib import Path
from typing import Any

from jaxformer.checkpoints.trained import load_tokenizer
from jaxformer.data.parallel import Parallel
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.runs.folder import RunFolder


def tokenizer_of(recipe: Any, out: Path, pairs: Parallel, *, is_given: bool) -> Tokenizer:
    """That of a run. One that goes on keeps its own; where that is missing, or --tokenizer is given anew, the file that is
    named may lie elsewhere by then, and has to hold the same: InputError where it does not."""
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
    """The tokenizer of --tokenizer, or one that is trained on both languages."""
    if recipe.tokenizer is None:
        return Tokenizer.train_bpe([*pairs.sources, *pairs.targets], recipe.model.vocab_size)
    return (Tokenizer.wordpiece if recipe.tokenizer.suffix == ".txt" else Tokenizer.load)(recipe.tokenizer)
