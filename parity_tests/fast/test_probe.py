"""Any model is excited, whatever its parameters are called, and adversarial inputs are adversarial."""

import math

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from jaxformer.errors import JaxformerError
from jaxformer.models import abstract
from jaxformer.parity.probe import excite, never_passed, probe, probe_audio, probe_config, probe_image
from jaxformer.pytree import named_leaves
from parity_tests.support.helpers import gpt_config


def spread(array) -> tuple[float, float]:
    """Mean and standard deviation."""
    values = np.asarray(array, np.float64)
    return float(values.mean()), float(values.std())


def about(mean: float, deviation: float, size: int):
    """What `size` numbers from that distribution have, but for five standard errors."""
    error = 5 * deviation / math.sqrt(size)
    return pytest.approx(mean, abs=error), pytest.approx(deviation, abs=error)


class Own(torch.nn.Module):
    """Parameters of its own, a buffer, integers, and modules of every kind."""

    def __init__(self):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(300))
        self.offset = torch.nn.Parameter(torch.zeros(400))
        self.position_embedding = torch.nn.Parameter(torch.zeros(1, 40, 12))
        self.mixing = torch.nn.Parameter(torch.zeros(30, 20))
        self.counts = torch.nn.Parameter(torch.tensor([7, 8, 9]), requires_grad=False)
        self.table = torch.nn.Embedding(50, 12, padding_idx=0)
        self.sinusoids = torch.nn.Embedding(50, 12)
        self.sinusoids.weight.requires_grad_(False)
        self.frozen = torch.nn.Linear(16, 40).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(300)
        self.wide_norm = torch.nn.LayerNorm((20, 30))
        self.linear = torch.nn.Linear(16, 40)
        self.conv = torch.nn.Conv2d(6, 10, 3)
        self.back = torch.nn.ConvTranspose1d(9, 14, 5)
        self.fused = transformers.pytorch_utils.Conv1D(60, 16)
        self.attention = torch.nn.MultiheadAttention(16, 2)
        self.low = torch.nn.Linear(16, 40).bfloat16()
        self.head = torch.nn.Linear(12, 50)
        self.head.weight = self.table.weight


KINDS = {
    "gamma": (1, 0.3),
    "offset": (0, 0.3),
    "position_embedding": (0, 0.5),
    "mixing": (0, 20**-0.5),
    "table.weight": (0, 0.5),
    "norm.weight": (1, 0.3),
    "norm.bias": (0, 0.3),
    "wide_norm.weight": (1, 0.3),
    "wide_norm.bias": (0, 0.3),
    "linear.weight": (0, 16**-0.5),
    "linear.bias": (0, 0.3),
    "conv.weight": (0, 54**-0.5),
    "back.weight": (0, 45**-0.5),
    "fused.weight": (0, 16**-0.5),
    "fused.bias": (0, 0.3),
    "attention.in_proj_weight": (0, 16**-0.5),
    "attention.in_proj_bias": (0, 0.3),
    "low.weight": (0, 16**-0.5),
    "frozen.bias": (0, 0.3),
}


@pytest.fixture(scope="module")
def own():
    return Own(), excite(Own(), seed=0)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_torch_parameter(own, name):
    array = own[1].get_parameter(name).detach().float().numpy()
    assert spread(array) == about(*KINDS[name], array.size)


def test_a_torch_model_is_copied_and_the_rest_of_it_left_alone():
    model = Own()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    excited = excite(model, seed=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert excited.head.weight is excited.table.weight
    assert excited.low.weight.dtype == torch.bfloat16
    for name in ("counts", "norm.num_batches_tracked", "sinusoids.weight"):
        assert torch.equal(excited.state_dict()[name], before[name]), name
    assert excited.norm.running_mean.abs().min() > 0
    assert excited.norm.running_var.log().abs().min() > 0
    again = excite(model, seed=0).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in excited.state_dict().items())
    assert not torch.equal(excite(model, seed=1).gamma, excited.gamma)
    assert not torch.equal(excite(model.requires_grad_(False), seed=1).mixing, before["mixing"])


class Net(nnx.Module):
    """Flax's own modules; the table is tied."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(50, 12, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=48, rngs=rngs, decode=False)
        self.norm = nnx.BatchNorm(200, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.conv = nnx.Conv(6, 10, (3, 3), rngs=rngs)
        self.offset = nnx.Param(jnp.zeros(300))
        self.tied = self.embed


def test_a_model_of_flax_nnx():
    model = Net(nnx.Rngs(0))
    before, excited = named_leaves(model), excite(model, seed=0)
    after = named_leaves(excited)
    for name, moments in {
        "embed.embedding": (0, 0.5),
        "attention.query.kernel": (0, 48**-0.5),
        "attention.out.kernel": (0, 48**-0.5),
        "attention.key.bias": (0, 0.3),
        "norm.scale": (1, 0.3),
        "conv.kernel": (0, 54**-0.5),
        "offset": (0, 0.3),
    }.items():
        assert spread(after[name]) == about(*moments, after[name].size), name
    assert np.array_equal(after["tied.embedding"], after["embed.embedding"])
    for name in ("norm.mean", "norm.var", "drop.rngs.count"):
        assert np.array_equal(after[name], before[name]), name
    assert after["drop.rngs.key"] == before["drop.rngs.key"]
    assert not np.array_equal(before["embed.embedding"], after["embed.embedding"])


def test_the_variables_of_flax_linen():
    module = flax.linen.Sequential([flax.linen.Embed(50, 12), flax.linen.Dense(300), flax.linen.BatchNorm(True)])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        variables = module.init(jax.random.key(0), np.zeros((2, 3), np.int32))
    excited = excite(variables, seed=0)
    after = named_leaves(excited["params"])
    wanted = {
        "layers_0.embedding": (0, 0.5),
        "layers_1.kernel": (0, 12**-0.5),
        "layers_1.bias": (0, 0.3),
        "layers_2.scale": (1, 0.3),
    }
    for name, moments in wanted.items():
        assert spread(after[name]) == about(*moments, after[name].size), name
    assert excited["batch_stats"] is variables["batch_stats"]
    alone = named_leaves(excite(variables["params"], seed=0))
    assert all(np.array_equal(alone[name], after[name]) for name in after)


def test_a_stack_of_ours_is_excited_layer_by_layer():
    kernel = named_leaves(excite(abstract(gpt_config()), seed=0))["stack.blocks.feed_forward.up.kernel"]
    assert spread(kernel) == about(0, kernel.shape[1] ** -0.5, kernel.size)


def test_adversarial_ids():
    ids, valid = probe(23, batch=5, length=11, seed=3, pad=4)
    assert ids.shape == valid.shape == (5, 11)
    assert ids.dtype == np.int32
    assert valid[0].all()
    assert valid[1].tolist() == [True] * 9 + [False] * 2
    assert valid[2].tolist() == [False] * 2 + [True] * 9
    assert not valid[-1].any()
    assert np.all(ids[~valid] == 4)
    assert np.all(ids[:-1, 5] == 4), "the padding id inside the text"
    assert np.all(ids[:-1, 6] == ids[:-1, 4]), "repeated"
    assert 0 <= ids.min() <= ids.max() < 23


def test_adversarial_states():
    states, valid = probe(width=40, length=30)
    assert states.shape == (5, 30, 40)
    assert states.dtype == np.float32
    assert np.array_equal(valid, probe(9, length=30)[1])
    assert np.abs(states[0].mean(-1) - 50).max() < 1
    assert np.abs(states[1:].mean(-1)).max() < 1
    assert np.all(states[~valid] != 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "probe has vocab = None and width = None; give one of them: vocab for ids, width for states"),
        ({"vocab": 9, "width": 4}, "probe has vocab = 9 and width = 4; give one of them: vocab for ids, width for states"),
        ({"vocab": 9, "batch": 3}, "batch = 3 is out of range; give an integer from 4 to 2147483647"),
        ({"vocab": 9, "length": 3}, "length = 3 is out of range; give an integer from 4 to 2147483647"),
        ({"vocab": 1}, "vocab = 1 is out of range; give an integer from 2 to 2147483647"),
        ({"width": 0}, "width = 0 is out of range; give an integer from 1 to 2147483647"),
        ({"vocab": 9, "pad": 9}, "pad = 9 is out of range; give an integer from 0 to 8"),
    ],
)
def test_probes_that_are_none(arguments, said):
    with pytest.raises(JaxformerError) as refused:
        probe(**arguments)
    assert str(refused.value) == said


class Settings:
    """A configuration as an object."""

    def __init__(self, **fields):
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({}, 66),
        ({"sliding_window": 100}, 109),
        ({"rope_theta": 1e4, "max_position_embeddings": 30}, 66),
        ({"rope_scaling": {"original_max_position_embeddings": 128}, "sliding_window": 20}, 137),
        ({"max_position_embeddings": 40, "sliding_window": None}, 40),
        ({"text_config": {"sliding_window": 71, "rope_theta": 1.0}}, 80),
    ],
)
def test_a_probe_goes_beyond_what_its_configuration_says(fields, length):
    for config in (Settings(vocab_size=23, pad_token_id=5, **fields), {"vocab_size": 23, "pad_token_id": 5, **fields}):
        ids, valid = probe_config(config)
        assert ids.shape == (5, length)
        assert np.all(ids[~valid] == 5)
        assert ids.max() < 23


def test_a_configuration_without_a_vocabulary_is_refused():
    with pytest.raises(JaxformerError, match=r"^the configuration, a dict, has no vocab_size; give one that"):
        probe_config({})


def test_pictures_and_sounds():
    pixels = probe_image()
    assert pixels.shape == (3, 3, 48, 64)
    assert abs(pixels[0].mean() - 50) < 1
    assert np.ptp(pixels[-1]) == 0
    waves, valid = probe_audio(length=31)
    assert waves.shape == valid.shape == (4, 31)
    assert abs(waves[0].mean() - 50) < 1
    assert valid.sum(1).tolist() == [31, 21, 31, 31]
    assert not waves[~valid].any()
    assert not waves[-1].any()


def test_a_window_that_was_never_passed_is_said():
    model = torch.nn.Linear(2, 2)
    model.config = Settings(sliding_window=7, rope_scaling={"original_max_position_embeddings": 5})
    short, long = np.zeros((2, 6), np.int32), np.zeros((2, 8), np.int32)
    assert never_passed(model, (short,)) == ["sliding_window = 7: the longest input has 6 tokens, which is not more"]
    assert never_passed(model, (short, long)) == []
