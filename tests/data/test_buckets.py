"""Pairs in batches: every pair once an epoch, few shapes, little padding, and nothing that a step number does not decide."""

from collections import Counter

import numpy as np
import pytest

import jaxformer.data.batches
from jaxformer.data.batches import Buckets
from jaxformer.errors import InputError, JaxformerError

PAD = 0


def made(lengths, **changes):
    """Pairs of which every token is the pair's number + 1."""
    sides = [[np.full(n, i + 1, np.int32) for i, n in enumerate(side)] for side in lengths]
    return Buckets(*sides, **({"pad": PAD, "budget": 100, "shapes": 6} | changes))


@pytest.fixture(scope="module")
def buckets():
    random = np.random.default_rng(0)
    source = random.integers(3, 20, 500)
    return made((source, np.clip(source + random.integers(-3, 4, 500), 3, None)))


def visited(batches):
    """How often each pair was there, as a source and as a target."""
    rows = [(int(s[0]), int(t[0])) for batch in batches for s, t in zip(*batch, strict=True) if s[0] != PAD]
    assert all(source == target for source, target in rows)
    return Counter(source for source, _ in rows)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_visits_every_pair_once(buckets, epoch):
    assert visited(buckets.epoch(seed=3, epoch=epoch)) == Counter(range(1, 501))


def test_a_batch_depends_on_seed_and_step_alone(buckets):
    again = Buckets(buckets.sources, buckets.targets, pad=PAD, budget=100, shapes=6)
    for step in (buckets.steps + 3, 0, 7):
        for one, other in zip(buckets.batch(5, step), again.batch(5, step), strict=True):
            np.testing.assert_array_equal(one, other)


def test_epochs_and_seeds_differ(buckets):
    firsts = [buckets.batch(seed, step).source.tobytes() for seed, step in ((0, 0), (0, buckets.steps), (1, 0))]
    assert len(set(firsts)) == 3


def test_whole_texts_stand_at_the_left(buckets):
    lengths = {i + 1: n for i, n in enumerate(buckets.lengths.tolist())}
    for batch in buckets.epoch():
        for source, target in zip(*batch, strict=True):
            if source[0] != PAD:
                assert [(row != PAD).sum() for row in (source, target)] == lengths[int(source[0])]
                assert [(row != PAD).argmin() if PAD in row else len(row) for row in (source, target)] == lengths[
                    int(source[0])
                ]


def test_batches_keep_to_their_budget_and_shapes(buckets):
    batches = list(buckets.epoch())
    assert max(batch.source.size + batch.target.size for batch in batches) <= 100
    assert len({(batch.source.shape, batch.target.shape) for batch in batches}) == 6
    assert len(batches) == buckets.steps


def test_padding_is_counted(buckets):
    tokens = [side for batch in buckets.epoch() for side in batch]
    assert buckets.padding == pytest.approx(1 - sum((side != PAD).sum() for side in tokens) / sum(side.size for side in tokens))


@pytest.mark.slow
def test_more_shapes_pad_less():
    random = np.random.default_rng(1)
    lengths = random.integers(3, 40, (2, 800))
    padding = [made(lengths, budget=400, shapes=shapes).padding for shapes in (1, 4, 16, 64)]
    assert padding == sorted(padding, reverse=True)
    assert padding[-1] < 0.2 < padding[0]


def test_parts_divide_every_batch():
    batches = list(made((np.arange(3, 30), np.arange(3, 30)), parts=4, budget=300).epoch())
    assert all(len(batch.source) % 4 == 0 for batch in batches)
    assert visited(batches) == Counter(range(1, 28))


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_keep_to_the_budget(parts):
    draw = np.random.default_rng(2)
    batches = list(made(draw.integers(3, 20, (2, 300)), budget=300, parts=parts).epoch())
    assert max(batch.source.size + batch.target.size for batch in batches) <= 300
    assert visited(batches) == Counter(range(1, 301))


def test_widely_spread_lengths_are_rounded_more_coarsely_first(monkeypatch):
    monkeypatch.setattr(jaxformer.data.batches, "MOST_CELLS", 4)
    buckets = made(np.random.default_rng(3).integers(3, 250, (2, 500)), budget=4096, shapes=16)
    assert len(buckets.buckets) <= 4
    assert visited(buckets.epoch()) == Counter(range(1, 501))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shapes": 0}, "shapes = 0 is out of range"),
        ({"parts": 0}, "parts = 0 is out of range"),
        ({"parts": 9}, "9 pairs take 135 tokens, more than a batch of 100 holds"),
    ],
)
def test_sizes_that_make_no_batches(changes, said):
    with pytest.raises(JaxformerError, match=said):
        made(([6, 6], [9, 9]), **changes)


@pytest.mark.parametrize("lengths", [([], []), ([3], [3, 3])])
def test_sides_that_make_no_pairs(lengths):
    with pytest.raises(InputError, match="give one or more, and as many of both"):
        made(lengths)


def test_a_pair_longer_than_the_budget():
    with pytest.raises(InputError, match="a pair takes 105 tokens, more than a batch of 100 holds; give a larger batch"):
        made(([3, 52], [3, 52]))


@pytest.mark.slow
def test_multi30k_has_little_padding(multi30k):
    from jaxformer.data.parallel import encode_pairs, read_parallel
    from jaxformer.data.tokenizers import Tokenizer

    pairs = read_parallel([multi30k])
    tokenizer = Tokenizer.train_bpe([*pairs.sources, *pairs.targets], 8000)
    sources, targets = encode_pairs(tokenizer, pairs, 100)
    buckets = Buckets(sources, targets, pad=tokenizer.frame.pad, budget=4096, shapes=16)
    assert len(buckets.sources) == 29_000
    assert buckets.padding < 0.1
