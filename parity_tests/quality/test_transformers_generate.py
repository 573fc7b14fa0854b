"""transformers' own generate, of GPT-2, BART and Marian, and ours with the same weights: equal ids and scores in float64."""

import functools

import jax
import numpy as np
import pytest
import torch
import transformers
from transformers.generation import utils

from jaxformer.config.configuration import FixedTable
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.convert.families.bart import BART, MARIAN
from jaxformer.convert.families.gpt2 import GPT2
from jaxformer.convert.rules import to_torch
from jaxformer.decoding import generate, generate_beam, translate, translate_beam
from jaxformer.models import GPT, abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.slow

V, ROWS, N, START, EOS, PAD, WIDTH = 13, 60, 9, 7, 9, 11, 4
SIZES = {"d_model": 12, "n_heads": 3, "d_ff": 20, "vocab_size": V, "context": 16, "tied": True, "layers": "rolled"}


class Float64:
    """torch, for transformers' search: it rounds logits and sums to float32, and here it does not."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def _in_float64(float64, monkeypatch):
    monkeypatch.setattr(utils, "torch", Float64())


def held(theirs, ours, family):
    """transformers' model with our weights, in float64, and ours in float64."""
    weights = to_torch(ours, family, like=theirs.state_dict())
    theirs.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()}, strict=True)
    theirs.generation_config = transformers.GenerationConfig()
    return theirs.double().eval(), to_float64(ours)


@functools.cache
def gpt2():
    """Both models, and prompts of unequal lengths, padded on the left."""
    with jax.enable_x64(True):
        config = GPTConfig(**SIZES, n_layers=2, projections="fused", activation="gelu_tanh")
        sizes = {"n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 20, "vocab_size": V}
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
        draw = np.random.default_rng(0)
        valid = np.arange(6) >= draw.integers(0, 6, ROWS)[:, None]
        return (
            *held(theirs, excite(abstract(config), seed=4), GPT2),
            np.where(valid, draw.integers(0, V, valid.shape), PAD),
            valid,
        )


SEQ2SEQ = {"d_model": 12, "max_position_embeddings": 16, "vocab_size": V, "encoder_layers": 1, "decoder_layers": 2}
SEQ2SEQ |= {
    f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in (("attention_heads", 3), ("ffn_dim", 20))
}
POST = {**SIZES, "n_layers": 1, "n_decoder_layers": 2, "norm_position": "post", "head_bias": True}


@functools.cache
def bart():
    """Both models, and sources, padded on the right."""
    with jax.enable_x64(True):
        config = EncoderDecoderConfig(**POST, position_offset=2, embedding_norm=True)
        theirs = transformers.BartForConditionalGeneration(transformers.BartConfig(**SEQ2SEQ))
        return *held(theirs, excite(abstract(config), seed=62), BART), *sources()


@functools.cache
def marian():
    """The same, with the rounded sinusoids that torch holds."""
    with jax.enable_x64(True):
        given = {"activation_function": "swish", "scale_embedding": True, "pad_token_id": PAD, "decoder_start_token_id": START}
        theirs = transformers.MarianMTModel(transformers.MarianConfig(**SEQ2SEQ, **given))
        table = FixedTable(theirs.model.decoder.embed_positions.weight)
        config = EncoderDecoderConfig(**POST, positions=table, activation="silu", embedding_scale=True)
        return *held(theirs, excite(abstract(config), seed=21), MARIAN), *sources()


def sources():
    """Ids, and which are no padding."""
    draw = np.random.default_rng(1)
    valid = np.arange(7) < draw.integers(1, 8, ROWS)[:, None]
    return np.where(valid, draw.integers(0, V, valid.shape), PAD), valid


def written(case, **given):
    """What transformers writes, filled up to N tokens, and its scores where it searches."""
    theirs, _, ids, valid = case()
    n_best = given.get("num_return_sequences", 1)
    given = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": N, "do_sample": False} | given
    if theirs.config.is_encoder_decoder:
        given["decoder_start_token_id"] = START
    ids, valid = torch.from_numpy(ids), torch.from_numpy(valid)
    found = theirs.generate(ids, attention_mask=valid.long(), output_scores=True, return_dict_in_generate=True, **given)
    behind = 1 if theirs.config.is_encoder_decoder else ids.shape[1]
    tokens = np.pad(found.sequences[:, behind:].numpy(), ((0, 0), (0, N)), constant_values=PAD)[:, :N]
    scores = found.sequences_scores.reshape(ROWS, n_best).numpy() if "num_beams" in given else None
    return tokens.reshape(ROWS, n_best, N), scores


def searched(case, beam, eos=EOS):
    """What we find."""
    _, ours, ids, valid = case()
    if isinstance(ours, GPT):
        return generate_beam(ours, ids, N, beam, eos=eos, pad=PAD, valid=valid)
    return translate_beam(ours, ids, N, beam, start=START, eos=eos, pad=PAD, valid=valid)


def equal(case, beam, *, eos=EOS, **theirs):
    """Ids and scores; and what they are."""
    names = {"num_beams": beam.width, "num_return_sequences": beam.n_best, "length_penalty": beam.length_penalty}
    wanted = written(case, **names, early_stopping=beam.early_stopping, eos_token_id=eos, **theirs)
    found = searched(case, beam, list(eos) if isinstance(eos, list) else eos)
    np.testing.assert_array_equal(found.tokens, wanted[0])
    np.testing.assert_allclose(found.scores, wanted[1], rtol=1e-12)
    return found


@pytest.mark.parametrize(("case", "eos"), [(gpt2, 3), pytest.param(bart, EOS, marks=pytest.mark.slow)])
def test_beams_stop_as_transformers_do(case, eos):
    """Each of the three meanings of early_stopping, under penalties of every sign; and each of them matters."""
    found = {}
    for penalty in (-0.8, 0.0, 1.0, 2.5):
        for stopping in (True, False, "never"):
            beam = BeamConfig(width=WIDTH, n_best=3, length_penalty=penalty, early_stopping=stopping)
            found[penalty, stopping] = equal(case, beam, eos=eos).tokens
    for penalty in (1.0, 2.5):
        assert (found[penalty, True] != found[penalty, "never"]).any()
        assert (found[penalty, False] != found[penalty, "never"]).any()
    assert (found[1.0, True] != found[1.0, False]).any()
    assert (found[1.0, False] == eos).any(-1).mean() > 0.5


RULES = {
    "a first and a last token": (
        {"forced": ((0, 4), (-1, EOS))},
        {"forced_bos_token_id": 4, "forced_eos_token_id": EOS},
    ),
    "suppressed tokens": ({"suppressed": (0, 7, 10)}, {"suppress_tokens": [0, 7, 10]}),
    "no early end": ({"min_tokens": 5}, {"min_new_tokens": 5}),
    "no run twice": ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
    "several ends": ({}, {"eos_token_id": [EOS, 10]}),
    "no end": ({}, {"eos_token_id": None}),
}


@pytest.mark.parametrize("name", usually(RULES, "no run twice", "no early end"))
def test_rules_of_beams_are_transformers(name):
    ours, theirs = RULES[name]
    plain = searched(bart, BeamConfig(width=WIDTH, n_best=2)).tokens
    found = equal(bart, BeamConfig(width=WIDTH, n_best=2, **ours), **({"eos": theirs["eos_token_id"]} if not ours else theirs))
    assert (found.tokens != plain).any()


@pytest.mark.parametrize("name", usually(RULES, "a first and a last token", "several ends"))
def test_rules_of_greedy_targets_are_transformers(name):
    ours, theirs = RULES[name]
    _, model, ids, valid = bart()
    eos = theirs.get("eos_token_id", EOS)
    given = {"start": START, "pad": PAD, "valid": valid}
    found = translate(model, ids, N, SamplingConfig(temperature=0, **ours), eos=eos, **given)
    np.testing.assert_array_equal(found, written(bart, **theirs)[0][:, 0])
    assert (found != translate(model, ids, N, eos=EOS, **given)).any()


@pytest.mark.slow
def test_marian_writes_and_searches():
    found = equal(marian, BeamConfig(width=WIDTH, n_best=2))
    _, model, ids, valid = marian()
    greedy = translate(model, ids, N, start=START, eos=EOS, pad=PAD, valid=valid)
    np.testing.assert_array_equal(greedy, written(marian)[0][:, 0])
    assert (found.tokens[:, 0] != greedy).any()
    assert (greedy == EOS).any()


def test_prompts_are_continued_as_transformers_do():
    """Both count the prompt; transformers counts padding too, so only full rows are compared."""
    _, model, ids, valid = gpt2()
    sampling = SamplingConfig(temperature=0, repetition_penalty=1.3, no_repeat_ngram=2)
    found = generate(model, ids, N, sampling, eos=(3, 5), pad=PAD, valid=valid)
    full = valid.all(1)
    wanted, _ = written(gpt2, repetition_penalty=1.3, no_repeat_ngram_size=2, eos_token_id=[3, 5])
    np.testing.assert_array_equal(found[full], wanted[full, 0])
    assert full.sum() > 3
    assert (found[full] == PAD).any()
