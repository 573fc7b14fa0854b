"""What numpy computes in XLA's place, and what is not computed at all."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen
from jax.extend.core import Primitive

from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import is_constant, jax_float64, torch_operations
from jaxformer.parity.numerics.jax_operations import on_host

X = np.random.default_rng(0).standard_normal((3, 4))
CODE = {
    "arithmetic": lambda x: -((x + x) * x - x / (x * x)),
    "integers": lambda x: (jnp.arange(5) * jnp.arange(5) - 7) // 2,
    "roots": lambda x: jnp.sqrt(jnp.abs(x) * x),
    "comparisons": lambda x: (x > 0) & (x <= 1) & (x == x) & (x != 0) & (x < 2) & (x >= -9) & jnp.isfinite(1 / (x - x)),
    "choices": lambda x: jnp.where(x > 0, x, jnp.zeros((3, 4)).at[1].set(2)),
    "shapes": lambda x: jnp.concatenate([jnp.broadcast_to(x[:, None], (3, 2, 4)), jnp.ones((3, 1, 4))], 1),
    "types": lambda x: [x.astype(kind) for kind in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, bool)],
    "weak types": lambda x: 2.5 * jnp.full((), 3.0) + jnp.float32(1.1),
    "counts": lambda x: jax.lax.broadcasted_iota(jnp.float32, (3, 4), 1),
}


@pytest.mark.parametrize("code", CODE.values(), ids=CODE)
def test_numpy_gives_the_bits_that_xla_gives(code, monkeypatch):
    bind, done = Primitive.bind, []

    def compared(operation, *args, **how):
        with mock.patch.object(Primitive, "bind", bind):
            wanted = bind(operation, *args, **how)
            found = on_host(operation, args, how) if all(map(is_constant, args)) else None
        if found is not None:
            done.append(operation)
            assert (found.dtype, found.weak_type, found.shape) == (wanted.dtype, wanted.weak_type, wanted.shape), operation
            assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes(), operation
        return wanted

    with jax.enable_x64(True), jax.disable_jit(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        x = jnp.asarray(X)
        monkeypatch.setattr(Primitive, "bind", compared)
        code(x)
    assert done


def test_initialisers_give_shapes_alone(monkeypatch):
    """Linen asks for the shape of each parameter in every run."""
    dense, seen = linen.Dense(5), []
    params = dense.init(jax.random.key(0), X)
    monkeypatch.setattr(Tables, "instead", lambda self, array: seen.append(array.shape) or array)
    with jax.numpy_dtype_promotion("standard"), jax_float64(Tables({"table": X})):
        jax.make_jaxpr(dense.apply)(params, X)
    assert (4, 5) not in seen


def test_torchs_compiler_is_not_imported():
    """It takes a second, which every comparison would pay."""
    mode = torch_operations(lambda operation, args, kwargs: operation(*args, **kwargs))
    skips = "_should_skip_dynamo"
    assert not getattr(type(mode), skips)()
    with mode:
        assert torch.ones(2).sum() == 2
