"""`jaxformer info`: show what a folder holds, and what training takes on each device of a mesh."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.config.mesh import MeshConfig, check_batch
from jaxformer.errors import InputError
from jaxformer.validation.fields import check_number, check_size

MOST_DEVICES = 4096
"""Maximum number of devices to compile a step for: simulated ones take time and memory. Shapes alone have no limit."""


@dataclass(frozen=True, kw_only=True)
class Info:
    """Show what a folder holds: its family and configuration, its size, and whether it was certified."""

    path: tyro.conf.Positional[Path]
    """A folder of transformers or jaxformer, or a name on the Hugging Face hub. With --mesh also a preset, or a config.json."""
    tensors: bool = False
    """List the tensors too."""
    mesh: str | None = None
    """Devices by axes, as fsdp=64 or data=8,tensor=8: show what training on them takes, with nothing allocated."""
    batch: int | None = None
    """Sequences per step, of full length. With --mesh, the step is compiled for simulated devices and its buffers counted."""
    parts: int = 1
    """Number of parts of a batch whose gradients are added up, to save memory (gradient accumulation)."""
    device_flops: float = 1e15
    """Operations per second of one device, for the time on paper (an H100 in bfloat16: 1e15)."""
    link: float = 4e11
    """Bytes per second that a device receives, for the time on paper (NVLink of an H100: 4e11)."""


def main(arguments: list[str]) -> None:
    """Print a line for each fact about the folder."""
    flags = parse(Info, arguments, prog="jaxformer info")
    if flags.mesh is not None:
        predict(flags)
        return
    if flags.batch is not None:
        raise InputError("--batch is of a training on a mesh; give --mesh too, as data=1 for one device")
    from jaxformer.checkpoints.describe import describe_folder, lines, tensor_table
    from jaxformer.checkpoints.foreign import check_foreign
    from jaxformer.evaluation.sharded.predict import folder_at

    folder = folder_at(flags.path)
    check_foreign(folder)
    found = describe_folder(folder)
    for word, said in lines(found, folder).items():
        print(f"{word:14}{said}")
    for line in tensor_table(found.state) if flags.tensors else ():
        print(line)


def check_parts(batch: int | None, parts: int, mesh: MeshConfig) -> None:
    """Raise ConfigError or InputError if a batch cannot be split into so many parts, each divided by the mesh."""
    check_size("parts", parts)
    if batch is None:
        if parts > 1:
            raise InputError("--parts is of a batch; give --batch too")
        return
    check_size("batch", batch)
    if batch % parts:
        raise InputError(f"--parts {parts} does not divide --batch {batch}; give a divisor of {batch}")
    if parts > 1 and batch // parts % mesh.rows:
        raise InputError(
            f"--batch {batch} in --parts {parts} is {batch // parts} a part, which data x fsdp = {mesh.data} x {mesh.fsdp} "
            f"of the mesh does not divide; give other --parts"
        )
    check_batch(batch, mesh)


def predict(flags: Info) -> None:
    """Print what training takes on each device."""
    mesh = MeshConfig.read(flags.mesh or "")
    check_number("--device-flops", flags.device_flops, 0, open_below=True)
    check_number("--link", flags.link, 0, open_below=True)
    check_parts(flags.batch, flags.parts, mesh)
    if flags.batch is not None and mesh.devices > MOST_DEVICES:
        raise InputError(
            f"mesh = {mesh} has {mesh.devices} devices, and with --batch a step is compiled for at most {MOST_DEVICES:,}; "
            "give a smaller mesh, or leave --batch out"
        )
    from jaxformer.parallel.mesh import simulate

    simulate(1 if flags.batch is None else mesh.devices)
    from jaxformer.evaluation.sharded.predict import lines_of, read_config

    config = read_config(flags.path)
    for word, said in lines_of(config, mesh, flags.batch, flags.parts, flags.device_flops, flags.link):
        print(f"{word:14}{said}", flush=True)
