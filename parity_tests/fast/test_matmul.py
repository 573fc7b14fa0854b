"""The custom derivative against the one JAX makes of the plain product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.linear import matmul
from jaxformer.parity.numerics.metrics import check_float64
from parity_tests.support.helpers import B, D, F, T, noise

SHAPES = {"matrix": ((B, T, D), (D, F)), "row": ((D,), (D, F))}
shapes = pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
pytestmark = pytest.mark.usefixtures("float64")


def operands(shapes, seed=0):
    return [jnp.asarray(noise(*shape, seed=seed + i), jnp.float64) for i, shape in enumerate(shapes)]


def check_trees(ours, reference):
    for i, (mine, theirs) in enumerate(zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True)):
        check_float64(f"leaf {i}", mine, theirs, "gradient")


@shapes
def test_value(shapes):
    check_trees(matmul(*operands(shapes)), jnp.matmul(*operands(shapes)))


@shapes
def test_gradients(shapes):
    def gradients(product):
        return jax.jit(jax.grad(lambda x, w: jnp.sin(product(x, w)).sum(), (0, 1)))(*operands(shapes))

    check_trees(gradients(matmul), gradients(jnp.matmul))


@shapes
def test_forward_mode(shapes):
    def tangents(product):
        return jax.jvp(product, operands(shapes), operands(shapes, seed=5))

    check_trees(tangents(matmul), tangents(jnp.matmul))


@shapes
def test_second_order(shapes):
    x, w = operands(shapes)

    def curvature(product):
        return jax.jit(jax.jvp, static_argnums=0)(jax.grad(lambda w: jnp.sin(product(x, w)).sum()), (w,), (jnp.cos(w),))

    check_trees(curvature(matmul), curvature(jnp.matmul))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_gradients_under_vmap(axes):
    x = noise(*((4,) if axes[0] == 0 else ()), T, D).astype(np.float64)
    w = noise(*((4,) if axes[1] == 0 else ()), D, F).astype(np.float64)

    def gradients(product):
        return jax.vmap(jax.grad(lambda x, w: jnp.sin(product(x, w)).sum(), (0, 1)), axes)(x, w)

    check_trees(gradients(matmul), gradients(jnp.matmul))
