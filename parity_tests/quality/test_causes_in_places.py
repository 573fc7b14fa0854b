"""Causes in where things stand in a module: activations before and after its children, sums, the order of what is joined."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx

import jaxformer as jf
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign
B, T, D, H, S = 2, 5, 6, 4, 3
silu = torch.nn.functional.silu


class Theirs(torch.nn.Module):
    """A norm after a product, a branch beside it, and queries that are learned; Fourier features are joined to the input."""

    def __init__(self):
        super().__init__()
        self.query = torch.nn.Parameter(torch.randn(S, H))
        self.first, self.skip, self.out = (torch.nn.Linear(*sizes) for sizes in ((2 * D + 1, H), (2 * D + 1, H), (H, D)))
        self.norm, self.last = torch.nn.LayerNorm(H), torch.nn.LayerNorm(H)

    def forward(self, x):
        waves = x[..., None] * torch.linspace(1.0, 4.0, 2)
        x = torch.cat([waves.sin().mean(-1), waves.cos().mean(-1), x[..., :1]], -1).cumsum(-1)
        x = silu(self.norm(self.first(x))) + self.skip(x)
        weights = (self.query @ x.mT).softmax(-1)
        x = self.last(weights @ x)
        y = self.out(x)
        return torch.cat([x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)], -1)


class Ours(nnx.Module):
    def __init__(self, theirs: Any, bug: str):
        sizes = (2 * D + 1, H), (2 * D + 1, H), (H, D)
        self.first, self.skip, self.out = (nnx.Linear(*each, rngs=nnx.Rngs(0)) for each in sizes)
        self.norm, self.last = (nnx.LayerNorm(H, epsilon=1e-5, rngs=nnx.Rngs(0)) for _ in range(2))
        self.query = nnx.Param(jnp.asarray(theirs.query.detach().numpy()))
        for name in ("first", "skip", "out"):
            mine, its = getattr(self, name), getattr(theirs, name)
            mine.kernel[...], mine.bias[...] = its.weight.detach().numpy().T, its.bias.detach().numpy()
        for name in ("norm", "last"):
            mine, its = getattr(self, name), getattr(theirs, name)
            mine.scale[...], mine.bias[...] = its.weight.detach().numpy(), its.bias.detach().numpy()
        self.bug = bug

    def __call__(self, x):
        bug = self.bug
        waves = x[..., None] * jnp.linspace(1.0, 5.0 if bug == "five" else 4.0, 2)
        parts = [jnp.sin(waves).mean(-1), jnp.cos(waves).mean(-1), x[..., :1]]
        x = jnp.concatenate([parts[1], parts[0], parts[2]] if bug == "order" else parts, -1).cumsum(-1)
        y = self.norm(jax.nn.silu(self.first(x))) if bug == "before" else jax.nn.silu(self.norm(self.first(x)))
        x = y + (jax.nn.silu(self.skip(x)) if bug == "skip" else self.skip(x))
        scores = self.query[...] @ x.mT
        scores = jnp.where(jnp.tri(S, T, dtype=bool), scores, -jnp.inf) if bug == "causal" else scores
        x = self.last(jax.nn.softmax(scores, -1) @ x + (self.query[...] if bug == "query" else 0))
        order = {"one": 1}.get(bug)
        both = (x, self.out(x))
        return jnp.concatenate([y / jnp.linalg.norm(y, ord=order, axis=-1, keepdims=True) for y in both], -1)


CAUSES = {
    "before": "jax does that before norm",
    "skip": "torch uses skip as it is; jax applies silu to it",
    "order": "jax joins them in the order 1, 0, 2",
    "query": "jax adds query to it",
    "causal": "jax masks causally too",
    "five": "jax has 5 for 4 there",
    "one": "`y.norm(dim=-1, keepdim=True)` (test_causes_in_places.py:37)); jax takes the L1 norm",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Theirs().eval(), seed=1)


def report_of(theirs: Any, bug: str) -> Any:
    return compare(theirs, Ours(theirs, bug), (3 * noise(B, T, D, seed=1),), tier="A", checks=("forward", "local"))


def test_the_port_is_equal(theirs):
    assert report_of(theirs, "").status == "equal"


@pytest.mark.parametrize("bug", usually(CAUSES, "before", "query", "one"))
def test_causes(theirs, bug):
    assert CAUSES[bug] in report_of(theirs, bug).verdict


class Tokens(torch.nn.Module):
    """A class token, positions, and two branches with a scale each."""

    def __init__(self):
        super().__init__()
        self.token, self.positions = torch.nn.Parameter(torch.zeros(1, 1, D)), torch.nn.Parameter(torch.zeros(1, T + 1, D))
        self.gamma1, self.gamma2 = torch.nn.Parameter(torch.ones(D)), torch.nn.Parameter(torch.ones(D))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = x + self.gamma1 * x.roll(1, 1).tanh()
        return x + self.gamma2 * x.flip(1).sin()


OF_TOKENS = {
    "": "EQUAL",
    "positions": "jax leaves the first position as it is",
    "scale": "torch uses gamma2; jax uses gamma1 in its place",
}


@pytest.mark.parametrize("bug", OF_TOKENS)
def test_a_class_token_without_a_position_and_one_scale_for_two(bug):
    def call(p, x):
        first, others = p["positions"][:, :1], p["positions"][:, 1:]
        token = jnp.broadcast_to(p["token"], (len(x), 1, D)) + (0 if bug == "positions" else first)
        x = jnp.concatenate([token, x + others], 1)
        x = x + p["gamma1"] * jnp.tanh(jnp.roll(x, 1, 1))
        return x + p["gamma1" if bug == "scale" else "gamma2"] * jnp.sin(x[:, ::-1])

    torch_model = excite(Tokens(), seed=1)
    weights = {name: jnp.asarray(array.numpy()) for name, array in torch_model.state_dict().items()}
    how = {"call_jax": call, "checks": ("weights", "forward", "local"), "tier": "A"}
    assert OF_TOKENS[bug] in compare(torch_model, weights, (noise(B, T, D, seed=3),), **how).verdict


class Routed(torch.nn.Module):
    """One function divides by the root mean square in four places; what the router reads goes on too."""

    def __init__(self):
        super().__init__()
        self.first, self.router, self.last = torch.nn.Linear(D, D), torch.nn.Linear(D, S), torch.nn.Linear(D, H)

    def forward(self, x):
        y = unit(x) + self.first(unit(x)).tanh()
        return self.last(unit(y)) * self.router(unit(y)).softmax(-1).sum(1, keepdim=True)[..., :1]


def unit(x, epsilon=1e-6):
    return x / (x**2).mean(-1, keepdims=True).__add__(epsilon) ** 0.5


@pytest.mark.parametrize(("epsilon", "says"), [(1e-6, "EQUAL"), (1e-5, "jax has 1e-05 for 1e-06 there")])
def test_an_epsilon_in_one_of_several_places_is_no_factor(epsilon, says):
    def call(p, x):
        def linear(name, x):
            return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])

        y = unit(x) + jnp.tanh(linear("first", unit(x)))
        last = linear("last", unit(y))
        return last * jax.nn.softmax(linear("router", unit(y, epsilon)), -1).sum(1, keepdims=True)[..., :1]

    torch_model = excite(Routed(), seed=1)
    weights = {name: jnp.asarray(array.numpy()) for name, array in torch_model.state_dict().items()}
    how = {"call_jax": call, "checks": ("weights", "forward", "local"), "tier": "A"}
    verdict = compare(torch_model, weights, (noise(B, T, D, seed=3),), **how).verdict
    assert says in verdict
    assert "multiplies" not in verdict
