"""Translation: few programs are compiled, and what cannot be translated is refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding import generate, translate, translate_beam
from jaxformer.decoding.translation import _translate, _translate_beam
from jaxformer.errors import ConfigError, InputError, NonFiniteError
from jaxformer.models import EncoderDecoder, build
from tests.tiny import quick_key, tiny_config

CONFIG = EncoderDecoderConfig(
    vocab_size=11, source_vocab_size=7, context=40, d_model=8, n_layers=1, n_heads=2, d_ff=16, init="torch", layers="rolled"
)
IDS = {"start": 0, "eos": 1}


@pytest.fixture(scope="module")
def model() -> EncoderDecoder:
    return build(CONFIG, rngs=quick_key(1))


def source(length: int, batch: int = 3) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 7, (batch, length), dtype=np.int32)


@pytest.mark.slow
def test_few_programs(model):
    _translate.clear_cache()
    for n in (1, 15, 16):
        for length in (1, 5, 16):
            translate(model, source(length), n, **IDS)
    assert _translate._cache_size() == 1
    for length in (17, 31, 32):
        translate(model, source(length), 16, **IDS)
    assert _translate._cache_size() == 2
    for sampling in (SamplingConfig(temperature=0.5), SamplingConfig(top_k=3), SamplingConfig(min_p=0.5)):
        translate(model, source(4), 16, sampling, **IDS, key=quick_key(2))
    assert _translate._cache_size() == 3  # another kind of key, once


@pytest.mark.slow
def test_few_programs_for_beams(model):
    _translate_beam.clear_cache()
    for beam in (BeamConfig(width=2), BeamConfig(width=2, length_penalty=-0.3, suppressed=(4,), early_stopping="never")):
        for length in (1, 5, 16):
            translate_beam(model, source(length), length, beam, **IDS)
    assert _translate_beam._cache_size() == 1


def test_a_sample_is_decided_by_its_key(model):
    def sampled(seed: int) -> np.ndarray:
        return translate(model, source(5), 20, **IDS, key=quick_key(seed))

    assert np.array_equal(sampled(0), sampled(0))
    assert not np.array_equal(sampled(0), sampled(1))


@pytest.mark.slow
def test_padding_of_the_source_changes_nothing(model):
    text = source(9)
    wide = np.concatenate([np.full((3, 4), 6, np.int32), text, np.full((3, 8), 5, np.int32)], 1)
    valid = np.zeros(wide.shape, bool)
    valid[:, 4:13] = True
    assert np.array_equal(translate(model, text, 12, **IDS), translate(model, wide, 12, **IDS, valid=valid))
    between = np.insert(text, 4, 6, axis=1)
    seen = np.ones(between.shape, bool)
    seen[:, 4] = False
    assert np.array_equal(translate(model, text, 12, **IDS), translate(model, between, 12, **IDS, valid=seen))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": source(41)}, "source: length 41; give between 1 and 40, the longest this model takes"),
        ({"source": source(4) + 7}, r"source\[0, 0\] = \d+ is out of range; give ids from 0 to 6"),
        ({"source": source(4)[0]}, r"source: shape \(4,\); give ids of shape \(batch, length\)"),
        ({"source": source(4) * 1.0}, "source: type float64; give integer ids"),
        ({"start": 11}, "start = 11 is not a token id; give a whole number from 0 to 10"),
        ({"eos": -1}, "eos = -1 is not a token id; give a whole number from 0 to 10"),
        ({"start": 1.5}, "start = 1.5 is not a token id; give a whole number"),
        ({"eos": (1, 11)}, "eos = 11 is not a token id; give a whole number"),
        ({"pad": 11}, "pad = 11 is not a token id; give a whole number from 0 to 10"),
        ({"source": source(4)[:0]}, r"source: shape \(0, 4\); give at least one row"),
        ({"source": [[1, 2], [3]]}, "rows of ids have different lengths; pad them to one, and mask the padding"),
        ({"n_tokens": 41}, "n_tokens = 41 is more than the 40 tokens that can be generated at once"),
        ({"valid": np.zeros((3, 4), bool)}, r"source\[0\] is nothing but padding; give at least one token"),
        ({"valid": np.ones((3, 5), bool)}, r"valid is bool of shape \(3, 5\) for this source; give booleans of shape \(3, 4\)"),
    ],
)
@pytest.mark.parametrize("function", [translate, translate_beam])
def test_refusals(model, untyped, function, given, said):
    with pytest.raises(InputError, match=said):
        function(**({"model": model, "source": source(4), "n_tokens": 3, **IDS} | given))


@pytest.mark.slow
def test_a_model_of_another_kind(model):
    gpt = build(tiny_config(), rngs=quick_key(0))
    with pytest.raises(InputError, match="only an EncoderDecoder translates, and this is GPT"):
        translate(gpt, source(4), 3, **IDS)
    with pytest.raises(InputError, match="generate continues a GPT, and this is EncoderDecoder"):
        generate(model, source(4), 3)


@pytest.mark.parametrize(
    ("beam", "said"),
    [
        ({"forced": ((2, 4), (-1, 5))}, "forced place -1 is place 2, which has another token; give one token to each place"),
        ({"width": 12}, "width = 12 of the beam is more than the vocabulary of 11; give a smaller beam"),
        ({"suppressed": (11,)}, "suppressed token = 11 is not a token id"),
        ({"forced": ((0, 11),)}, "forced token = 11 is not a token id"),
        ({"forced": ((3, 4),)}, "forced place 3 lies after the 3 tokens asked for; ask for more, or leave it out"),
        ({"suppressed": tuple(range(11))}, r"the beam's rules leave no sequence for source\[0\]; suppress fewer tokens"),
    ],
)
def test_beams_that_do_not_fit_the_model(model, beam, said):
    with pytest.raises(InputError, match=said):
        translate_beam(model, source(4), 3, BeamConfig(**beam), **IDS)


@pytest.mark.parametrize(
    ("beam", "said"),
    [
        ({"width": 0}, "width = 0 is out of range; give an integer from 1"),
        ({"n_best": 6}, "n_best = 6 is more than width = 5"),
        ({"length_penalty": -11}, "length_penalty = -11 is out of range"),
        ({"forced": (3,)}, "forced = 3 is not a pair; give"),
    ],
)
def test_beams_that_are_none(beam, said):
    with pytest.raises(ConfigError, match=said):
        BeamConfig(**beam)


def test_a_search_needs_a_length(model):
    with pytest.raises(ConfigError, match=r"^n_tokens = 0 is out of range; give an integer from 1"):
        translate_beam(model, source(4), 0, **IDS)


def test_a_draw_needs_a_key(model, untyped):
    with pytest.raises(InputError, match=r"temperature = 1.0 draws at random; give a key, or temperature 0"):
        translate(model, source(4), 3, SamplingConfig(), **IDS)
    with pytest.raises(InputError, match=r"sampling is a \w+; give a SamplingConfig, and a key by its name, key=..."):
        translate(model, source(4), 3, quick_key(0), **IDS)


def test_rules_that_leave_no_token(model):
    """A run of one token may not repeat, and there are no more tokens than 11, the start among them."""
    with pytest.raises(InputError, match="the rules leave a row no token at place 10; suppress fewer, or allow repeated runs"):
        translate(model, source(4), 12, SamplingConfig(temperature=0, no_repeat_ngram=1), start=0, eos=None)


@pytest.mark.parametrize("function", [translate, translate_beam])
def test_logits_that_are_nan(model, function):
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, model)
    with pytest.raises(NonFiniteError, match=r"^the logits of token 0 are NaN"):
        function(broken, source(4), 3, **IDS)
