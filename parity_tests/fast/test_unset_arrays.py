"""`jnp.empty` gives memory as it was left since jax 0.11: a model that reads it is told, and one that overwrites it is not."""

import re
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.core import Primitive
from jax.lax import empty

from jaxformer.parity.compare import compare
from jaxformer.parity.numerics import jax_operations
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check, dump
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign

W, V = 6, 7
HERE = r"\(at parity_tests/fast/test_unset_arrays\.py:(\d+)\)"
SAYS = rf"jax reads jnp\.empty, which is uninitialised since jax 0\.11 {HERE}; use jnp\.zeros"
ROWS = np.random.default_rng(1).standard_normal((5, W)).astype(np.float32)


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    """jnp.empty as jax 0.11 has it."""
    monkeypatch.setattr(jax_operations, "SINCE", (0, 0))
    monkeypatch.setattr(jnp, "empty", partial(empty, dtype=jnp.float32))


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(W, V), torch.nn.Linear(V, V)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def read(hidden: Any) -> Any:
    return hidden + jnp.empty(hidden.shape)


def half_read(hidden: Any) -> Any:
    return jnp.empty(hidden.shape).at[:, 1:].set(hidden[:, 1:])


def overwritten(hidden: Any) -> Any:
    return jnp.empty(hidden.shape).at[:].set(hidden)


def port(between: Any, activation: Any = jnp.tanh) -> Any:
    def call(held: dict[str, Any], x: Any) -> Any:
        hidden = tap("first", x @ held["first.weight"].T + held["first.bias"])
        return tap("last", between(activation(hidden)) @ held["last.weight"].T + held["last.bias"])

    return call


@pytest.fixture(scope="module")
def theirs():
    return excite(Two(), seed=1)


def report_of(theirs, between, **how):
    arrays = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    return compare(theirs, arrays, (ROWS,), call_jax=port(between, **how), tier="A")


@pytest.mark.parametrize("between", [read, half_read])
def test_what_is_read_is_told_with_its_line(theirs, between):
    report = report_of(theirs, between)
    assert report.status == "different"
    assert (said := re.search(SAYS, report.verdict)), report.verdict
    assert int(said[1]) == between.__code__.co_firstlineno + 1
    assert re.search(SAYS, next(stage.says for stage in report.stages if stage.name == "forward"))
    assert [bool(re.fullmatch(SAYS, module.cause)) for module in report.diverging] == [True]


def test_a_dump_is_enough(theirs, tmp_path):
    dump(theirs, (ROWS,), tmp_path / "dumped", tier="A")
    arrays = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    assert re.search(SAYS, check(tmp_path / "dumped", arrays, call_jax=port(read), tier="A").verdict)


def test_what_is_overwritten_is_equal(theirs):
    assert report_of(theirs, overwritten).status == "equal"


def test_another_bug_is_not_laid_to_it(theirs):
    report = report_of(theirs, overwritten, activation=lambda x: 1.5 * jnp.tanh(x))
    assert report.status == "different"
    assert "jnp.empty" not in str(report)


def test_before_jax_0_11_nothing_is_told(theirs, monkeypatch):
    monkeypatch.setattr(jax_operations, "SINCE", (9, 0))
    monkeypatch.setattr(jnp, "empty", jnp.zeros)
    report = report_of(theirs, read, activation=lambda x: 1.5 * jnp.tanh(x))
    assert report.status == "different"
    assert "jnp.empty" not in str(report)


def test_the_operation_has_the_name_that_is_looked_for(monkeypatch):
    bound, bind = [], Primitive.bind
    monkeypatch.setattr(Primitive, "bind", lambda self, *args, **how: (bound.append(self.name), bind(self, *args, **how))[1])
    empty((2,), jnp.float32)
    assert jax_operations.EMPTY in bound
