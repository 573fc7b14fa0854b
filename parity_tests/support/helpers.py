"""What several rungs of the ladder share. Sizes differ pairwise, so that no axis can stand in for another."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.config.models import BlockConfig, EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.evaluation.ladder import LADDER, check_all_gradients, load_torch
from jaxformer.nn.cache import KeysValues
from jaxformer.nn.masks import causal_mask
from jaxformer.parity.numerics.metrics import check_float64, check_gradients
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.trace.reference import Call, Reference, apply, run_torch

B, T, S, D, N, H, K, F, V, L = 5, 7, 9, 24, 4, 6, 2, 20, 23, 3


checks = pytest.mark.parametrize("check", LADDER.values(), ids=LADDER)


def usually(cases: Iterable[str], *names: str) -> list[Any]:
    """The names of cases, of which the usual run takes `names` and `pytest -m slow` the others."""
    assert {*names} <= {*cases}, names
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in cases]


def check_held(found: KeysValues, reference: Any) -> None:
    """The keys and values of every layer, or of every head of one."""
    for name in ("keys", "values"):
        for i, (ours, theirs) in enumerate(zip(getattr(found, name), getattr(reference, name), strict=True)):
            check_float64(f"{name} {i}", ours, theirs)


def block_config(**changes: Any) -> BlockConfig:
    """A small block."""
    return BlockConfig(**{"d_model": D, "n_layers": L, "n_heads": N, "d_ff": F, **changes})


def gpt_config(**changes: Any) -> GPTConfig:
    """A small model."""
    return GPTConfig(**{"vocab_size": V, "context": 11, "d_model": D, "n_layers": L, "n_heads": N, "d_ff": F, **changes})


def encoder_config(**changes: Any) -> EncoderConfig:
    """A small encoder, its layers rolled."""
    sizes = {"vocab_size": V, "context": 11, "d_model": D, "n_layers": L, "n_heads": N, "d_ff": F, "layers": "rolled"}
    return EncoderConfig(**{**sizes, **changes})


def seq2seq_config(**changes: Any) -> EncoderDecoderConfig:
    """A small encoder-decoder, its layers rolled; the decoder has two."""
    sizes = {"vocab_size": V, "context": 17, "d_model": D, "n_layers": L, "n_decoder_layers": 2, "n_heads": N, "d_ff": F}
    return EncoderDecoderConfig(**{**sizes, "layers": "rolled", **changes})


def per_head(rows: int, queries: int, keys: int) -> np.ndarray:
    """A mask `B N T S` that hides other keys from each head; one query of one head sees nothing, and the last row none."""
    mask = np.random.default_rng(4).random((rows, N, queries, keys)) < 0.7
    mask[0, 1, queries // 2] = False
    mask[-1] = False
    return mask


def bias_per_head(rows: int, queries: int, keys: int) -> np.ndarray:
    """A bias `B|1 N T S` for scores, with a causal float mask in one head; one query of another head sees nothing."""
    bias = 2 * noise(rows, N, queries, keys, seed=11)
    bias[:, 2] += np.triu(np.full((queries, keys), -np.inf, np.float32), 1)
    bias[0, 1, queries // 2] = -np.inf
    return bias


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """float32 numbers from a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def padding(rows: int, keys: int) -> np.ndarray:
    """A mask `B 1 1 S`: nothing padded, padding on the right, on the left, and (last row) everywhere."""
    mask = np.ones((rows, 1, 1, keys), bool)
    mask[1, ..., -2:] = False
    mask[2, ..., :3] = False
    mask[-1] = False
    return mask


def causal(rows: int, length: int) -> np.ndarray:
    """The padding above under a causal mask: `B 1 T T`; left padding leaves rows without a key."""
    return padding(rows, length) & np.asarray(causal_mask(length))


def twins(ours: Any, theirs: Any, *inputs: np.ndarray, call: Call = apply) -> tuple[Reference, Candidate]:
    """A JAX module and its torch twin with the same excited weights, ready to be compared."""
    model = excite(ours, seed=3)
    return run_torch(load_torch(theirs, model), inputs, call), Candidate(model, call)


def run_check(check: Callable[..., Any], reference: Reference, candidate: Candidate) -> None:
    """One check; among gradients, exactly the key biases' are null: they add the same to all scores of a query; and those of
    corrections of a router, by which experts are chosen alone."""
    found = check(reference, candidate)
    if check is check_all_gradients:
        assert found == [name for name in reference.weights if f".{name}".endswith((".key.bias", ".correction.bias"))]


def check_function(ours: Callable[..., jax.Array], theirs: Callable[..., torch.Tensor], *arrays: np.ndarray) -> np.ndarray:
    """Tier A for a function's value and for its gradient with respect to every array; returns the value."""
    with jax.enable_x64(True):
        output, pull_back = jax.vjp(ours, *(jnp.asarray(array, jnp.float64) for array in arrays))
        inputs = [torch.from_numpy(array.astype(np.float64)).requires_grad_() for array in arrays]
        reference = theirs(*inputs)
        check_float64("value", output, reference)
        cotangent = np.random.default_rng(1).standard_normal(reference.shape)
        gradients = torch.autograd.grad(reference, inputs, torch.from_numpy(cotangent))
        names = [f"input {i}" for i in range(len(arrays))]
        found = pull_back(jnp.asarray(cotangent, output.dtype))
        check_gradients(dict(zip(names, found, strict=True)), dict(zip(names, gradients, strict=True)))
        return np.asarray(output)
