"""Generation: the cache changes nothing, sampling means what it says, and few programs are compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding import generate, generate_beam
from jaxformer.decoding.generate import _generate
from jaxformer.decoding.sampling import keep_top_k, keep_top_p, next_tokens, numbers
from jaxformer.errors import InputError, NonFiniteError
from jaxformer.models import build
from tests.tiny import quick_key, tiny_config

GREEDY = SamplingConfig(temperature=0.0)
KEY = quick_key(0)
LOGITS = jnp.log(jnp.array([[0.1, 0.4, 0.05, 0.3, 0.15]]))
ATTENTION = 3


@pytest.fixture(scope="module")
def model():
    config = tiny_config(init="torch", layers="rolled")
    return jax.jit(lambda key: jax.tree.map(lambda leaf: 3 * leaf, build(config, rngs=key)))(quick_key(1))


@pytest.fixture(scope="module")
def scores(model):
    """The logits after at most `context` ids: a plain pass, filled up on the right, which a causal model does not see."""
    run = jax.jit(lambda model, ids: model(ids))

    def at_end(ids: np.ndarray) -> np.ndarray:
        seen = ids[:, -model.config.context :]
        padded = np.pad(seen, ((0, 0), (0, model.config.context - seen.shape[1])))
        return np.asarray(run(model, padded))[:, seen.shape[1] - 1]

    return at_end


def prompt(length: int, batch: int = 3) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 11, (batch, length), dtype=np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 20])
def test_greedy_is_the_argmax_of_a_full_pass_each_time(model, scores, length):
    ids, n = prompt(length), 20
    for _ in range(n):
        ids = np.concatenate([ids, scores(ids).argmax(-1)[:, None].astype(np.int32)], axis=1)
    said = generate(model, prompt(length), n, GREEDY)
    assert said.shape == (3, n)
    assert np.array_equal(said, ids[:, length:])
    assert len(np.unique(said)) > 1


@pytest.mark.slow
def test_a_longer_answer_starts_with_the_shorter(model):
    long, short = (generate(model, prompt(3), n, key=KEY) for n in (20, np.int64(5)))
    assert np.array_equal(long[:, :5], short)
    assert generate(model, prompt(3), 0, key=KEY).shape == (3, 0)


@pytest.mark.slow
def test_the_key_decides(model):
    first, again, other = (generate(model, prompt(3), 20, key=quick_key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.min() >= 0
    assert first.max() < 11


@pytest.mark.slow
def test_few_programs(model):
    _generate.clear_cache()
    for n in (1, 2, 15, 16):
        for length in (1, 5, 8, 9, 30):
            generate(model, prompt(length), n, key=KEY)
    assert _generate._cache_size() == 2, "one within the context, and one beyond it"
    for n in (17, 20, 32):
        generate(model, prompt(4), n, key=KEY)
    assert _generate._cache_size() == 3
    for sampling in (SamplingConfig(temperature=0.5), SamplingConfig(top_k=3), SamplingConfig(top_p=0.5)):
        generate(model, prompt(4), 16, sampling, key=quick_key(9))
    assert _generate._cache_size() == 3


def frequencies(n: int = 20_000, **sampling) -> np.ndarray:
    chosen = SamplingConfig(**sampling)
    drawn = next_tokens(jnp.tile(LOGITS, (n, 1)), jnp.zeros((n, 5), bool).at[:, ATTENTION].set(True), KEY, *numbers(chosen))
    assert drawn.dtype == jnp.int32
    return np.bincount(drawn, minlength=5) / n


def close(found: np.ndarray, *wanted: float) -> None:
    """Within five standard deviations of 20,000 draws; what cannot happen does not."""
    expected = np.array(wanted) / sum(wanted)
    assert (found[expected == 0] == 0).all()
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / 20_000)).all(), (found, expected)


def test_plain_sampling_has_the_softmax_frequencies():
    close(frequencies(), 0.1, 0.4, 0.05, 0.3, 0.15)


def test_temperature_sharpens_and_flattens():
    close(frequencies(temperature=0.5), 0.1**2, 0.4**2, 0.05**2, 0.3**2, 0.15**2)
    close(frequencies(temperature=2), *np.sqrt([0.1, 0.4, 0.05, 0.3, 0.15]))


def test_top_k_keeps_the_likeliest():
    close(frequencies(top_k=2), 0, 0.4, 0, 0.3, 0)
    close(frequencies(top_k=5), 0.1, 0.4, 0.05, 0.3, 0.15)
    close(frequencies(top_k=99), 0.1, 0.4, 0.05, 0.3, 0.15)


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    close(frequencies(top_p=0.39), 0, 0.4, 0, 0, 0)
    close(frequencies(top_p=0.41), 0, 0.4, 0, 0.3, 0)
    close(frequencies(top_p=0.75), 0, 0.4, 0, 0.3, 0.15)


def test_min_p_is_a_part_of_the_likeliest():
    close(frequencies(min_p=0.3), 0, 0.4, 0, 0.3, 0.15)
    close(frequencies(min_p=0.7), 0, 0.4, 0, 0.3, 0)
    close(frequencies(min_p=0.7, temperature=2), *np.sqrt([0, 0.4, 0, 0.3, 0]))


def test_a_repetition_penalty_is_for_what_was_there():
    close(frequencies(repetition_penalty=2), 0.1, 0.4, 0.05, 0.3**2, 0.15)


def test_top_p_looks_at_what_top_k_left():
    close(frequencies(top_k=3, top_p=0.6), 0, 0.4, 0, 0.3, 0)
    close(frequencies(top_k=2, top_p=0.55), 0, 0.4, 0, 0, 0)


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}, {"temperature": 0}, {"temperature": 1e-3}])
def test_the_narrowest_choice_is_the_argmax(sampling):
    assert frequencies(n=200, **sampling)[1] == 1


def test_every_row_has_its_own_cut():
    rows = jnp.array([[0.0, 3.0, 1.0, 2.0], [9.0, 0.0, 8.0, 7.0]])
    assert np.isfinite(keep_top_k(rows, 2)).tolist() == [[False, True, False, True], [True, False, True, False]]
    assert np.isfinite(keep_top_p(rows, 0.6)).tolist() == [[False, True, False, False], [True, False, False, False]]


def test_ties_stay_together():
    assert np.isfinite(keep_top_k(jnp.array([[1.0, 2.0, 1.0]]), 2)).tolist() == [[True, True, True]]


PROMPT = prompt(4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"eos": 11}, "eos = 11 is not a token id; give a whole number from 0 to 10"),
        ({"sampling": SamplingConfig()}, "temperature = 1.0 draws at random; give a key, or temperature 0"),
        ({"n_tokens": 2**20 + 1}, "n_tokens = 1048577 is more than the 1048576 tokens that can be generated at once"),
        ({"valid": np.eye(3, 4, dtype=bool) & False}, r"prompt\[0\] is nothing but padding; give at least one token"),
        ({"valid": np.ones((3, 4))}, r"valid is float64 of shape \(3, 4\) for this prompt; give booleans of shape \(3, 4\)"),
        ({"valid": np.ones((4, 3), bool)}, r"valid is bool of shape \(4, 3\) for this prompt"),
        ({"prompt": PROMPT + 11}, r"prompt\[0, 0\] = \d+ is out of range"),
    ],
)
def test_refusals(model, given, said):
    with pytest.raises(InputError, match=said):
        generate(**({"model": model, "prompt": PROMPT, "n_tokens": 3} | given))


@pytest.mark.slow
def test_a_beams_window_does_not_slide(model):
    """The last token is read by nobody: a context of 8 takes 4 of the prompt and 5 more."""
    assert generate_beam(model, PROMPT, 5, BeamConfig(width=2)).tokens.shape == (3, 1, 5)
    said = "n_tokens = 6 after 4 of the prompt exceed the context of 8, and a beam's window does not slide; ask for at most 5"
    with pytest.raises(InputError, match=said):
        generate_beam(model, PROMPT, 6, BeamConfig(width=2))


@pytest.mark.slow
def test_without_a_key_the_likeliest_and_with_one_a_sample(model):
    assert np.array_equal(generate(model, PROMPT, 12), generate(model, PROMPT, 12, GREEDY))
    assert np.array_equal(generate(model, PROMPT, 12, key=KEY), generate(model, PROMPT, 12, SamplingConfig(), key=KEY))


def test_logits_that_are_nan(model):
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, model)
    with pytest.raises(NonFiniteError, match=r"^the logits of token 0 are NaN"):
        generate(broken, PROMPT, 3, GREEDY)
