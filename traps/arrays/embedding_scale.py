"""Scale of the embedding.

The paper, Marian and Gemma multiply embeddings by the root of the model's width, GPT-2 and Llama do not. A test that only
loads and saves weights does not see it (levanter 978), nor one whose expected numbers the port wrote itself (sglang 33367).
"""

import jax.numpy as jnp
import torch

import jaxformer as jf

IDS, _ = jf.probe(vocab=11, length=8)


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 5)

    def forward(self, ids):
        return self.out(torch.tanh(self.embed(ids.long()) * 6**0.5))


INPUTS = (IDS,)


def wrong(p, ids):
    x = jf.tap("embed", p["embed.weight"][ids])
    return jf.tap("out", jnp.tanh(x) @ p["out.weight"].T + p["out.bias"])


def right(p, ids):
    x = jf.tap("embed", p["embed.weight"][ids]) * 6**0.5
    return jf.tap("out", jnp.tanh(x) @ p["out.weight"].T + p["out.bias"])
