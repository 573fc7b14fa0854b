"""Pairs by rule: what they look like, and that the rule is the one that is told."""

import jax
import numpy as np
import pytest

from jaxformer.data.tasks import COPY, EOS, PAD, REVERSE, SOS, SPECIAL, TASKS
from jaxformer.errors import InputError
from tests.tiny import quick_key

BATCH = 300


@pytest.fixture(scope="module")
def drawn():
    return {
        name: jax.tree.map(np.asarray, jax.jit(task.draw, static_argnums=1)(quick_key(0), BATCH))
        for name, task in TASKS.items()
    }


def reversed_by_hand(text: str) -> str:
    turned = [str(9 - int(character)) if character.isdigit() else character.upper() for character in text]
    return "".join([*turned, turned[-1]][::-1])


def test_the_example():
    assert reversed_by_hand("123456qwer") == "RREWQ345678"


def test_targets_follow_the_rule(drawn):
    rules = {"reverse": reversed_by_hand, "copy": lambda text: text}
    for name, task in TASKS.items():
        pairs = drawn[name]
        for source, target in zip(pairs.source, pairs.target, strict=True):
            assert task.decode(target) == rules[name](task.decode_source(source))


@pytest.mark.parametrize("name", TASKS)
def test_every_row_is_framed(drawn, name):
    task, pairs = TASKS[name], drawn[name]
    for ids in pairs:
        assert ids.dtype == np.int32
        for row in ids:
            end = list(row).index(EOS)
            assert row[0] == SOS
            assert row[1:end].min() >= len(SPECIAL)
            assert row.max() < task.vocab_size
            assert (row[end + 1 :] == PAD).all()
    lengths = (pairs.source >= len(SPECIAL)).sum(1)
    assert set(lengths) == set(range(task.shortest, task.longest + 1))


def test_the_reversal_has_the_tutorials_sizes(drawn):
    assert REVERSE.vocab_size == 39
    assert drawn["reverse"].source.shape == (BATCH, 50)
    assert drawn["reverse"].target.shape == (BATCH, 51)
    assert list(REVERSE.encode("09qm")) == [SOS, 3, 12, 13, 38, EOS]


def test_what_was_written_has_its_ids_again():
    ids = [13, PAD, 38, 3]
    assert REVERSE.decode(np.array([SOS, *ids, EOS, 5])) == "Q<PAD>M0"
    assert list(REVERSE.encode_target("Q<PAD>M0")) == ids


@pytest.mark.parametrize("name", TASKS)
def test_symbols_come_as_often_as_their_weights_say(drawn, name):
    task = TASKS[name]
    symbols = drawn[name].source[drawn[name].source >= len(SPECIAL)] - len(SPECIAL)
    chances = np.array(task.weights) / sum(task.weights)
    counts = np.bincount(symbols, minlength=len(chances))
    assert (np.abs(counts - len(symbols) * chances) < 5 * np.sqrt(len(symbols) * chances)).all()


def test_the_key_decides():
    first, again, other = (np.asarray(COPY.draw(quick_key(seed), 4).source) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_reading_and_writing():
    assert COPY.decode_source(COPY.encode("2718")) == "2718"
    assert REVERSE.decode(np.array([SOS, 13, 14, EOS, 15, PAD])) == "QW"
    with pytest.raises(InputError, match=r"prompt: character 'ß' \(position 2\) is not one of 0123456789qwerty"):
        REVERSE.encode("12ß4")
