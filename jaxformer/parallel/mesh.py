"""The mesh that a program is compiled for."""

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
"""As a mesh is written."""


def make_mesh(config: MeshConfig) -> Mesh:
    """The mesh over this program's devices; ConfigError where there are too few, or, of several processes, not as many.

    Its axes are Auto: the compiler propagates how arrays are cut. (`jax.make_mesh` would make Explicit ones.)
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
    """Let a CPU pass for so many devices, unless the environment says how many. Call it before anything is computed."""
    in_order()
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # jax has its devices already
            jax.config.update("jax_num_cpu_devices", devices)


@contextmanager
def on_mesh(config: MeshConfig | None) -> Iterator[Mesh | None]:
    """Inside, programs are compiled for this mesh; None: for one device, as ever."""
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
    """The mesh that surrounds, of devices; None without one."""
    if hasattr(jax.sharding, "get_mesh"):
        mesh = jax.sharding.get_mesh()
    else:  # jax 0.8.0
        from jax._src.mesh import get_concrete_mesh

        mesh = get_concrete_mesh()
    return None if mesh.empty else mesh


def mesh_name() -> str:
    """The surrounding mesh as `data=4,tensor=2`."""
    mesh = current()
    return str(MeshConfig(**({} if mesh is None else mesh.shape)))


def devices_in_use() -> str:
    """How many devices the surrounding mesh has, of those that are there, and their kind."""
    mesh, found = current(), jax.device_count()
    used = 1 if mesh is None else mesh.size
    return f"{used if used == found else f'{used} of {found}'} {jax.devices()[0].device_kind}"


def traced_for() -> AbstractMesh | None:
    """The mesh that the code is being compiled for, by names and sizes; None without one, and inside of `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.manual_axes else mesh
