"""Fresh norms and biases, whose values do not tell them apart, are paired by their gradients."""

import jax.numpy as jnp
import pytest
import torch

import jaxformer as jf
from jaxformer.parity.pairing.candidates import Assignment
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign


class FreshNorms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 6), torch.nn.Linear(6, 6)
        self.input_norm, self.post_attention_norm = torch.nn.LayerNorm(6), torch.nn.LayerNorm(6)

    def forward(self, x):
        return self.post_attention_norm(self.second(torch.tanh(self.input_norm(self.first(x)))))


def with_fresh_norms(weights, x):
    def normed(x, name):
        centred = x - x.mean(-1, keepdims=True)
        y = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return y * weights[f"{name}.scale"] + weights[f"{name}.bias"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    return normed(linear(jnp.tanh(normed(linear(x, "first"), "attention_norm")), "second"), "feed_forward_norm")


def test_fresh_norms_go_by_their_gradients(monkeypatch):
    """Names would lead the norm before attention to the one after it."""
    theirs = FreshNorms().eval()
    names = {"input_norm.weight": "attention_norm.scale", "post_attention_norm.weight": "feed_forward_norm.scale"}
    names |= {name.replace("weight", "bias"): ours.replace("scale", "bias") for name, ours in names.items()}
    weights = {names.get(name, name): jnp.asarray(x.detach().numpy()) for name, x in theirs.named_parameters()}
    given = theirs, weights, (noise(4, 5, seed=3),)
    assert jf.compare(*given, call_jax=with_fresh_norms, tier="A").status == "equal"
    monkeypatch.setattr(Assignment, "_of_one_gradient", lambda self: iter(()))
    assert jf.compare(*given, call_jax=with_fresh_norms, tier="A").status == "different"
