"""What ports often train otherwise, with the same values: the row of `padding_idx`, and scores of rows without keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign

V, D = 7, 6
IDS = np.asarray([[3, 5, 2, 0], [0, 0, 0, 0], [4, 1, 0, 0]], np.int32)
PADDING = "jax trains row 0, which torch's padding_idx leaves as it is"
MASKED = "gradient of masked scores, which is seen where every key is masked"


class Attends(torch.nn.Module):
    """To what is no padding."""

    def __init__(self, padding_idx, filled):
        super().__init__()
        self.embed, self.filled = torch.nn.Embedding(V, D, padding_idx), filled
        self.positions = torch.nn.Parameter(torch.ones(4, D))

    def forward(self, ids):
        x = self.embed(ids) + self.positions
        scores, hidden, low = x @ x.mT, (ids == 0)[:, None], torch.finfo(x.dtype).min
        scores = scores.masked_fill(hidden, low) if self.filled else scores + torch.zeros_like(scores).masked_fill(hidden, low)
        return x + torch.tanh(x) * (scores.softmax(-1) @ x)


def ported(p, ids, filled, stopped):
    x = p["embed.weight"][ids] + p["positions"]
    scores, hidden = x @ x.mT, (ids == 0)[:, None]
    low = jnp.finfo(x.dtype).min
    scores = jnp.where(hidden, low, scores) if filled else scores + jnp.where(hidden, low, 0)
    gate = jnp.tanh(x)
    return x + (jax.lax.stop_gradient(gate) if stopped else gate) * (jax.nn.softmax(scores) @ x)


@pytest.mark.parametrize(
    ("padding_idx", "filled", "stopped", "causes"),
    [
        (None, (False, True), False, [f"jax stops the {MASKED}"]),
        (None, (True, False), False, [f"jax does not stop the {MASKED}"]),
        (0, (False, True), False, [PADDING, f"jax stops the {MASKED}"]),
        (
            0,
            (False, False),
            True,
            [PADDING, "torch computes `torch.tanh(x)` (test_trained_otherwise.py:33); jax stops its gradient"],
        ),
    ],
)
def test_what_is_trained_otherwise(padding_idx, filled, stopped, causes):
    theirs = excite(Attends(padding_idx, filled[0]).eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    call = lambda p, ids: ported(p, ids, filled[1], stopped)  # noqa: E731
    report = compare(theirs, params, (IDS,), call_jax=call, checks=("gradients", "activation gradients"), tier="A")
    said = report.diverging[0].cause.partition(" (residual")[0].split("; beside it, ")
    assert len(said) == len(causes), str(report)
    assert all(cause in each for cause, each in zip(causes, said, strict=True)), str(report)


class Looks(torch.nn.Module):
    """Up what may be tied to the head."""

    def __init__(self, padding_idx, tied):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(V, D, padding_idx), torch.nn.Linear(D, V, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)))


def looks(p, ids, wrong=1.0, frozen=-1):
    table = p["embed.weight"]
    x = jnp.tanh(jnp.where((ids == frozen)[..., None], jax.lax.stop_gradient(table[ids]), table[ids]))
    x = wrong * x + jax.lax.stop_gradient((1 - wrong) * x)
    return x @ p.get("head.weight", table).T


@pytest.mark.parametrize("tied", [False, True])
def test_a_row_of_padding_that_jax_trains_is_a_note_where_nothing_is_trained(tied):
    theirs = excite(Looks(0, tied).eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (IDS,), call_jax=looks)
    assert report.exit_code == 0, str(report)
    says = {stage.name: stage.says for stage in report.stages}["gradients"]
    assert says.endswith(
        "jax trains row 0 of embed.weight, which torch's padding_idx leaves as it is: a difference in training alone"
    )
    report = compare(theirs, params, (IDS,), call_jax=looks, mode="train")
    assert "padding_idx" in report.verdict, str(report)
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("padding_idx", "more"),
    [(0, {"wrong": 2.0}), (0, {"frozen": 3}), (None, {"frozen": 0})],
    ids=["another gradient too", "another row", "torch has no padding"],
)
def test_other_gradients_differ_beside_a_row_of_padding(padding_idx, more):
    theirs = excite(Looks(padding_idx, tied=False).eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (IDS,), call_jax=lambda p, ids: looks(p, ids, **more))
    assert report.exit_code == 1, str(report)
    assert "in training alone" not in str(report)


def test_a_row_of_padding_is_no_cause_beside_another_module():
    def ours(p, ids):
        x = tap("embed", p["embed.weight"][ids])
        return tap("head", jnp.tanh(x) @ (2 * p["head.weight"]).T)

    theirs = excite(Looks(0, tied=False).eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (IDS,), call_jax=ours, tier="A")
    assert [module.jax for module in report.diverging] == ["head"], str(report)
