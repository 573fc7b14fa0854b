"""Cross-entropy against torch: ignored targets, class weights, three kinds of smoothing; value, normaliser and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from jaxformer.errors import ConfigError
from jaxformer.parity.measure import check_float32, check_float64
from jaxformer.training import losses
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
    with pytest.raises(ConfigError, match="ignore_index = -100 is no class"):
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


SURE = {
    "10": (10.0, 0.0),
    "15": (15.0, 0.0),
    "80": (80.0, 0.0),
    "shifted by 100": (15.0, 100.0),
    "shifted by 18": (8.0, 18.0),
    "shifted by 30": (12.0, 30.0),
}


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
    found = jax.value_and_grad(lambda x: losses.cross_entropy(x, jnp.asarray(targets), **given)[0])(jnp.asarray(logits))
    for name, ours, theirs, truth in zip(
        ("total", "gradient"), found, torch_side(torch.float32), torch_side(torch.float64), strict=True
    ):
        check_float32(name, ours, theirs, truth)


def test_a_sure_row_has_torchs_loss_bit_for_bit():
    logits = np.array([[18.0, 5.0, 0.0]], np.float32)
    loss, _ = losses.cross_entropy(jnp.asarray(logits), jnp.zeros(1, jnp.int32))
    assert loss == F.cross_entropy(torch.from_numpy(logits), torch.zeros(1, dtype=torch.long)).numpy()
