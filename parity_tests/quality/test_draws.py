"""What is drawn in training mode: draws of one law are given the same numbers, and what cannot be tied is not judged."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.pairing.draws import fitting, pair_draws
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.draws import DROPOUT, UNIFORM, Draw, numbers_of

pytestmark = pytest.mark.foreign

W, V, KEEP = 6, 7, 0.7
HERE = r" \(parity_tests/quality/test_draws.py:\d+\)"


class Drawing(torch.nn.Module):
    """Two linear layers, and between them a module that draws."""

    def __init__(self, draw: Callable[[Any], Any]):
        super().__init__()
        self.first, self.last, self.inner = torch.nn.Linear(W, V), torch.nn.Linear(V, V), torch.nn.Module()
        self.inner.forward = draw

    def forward(self, x):
        return self.last(self.inner(torch.tanh(self.first(x))))


ROWS = np.random.default_rng(1).standard_normal((16, W)).astype(np.float32)
EACH = np.linspace(0.2, 0.9, V)


def drawing(theirs: Callable[[Any], Any], ours: Callable[[Any, Any], Any]) -> Report:
    """`ours` is given two keys."""

    def call(held: dict[str, Any], x: Any) -> Any:
        x = jnp.tanh(x @ held["first.weight"].T + held["first.bias"])
        return ours(x, jax.random.split(jax.random.key(0))) @ held["last.weight"].T + held["last.bias"]

    model = excite(Drawing(theirs), seed=1)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return compare(model, arrays, (ROWS,), call_jax=call, tier="A", mode="train", checks=("forward",))


def drop_path(x: Any) -> Any:
    return x / KEEP * torch.floor(KEEP + torch.rand((len(x), 1), dtype=x.dtype))


def of_rows(x: Any, key: Any) -> Any:
    return x * jax.random.bernoulli(key, KEEP, (len(x), 1)) / KEEP


ONE_LAW: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "uniform numbers of torch's, from above": (drop_path, lambda x, keys: of_rows(x, keys[0])),
    "uniform numbers of torch's, from below": (
        lambda x: x * (torch.rand((len(x), 1), dtype=x.dtype) < KEEP) / KEEP,
        lambda x, keys: of_rows(x, keys[0]),
    ),
    "uniform numbers of jax's, beside drop path": (
        lambda x: drop_path(functional.dropout(x, 0.2)),
        lambda x, keys: of_rows(jnp.where(jax.random.uniform(keys[0], x.shape) >= 0.2, x / 0.8, 0), keys[1]),
    ),
    "a probability in an array": (
        lambda x: x * torch.bernoulli(torch.full((len(x), 1), KEEP)) / KEEP,
        lambda x, keys: of_rows(x, keys[0]),
    ),
    "several probabilities": (
        lambda x: x * torch.bernoulli(torch.tensor(EACH).expand(x.shape)),
        lambda x, keys: x * jax.random.bernoulli(keys[0], jnp.asarray(EACH), x.shape),
    ),
    "normal numbers": (
        lambda x: x + torch.normal(0.0, 0.3, x.shape, dtype=x.dtype) + torch.empty_like(x).normal_(1, 0.3),
        lambda x, keys: x + 0.3 * jax.random.normal(keys[0], x.shape) + (1 + 0.3 * jax.random.normal(keys[1], x.shape)),
    ),
}


@pytest.mark.parametrize("case", ONE_LAW)
def test_draws_of_one_law_are_equal(case):
    report = drawing(*ONE_LAW[case])
    assert report.status == "equal", str(report)


OTHER_RATE: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any], str]] = {
    "uniform numbers of jax's": (
        lambda x: functional.dropout(x, 0.2),
        lambda x, keys: jnp.where(jax.random.uniform(keys[0], x.shape) >= 0.35, x / 0.65, 0),
        "jax has 0.35 for that rate",
    ),
    "uniform numbers of torch's": (
        drop_path,
        lambda x, keys: x * jax.random.bernoulli(keys[0], 0.4, (len(x), 1)) / 0.4,
        "jax keeps 0.4",
    ),
}


@pytest.mark.parametrize("case", OTHER_RATE)
def test_another_rate_of_draws_of_two_kinds_is_named(case):
    theirs, ours, cause = OTHER_RATE[case]
    report = drawing(theirs, ours)
    assert any(cause in each.cause for each in report.diverging), str(report)


def in_a_loop(x: Any, keys: Any) -> Any:
    return jax.lax.while_loop(lambda i_x: i_x[0] < 1, lambda i_x: (i_x[0] + 1, in_rows(i_x[1], keys[0])), (0, x))[1]


def in_rows(x: Any, key: Any) -> Any:
    return x + jax.random.randint(key, (len(x), 1), 0, 5)


UNTIED: dict[str, Callable[[Any, Any], Any]] = {
    "integers": lambda x, keys: in_rows(x, keys[0]),
    "binomial": lambda x, keys: x + jax.random.binomial(keys[0], 4.0, 0.5, (len(x), 1)),
    "in a loop": in_a_loop,
}


@pytest.mark.parametrize("case", UNTIED)
def test_what_cannot_be_tied_is_not_judged(case):
    report = drawing(lambda x: x + torch.randint(0, 5, (len(x), 1)), UNTIED[case])
    assert report.exit_code == 2, str(report)
    assert re.search(
        f"^COULD NOT COMPARE: dropout: torch draws randint numbers in inner{HERE}, jax draws at parity", report.verdict
    )
    assert report.verdict.endswith("give them to both models as inputs, or compare with mode='eval'")
    assert "none there" not in str(report)
    assert "torch has not" not in str(report)


def test_what_one_side_alone_draws_is_a_difference():
    integers, numbers, mask = Draw("a", "randint", (5,)), Draw("b", UNIFORM, (7,)), Draw("c", DROPOUT, (9,))
    for torch_draws, jax_draws, lines, judged in (
        ([integers], [], [], True),
        ([integers], [numbers], [], False),
        ([integers], [], ["model.py:1"], False),
        ([numbers], [mask], [], True),
        ([mask], [mask], ["model.py:1"], True),
        ([integers, mask], [mask], [], True),
    ):
        found = pair_draws(torch_draws, jax_draws, {}, lines)
        assert (found.untied() == "") == judged
        assert not found.differences() or judged


def test_uniform_numbers_do_not_hide_another_rate():
    torch_draw = Draw("drop", DROPOUT, (40, 50), keep=KEEP)
    kept = numbers_of(torch_draw)
    for turned in (False, True):
        numbers = fitting(torch_draw, Draw("", UNIFORM, (40, 50)), turned)
        below = [(1 - numbers if turned else numbers) < keep for keep in (KEEP, KEEP + 0.05, KEEP - 0.05)]
        assert [np.array_equal(each, kept) for each in below] == [True, False, False]


class Pictures(torch.nn.Module):
    """Two convolutions, with dropout behind each."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv2d(W, W, 1), torch.nn.Conv2d(W, V, 1)

    def forward(self, x):
        x = functional.dropout(self.first(x).tanh(), 0.3, self.training)
        return functional.dropout(self.last(x), 0.2, self.training)


@pytest.mark.parametrize("both", [True, False])
def test_axes_of_one_size_may_be_in_another_order(both):
    """All axes of the first draw have the same size, so only the output tells their order; the second is laid out alike."""

    def drop(x, key, keep, last):
        x = x if last else x.transpose(0, 3, 1, 2)
        x = x * jax.random.bernoulli(key, keep, x.shape) / keep
        return x if last else x.transpose(0, 2, 3, 1)

    def call(held, x):
        keys, x = jax.random.split(jax.random.key(0)), x.transpose(0, 2, 3, 1)
        x = jnp.tanh(x @ held["first.weight"][:, :, 0, 0].T + held["first.bias"])
        x = drop(x, keys[0], 0.7, True) @ held["last.weight"][:, :, 0, 0].T + held["last.bias"]
        return drop(x, keys[1], 0.8, both).transpose(0, 3, 1, 2)

    model = excite(Pictures(), seed=1)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    x = np.random.default_rng(1).standard_normal((3, W, W, W)).astype(np.float32)
    report = compare(model, arrays, (x,), call_jax=call, tier="A", mode="train", checks=("forward",))
    assert report.status == "equal", str(report)
