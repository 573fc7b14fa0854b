"""What is said of programs on a mesh of four simulated devices, as one line of JSON: run by tests/devices/test_user_mesh.py."""

import json
import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxformer as jf

MESH = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
RANDOM = np.random.default_rng(0)
X, TABLE = (RANDOM.standard_normal((4, 4), dtype=np.float32) for _ in range(2))
EXPLICIT = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
ROWS = P("a", "b")


def by_hand(f, cut=(ROWS, ROWS), out=ROWS, mesh=MESH, **how):
    """A product of x and the table that a user shards by hand; `f` runs on each device."""
    return lambda p, x: jax.shard_map(f, mesh=mesh, in_specs=cut, out_specs=out, **how)(p["table"], x)


def in_types(f):
    """The same on a mesh whose axes stand in the types of arrays."""

    def call(p, x):
        table, x = (jax.reshard(array, jax.NamedSharding(EXPLICIT, ROWS)) for array in (p["table"], x))
        return by_hand(f, out=P("b"), mesh=EXPLICIT)({"table": table}, x)

    return call


def product(t, x):
    return t * x


def summed(t, x):
    return jax.lax.psum((t * x).sum(0), "b")


def averaged(t, x):
    return jax.lax.pmean((t * x).sum(0), "a")


CASES = {
    "right": (by_hand(product), lambda p, x: p["table"] * x),
    "in_specs": (by_hand(product, cut=(P("b", "a"), ROWS)), lambda p, x: p["table"] * x),
    "out_specs": (by_hand(product, out=P("b", "a")), lambda p, x: p["table"] * x),
    "wrong elsewhere": (lambda p, x: jnp.sin(by_hand(product)(p, x)), lambda p, x: jnp.cos(p["table"] * x)),
    "no sum": (by_hand(summed, out=P(), check_vma=False), lambda p, x: (p["table"] * x).reshape(4, 2, 2).sum((0, 1))),
    "checked": (by_hand(averaged, out=P("b")), lambda p, x: (p["table"] * x).sum(0)),
    "explicit": (in_types(averaged), lambda p, x: (p["table"] * x).sum(0)),
    "around": (by_hand(averaged, out=P("b"), mesh=None), lambda p, x: (p["table"] * x).sum(0)),
}


def said(name):
    """The verdict, with the mesh around the call where the program names none."""
    sharded, plain = CASES[name]
    params = {"table": TABLE}
    how = {"call_torch": plain, "call_jax": sharded, "tier": "A", "checks": ("weights", "forward", "local")}
    if name != "around":
        return jf.compare(params, params, (X,), **how).verdict
    with jax.set_mesh(MESH):
        return jf.compare(params, params, (X,), **how).verdict


if __name__ == "__main__":
    print(json.dumps({name: said(name) for name in CASES}))
