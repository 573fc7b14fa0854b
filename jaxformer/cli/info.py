"""`jaxformer info`: what a folder holds."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.flags import parse


@dataclass(frozen=True, kw_only=True)
class Info:
    """Say what a folder holds: its family and configuration, how large it is, and whether it was certified."""

    path: tyro.conf.Positional[Path]
    """A folder of transformers' or of ours, or a name on the Hugging Face hub."""
    tensors: bool = False
    """List the tensors too."""


def main(arguments: list[str]) -> None:
    """Print a line for each thing there is to say."""
    flags = parse(Info, arguments, prog="jaxformer info")
    from jaxformer.folders.describe import describe_folder, lines, tensor_table
    from jaxformer.folders.hub import local_folder

    folder = local_folder(flags.path)
    found = describe_folder(folder)
    for word, said in lines(found, folder).items():
        print(f"{word:14}{said}")
    for line in tensor_table(found.state) if flags.tensors else ():
        print(line)
