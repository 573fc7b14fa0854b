"""A loss that differs when training begins: what its code does otherwise is named, as of any other code."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch.nn import functional

import jaxformer as jf

pytestmark = [pytest.mark.foreign, pytest.mark.optimizers]
V, D, B, T, IGNORED = 11, 6, 4, 5, -100
RANDOM = np.random.default_rng(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(V, D), torch.nn.Linear(D, V)

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)))


def model(p, ids):
    return jf.tap("head", jnp.tanh(p["embed.weight"][ids]) @ p["head.weight"].T + p["head.bias"])


def batch():
    targets = RANDOM.integers(0, V, (B, T))
    ids = RANDOM.integers(0, V, (B, T))
    return ids.astype(np.int32), np.where(RANDOM.random((B, T)) < 0.25, IGNORED, targets).astype(np.int32)


BATCHES = [batch(), batch()]


def torch_loss(net, ids, targets):
    return functional.cross_entropy(net(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def mean(losses, counted, logits):
    return (losses * counted).sum() / counted.sum()


def of_rows(losses, counted, logits):
    return ((losses * counted).sum(1) / counted.sum(1)).mean()


def of_all(losses, counted, logits):
    return losses.mean()


def without_first(losses, counted, logits):
    return (losses * counted)[:, 1:].sum() / counted[:, 1:].sum()


def with_squares(losses, counted, logits):
    return mean(losses + 1e-3 * jax.nn.logsumexp(logits, -1) ** 2, counted, logits)


def smoothed(losses, counted, logits):
    return mean(0.9 * losses - 0.1 * jax.nn.log_softmax(logits).mean(-1), counted, logits)


def with_a_gradient_alone(losses, counted, logits):
    squares = jax.nn.logsumexp(logits, -1) ** 2
    return mean(losses + squares - jax.lax.stop_gradient(squares), counted, logits)


def cubed(losses, counted, logits):
    return mean(losses**3, counted, logits)


CASES = {
    "nothing": (mean, "equal", ""),
    "rows first": (of_rows, "different", "; jax takes the mean of each of 4 rows first, then over rows (residual "),
    "not ignored": (of_all, "different", "; jax takes class 0 for targets of -100, torch ignores them (residual "),
    "without the first": (
        without_first,
        "different",
        "; jax takes the mean without the first entry of each of 4 rows",
    ),
    "z-loss": (with_squares, "different", "; jax adds 0.001 times the mean square of logsumexp (z-loss) (residual "),
    "smoothed": (smoothed, "different", "; jax smooths labels by 0.1, torch by 0 (residual "),
    "a gradient alone": (with_a_gradient_alone, "different", "the losses are equal, but not their gradients: "),
    "cubed": (cubed, "different", "(tolerance 1e-13)"),
}


def compared(torch_loss, jax_loss):
    """Stage `loss` of a training whose losses are these."""
    net = jf.excite(Net(), seed=1)
    weights = {name: jnp.asarray(tensor.numpy()) for name, tensor in net.state_dict().items()}
    spec = jf.TrainingSpec(
        batches=BATCHES,
        torch_loss=torch_loss,
        jax_loss=jax_loss,
        torch_optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
        jax_optimizer=optax.sgd(0.1),
    )
    checks = ("weights", "forward")
    report = jf.compare(net, weights, BATCHES[0][:1], call_jax=model, training=spec, checks=checks, tier="A")
    (loss,) = [stage for stage in report.stages if stage.name == "loss"]
    return loss


def jax_losses(p, ids, targets):
    logits, counted = model(p, ids), targets != IGNORED
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counted, targets, 0)), counted, logits


@pytest.mark.parametrize("case", CASES)
def test_the_code_of_a_loss_is_searched(case):
    averaged, status, says = CASES[case]
    loss = compared(torch_loss, lambda *given: averaged(*jax_losses(*given)))
    assert loss.status == status
    assert says in loss.says
    assert ("torch computes" in loss.says) == (says.startswith("; "))


def test_a_number_that_fits_one_batch_alone_is_no_cause():
    def of_both(net, ids, targets):
        squares, counted = net(ids).square().mean(-1), targets != IGNORED
        return torch_loss(net, ids, targets) + 0.1 * (squares * counted).sum() / counted.sum()

    def twice(p, ids, targets):
        losses, counted, logits = jax_losses(p, ids, targets)
        return mean(losses, counted, logits) + 0.1 * mean((logits**2).mean(-1), counted, logits) / counted.sum()

    loss = compared(of_both, twice)
    assert loss.status == "different"
    assert "torch computes" not in loss.says


READ_OTHERWISE = {
    "the first class is not counted": (lambda targets: jnp.where(targets > 0, targets, IGNORED), "-100 for 0"),
    "the next targets": (
        lambda targets: jnp.pad(targets[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORED),
        "one earlier, -100 at",
    ),
}


@pytest.mark.parametrize("case", READ_OTHERWISE)
def test_targets_that_are_read_otherwise(case):
    other, says = READ_OTHERWISE[case]
    loss = compared(torch_loss, lambda p, ids, targets: mean(*jax_losses(p, ids, other(targets))))
    assert f"torch takes input 1 of the call as it is; jax takes its integers {says}" in loss.says


def teacher(ids, library):
    """Logits of a teacher: any function of the ids."""
    return library.cos(ids[..., None] * library.arange(V))


def test_a_divergence_the_other_way():
    def of_torch(net, ids, targets):
        return functional.kl_div(net(ids).log_softmax(-1), teacher(ids, torch).softmax(-1), reduction="sum")

    def of_jax(p, ids, targets):
        one, other = jax.nn.log_softmax(model(p, ids)), jax.nn.log_softmax(teacher(ids, jnp))
        return (jnp.exp(one) * (one - other)).sum()

    assert "jax exchanges the two distributions" in compared(of_torch, of_jax).says


@pytest.mark.parametrize("stop", [jax.lax.stop_gradient, lambda x: x])
def test_a_gradient_that_stops_in_the_code_of_a_loss(stop):
    """No module shows it: the code lies behind the only tap. The control: without the stop, both losses are equal."""

    def balanced(net, ids, targets):
        p = net(ids).softmax(-1)
        return torch_loss(net, ids, targets) + (p.mean((0, 1)) * p.square().mean((0, 1))).sum()

    def of_jax(p, ids, targets):
        losses, counted, logits = jax_losses(p, ids, targets)
        p = jax.nn.softmax(logits)
        return mean(losses, counted, logits) + (stop(p.mean((0, 1))) * (p**2).mean((0, 1))).sum()

    says = compared(balanced, of_jax).says
    told = "torch computes `p.mean((0, 1))`" in says and "jax stops its gradient" in says
    assert told == (stop is jax.lax.stop_gradient), says


def test_a_number_that_is_added_is_told_of_this_step():
    """Added numbers have no gradient, and another batch may have another one."""

    def of_jax(p, ids, targets):
        return mean(*jax_losses(p, ids, targets)) + 0.25

    assert "jax's loss is torch's plus 0.25 in this step, with the same gradients" in compared(torch_loss, of_jax).says
