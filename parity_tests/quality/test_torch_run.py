"""A run that changes its framework in the middle is the run that does not, in float64; and what cannot go on is refused."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.errors import InputError
from jaxformer.models import abstract
from jaxformer.parity.numerics.metrics import PARAMETER
from jaxformer.training.losses import cross_entropy
from jaxformer.training.step import TrainState, train_step
from jaxformer.training.torch_run import from_torch_training, to_torch_training
from parity_tests.support.helpers import B, T, V, gpt_config
from torch_ref.models import GPT
from torch_ref.training.optimizers import clip_, make_optimizer

pytestmark = [pytest.mark.optimizers, pytest.mark.slow]

CONFIG = gpt_config(qkv_bias=False, projections="fused", tied=True, n_layers=2)  # a key's bias would move by rounding alone
RATE, CLIP, HALF = 1e-2, 0.5, 50
OPTIMIZERS = {
    "adamw": OptimizerConfig(name="adamw", learning_rate=RATE, weight_decay=0.1, beta2=0.95, clip_norm=CLIP),
    "adam": OptimizerConfig(name="adam", learning_rate=RATE, weight_decay=0.01, epsilon=1e-6),
    "sgd": OptimizerConfig(name="sgd", learning_rate=RATE, momentum=0.9, weight_decay=0.1, decay="matrices", clip_norm=CLIP),
}


def factor(step):
    """Up for ten steps, then down, as LambdaLR takes it."""
    return (step + 1) / 10 if step < 10 else (10 / (step + 1)) ** 0.5


SCHEDULE = ScheduleConfig(name="inverse_root", warmup=10)
"""The same, as jit takes it."""


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(step).integers(0, V, (B, T + 1))
    return ids[:, :-1], ids[:, 1:]


def begin(config: OptimizerConfig):
    torch.manual_seed(0)
    model = GPT(CONFIG).double()
    return model, *make_optimizer(model, config, factor)


def in_torch(model, optimizer, scheduler, steps: range, clip_norm) -> None:
    for step in steps:
        inputs, targets = map(torch.from_numpy, batch(step))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        clip_(model, clip_norm)
        optimizer.step()
        scheduler.step()


def loss(model, both, key):
    return cross_entropy(model(both[0]), both[1])


def in_jax(optimizer, state: TrainState, steps: range) -> TrainState:
    step = jax.jit(partial(train_step, key=None, loss=loss, optimizer=optimizer))
    for number in steps:
        state, _ = step(state, batch(number))
    return state


def like():
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), abstract(CONFIG))


def check_equal(found: dict[str, np.ndarray], model) -> None:
    for name, tensor in model.named_parameters():
        reference = tensor.detach().numpy()
        assert np.abs(found[name] - reference).max() <= PARAMETER * np.sqrt(np.mean(reference**2)), name


@pytest.fixture(scope="module", params=OPTIMIZERS)
def whole_run(request):
    """A configuration, and torch's model after all steps."""
    config = OPTIMIZERS[request.param]
    run = begin(config)
    in_torch(*run, range(2 * HALF), config.clip_norm)
    return config, run[0]


def test_begun_in_torch_and_ended_in_jax(whole_run, float64):
    config, whole = whole_run
    run = begin(config)
    in_torch(*run, range(HALF), config.clip_norm)
    optimizer, state = from_torch_training(
        run[0], run[1], like(), schedule=SCHEDULE, clip_norm=config.clip_norm, step=HALF if config.name == "sgd" else None
    )
    assert int(state.step) == HALF
    check_equal(to_torch(in_jax(optimizer, state, range(HALF, 2 * HALF)).model, TWIN), whole)


def test_begun_in_jax_and_ended_in_torch(whole_run, float64):
    config, whole = whole_run
    model, theirs, _ = begin(config)
    optimizer, state = from_torch_training(
        model, theirs, like(), schedule=SCHEDULE, clip_norm=config.clip_norm, step=0 if config.name == "sgd" else None
    )
    state = in_jax(optimizer, state, range(HALF))
    weights, moments = to_torch_training(state, model, theirs)
    assert not torch.equal(model.embed.token.weight, weights["embed.token.weight"])  # nothing is changed yet
    model.load_state_dict(weights)
    theirs.load_state_dict(moments)
    scheduler = LambdaLR(theirs, factor, last_epoch=int(state.step) - 1)
    in_torch(model, theirs, scheduler, range(HALF, 2 * HALF), config.clip_norm)
    check_equal({name: tensor.detach().numpy() for name, tensor in model.named_parameters()}, whole)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_there_and_back_is_bitwise(name, float64):
    config = OPTIMIZERS[name]
    model, theirs, scheduler = begin(config)
    in_torch(model, theirs, scheduler, range(3), None)
    _, state = from_torch_training(model, theirs, like(), step=3)
    weights, moments = to_torch_training(state, model, theirs)
    assert all(torch.equal(tensor, weights[held]) for held, tensor in model.state_dict().items())
    before = theirs.state_dict()
    assert moments["param_groups"] == before["param_groups"]
    assert moments["state"].keys() == before["state"].keys()
    for number, own in before["state"].items():
        assert own.keys() == moments["state"][number].keys()
        assert all(torch.equal(value, moments["state"][number][key]) for key, value in own.items())


def test_what_torch_freezes_stays_and_has_no_moments(float64):
    model = GPT(CONFIG).double()
    model.embed.position.weight.requires_grad_(False)
    theirs = torch.optim.AdamW(model.parameters(), RATE)
    scheduler = LambdaLR(theirs, lambda step: 1.0)
    in_torch(model, theirs, scheduler, range(2), CLIP)
    optimizer, state = from_torch_training(model, theirs, like(), clip_norm=CLIP)
    after = in_jax(optimizer, state, range(2, 4))
    in_torch(model, theirs, scheduler, range(2, 4), CLIP)
    check_equal(to_torch(after.model, TWIN), model)
    assert to_torch_training(after, model, theirs)[1]["state"].keys() == theirs.state_dict()["state"].keys()


def stepped(optimizer, model):
    in_torch(model, optimizer, LambdaLR(optimizer, lambda step: 1.0), range(1), None)
    return optimizer


def two_groups(model, **other):
    first, *rest = model.parameters()
    return [{"params": [first]}, {"params": rest, **other}]


def without_state(model):
    optimizer = stepped(torch.optim.Adam(model.parameters()), model)
    del optimizer.state[model.norm.weight]
    return optimizer


def of_two_ages(model):
    optimizer = stepped(torch.optim.Adam(model.parameters()), model)
    optimizer.state[model.norm.weight]["step"] += 1
    return optimizer


def of_one_layer(model):
    model.stack.blocks[1].feed_forward.up.weight.requires_grad_(False)
    return torch.optim.AdamW(model.parameters())


REFUSED = {
    "another optimizer": (
        lambda model: torch.optim.RMSprop(model.parameters()),
        "torch's optimizer is a torch.optim.rmsprop.RMSprop; only torch.optim's SGD, Adam and AdamW go on",
    ),
    "no optimizer": (lambda model: 3, "torch's optimizer is a builtins.int; only torch.optim's SGD, Adam and AdamW go on"),
    "amsgrad": (
        lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
        "torch's Adam has amsgrad = True; make_optimizer has none, so that it cannot go on",
    ),
    "nesterov": (
        lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True),
        "torch's SGD has nesterov = True; make_optimizer has none, so that it cannot go on",
    ),
    "two rates": (
        lambda model: torch.optim.AdamW(two_groups(model, lr=0.1), lr=0.01),
        "torch's groups have learning rates 0.01 and 0.1; make_optimizer has one for all",
    ),
    "two decays": (
        lambda model: torch.optim.AdamW(two_groups(model, weight_decay=0.1), weight_decay=0.01),
        "torch's groups have weight decays 0.01 and 0.1; make_optimizer has one for all",
    ),
    "no state": (without_state, "norm.weight of torch's optimizer have no state, others have; freeze what torch never moves"),
    "two ages": (of_two_ages, "torch's parameters have made 1, 2 steps; all need the same number"),
    "another model": (
        lambda model: torch.optim.AdamW(GPT(CONFIG).parameters()),
        "torch's optimizer has a parameter that the torch model has not; give the model that it trains",
    ),
    "steps that SGD does not count": (
        lambda model: torch.optim.SGD(model.parameters(), 0.1),
        "torch's SGD does not count its steps; give step, the number taken",
    ),
    "a layer alone": (
        of_one_layer,
        "torch trains stack.blocks.0.feed_forward.up.weight and not stack.blocks.1.feed_forward.up.weight, which are one "
        "tensor in JAX, stack.blocks.feed_forward.up.kernel; treat them alike",
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, said = REFUSED[case]
    model = GPT(CONFIG).double()
    with pytest.raises(InputError) as caught:
        from_torch_training(model, make(model), like())
    assert str(caught.value) == said


def test_another_number_of_steps(float64):
    model = GPT(CONFIG).double()
    optimizer = stepped(torch.optim.Adam(model.parameters()), model)
    with pytest.raises(InputError, match=r"^step = 7, and torch's optimizer has made 1; give that, or leave it out$"):
        from_torch_training(model, optimizer, like(), step=7)


def test_another_optimizer_on_the_way_back(float64):
    model, theirs, _ = begin(OPTIMIZERS["adam"])
    _, state = from_torch_training(model, theirs, like(), schedule=ScheduleConfig())
    with pytest.raises(InputError, match=r"^the JAX run has exp_avg and exp_avg_sq, torch's SGD momentum_buffer; make it as"):
        to_torch_training(state, model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def test_two_of_ours_cannot_go_on_as_one_of_torchs(float64):
    model, theirs, _ = begin(OPTIMIZERS["adam"])
    apart = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), abstract(gpt_config(**{**vars(CONFIG), "tied": False}))
    )
    family = replace(TWIN, tied={"head.weight": "embed.token.weight"})
    with pytest.raises(InputError, match=r"^torch ties embed.token.weight and head.weight, and the JAX model trains both"):
        from_torch_training(model, theirs, apart, family)


def test_a_tied_head_under_both_of_its_names(float64):
    """transformers' GPT-2, whose parameters name the table alone."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": V, "n_positions": 11, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 20}
    model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).double()
    theirs = torch.optim.AdamW(model.parameters(), RATE)
    in_torch(lambda ids: model(ids).logits, theirs, LambdaLR(theirs, lambda step: 1.0), range(2), None)
    own = abstract(gpt_config(projections="fused", tied=True, n_layers=2, activation="gelu_tanh"))
    own = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), own)
    _, state = from_torch_training(model, theirs, own, "gpt2")
    weights, moments = to_torch_training(state, model, theirs, "gpt2")
    assert all(torch.equal(tensor, weights[held]) for held, tensor in model.state_dict().items())
    for number, own in theirs.state_dict()["state"].items():
        assert all(torch.equal(value, moments["state"][number][key]) for key, value in own.items())


def test_a_state_dict_is_no_module():
    model = GPT(CONFIG).double()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(
        InputError, match=r"^torch_model is an OrderedDict; give the torch.nn.Module that the optimizer trains$"
    ):
        from_torch_training(model.state_dict(), optimizer, like())
