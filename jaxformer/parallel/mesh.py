"""Mesh of devices that a program is compiled for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxformer.config.mesh import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.parallel.group import count
from jaxformer.runtime.environment import in_order

ONE_DEVICE = str(MeshConfig())
"""Name of the mesh of one device."""


def make_mesh(config: MeshConfig) -> Mesh:
    """Make a mesh over this program's devices.

    ConfigError if there are too few, or, with several processes, not exactly as many. Its axes are Auto: the compiler
    propagates shardings. (`jax.make_mesh` would make Explicit axes.)
    """
    found = jax.device_count()
    if config.devices > found or (jax.process_count() > 1 and config.devices != found):
        kind = jax.devices()[0].platform
        simulated = f"set JAX_NUM_CPU_DEVICES={config.devices} to simulate them, or give"
        simulated = "start more with launch --devices, or give" if count() > 1 else simulated
        how = simulated if kind == "cpu" else "give"
        raise ConfigError(f"mesh = {config} needs {config.devices} devices, and there are {found} ({kind}); {how} another mesh")
    sizes = config.sizes
    types = (AxisType.Auto,) * len(sizes)
    if config.devices == found:
        return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
    devices = np.array(jax.devices()[: config.devices]).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=types)


def simulate(devices: int) -> None:
    """Simulate so many devices on CPU, unless the environment sets the number. Call before anything is computed."""
    in_order()
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # jax's devices are initialized already
            jax.config.update("jax_num_cpu_devices", devices)


@contextmanager
def on_mesh(config: MeshConfig | None) -> Iterator[Mesh | None]:
    """Context manager: programs inside are compiled for this mesh; None: for one device."""
    if config is None:
        if count() > 1:
            raise ConfigError(
                f"{count()} processes train on a mesh of all their devices; give --mesh, as data={jax.device_count()}"
            )
        yield None
        return
    in_order()
    with jax.set_mesh(mesh := make_mesh(config)):
        yield mesh


def current() -> Mesh | None:
    """Return the surrounding mesh of devices, or None."""
    if hasattr(jax.sharding, "get_mesh"):
        mesh = jax.sharding.get_mesh()
    else:  # jax 0.8.0
        from jax._src.mesh import get_concrete_mesh

        mesh = get_concrete_mesh()
    return None if mesh.empty else mesh


def mesh_name() -> str:
    """Format the surrounding mesh, as `data=4,tensor=2`."""
    mesh = current()
    return str(MeshConfig(**({} if mesh is None else mesh.shape)))


def devices_in_use() -> str:
    """Format the number of devices that the surrounding mesh uses of those that exist, and their kind."""
    mesh, found = current(), jax.device_count()
    used = 1 if mesh is None else mesh.size
    return f"{used if used == found else f'{used} of {found}'} {jax.devices()[0].device_kind}"


def traced_for() -> AbstractMesh | None:
    """Return the abstract mesh that code is traced for; None if there is none, and inside `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.manual_axes else mesh
