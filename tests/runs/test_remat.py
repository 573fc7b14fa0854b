"""Memory of a training step: what a backward pass keeps, and what is updated in place."""

import re
from dataclasses import replace
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config.blocks import RematPolicy
from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.errors import ConfigError
from jaxformer.models import GPT, abstract
from jaxformer.parity.trace.transformations import nothing_rematerialised
from jaxformer.runtime.jit import jit
from jaxformer.training.optimizers import gradient_norm, make_optimizer
from jaxformer.training.step import train_state, train_step
from tests.tiny import quick_key

PLAIN = GPTConfig(vocab_size=16, context=32, d_model=16, n_layers=4, n_heads=4, d_ff=64, layers="rolled", residual_dropout=0.1)
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 16, (8, 32)), jnp.int32)


def gradient(policy: RematPolicy | None) -> tuple[list, int]:
    """The gradient of a model, and the bytes that its program takes on the way."""
    config = PLAIN if policy is None else replace(PLAIN, remat=True, remat_policy=policy)
    model = GPT(config, rngs=quick_key(0))
    program = jax.jit(jax.grad(lambda model: (model(IDS, key=quick_key(1)) ** 2).mean())).lower(model).compile()
    memory = program.memory_analysis()
    assert memory is not None
    return jax.tree.leaves(program(model)), memory.temp_size_in_bytes


@pytest.mark.slow
def test_the_less_is_kept_the_less_memory_is_taken_and_the_gradient_is_the_same():
    policies: list[RematPolicy | None] = [None, "dots", "dots_with_no_batch_dims", "nothing"]
    found = {policy: gradient(policy) for policy in policies}
    sizes = [size for _, size in found.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert len({*sizes}) == len(policies)
    largest = max(float(jnp.abs(leaf).max()) for leaf in found[None][0])
    for leaves, _ in found.values():
        for leaf, plain in zip(leaves, found[None][0], strict=True):
            np.testing.assert_allclose(leaf, plain, rtol=1e-5, atol=1e-6 * largest)


def test_a_policy_is_read_with_remat_alone():
    with pytest.raises(ConfigError, match=r"remat_policy = 'dots' is not read with remat = False; set remat = True"):
        replace(PLAIN, remat_policy="dots")
    with pytest.raises(ConfigError, match="dots_with_no_batch_dims"):
        replace(PLAIN, remat=True, remat_policy="dots_with_no_batch")


@pytest.mark.parametrize("newer", [False, True])
def test_a_comparison_sees_what_is_recomputed(newer):
    """Newer releases of jax have a second way to recompute, which is off unless it is asked for."""
    name = "jax_remat3"
    if newer and jax.__version_info__ < (0, 12):
        pytest.skip(f"this jax decides by {name} where a function is decorated, or has it not")
    f = jax.checkpoint(lambda x, times: times * jnp.sin(x), static_argnums=1)

    def program() -> str:
        return str(jax.make_jaxpr(lambda x: f(x, 2.0))(1.0))

    before = jax.config.values.get(name, False)
    if newer:
        jax.config.update(name, True)
    try:
        plain = program()
        with nothing_rematerialised():
            opened = program()
    finally:
        if newer:
            jax.config.update(name, before)
    assert re.search(r"remat|checkpoint", plain, re.IGNORECASE)
    assert not re.search(r"remat|checkpoint", opened, re.IGNORECASE)


def bytes_beside(step, *given, donated=0):
    """Bytes that a training program takes beside its arguments and its result."""
    memory = jit(step, work="small", donate_argnums=donated).lower(*given).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


def test_what_is_recomputed_is_not_kept_without_a_loop_either():
    def layer(x, w):
        return x + jnp.tanh(jnp.sin(x) @ w) @ w.T

    def gradient(layer, weights, x):
        return jax.grad(lambda weights: reduce(layer, weights, x).sum())(weights)

    arrays = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 6, jax.ShapeDtypeStruct((512, 16), jnp.float32)
    recomputed, kept = (bytes_beside(partial(gradient, each), *arrays) for each in (jax.checkpoint(layer), layer))
    assert recomputed < 0.6 * kept


def test_a_step_updates_weights_and_moments_in_place():
    model = abstract(GPTConfig(vocab_size=64, context=8, d_model=64, n_layers=2, n_heads=4, d_ff=256))
    optimizer = make_optimizer(OptimizerConfig(name="adamw", learning_rate=1e-3, clip_norm=1.0), ScheduleConfig())
    state, ids = jax.eval_shape(partial(train_state, optimizer=optimizer), model), jax.ShapeDtypeStruct((1, 8), jnp.int32)
    step = partial(train_step, loss=lambda model, ids, key: (model(ids).sum(), jnp.ones(())), optimizer=optimizer)

    def many(state, ids):
        return jax.lax.fori_loop(0, 3, lambda _, state: step(state, ids, None)[0], state)

    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(model))
    assert bytes_beside(many, state, ids) < 2 * weights, "the gradient, and no copies of the moments"


def test_a_norm_writes_no_squares():
    leaf = jax.ShapeDtypeStruct((4, 300, 300), jnp.float32)
    assert bytes_beside(gradient_norm, [leaf], donated=()) < leaf.size
