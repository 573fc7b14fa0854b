"""`jaxformer info`: what a folder holds, and what training takes of each device of a mesh."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.config.mesh import MeshConfig, check_batch
from jaxformer.errors import InputError
from jaxformer.validation.fields import check_number, check_size

MOST_DEVICES = 4096
"""That a step is compiled for: each simulated one takes time and memory. Shapes alone know no bound."""


@dataclass(frozen=True, kw_only=True)
class Info:
    """Say what a folder holds: its family and configuration, how large it is, and whether it was certified."""

    path: tyro.conf.Positional[Path]
    """A folder of transformers' or of ours, or a name on the Hugging Face hub. With --mesh also a preset, or a config.json."""
    tensors: bool = False
    """List the tensors too."""
    mesh: str | None = None
    """Devices by axes, as fsdp=64 or data=8,tensor=8: what training on them takes, with nothing allocated."""
    batch: int | None = None
    """Sequences a step, of full length. With --mesh: the step is compiled for simulated devices, and its buffers counted."""
    parts: int = 1
    """Parts of a batch whose gradients are added up, for less memory (gradient accumulation)."""
    device_flops: float = 1e15
    """Operations a second of one device, for the time on paper (an H100 in bfloat16: 1e15)."""
    link: float = 4e11
    """Bytes a second that a device receives, for the time on paper (NVLink of an H100: 4e11)."""


def main(arguments: list[str]) -> None:
    """Print a line for each thing there is to say."""
    flags = parse(Info, arguments, prog="jaxformer info")
    if flags.mesh is not None:
        predict(flags)
        return
    if flags.batch is not None:
        raise InputError("--batch is of a training on a mesh; give --mesh too, as data=1 for one device")
    from jaxformer.checkpoints.describe import describe_folder, lines, tensor_table
    from jaxformer.evaluation.sharded.predict import folder_at

    folder = folder_at(flags.path)
    found = describe_folder(folder)
    for word, said in lines(found, folder).items():
        print(f"{word:14}{said}")
    for line in tensor_table(found.state) if flags.tensors else ():
        print(line)


def check_parts(batch: int | None, parts: int, mesh: MeshConfig) -> None:
    """ConfigError, or an InputError, for a batch that cannot be cut into so many parts, each of them by the mesh."""
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
    """What a training takes of each device."""
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
