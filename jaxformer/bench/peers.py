"""Whom the work is measured beside. Imports neither jax nor torch."""

import importlib.util
from typing import NamedTuple


class Peer(NamedTuple):
    """One side of a comparison."""

    summary: str
    needs: tuple[str, ...] = ()
    """Packages that have to be installed."""


JAXFORMER = "jaxformer"
COLD = "jaxformer-cold"
PEERS = {
    JAXFORMER: Peer("as its recipes and its decoding run; in `bench start` with a warm compilation cache"),
    COLD: Peer("the same with an empty compilation cache: the first start"),
    "twin": Peer("our PyTorch twin, eager, as it is", ("torch",)),
    "torch": Peer("PyTorch at its best, eager: scaled_dot_product_attention and a fused optimizer", ("torch",)),
    "torch-compile": Peer("the same behind torch.compile", ("torch",)),
    "transformers": Peer("GPT2LMHeadModel of transformers, `generate` with its cache", ("torch", "transformers")),
    "flax-nnx": Peer("Flax the ordinary way: nnx layers, nnx.jit, nnx.Optimizer, a Python loop", ("flax",)),
}
"""torch runs with one thread and with all; the faster count is measured."""


def lacking(name: str) -> str | None:
    """The first package that a peer needs and that is not installed."""
    return next((package for package in PEERS[name].needs if importlib.util.find_spec(package) is None), None)
