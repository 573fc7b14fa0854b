"""Causes in a mixture of experts, which torch holds as a list and NNX as stacked arrays, one matrix product for all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

import jaxformer as jf
from jaxformer.convert.families.mixtures import MIXTRAL_TYPE
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

D, INNER, EXPERTS, CHOSEN = 7, 5, 4, 2
X = noise(2, 9, D, seed=3)


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.open, self.wide = (torch.nn.Linear(D, INNER, bias=False) for _ in range(2))
        self.back = torch.nn.Linear(INNER, D, bias=False)

    def forward(self, x):
        return self.back(torch.sigmoid(self.open(x)) * self.wide(x))


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.crew = torch.nn.Linear(D, EXPERTS), torch.nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.register_buffer("worth", torch.tensor([0.5, 1.0, 2.0, 4.0]))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        best, which = torch.topk(scores, CHOSEN)
        best = best / best.sum(-1, keepdim=True)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.crew):
            share = (best * (which == number)).sum(-1, keepdim=True)
            found = found + self.worth[number] * share * expert(x)
        return found


class Stacked(nnx.Module):
    """The same, with a bug."""

    def __init__(self, theirs, bug):
        self.gate = nnx.Linear(D, EXPERTS, rngs=nnx.Rngs(0))
        self.gate.kernel[...] = theirs.router.weight.detach().numpy().T
        self.gate.bias[...] = theirs.router.bias.detach().numpy()
        for ours, name in (("a", "open"), ("b", "wide"), ("c", "back")):
            arrays = [getattr(each, name).weight.detach().numpy().T for each in theirs.crew]
            setattr(self, ours, nnx.Param(jnp.asarray(np.stack(arrays))))
        self.bug = bug

    def __call__(self, x):
        bug, logits = self.bug, self.gate(x)
        scores = jax.nn.softmax(logits / (3 if bug == "temperature" else 1))
        best, which = jax.lax.top_k(scores, CHOSEN)
        best = best / best.sum(-1, keepdims=True)
        best = best[..., ::-1] if bug == "values turned" else best
        which = EXPERTS - 1 - which if bug == "from the other end" else which
        hot = jax.nn.one_hot(which, EXPERTS)
        if bug == "capacity":
            flat = hot.reshape(-1, EXPERTS)
            hot = (flat * (jnp.cumsum(flat, 0) <= 6)).reshape(hot.shape)
        if bug == "moved on":
            hot = jnp.roll(hot, 1, -1)
        a, b = (self.b, self.a) if bug == "exchanged" else (self.a, self.b)
        inner = jax.nn.sigmoid(jnp.einsum("btd,edf->btef", x, a[...])) * jnp.einsum("btd,edf->btef", x, b[...])
        each = jnp.einsum("btef,efd->bted", inner, self.c[...])
        worth = jnp.asarray([0.5, 1.0, 3.0, 4.0] if bug == "table" else [0.5, 1.0, 2.0, 4.0])
        return jnp.einsum("bted,btke,btk,e->btd", each, hot, best, worth)


BUGS = {
    "temperature": "`self.router(x).softmax(-1)` (test_experts.py:40); jax multiplies its first operand by 0.333333333",
    "values turned": "jax has the values chosen in the other order",
    "from the other end": "jax has indices counted from the other end",
    "moved on": "jax has indices one too high, rolled around",
    "capacity": "jax takes at most 6 tokens an expert (a capacity)",
    "exchanged": "torch uses open and wide as named in every Expert; jax exchanges the two",
    "table": "torch has 0.5, 1, 2, ... (4 numbers) in worth; jax has 0.5, 1, 3, ... (4 numbers)",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Mixture().eval(), seed=2)


@pytest.mark.parametrize("name", usually(BUGS, "temperature", "capacity"))
def test_causes_in_a_mixture_of_experts(theirs, name):
    report = compare(theirs, Stacked(theirs, name), (X,), checks=("local",), tier="A")
    assert BUGS[name] in report.diverging[0].cause, str(report)


def test_a_grouped_product_is_sent_back_in_float64():
    """transformers computes experts by torch's grouped product, which takes no float64."""
    sizes = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "num_local_experts": 4, "max_position_embeddings": 16}
    two, one = (
        transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, num_experts_per_tok=n)).eval() for n in (2, 1)
    )
    one.load_state_dict(excite(two, seed=0).state_dict())
    config = MIXTRAL_TYPE.read({**two.config.to_dict()}, set())
    port = jf.from_torch(two, jf.abstract(config), "moe_memory")
    ids = np.random.default_rng(0).integers(0, 23, (2, 7))
    given = {"rules": "moe_memory", "call_torch": lambda model, ids: model(ids.long()).logits, "search_seconds": 0}
    report = compare(one, port, (ids,), **given, checks=("forward", "local", "gradients"), tier="A")
    assert report.verdict.startswith("DIFFERENT: stack.blocks.0.feed_forward"), report
