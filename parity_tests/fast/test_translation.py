"""Targets of an encoder-decoder: the same tokens on both sides, greedily and by beam, and as a plain pass would choose them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding import translate, translate_beam
from jaxformer.decoding.beam import BeamShape, make_beam
from jaxformer.decoding.prepare import moved_right
from jaxformer.decoding.translation import _translate_beam
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.nn.masks import padding_mask
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.probe import excite, probe
from parity_tests.support.helpers import usually
from torch_ref.decoding.translation import translate as torch_translate
from torch_ref.decoding.translation import translate_beam as torch_translate_beam
from torch_ref.models import EncoderDecoder as TorchEncoderDecoder

pytestmark = pytest.mark.usefixtures("float64")

START, EOS, N = 0, 1, 13
CONFIGS = {
    "post, shared embedding": EncoderDecoderConfig(
        vocab_size=7,
        context=17,
        d_model=12,
        n_layers=2,
        n_decoder_layers=3,
        n_heads=3,
        d_ff=20,
        norm_position="post",
        layers="rolled",
    ),
    "pre, two vocabularies, few key heads": EncoderDecoderConfig(
        vocab_size=6,
        source_vocab_size=9,
        context=17,
        d_model=12,
        n_layers=1,
        n_heads=6,
        n_kv_heads=2,
        d_ff=20,
        positions="sinusoid",
        head_bias=True,
        layers="rolled",
    ),
}
BEAMS = {
    "three": BeamConfig(width=3, n_best=3, early_stopping=True),
    "all that there is": BeamConfig(width=6, n_best=4, length_penalty=0.0),
    "until nothing is better": BeamConfig(width=4, n_best=2, length_penalty=2.0, early_stopping="never"),
    "for short ones": BeamConfig(width=4, n_best=2, length_penalty=-0.5),
    "no run of two twice": BeamConfig(width=3, n_best=2, no_repeat_ngram=2),
    "forced and suppressed": BeamConfig(width=3, n_best=3, forced=((0, 4), (3, 2), (-1, EOS)), suppressed=(5,), min_tokens=2),
    "one": BeamConfig(width=1, length_penalty=0.6),
}
FIRST, SECOND = CONFIGS
SEEDS = dict(zip(CONFIGS, (114, 172), strict=True))
"""Models that end some rows early, and others not."""
configs = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def case(name):
    """A float64 model, its twin, and sources with padding of every kind but all."""
    with jax.enable_x64(True):
        config = CONFIGS[name]
        start = excite(abstract(config), seed=SEEDS[name])
        twin = load_torch(TorchEncoderDecoder(config), start).double().eval()
        source, valid = probe(config.source_ids, 6, 11, seed=5)
        return to_float64(start), twin, source[:-1], valid[:-1]


def trimmed(tokens):
    """Up to the first end, which stays."""
    tokens = [int(token) for token in tokens]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.mark.first(1)
@configs
def test_greedy_equals_torchs(name):
    model, twin, source, valid = case(name)
    ours = translate(model, source, N, start=START, eos=EOS, valid=valid)
    theirs = torch_translate(twin, torch.from_numpy(source), N, start=START, eos=EOS, valid=torch.from_numpy(valid))
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert len(np.unique(ours)) > 2


@pytest.mark.slow
@configs
def test_greedy_is_the_argmax_of_a_full_pass_each_time(name):
    model, _, source, valid = case(name)
    ours = translate(model, source, N, start=START, eos=EOS, valid=valid)
    source, valid = moved_right(source, valid)
    mask = padding_mask(jnp.asarray(valid))
    fed = np.concatenate([np.full((len(source), 1), START), ours[:, :-1]], 1)
    logits = np.asarray(model(source, fed, source_mask=mask))
    for row, chosen in zip(logits.argmax(-1), ours, strict=True):
        n = len(trimmed(chosen))
        np.testing.assert_array_equal(row[:n], chosen[:n])
        assert (chosen[n:] == EOS).all()


@pytest.mark.slow
@configs
def test_a_repetition_penalty_equals_torchs(name):
    model, twin, source, valid = case(name)
    sampling = SamplingConfig(temperature=0.0, repetition_penalty=1.7)
    ours = translate(model, source, N, sampling, start=START, eos=EOS, valid=valid)
    theirs = torch_translate(twin, torch.from_numpy(source), N, sampling, start=START, eos=EOS, valid=torch.from_numpy(valid))
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert (ours != translate(model, source, N, start=START, eos=EOS, valid=valid)).any()


SEARCHES = {name: (FIRST, beam) for name, beam in BEAMS.items()} | {"of the second model": (SECOND, BEAMS["three"])}


@pytest.mark.first(1)
@pytest.mark.parametrize("search", usually(SEARCHES, "until nothing is better"))
def test_beams_equal_torchs(search):
    name, beam = SEARCHES[search]
    model, twin, source, valid = case(name)
    tokens, scores = translate_beam(model, source, N, beam, start=START, eos=EOS, valid=valid)
    theirs = torch_translate_beam(twin, torch.from_numpy(source), N, beam, start=START, eos=EOS, valid=torch.from_numpy(valid))
    for row, wanted in enumerate(theirs):
        found = np.isfinite(scores[row])
        assert [trimmed(sequence) for sequence in tokens[row][found]] == [sequence for sequence, _ in wanted]
        np.testing.assert_allclose(scores[row][found], [score for _, score in wanted], rtol=1e-12)


@pytest.mark.slow
@configs
def test_width_1_is_greedy(name):
    model, _, source, valid = case(name)
    tokens, _ = translate_beam(model, source, N, BeamConfig(width=1), start=START, eos=EOS, valid=valid)
    np.testing.assert_array_equal(tokens[:, 0], translate(model, source, N, start=START, eos=EOS, valid=valid))


@pytest.mark.slow
@pytest.mark.parametrize("name", [FIRST])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.5])
def test_a_beam_wide_enough_finds_the_best_of_all(name, penalty):
    """Every sequence of up to three tokens, scored by plain passes."""
    model, _, source, valid = case(name)
    vocab_size, longest = model.config.vocab_size, 3
    others = [token for token in range(vocab_size) if token != EOS]
    sequences = [(*body, EOS) for n in range(longest) for body in itertools.product(others, repeat=n)]
    sequences += list(itertools.product(others, repeat=longest))
    padded = np.array([[START, *s, *[EOS] * (longest - len(s))] for s in sequences])
    lengths = np.array([len(s) for s in sequences])
    run = jax.jit(lambda source, mask: jax.nn.log_softmax(model(source, padded[:, :-1], source_mask=mask), -1))
    beam = BeamConfig(width=1, length_penalty=penalty, early_stopping="never")
    width = vocab_size**longest
    numbers, _ = make_beam(beam, EOS, None, vocab_size=vocab_size, n_tokens=longest, size=16)
    shape = BeamShape(width, n_best=1, ngram=0, candidates=2 * width)
    tokens, scores, _ = _translate_beam(model, source[:2], valid[:2], np.array([START]), np.int32(longest), numbers, 16, shape)
    for row in range(2):
        wide = np.repeat(source[row : row + 1], len(sequences), 0)
        chances = np.asarray(run(wide, padding_mask(jnp.asarray(valid[row : row + 1]))))
        each = np.take_along_axis(chances, padded[:, 1:, None], 2)[..., 0]
        totals = np.where(np.arange(longest) < lengths[:, None], each, 0).sum(1) / lengths**penalty
        assert tuple(trimmed(tokens[row, 0][:longest])) == sequences[totals.argmax()]
        np.testing.assert_allclose(scores[row, 0], totals.max(), rtol=1e-12)


@pytest.mark.slow
def test_a_longer_sequence_wins_with_a_higher_penalty():
    model, _, source, valid = case(FIRST)

    def length(penalty):
        beam = BeamConfig(width=5, length_penalty=penalty, early_stopping="never")
        tokens, _ = translate_beam(model, source, N, beam, start=START, eos=EOS, valid=valid)
        return sum(len(trimmed(row)) for row in tokens[:, 0])

    assert length(0.0) < length(3.0)


@pytest.mark.slow
def test_rules_are_kept():
    model, _, source, valid = case(FIRST)
    beam = BEAMS["forced and suppressed"]
    tokens, _ = translate_beam(model, source, N, beam, start=START, eos=EOS, valid=valid)
    assert (tokens[..., 0] == 4).all()
    assert not (tokens == 5).any()
    tokens, _ = translate_beam(model, source, N, BEAMS["no run of two twice"], start=START, eos=EOS, valid=valid)
    for row in tokens.reshape(-1, N):
        pairs = list(itertools.pairwise(trimmed(row)))
        assert len(pairs) == len(set(pairs))
