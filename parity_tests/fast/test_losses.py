"""Cross-entropy against torch: ignored targets, class weights, three kinds of smoothing; value, normaliser and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.config.settings import LEFT_OUT
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.data.tasks import Pairs
from jaxformer.errors import ConfigError
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import EXACT, Noise, check_float32, check_float64
from jaxformer.parity.probe import excite
from jaxformer.runtime.xla_options import exact
from jaxformer.training import chunked_loss, losses
from jaxformer.training.pairs import pair_loss
from torch_ref.models import build
from torch_ref.training import losses as torch_losses

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((4, 7, 11))
TARGETS = RNG.integers(0, 11, (4, 7)).astype(np.int32)
WEIGHTS = RNG.uniform(0.5, 2.0, 11)
PADDING = 3

RULES = {
    "plain": {},
    "padding": {"ignore_index": PADDING},
    "class weights": {"ignore_index": PADDING, "class_weights": WEIGHTS},
    "smoothed over all": {"ignore_index": PADDING, "smoothing": 0.1},
    "smoothed over all, weighted": {"ignore_index": PADDING, "smoothing": 0.1, "class_weights": WEIGHTS},
    "smoothed over the others": {"ignore_index": PADDING, "smoothing": 0.1, "spread": "others"},
    "smoothed over the others, weighted": {"smoothing": 0.1, "spread": "others", "class_weights": WEIGHTS},
    "smoothed over the others but padding": {"ignore_index": PADDING, "smoothing": 0.1, "spread": "others_but_padding"},
}


def ours(logits, rules):
    rules = {name: jnp.asarray(rule) if isinstance(rule, np.ndarray) else rule for name, rule in rules.items()}
    return losses.cross_entropy(logits, jnp.asarray(TARGETS), **rules)


def theirs(logits, rules):
    rules = {name: torch.from_numpy(rule) if isinstance(rule, np.ndarray) else rule for name, rule in rules.items()}
    return torch_losses.cross_entropy(logits, torch.from_numpy(TARGETS).long(), **rules)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_sum_normaliser_and_gradient(rules, float64):
    logits = torch.from_numpy(LOGITS).requires_grad_()
    total, normaliser = theirs(logits, rules)
    found = ours(jnp.asarray(LOGITS), rules)
    check_float64("total", found[0], total, "loss")
    check_float64("normaliser", found[1], normaliser, "loss")
    gradient = jax.grad(lambda x: losses.mean(*ours(x, rules)))(jnp.asarray(LOGITS))
    torch_losses.mean(total, normaliser).backward()
    check_float64("gradient", gradient, logits.grad, "gradient")


@pytest.mark.parametrize("name", ["plain", "padding", "class weights", "smoothed over all", "smoothed over all, weighted"])
def test_the_mean_is_what_torch_itself_computes(name, float64):
    rules = dict(RULES[name])
    weight = torch.from_numpy(rules["class_weights"]) if "class_weights" in rules else None
    reference = F.cross_entropy(
        torch.from_numpy(LOGITS).flatten(0, 1),
        torch.from_numpy(TARGETS).long().flatten(),
        weight,
        ignore_index=rules.get("ignore_index", -100),
        label_smoothing=rules.get("smoothing", 0.0),
    )
    check_float64("mean", losses.mean(*ours(jnp.asarray(LOGITS), rules)), reference, "loss")


def test_each_spread_is_another_loss(float64):
    spreads = ("all", "others", "others_but_padding")
    totals = [
        float(ours(jnp.asarray(LOGITS), {"ignore_index": PADDING, "smoothing": 0.1, "spread": spread})[0]) for spread in spreads
    ]
    assert len({round(total, 6) for total in totals}) == 3


def test_nothing_to_count_is_zero_with_zero_gradient():
    targets = jnp.full((4, 7), -100)
    value, gradient = jax.value_and_grad(lambda x: losses.mean(*losses.cross_entropy(x, targets)))(jnp.ones((4, 7, 11)))
    assert value == 0
    assert not gradient.any()
    nothing = torch_losses.mean(*torch_losses.cross_entropy(torch.ones(4, 7, 11), torch.full((4, 7), -100)))
    assert nothing == 0


@pytest.mark.parametrize("bad", [-1, 11, 2**31 - 1])
def test_a_target_that_is_no_class_gives_nan(bad):
    targets = jnp.asarray(TARGETS).at[0, 0].set(bad)
    assert jnp.isnan(losses.cross_entropy(jnp.asarray(LOGITS, jnp.float32), targets)[0])


def test_padding_that_is_no_class_is_refused():
    with pytest.raises(ConfigError, match="ignore_index = -100 is not a class"):
        losses.cross_entropy(jnp.ones((2, 3)), jnp.zeros(2, jnp.int32), smoothing=0.1, spread="others_but_padding")


def test_large_logits_stay_finite():
    assert jnp.isfinite(losses.cross_entropy(jnp.full((1, 3), 1e30), jnp.zeros(1, jnp.int32))[0])


def sure_logits(size: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """float32 rows `64 11` whose largest logit, `size` above the others on average, is nearly always the target's."""
    rng = np.random.default_rng(1)
    targets = rng.integers(0, 11, 64)
    logits = rng.standard_normal((64, 11)) + shift
    logits[np.arange(64), targets] += size
    return logits.astype(np.float32), np.where(np.arange(64) % 8, targets, PADDING)


LOST = 64**0.5 * 2.0**-53
"""In float64, where each of 64 rows rounds 1 + s, s being what the other classes add to the largest."""
SURE = {
    "10": (10.0, 0.0),
    "15": (15.0, 0.0),
    "80": (80.0, 0.0),
    "shifted by 100": (15.0, 100.0),
    "shifted by 18": (8.0, 18.0),
    "shifted by 30": (12.0, 30.0),
}


@pytest.mark.first(16)
@pytest.mark.parametrize("case", SURE)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_in_float32_value_and_gradient_are_as_accurate_as_torchs(rules, case):
    """Where the model is sure, the loss is a small difference of large numbers."""
    logits, targets = sure_logits(*SURE[case])

    def torch_side(dtype):
        x = torch.from_numpy(logits).to(dtype).requires_grad_()
        given = {
            name: torch.tensor(rule, dtype=dtype) if isinstance(rule, np.ndarray) else rule for name, rule in rules.items()
        }
        total, _ = torch_losses.cross_entropy(x, torch.from_numpy(targets), **given)
        total.backward()
        return total, x.grad

    given = {name: jnp.asarray(rule, jnp.float32) if isinstance(rule, np.ndarray) else rule for name, rule in rules.items()}
    value = jax.value_and_grad(lambda x: losses.cross_entropy(x, jnp.asarray(targets), **given)[0])
    found = jax.jit(value, compiler_options=exact())(jnp.asarray(logits))
    for name, ours, theirs, truth in zip(
        ("total", "gradient"), found, torch_side(torch.float32), torch_side(torch.float64), strict=True
    ):
        noise = Noise(LOST, LOST) if name == "total" else EXACT
        check_float32(name, ours, theirs, truth, noise)


def test_a_sure_row_has_torchs_loss_bit_for_bit():
    logits = np.array([[18.0, 5.0, 0.0]], np.float32)
    loss, _ = losses.cross_entropy(jnp.asarray(logits), jnp.zeros(1, jnp.int32))
    assert loss == F.cross_entropy(torch.from_numpy(logits), torch.zeros(1, dtype=torch.long)).numpy()


def annotated(x, targets, smoothing):
    """The Annotated Transformer's loss, as its text describes it, on log-probabilities `R V`."""
    wanted = torch.full_like(x, smoothing / (x.shape[-1] - 2)).scatter(1, targets[:, None], 1 - smoothing)
    wanted[:, PADDING] = 0
    wanted[targets == PADDING] = 0
    return torch.nn.KLDivLoss(reduction="sum")(x, wanted)


SMOOTHINGS = (0.0, 0.1, 0.4, 1.0)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_the_divergence_is_the_annotated_transformers(smoothing, float64):
    logits, targets = torch.from_numpy(LOGITS).requires_grad_(), torch.from_numpy(TARGETS).long()
    reference = annotated(logits.log_softmax(-1).flatten(0, 1), targets.flatten(), smoothing)
    reference.backward()
    rules = {"ignore_index": PADDING, "smoothing": smoothing}
    total, count = losses.kl_divergence(jnp.asarray(LOGITS), jnp.asarray(TARGETS), **rules)
    check_float64("total", total, reference, "loss")
    check_float64("twin", torch_losses.kl_divergence(logits, targets, **rules)[0], reference, "loss")
    assert float(count) == (TARGETS != PADDING).sum()
    gradient = jax.grad(lambda x: losses.kl_divergence(x, jnp.asarray(TARGETS), **rules)[0])(jnp.asarray(LOGITS))
    check_float64("gradient", gradient, logits.grad, "gradient")


@pytest.mark.parametrize("spread", LEFT_OUT)
def test_the_divergence_of_every_spread_is_its_twins(spread, float64):
    rules = {"ignore_index": PADDING, "smoothing": 0.3, "spread": spread}
    total, _ = losses.kl_divergence(jnp.asarray(LOGITS), jnp.asarray(TARGETS), **rules)
    reference, _ = torch_losses.kl_divergence(torch.from_numpy(LOGITS), torch.from_numpy(TARGETS).long(), **rules)
    check_float64("total", total, reference, "loss")


def test_what_is_wanted_diverges_by_nothing_in_float32():
    """Cross-entropy is 300 there: the entropy is taken off row by row, so that little of it is left."""
    rng = np.random.default_rng(2)
    targets = rng.integers(PADDING + 1, 11, 500)
    wanted = torch_losses.smoothed(torch.from_numpy(targets), 11, 0.1, "others", PADDING)
    logits = (wanted.log() + torch.from_numpy(0.01 * rng.standard_normal((500, 11)))).float()
    rules = {"ignore_index": PADDING, "smoothing": 0.1, "spread": "others"}
    ours, _ = losses.kl_divergence(jnp.asarray(logits.numpy()), jnp.asarray(targets), **rules)
    theirs, _ = torch_losses.kl_divergence(logits, torch.from_numpy(targets), **rules)
    truth, _ = torch_losses.kl_divergence(logits.double(), torch.from_numpy(targets), **rules)
    check_float32("divergence", ours, theirs, truth)


def test_too_few_classes_to_share_are_refused():
    with pytest.raises(ConfigError, match="V = 2 classes leave none for spread = 'others_but_padding'"):
        losses.kl_divergence(jnp.ones((3, 2)), jnp.zeros(3, jnp.int32), ignore_index=1, smoothing=0.1)


STATES = RNG.standard_normal((4, 7, 4))
SIZES = {"vocab_size": 11, "context": 7, "d_model": 4, "n_layers": 1, "n_heads": 1, "d_ff": 0}
MODELS = {
    "own head": GPTConfig(**SIZES, head_bias=True),
    "tied": GPTConfig(**SIZES, tied=True),
    "encoder-decoder": EncoderDecoderConfig(**SIZES, tied=True, head_bias=True),
}
"""Of which only the read-out is called."""


@pytest.fixture(scope="module", params=MODELS)
def config(request):
    return MODELS[request.param]


SEVERAL = "smoothed over all, weighted", "smoothed over the others but padding"


@pytest.mark.first(12)
@pytest.mark.parametrize(
    ("name", "most"),
    [
        pytest.param(name, most, id=f"{name}, {said}", marks=[] if name in names else pytest.mark.slow)
        for most, said, names in ((11, "a row", RULES), (44, "four rows", ()), (10**6, "whole", SEVERAL))
        for name in RULES
    ],
)
def test_a_loss_in_chunks_has_torchs_value_and_gradient(name, most, config, float64, monkeypatch):
    rules = RULES[name]
    monkeypatch.setattr(chunked_loss, "MOST_LOGITS", most)
    weights = excite(abstract(config), seed=1)
    twin, states = load_torch(build(config), weights).double(), torch.from_numpy(STATES).requires_grad_()
    total, normaliser = theirs(twin.read_out(states), rules)
    torch_losses.mean(total, normaliser).backward()
    rules = {name: jnp.asarray(rule) if isinstance(rule, np.ndarray) else rule for name, rule in rules.items()}

    def mean(model, states, class_weights):
        weighted = {} if class_weights is None else {"class_weights": class_weights}
        sums = chunked_loss.read_out_cross_entropy(model, states, jnp.asarray(TARGETS), **(rules | weighted))
        return losses.mean(*sums), sums

    arrays = to_float64(weights), jnp.asarray(STATES), rules.get("class_weights")
    (_, found), (of_model, of_states) = jax.jit(jax.value_and_grad(mean, (0, 1), has_aux=True))(*arrays)
    check_float64("total", found[0], total, "loss")
    check_float64("normaliser", found[1], normaliser, "loss")
    check_float64("total alone", jax.jit(mean)(*arrays)[1][0], total, "loss")
    check_float64("gradient of the states", of_states, states.grad, "gradient")
    gradient = to_torch(of_model, TWIN)
    for name, parameter in twin.named_parameters():
        if parameter.grad is not None:
            check_float64(name, gradient[name], parameter.grad, "gradient")


def test_a_loss_in_chunks_never_holds_all_logits(monkeypatch):
    monkeypatch.setattr(chunked_loss, "MOST_LOGITS", 2**12)
    model = abstract(GPTConfig(vocab_size=256, context=7, d_model=8, n_layers=1, n_heads=1, d_ff=0))
    states, targets = jax.ShapeDtypeStruct((4, 256, 8), jnp.float32), jnp.zeros((4, 256), jnp.int32)

    def bytes_of(loss):
        return jax.jit(jax.grad(loss, (0, 1))).lower(model, states).compile().memory_analysis().temp_size_in_bytes

    whole = bytes_of(lambda model, states: losses.cross_entropy(model.read_out(states), targets)[0])
    chunked = bytes_of(lambda model, states: chunked_loss.read_out_cross_entropy(model, states, targets)[0])
    assert whole >= 4 * 1024 * 256
    assert chunked < whole / 8


@pytest.mark.slow
def test_the_loss_of_pairs_is_in_chunks(monkeypatch):
    model = abstract(EncoderDecoderConfig(vocab_size=2048, context=9, d_model=8, n_layers=1, n_heads=1, d_ff=0))
    batch = Pairs(jnp.ones((64, 2), jnp.int32), jnp.ones((64, 9), jnp.int32))

    def bytes_in_chunks_of(most):
        monkeypatch.setattr(chunked_loss, "MOST_LOGITS", most)
        gradient = jax.jit(jax.grad(lambda model: pair_loss(model, batch, None, pad=0, smoothing=0.1)[0]))
        return gradient.lower(model).compile().memory_analysis().temp_size_in_bytes

    assert bytes_in_chunks_of(2**14) < bytes_in_chunks_of(2**20) / 4
