"""Batches of token ids, each a pure function of its step: windows of a long text, and bucketed pairs of few shapes."""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from jaxformer.config.settings import IGNORE_INDEX
from jaxformer.data.tasks import Pairs
from jaxformer.errors import InputError
from jaxformer.validation.fields import check_size


class Windows(NamedTuple):
    """Inputs and targets, both `B T`; a target below 0 is not counted."""

    inputs: Int[Array, "B T"] | np.ndarray
    targets: Int[Array, "B T"] | np.ndarray


def split(ids: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Split a text: the first nine tenths to train on, the rest to validate."""
    cut = len(ids) * 9 // 10
    shorter = min(cut, len(ids) - cut)
    if shorter <= context:
        raise InputError(
            f"the text has {len(ids)} tokens, its shorter split {shorter}; a window takes {context + 1}: give a longer text or "
            f"a smaller context"
        )
    return ids[:cut], ids[cut:]


def draw_windows(ids: Int[Array, " X"], key: PRNGKeyArray, batch: int, context: int) -> Windows:
    """Draw `batch` windows at random positions: a pure function of the key, on the device."""
    starts = jax.random.randint(key, (batch, 1), 0, ids.shape[0] - context, jnp.int32)
    windows = ids[starts + jnp.arange(context + 1, dtype=jnp.int32)[None]]
    return Windows(windows[:, :-1], windows[:, 1:])


def cover(ids: np.ndarray, batch: int, context: int) -> Windows:
    """Cut a whole text into windows `X B T` that predict each token but the first once; the last ones are padded."""
    rows = -(-(len(ids) - 1) // context)
    rows += -rows % batch
    inputs = np.zeros(rows * context, np.int32)
    targets = np.full(rows * context, IGNORE_INDEX, np.int32)
    inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
    return Windows(inputs.reshape(-1, batch, context), targets.reshape(-1, batch, context))


GRAIN = 2
"""Granularity of the widths that a model reads, in tokens: XLA compiles and runs odd widths more slowly."""
MOST_CELLS = 400
"""Most different widths to merge pairwise; if there are more, they are rounded more coarsely first."""
UNREAD = np.array([0, 1])
"""Tokens of source and target that are not read: a target's last token is only predicted."""


class Bucket(NamedTuple):
    """Pairs that share a batch shape."""

    members: Int[np.ndarray, " X"]
    """Indices of the pairs."""
    rows: int
    """Number of pairs per batch."""
    widths: tuple[int, int]
    """Number of tokens of a source and of a target."""

    @property
    def batches(self) -> int:
        """Number of batches that hold every member once; the last one may have empty rows."""
        return -(-len(self.members) // self.rows)


class Buckets:
    """All pairs in batches of at most `budget` tokens (both sides, padding included) and at most `shapes` shapes.

    Every epoch visits each pair once, in a new order. Lengths are rounded up; then the two shapes whose union costs the least
    padding are merged, until few enough are left. `parts` divides the rows of every batch; each part is filled up with empty
    rows to a `multiple`, which changes neither the pairs of a batch nor their order.
    """

    def __init__(
        self,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        *,
        pad: int,
        budget: int,
        shapes: int,
        parts: int = 1,
        multiple: int = 1,
    ):
        for name, size in (("budget", budget), ("shapes", shapes), ("parts", parts), ("multiple", multiple)):
            check_size(name, size)
        if not len(sources) == len(targets) > 0:
            raise InputError(f"{len(sources)} sources and {len(targets)} targets; give one or more, and as many of both")
        self.sources, self.targets, self.pad = sources, targets, pad
        self.parts, self.multiple = parts, multiple
        lengths = np.array([(len(source), len(target)) for source, target in zip(sources, targets, strict=True)])
        if (longest := parts * _rounded(lengths).sum(1).max()) > budget:
            many = "a pair takes" if parts == 1 else f"{parts} pairs take"
            raise InputError(f"{many} {longest} tokens, more than a batch of {budget} holds; give a larger batch")
        self.lengths = lengths
        self.buckets = [_bucket(members, lengths, budget, parts) for members in _grouped(lengths, shapes)]
        self.epoch_order = lru_cache(maxsize=2)(self._order)

    @cached_property
    def steps(self) -> int:
        """Number of batches per epoch."""
        return sum(bucket.batches for bucket in self.buckets)

    @property
    def tokens(self) -> int:
        """Number of tokens per epoch, of both sides, without padding."""
        return int(self.lengths.sum())

    @property
    def padding(self) -> float:
        """Fraction of padding among all tokens in an epoch's batches."""
        return 1 - self.tokens / sum(bucket.batches * bucket.rows * sum(bucket.widths) for bucket in self.buckets)

    def batch(self, seed: int, step: int) -> Pairs:
        """Return the batch of a step."""
        number, members = self.epoch_order(seed, step // self.steps)[step % self.steps]
        return self._filled(self.buckets[number], members)

    def epoch(self, seed: int = 0, epoch: int = 0) -> Iterator[Pairs]:
        """Yield every batch of an epoch."""
        return (self.batch(seed, epoch * self.steps + step) for step in range(self.steps))

    def _order(self, seed: int, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Return the bucket and the members of every batch of an epoch."""
        random = np.random.default_rng((seed, epoch))
        batches = [
            (number, members)
            for number, bucket in enumerate(self.buckets)
            for members in np.array_split(random.permutation(bucket.members), bucket.batches)
        ]
        return [batches[i] for i in random.permutation(len(batches))]

    def _filled(self, bucket: Bucket, members: np.ndarray) -> Pairs:
        sides = []
        for texts, width in zip((self.sources, self.targets), bucket.widths, strict=True):
            side = np.full((bucket.rows, width), self.pad, np.int32)
            for row, member in zip(side, members, strict=False):
                row[: len(texts[member])] = texts[member]
            rows = side.reshape(self.parts, -1, width)
            more = ((0, 0), (0, -rows.shape[1] % self.multiple), (0, 0))
            sides.append(np.pad(rows, more, constant_values=self.pad).reshape(-1, width))
        return Pairs(*sides)


def _bucket(members: np.ndarray, lengths: np.ndarray, budget: int, parts: int) -> Bucket:
    """Build a bucket with as many rows as the budget allows, spread evenly over the number of batches which that takes."""
    source, target = (int(width) for width in _rounded(lengths[members].max(0)))
    most = budget // (source + target) // parts * parts
    rows = -(-len(members) // -(-len(members) // most))
    return Bucket(members, rows + -rows % parts, (source, target))


def _rounded(lengths: np.ndarray, grain: int = GRAIN) -> np.ndarray:
    """Round lengths of sources and targets up to the next widths."""
    return -(-(lengths - UNREAD) // grain) * grain + UNREAD


def _grouped(lengths: np.ndarray, shapes: int) -> list[np.ndarray]:
    """Return the indices of the pairs of each shape."""
    grain = GRAIN
    while len(np.unique(_rounded(lengths, grain), axis=0)) > MOST_CELLS:
        grain *= 2
    cells, cell, counts = np.unique(_rounded(lengths, grain), axis=0, return_inverse=True, return_counts=True)
    group = np.arange(len(cells))
    while len(alive := np.unique(group)) > shapes:
        widths, count = cells[alive], counts[alive]
        size = widths.sum(1) * count
        together = np.maximum(widths[:, None], widths).sum(2) * (count[:, None] + count)
        cost = (together - size[:, None] - size).astype(float)
        np.fill_diagonal(cost, np.inf)
        keep, gone = alive[list(np.unravel_index(cost.argmin(), cost.shape))]
        cells[keep], counts[keep] = np.maximum(cells[keep], cells[gone]), counts[keep] + counts[gone]
        group[group == gone] = keep
    return [np.flatnonzero(group[cell.reshape(-1)] == number) for number in np.unique(group)]
