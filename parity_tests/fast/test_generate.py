"""Generated tokens, step by step the same on both sides; and what each rule of sampling keeps."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding import generate, generate_beam, sampling
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from torch_ref.decoding import sampling as torch_sampling
from torch_ref.decoding.generate import generate as torch_generate
from torch_ref.decoding.generate import generate_beam as torch_generate_beam
from torch_ref.models import GPT as TORCH_GPT

CONFIG = GPTConfig(vocab_size=23, context=19, d_model=12, n_layers=2, n_heads=3, d_ff=20)
GREEDY = SamplingConfig(temperature=0.0)


@pytest.mark.first(2)
@pytest.mark.parametrize("prompt_length", [1, 7, 19, 25])
def test_greedy_tokens_are_identical_past_the_context_too(prompt_length, float64):
    start = excite(abstract(CONFIG), seed=9)
    prompt = np.random.default_rng(prompt_length).integers(0, CONFIG.vocab_size, (3, prompt_length))
    ours = generate(to_float64(start), prompt, 30, GREEDY)
    theirs = torch_generate(load_torch(TORCH_GPT(CONFIG), start).double(), torch.from_numpy(prompt), 30, GREEDY)
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert len(np.unique(ours)) > 3


@pytest.mark.slow
def test_another_model_writes_something_else():
    prompt = np.zeros((1, 3), np.int32)
    first, second = (generate(excite(abstract(CONFIG), seed), prompt, 12, GREEDY) for seed in (9, 7))
    assert (first != second).any()


@pytest.mark.slow
def test_tied_sinusoid_model_too(float64):
    config = replace(CONFIG, tied=True, positions="sinusoid", n_kv_heads=1, projections="fused")
    start = excite(abstract(config), seed=9)
    prompt = np.array([[5, 1, 2, 0]])
    theirs = torch_generate(load_torch(TORCH_GPT(config), start).double(), torch.from_numpy(prompt), 20, GREEDY)
    np.testing.assert_array_equal(generate(to_float64(start), prompt, 20, GREEDY), theirs.numpy())


WAYS = {"left": lambda valid: valid, "right": lambda valid: valid[:, ::-1], "inside": lambda valid: np.roll(valid, 3, 1)}
"""Where the padding of a prompt stands."""


@pytest.fixture(scope="module")
def padded():
    """A model, its twin, and what the twin writes after prompts padded on the left, past the context too."""
    start = excite(abstract(CONFIG), seed=9)
    twin = load_torch(TORCH_GPT(CONFIG), start).double()
    text = np.random.default_rng(4).integers(1, CONFIG.vocab_size, (4, 9))
    padding = np.array([0, 2, 5, 8])
    valid = np.arange(9) >= padding[:, None]
    theirs = torch_generate(twin, torch.from_numpy(text), 24, GREEDY, valid=torch.from_numpy(valid), eos=2)
    return start, twin, text, valid, theirs.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_padded_prompts(padded, way, float64):
    start, _, text, valid, theirs = padded
    moved = way(valid)
    prompt = np.zeros_like(text)
    prompt[moved] = text[valid]
    ours = generate(to_float64(start), prompt, 24, GREEDY, valid=moved, eos=2)
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(theirs)) > 3


@pytest.mark.slow
def test_padding_changes_nothing(padded, float64):
    start, _, text, valid, theirs = padded
    for row, real, said in zip(text, valid, theirs, strict=True):
        np.testing.assert_array_equal(generate(to_float64(start), row[real][None], 24, GREEDY, eos=2)[0], said)


@pytest.mark.slow
def test_a_row_ends_and_the_others_go_on(padded, float64):
    start, _, text, valid, _ = padded
    free = generate(to_float64(start), text, 24, GREEDY, valid=valid)
    eos = int(free[0, 3])
    ours = generate(to_float64(start), text, 24, GREEDY, valid=valid, eos=eos)
    for said, before in zip(ours, free, strict=True):
        end = list(before).index(eos) if eos in before else 24
        np.testing.assert_array_equal(said[: end + 1], before[: end + 1])
        assert (said[end:] == eos).all()
    assert (ours[:, 3] == eos).any()


@pytest.mark.slow
def test_a_repetition_penalty_counts_the_prompt(padded, float64):
    start, twin, text, valid, _ = padded
    sampling = SamplingConfig(temperature=0.0, repetition_penalty=1.9)
    theirs = torch_generate(twin, torch.from_numpy(text), 24, sampling, valid=torch.from_numpy(valid))
    np.testing.assert_array_equal(generate(to_float64(start), text, 24, sampling, valid=valid), theirs.numpy())


BEAMS = {
    "plain": BeamConfig(width=3, n_best=3),
    "never": BeamConfig(width=3, n_best=3, early_stopping="never", length_penalty=0.2, min_tokens=2, suppressed=(4,)),
    "no run twice": BeamConfig(width=3, n_best=3, no_repeat_ngram=2, forced=((1, 6), (-1, 2))),
}


@pytest.mark.parametrize("beam", BEAMS.values(), ids=BEAMS)
def test_beams_behind_padded_prompts(padded, beam, float64):
    """Up to the last place of the context, with two ends."""
    start, twin, text, valid, _ = padded
    room = CONFIG.context + 1 - text.shape[1]
    ours = generate_beam(to_float64(start), text, room, beam, eos=(2, 7), pad=0, valid=valid)
    theirs = torch_generate_beam(twin, torch.from_numpy(text), room, beam, eos=(2, 7), valid=torch.from_numpy(valid))
    for tokens, scores, wanted in zip(ours.tokens, ours.scores, theirs, strict=True):
        assert tokens.tolist() == [[*sequence, *[0] * (room - len(sequence))] for sequence, _ in wanted]
        np.testing.assert_allclose(scores, [score for _, score in wanted], rtol=1e-12)
    assert (ours.tokens[..., -1] == 0).any()
    assert (ours.tokens[..., -1] != 0).any()


LOGITS = np.round(np.random.default_rng(1).standard_normal((6, 29)), 1)  # with ties


@pytest.mark.parametrize("k", [0, 1, 5, 28, 29, 100])
def test_top_k_keeps_the_same(k, float64):
    ours = sampling.keep_top_k(jnp.asarray(LOGITS), k)
    np.testing.assert_array_equal(ours, torch_sampling.keep_top_k(torch.from_numpy(LOGITS), k).numpy())
    kept = np.isfinite(ours).sum(-1)
    assert np.all(kept >= min(k or 29, 29))


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.9, 1.0])
def test_top_p_keeps_the_same(p, float64):
    ours = sampling.keep_top_p(jnp.asarray(LOGITS), p)
    np.testing.assert_array_equal(ours, torch_sampling.keep_top_p(torch.from_numpy(LOGITS), p).numpy())
    assert np.all(np.isfinite(ours).any(-1))


@pytest.mark.parametrize("p", [0.0, 0.2, 0.7, 1.0])
def test_min_p_keeps_the_same(p, float64):
    ours = sampling.keep_min_p(jnp.asarray(LOGITS), p)
    np.testing.assert_array_equal(ours, torch_sampling.keep_min_p(torch.from_numpy(LOGITS), p).numpy())
    assert np.all(np.isfinite(ours).any(-1))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.9])
def test_the_penalty_is_the_same(penalty, float64):
    seen = np.roll(LOGITS, 1, 1) < LOGITS
    theirs = torch_sampling.penalise(torch.from_numpy(LOGITS), torch.from_numpy(seen), penalty)
    check_float64("logits", sampling.penalise(jnp.asarray(LOGITS), jnp.asarray(seen), penalty), theirs)
