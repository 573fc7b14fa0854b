"""Parallel texts, line by line: a corpus by name, two text files, or one file of two columns."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from jaxformer.data.corpora import CORPORA, UNPACKED, find, read_text
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError

HELD_OUT = 1000
"""Number of pairs at the end of a training set that validate if no others are given; at most a tenth of the set."""


class Parallel(NamedTuple):
    """Texts and their translations."""

    sources: list[str]
    targets: list[str]


class Splits(NamedTuple):
    """Pairs to train on, to select the best model, and to test it."""

    train: Parallel
    validation: Parallel
    test: Parallel


def read_splits(
    data: Sequence[str], validation: Sequence[str] = (), test: Sequence[str] = (), *, unpacked: int = UNPACKED
) -> Splits:
    """Read a corpus's own splits, or those of files.

    Without validation files, the end of the training pairs is held out; without test files, the validation pairs are tested.
    """
    train, own = read_parallel(data, unpacked=unpacked), len(data) == 1 and "train.source" in CORPORA.get(data[0], {})
    if validation or own:
        validating = read_parallel(validation or data, "validation", unpacked)
    elif (held := min(HELD_OUT, len(train.sources) // 10)) == 0:
        raise InputError(f"data: {len(train.sources)} pairs are too few to hold some out; give ten or more, or --validation")
    else:
        validating = Parallel(train.sources[-held:], train.targets[-held:])
        train = Parallel(train.sources[:-held], train.targets[:-held])
    testing = read_parallel(test or data, "test", unpacked) if test or own else validating
    return Splits(train, validating, testing)


def read_parallel(data: Sequence[str], split: str = "train", unpacked: int = UNPACKED) -> Parallel:
    """Read the pairs of a corpus by name (one of its splits), of two text files, or of one file with a tab in each line.

    Files are UTF-8, and may be packed as .gz, of at most `unpacked` MiB each. Pairs with an empty side are left out, with a
    warning. InputError names the file and the line that does not fit.
    """
    if isinstance(data, str) or not 1 <= len(data) <= 2:
        raise InputError(
            f"data: {data!r:.60} is not one or two names; give a corpus, one file of two columns, or a source and a target file"
        )
    parts = [f"{split}.source", f"{split}.target"]
    if len(data) == 2:
        paths = [find(name, part) for name, part in zip(data, parts, strict=True)]
    elif parts[0] in CORPORA.get(data[0], {}):
        paths = [find(data[0], part) for part in parts]
    else:
        paths = [find(data[0], parts[0])]
    sides = [lines(path, unpacked) for path in paths] if len(paths) == 2 else columns(paths[0], unpacked)
    return _aligned(sides, [str(path) for path in paths] * (3 - len(paths)))


def lines(path: Path, unpacked: int = UNPACKED) -> list[str]:
    """Read the lines of a text file, without their ends; only a line feed, alone or after a carriage return, ends a line."""
    return [line.removesuffix("\r") for line in read_text(path, unpacked).removesuffix("\n").split("\n")]


def columns(path: Path, unpacked: int) -> tuple[list[str], list[str]]:
    """Read the two columns of a file with a tab in each line."""
    rows = [line.split("\t") if line.strip() else ["", ""] for line in lines(path, unpacked)]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise InputError(f"{path} line {number} has {len(row)} columns; give a source, a tab and a target in each line")
    return [row[0] for row in rows], [row[1] for row in rows]


def encode_pairs(
    tokenizer: Tokenizer, pairs: Parallel, longest: int
) -> tuple[list[Int32[np.ndarray, " _"]], list[Int32[np.ndarray, " _"]]]:
    """Encode sources, with an end token, and targets, between start and end tokens.

    A pair with more than `longest` tokens on a side is left out, with a warning.
    """
    start, end, _ = tokenizer.frame
    sources = [np.append(row, end).astype(np.int32) for row in tokenizer.encode_all(pairs.sources)]
    targets = [np.concatenate([[start], row, [end]]).astype(np.int32) for row in tokenizer.encode_all(pairs.targets)]
    kept = [i for i, both in enumerate(zip(sources, targets, strict=True)) if max(map(len, both)) <= longest]
    if not kept:
        raise InputError(f"no pair has at most {longest} tokens a side; allow longer ones")
    if left := len(sources) - len(kept):
        warnings.warn(f"{left} of {len(sources)} pairs have more than {longest} tokens and are left out", stacklevel=2)
    return [sources[i] for i in kept], [targets[i] for i in kept]


def _aligned(sides: Sequence[list[str]], names: Sequence[str]) -> Parallel:
    """Keep the pairs that have text on both sides."""
    counts = [len(side) for side in sides]
    if counts[0] != counts[1]:
        longer = counts[1] > counts[0]
        raise InputError(
            f"{names[0]} has {counts[0]} lines, {names[1]} {counts[1]}: line {min(counts) + 1} of {names[longer]} has no "
            f"partner; give as many lines in both"
        )
    whole = [i for i, pair in enumerate(zip(*sides, strict=True)) if all(text.strip() for text in pair)]
    if not whole:
        raise InputError(f"{names[0]} holds no pair of which both sides have text; give some")
    if left := counts[0] - len(whole):
        first = next(i for i, line in enumerate([*whole, counts[0]]) if i != line)
        side = names[bool(sides[0][first].strip())]
        warnings.warn(f"{side} line {first + 1} is empty; {left} of {counts[0]} pairs are left out", stacklevel=3)
    return Parallel(*([side[i] for i in whole] for side in sides))
