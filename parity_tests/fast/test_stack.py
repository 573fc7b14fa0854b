import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.evaluation.ladder import load_torch
from jaxformer.nn.stack import Stack
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from jaxformer.pytree import named_leaves
from parity_tests.support.helpers import (
    B,
    D,
    L,
    S,
    T,
    bias_per_head,
    block_config,
    causal,
    checks,
    noise,
    padding,
    run_check,
    twins,
)
from torch_ref.nn.stack import Stack as TorchStack

RUNS = {
    "unrolled": {"layers": "unrolled"},
    "rolled": {"layers": "rolled"},
    "rematerialised": {"layers": "rolled", "remat": True},
}
CROSS = block_config(norm_position="post", n_kv_heads=2, layers="rolled")
X, MASK, MEMORY, MEMORY_MASK = noise(B, T, D), causal(B, T), noise(B, S, D, seed=1), padding(B, S)


@functools.cache
def stack_twins(run):
    config = block_config(**RUNS[run])
    return twins(Stack(config), TorchStack(config), X, MASK)


@functools.cache
def cross_twins():
    return twins(Stack(CROSS, cross=True), TorchStack(CROSS, cross=True), X, MASK, MEMORY, MEMORY_MASK)


@pytest.mark.first(8)
@checks
@pytest.mark.parametrize("run", RUNS)
def test_however_it_runs_it_equals_torchs(run, check):
    run_check(check, *stack_twins(run))


@checks
def test_with_a_memory(check):
    run_check(check, *cross_twins())


@functools.cache
def biased_twins():
    inputs = X, MASK, MEMORY, MEMORY_MASK, bias_per_head(1, T, T), bias_per_head(B, T, S)

    def call(stack, *arrays):
        return stack(*arrays[:4], bias=arrays[4], memory_bias=arrays[5])

    return twins(Stack(CROSS, cross=True), TorchStack(CROSS, cross=True), *inputs, call=call)


@checks
def test_with_biases(check):
    run_check(check, *biased_twins())


@pytest.mark.usefixtures("float64")
def test_each_layer_equals_torchs_layer():
    config = block_config()
    stack = to_float64(excite(Stack(config), seed=2))
    theirs = load_torch(TorchStack(config).double(), stack)
    for i in (*range(L), -1):
        reference = theirs[i](torch.from_numpy(X).double(), torch.from_numpy(MASK))
        check_float64(f"layer {i}", stack[i](jnp.asarray(X, jnp.float64), jnp.asarray(MASK)), reference)


@pytest.mark.parametrize("i", [L, -L - 1])
def test_no_such_layer(i):
    with pytest.raises(IndexError, match=f"layer {i} of a stack of {L}"):
        Stack(block_config())[i]


def test_layers_have_weights_of_their_own():
    stack = excite(Stack(block_config()), seed=2)
    assert all(
        not np.array_equal(first, second) for first, second in zip(*(jax.tree.leaves(stack[i]) for i in (0, 1)), strict=True)
    )


def test_every_leaf_has_the_layer_axis():
    assert {leaf.shape[0] for leaf in named_leaves(Stack(block_config())).values()} == {L}


@functools.cache
def wide_stacks():
    """A stack with a memory and torch's, in float64, and the arrays that both take."""
    reference, candidate = cross_twins()
    stack = to_float64(candidate.model(reference))
    theirs = load_torch(TorchStack(CROSS, cross=True).double(), stack)
    return stack, theirs, [array if array.dtype == bool else array.astype(np.float64) for array in reference.inputs]


@pytest.mark.usefixtures("float64")
def test_remembered_keys_and_values_stand_for_the_states():
    stack, theirs, arrays = wide_stacks()
    x, mask, memory, memory_mask = map(jnp.asarray, arrays)
    expected = stack(x, mask, memory, memory_mask)
    check_float64("stack", stack(x, mask, stack.remember(memory), memory_mask), expected)
    x, mask, memory, memory_mask = map(torch.from_numpy, arrays)
    with torch.no_grad():
        check_float64("torch's stack", expected, theirs(x, mask, theirs.remember(memory), memory_mask))


@pytest.mark.usefixtures("float64")
def test_attention_weights_of_every_layer():
    stack, theirs, arrays = wide_stacks()
    biases = {"bias": bias_per_head(1, T, T), "memory_bias": bias_per_head(B, T, S)}
    ours = stack.weights(*map(jnp.asarray, arrays), **{name: jnp.asarray(bias) for name, bias in biases.items()})
    x, mask, memory, memory_mask = map(torch.from_numpy, arrays)
    biases = {name: torch.from_numpy(bias) for name, bias in biases.items()}
    with torch.no_grad():
        found = theirs.weights(x, mask, memory, memory_mask, **biases)
        for i in range(L):
            layer = theirs[i].weights(x, mask, memory, memory_mask, **biases)
            x = theirs[i](x, mask, memory, memory_mask, **biases)
            for which in ("own", "cross"):
                check_float64(f"jax, {which} {i}", getattr(ours, which)[i], getattr(layer, which))
                check_float64(f"torch, {which} {i}", getattr(found, which)[i], getattr(layer, which))
