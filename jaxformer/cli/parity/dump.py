"""`jaxformer parity dump`: record the torch side, for `parity check` in another environment."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.cli.parity.names import model_and_call, no_exit
from jaxformer.cli.parity.shared_flags import InputFlags, Tier, TorchName
from jaxformer.runtime.stdio import restore_streams


@dataclass(frozen=True, kw_only=True)
class Dump(InputFlags):
    """Record the torch model, for `jaxformer parity check` in an environment without torch."""

    torch: TorchName
    """package.module:function that returns the torch model, or a tuple: the model and a function that calls it."""
    folder: tyro.conf.Positional[Path]
    """The folder to write."""
    tier: Tier = "B"
    """A: float64 only. B: float32 too. C: bfloat16 too."""


def main(arguments: list[str]) -> int:
    """Record, save, and print the next command."""
    flags = parse(Dump, arguments, prog="jaxformer parity dump")
    model, call_torch = model_and_call(flags.torch)
    from jaxformer.parity.compare import dump

    with no_exit("the model, or what calls it,"):
        reference = dump(model, flags.arrays(), flags.folder, call_torch=call_torch, tier=flags.tier)
    restore_streams()
    contents = f"{len(reference.weights)} tensors, {len(reference.calls) - 1} calls of modules, tier {flags.tier}"
    print(f"{contents} · saved to {flags.folder}")
    print(f"next: jaxformer parity check {flags.folder} package.module:jax_model")
    return 0
