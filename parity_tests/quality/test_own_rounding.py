"""bfloat16, module by module: what one of them loses, the whole output may hide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer import tap
from jaxformer.parity.attribute.rounding import measures
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = pytest.mark.foreign

V, D, H, T = 19, 64, 16, 400
IDS = np.random.default_rng(0).integers(0, V, (1, T)).astype(np.int32)


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(D))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Rotates(torch.nn.Module):
    """Pairs that turn with their position, by a table that no checkpoint holds; scores are products of near rows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", 1e4 ** -(torch.arange(0, H, 2) / H), persistent=False)

    def forward(self, x):
        angle = torch.arange(x.shape[1])[:, None] * self.rates.float()
        cos, sin = (f(torch.cat([angle, angle], -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat([-other, one], -1) * sin


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.down = torch.nn.Embedding(V, D), Norm(), torch.nn.Linear(D, H, bias=False)
        self.rotate, self.head = Rotates(), torch.nn.Linear(H, V, bias=False)

    def forward(self, ids):
        x = self.rotate(self.down(self.norm(self.table(ids))))
        return self.head(x)


def call_jax(p, ids, low_norm=False, low_rates=False):
    x = tap("table", p["table.weight"][ids])
    wide = x if low_norm else x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + jnp.asarray(1e-6, wide.dtype))
    x = p["norm.weight"] * wide.astype(x.dtype)
    x = tap("down", tap("norm", x) @ p["down.weight"].T)
    rates = 1e4 ** -(jnp.arange(0, H, 2, dtype=jnp.float32) / H)
    rates = rates.astype(x.dtype).astype(jnp.float32) if low_rates else rates
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * rates
    cos, sin = (f(jnp.concatenate([angle, angle], -1)).astype(x.dtype) for f in (jnp.cos, jnp.sin))
    one, other = jnp.split(x, 2, -1)
    x = tap("rotate", x * cos + jnp.concatenate([-other, one], -1) * sin)
    return x @ p["head.weight"].T


def report_of(seed, **bug):
    theirs = excite(Reader().eval(), seed=seed)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    return compare(theirs, params, (IDS,), call_jax=lambda p, ids: call_jax(p, ids, **bug), tier="C", checks=("forward",))


@pytest.mark.parametrize("seed", range(3))
def test_a_right_port_is_equal(seed):
    assert report_of(seed).exit_code == 0


def test_squares_in_bfloat16_are_the_norms_fault():
    report = report_of(0, low_norm=True)
    assert [stage.status for stage in report.stages] == ["equal", "equal", "different"], str(report)
    assert report.verdict.startswith("DIFFERENT: bfloat16: norm loses digits in bfloat16: the error of the factors of rows")


def test_a_table_in_bfloat16_is_the_fault_of_what_makes_it():
    """torch keeps its buffers in float32, as a model that is loaded in bfloat16 does."""
    report = report_of(0, low_rates=True)
    assert [stage.status for stage in report.stages] == ["equal", "equal", "different"], str(report)
    assert report.verdict.startswith("DIFFERENT: bfloat16: rotate loses digits in bfloat16: the error of the entries")


class Adds(torch.nn.Module):
    """A table that is joined with activations: torch refuses two types, so that it is rounded."""

    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(V, D), torch.nn.Linear(D, V)
        self.register_buffer("places", torch.randn(T, D))

    def forward(self, ids):
        return self.head(self.table(ids) + self.places)


def test_buffers_that_are_added_are_rounded():
    theirs = excite(Adds().eval(), seed=0)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.state_dict().items()}

    def call(p, ids):
        return (p["table.weight"][ids] + p["places"]) @ p["head.weight"].T + p["head.bias"]

    report = compare(theirs, params, (IDS,), call_jax=call, tier="C", checks=("forward",))
    assert report.exit_code == 0, str(report)


def test_a_factor_of_each_row_stands_out_of_the_rounding_of_its_entries():
    random = np.random.default_rng(0)
    truth = random.standard_normal((50, 256))
    theirs, ours = (truth * (1 + 1e-3 * random.standard_normal(truth.shape)) for _ in range(2))
    ours = ours * (1 + 1e-3 * random.standard_normal((50, 1)))
    (_, entries, usual, *_), (_, factors, others, *_) = measures(ours, theirs, truth)
    assert entries < 2 * usual
    assert factors > 5 * others
