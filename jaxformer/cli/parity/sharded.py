"""`jaxformer parity sharded`: compare one train step on a mesh with the same step on one device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from jaxformer.cli.flags import parse
from jaxformer.cli.parity.shared_flags import ReportFlags
from jaxformer.config.mesh import MeshConfig
from jaxformer.config.presets import PRESETS
from jaxformer.errors import InputError
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache

MOST_DEVICES = 64
"""Maximum number of devices of one process. With a thousand simulated ones, XLA gives up waiting for them."""


@dataclass(frozen=True, kw_only=True)
class Sharded(CacheFlag, ReportFlags):
    """Compare one train step on a mesh of devices with the same step on one device, in float64: every activation, gradient
    and update. On a CPU the devices are simulated. Exit code 0: equal, 1: different, 2: could not compare."""

    model: tyro.conf.Positional[str] = ""
    """The folder of a run or of a model, or a preset by name, which gets random parameters."""
    mesh: str = "data=2,fsdp=2,tensor=2"
    """Devices by axes: data, fsdp, tensor, sequence."""
    mutants: bool = False
    """Put known mistakes of sharded code into a small model instead, and count those that are found."""


def main(arguments: list[str]) -> int:
    """Compare, print the report, and return its exit code."""
    flags = parse(Sharded, arguments, prog="jaxformer parity sharded")
    use_cache(flags.cache)
    from jaxformer.parallel.mesh import simulate

    if flags.mutants:
        from jaxformer.evaluation.sharded.try_mutants import DEVICES
        from jaxformer.evaluation.sharded.try_mutants import main as try_mutants

        simulate(DEVICES)
        return try_mutants()
    mesh = MeshConfig.read(flags.mesh)
    if mesh.devices > MOST_DEVICES:
        raise InputError(f"mesh = {mesh} has {mesh.devices} devices; give one of at most {MOST_DEVICES}, to run the step on")
    simulate(mesh.devices)
    from jaxformer.evaluation.sharded.compare import compare_sharded

    return flags.show(compare_sharded(found(flags.model), mesh))


def found(name: str) -> Any:
    """Load the model of a folder, or return a preset's configuration."""
    if name in PRESETS:
        return PRESETS[name]
    if not Path(name).is_dir() or not name:
        raise InputError(f"model = {name!r} is no folder and no preset; give a run's folder, or one of {', '.join(PRESETS)}")
    from jaxformer.checkpoints.opened import load

    return load(Path(name))
