"""What models, decoding, optimizers, saved models and taps are given wrongly is refused in one line."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

import jaxformer as jf
import torch_ref.nn.cache
import torch_ref.nn.masks
import torch_ref.training.optimizers
from jaxformer.errors import JaxformerError

SIZES = {"vocab_size": 11, "context": 8, "d_model": 4, "n_layers": 1, "n_heads": 2, "d_ff": 3}
CONFIG, PAIR = jf.GPTConfig(**SIZES), jf.EncoderDecoderConfig(**SIZES)
GPT, BOTH = (jf.excite(jf.abstract(config), seed=0) for config in (CONFIG, PAIR))
IDS = np.array([[1, 2, 3]])
KEYS = jax.random.split(jax.random.key(0), 3)
TORCH_MASK = torch.ones(1, 1, 3, 3, dtype=torch.bool)
SAMPLING, BEAM, ADAM = jf.SamplingConfig(), jf.BeamConfig(), jf.OptimizerConfig(name="adam", learning_rate=0.1)

NO_KEY = "key = 0 is not a PRNG key; give jax.random.key(0)"
SHAPES = (
    "the model has shapes alone, and nothing to compute with; build it with rngs=nnx.Rngs(0), or fill it with "
    "jaxformer.from_torch"
)
JITTED = "writing compiles a program of its own, and reads ids on the host; call it outside of jit"
VALID = "give booleans of shape (batch, length), True = no padding: `valid == 1` of ones and zeros"

REFUSED: dict[str, tuple[Any, str]] = {
    "a number for a key": (lambda: GPT(IDS, key=0), NO_KEY),
    "a number for an encoder-decoder's key": (lambda: BOTH(IDS, IDS, key=0), NO_KEY),
    "a number for the key of what is drawn": (lambda: jf.generate(GPT, IDS, 2, key=0), NO_KEY),
    "writing under jit": (lambda: jax.jit(lambda ids: jf.generate(GPT, ids, 2))(IDS), JITTED),
    "translating by a jitted model": (
        lambda: jax.jit(lambda model: jf.translate(model, IDS, 2, start=1, eos=2))(BOTH),
        JITTED,
    ),
    "a cache that shrinks": (
        lambda: jf.empty_cache(GPT, 1, 4).grow(3),
        "capacity = 3 is out of range; give an integer from 4 to 2147483647",
    ),
    "several keys": (lambda: GPT(IDS, key=KEYS), "key holds PRNG keys of shape (3,); give one of them"),
    "several old keys": (
        lambda: GPT(IDS, key=jax.random.key_data(KEYS)),
        "key holds PRNG keys of shape (3, 2); give one of them",
    ),
    "several keys to draw with": (
        lambda: jf.generate(GPT, IDS, 2, key=KEYS),
        "key holds PRNG keys of shape (3,); give one of them",
    ),
    "several keys to start from": (lambda: jf.GPT(CONFIG, rngs=KEYS), "rngs holds PRNG keys of shape (3,); give one of them"),
    "a stream's owner for a key": (
        lambda: GPT(IDS, key=nnx.Rngs(0)),
        "key = Rngs is not a PRNG key; give jax.random.key(0)",
    ),
    "a key of no implementation": (
        lambda: GPT(IDS, key=np.zeros(3, np.uint32)),
        "key holds 3 words, and no PRNG key has as many; give jax.random.key(0)",
    ),
    "an old key of another implementation": (
        lambda: jf.generate(GPT, IDS, 2, key=jax.random.PRNGKey(0, impl="rbg")),
        "key holds 4 words, and jax's keys have 2 now; give jax.random.key(0)",
    ),
    "a cache of other heads": (
        lambda: GPT.last_hidden_state(IDS, jf.empty_cache(replace(CONFIG, n_heads=1), 1, 8)),
        "the cache is made for 1 key/value heads of width 4, the stack has 2 key/value heads of width 2; make it from the "
        "stack's configuration",
    ),
    "no cache": (
        lambda: GPT.last_hidden_state(IDS, 3),
        "the cache is an int; give what empty_cache(model, batch, capacity) returns",
    ),
    "names that are numbers": (
        lambda: jf.from_torch({1: np.zeros(2)}, jf.abstract(CONFIG)),
        "source has the key 1, and names of tensors are strings; give a state_dict()",
    ),
    "an empty layout": (
        lambda: jf.Rule("a", "b", "->"),
        "layout = '->' is none; give 'same', 'transposed', or torch's axes and ours, as 'f d 1 -> d f'",
    ),
    "an end outside of the vocabulary": (
        lambda: jf.generate(GPT, IDS, 2, eos=[2, 11]),
        "eos = 11 is not a token id; give a whole number from 0 to 10",
    ),
    "no stream of parameters": (
        lambda: jf.GPT(CONFIG, rngs=nnx.Rngs(dropout=0)),
        "GPT: rngs has no stream params, but dropout; give nnx.Rngs(params=0)",
    ),
    "a GPT of shapes": (lambda: jf.abstract(CONFIG)(IDS), SHAPES),
    "an encoder-decoder of shapes": (lambda: jf.abstract(PAIR)(IDS, IDS), SHAPES),
    "shapes that generate": (lambda: jf.generate(jf.abstract(CONFIG), IDS, 2), SHAPES),
    "shapes that translate": (lambda: jf.translate(jf.abstract(PAIR), IDS, 2, start=1, eos=2), SHAPES),
    "a beam by sampling": (lambda: jf.generate_beam(GPT, IDS, 2, SAMPLING), "beam is a SamplingConfig; give a BeamConfig"),
    "a translation's beam by sampling": (
        lambda: jf.translate_beam(BOTH, IDS, 2, SAMPLING, start=1, eos=2),
        "beam is a SamplingConfig; give a BeamConfig",
    ),
    "torch's mask": (
        lambda: GPT(IDS, mask=TORCH_MASK),
        "mask is a torch.Tensor; give the JAX model a numpy array: mask.numpy()",
    ),
    "torch's mask for an encoder": (
        lambda: BOTH.encode(IDS, mask=TORCH_MASK),
        "mask is a torch.Tensor; give the JAX model a numpy array: mask.numpy()",
    ),
    "torch's bias": (
        lambda: GPT(IDS, bias=TORCH_MASK.float()),
        "bias is a torch.Tensor; give the JAX model a numpy array: bias.numpy()",
    ),
    "torch's positions": (
        lambda: GPT(IDS, positions=torch.arange(3)[None]),
        "positions is a torch.Tensor; give the JAX model a numpy array: positions.numpy()",
    ),
    "a mask of strings": (
        lambda: GPT(IDS, mask=np.array([["a"]])),
        "mask is of type <U1; give booleans, True = may attend: `mask == 1` of ones and zeros",
    ),
    "padding by floats": (lambda: jf.padding_mask(np.ones((1, 3))), f"valid is float64 of shape (1, 3); {VALID}"),
    "torch's padding by floats": (
        lambda: torch_ref.nn.masks.padding_mask(torch.ones(1, 3)),
        f"valid is float32 of shape (1, 3); {VALID}",
    ),
    "padding of one row": (lambda: jf.padding_mask(np.ones(3, bool)), f"valid is bool of shape (3,); {VALID}"),
    "padding by words": (lambda: jf.padding_mask("abc"), f"valid is <U3 of shape (); {VALID}"),
    "a cache for nobody": (
        lambda: jf.empty_cache(GPT, 0, 8),
        "batch = 0 is out of range; give an integer from 1 to 2147483647",
    ),
    "an optimizer by name": (lambda: jf.make_optimizer("adamw", 5), "optimizer is a str; give a OptimizerConfig"),
    "torch's optimizer by name": (
        lambda: torch_ref.training.optimizers.make_optimizer(torch.nn.Linear(1, 1), "adamw", 5),
        "optimizer is a str; give a OptimizerConfig",
    ),
    "a number for a schedule": (
        lambda: jf.make_optimizer(ADAM, 5),
        "schedule = 5 cannot be called; give a ScheduleConfig, or a function of the step",
    ),
    "a number for a folder": (lambda: jf.save(GPT, 5), "folder = 5 is an int; give a path"),
    "the folder first": (
        lambda: jf.save("folder", GPT),
        "a str cannot be saved; give a model of class GPT, Encoder, EncoderDecoder, VisionEncoder, DualEncoder",
    ),
    "no folder": (lambda: jf.save(GPT, ""), "folder is empty; give a path"),
    "a path that is none": (lambda: jf.load("a\0b"), "path = 'a\\x00b' is not a path (embedded null byte); give another"),
    "a path without an end": (
        lambda: jf.load("x" * 5000),
        f"path = '{39 * 'x'} is not a path (File name too long); give another",
    ),
    "a model that is not finite": (
        lambda: jf.save(jax.tree.map(lambda leaf: leaf / 0, GPT), "never"),
        "embed.position.table holds NaN or infinity, and load would refuse the model; save one that is finite",
    ),
    "torch's bfloat16 for ids": (
        lambda: GPT(torch.ones(1, 3, dtype=torch.bfloat16)),
        "ids are of type torch.bfloat16; give integers",
    ),
    "a cache of half a token": (
        lambda: GPT.last_hidden_state(IDS, replace(jf.empty_cache(GPT, 1, 8), length=2.5)),
        "the cache holds 2.5 tokens; give one that empty_cache, or a model, returned",
    ),
    "a model to load": (lambda: jf.load(GPT), "path is a GPT; give a path"),
    "a tokenizer from a number": (lambda: jf.Tokenizer.load(5), "path = 5 is an int; give a path"),
    "a number for a tokenizer": (
        lambda: jf.Tokenizer(5),
        "backend = 5 is an int; give a tokenizers.Tokenizer, or take Tokenizer.load(path)",
    ),
    "a seed in letters": (
        lambda: jf.excite(GPT, seed="a"),
        "seed = 'a' is not a whole number; give an integer of at least 0",
    ),
    "a probe's seed in letters": (
        lambda: jf.probe(vocab=5, seed="a"),
        "seed = 'a' is not a whole number; give an integer of at least 0",
    ),
    "nothing to excite": (
        lambda: jf.excite(None, 0),
        "a NoneType holds no arrays to draw; give a torch or NNX module, or a tree of arrays",
    ),
    "a tap without a name": (
        lambda: jf.tap(5, IDS),
        "the name of a tap = 5 is an int; give tap('layers.0.norm', x): the name, then the array",
    ),
    "a tap with the array first": (
        lambda: jf.tap(IDS, "norm"),
        "the name of a tap is an ndarray; give tap('layers.0.norm', x): the name, then the array",
    ),
    "a reference by number": (lambda: jf.check(5, GPT), "reference = 5 is an int; give a path"),
    "a dump to a number": (lambda: jf.dump(torch.nn.Linear(1, 1), (np.ones((1, 1)),), 5), "folder = 5 is an int; give a path"),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, said = REFUSED[case]
    with pytest.raises(JaxformerError) as caught:
        call()
    assert str(caught.value) == said


def test_old_keys_and_streams_of_parameters_are_taken():
    key = jax.random.PRNGKey(0)
    assert GPT(IDS, key=key).shape == (1, 3, 11)
    for rngs in (key, nnx.Rngs(params=0), nnx.Rngs(0)):
        assert jf.GPT(CONFIG, rngs=rngs).config == CONFIG


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_old_keys_of_the_implementation_in_use_are_keys(impl):
    with jax.default_prng_impl(impl):
        key = jax.random.PRNGKey(0)
        assert jf.generate(GPT, IDS, 2, jf.SamplingConfig(), key=key).shape == (1, 2)
        assert jf.GPT(CONFIG, rngs=key).config == CONFIG


@pytest.mark.usefixtures("untyped")
def test_numpys_integers_are_sizes():
    for cache in (jf.empty_cache(GPT, np.int64(1), np.int32(4)), jf.empty_cache(GPT, 1, 4)):
        assert cache.grow(np.int64(8)).capacity == 8
