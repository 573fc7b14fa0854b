"""`jaxformer convert`: convert a model from one framework's files to another's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jaxformer.cli.flags import parse
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache


@dataclass(frozen=True, kw_only=True)
class Convert(CacheFlag):
    """Convert a model, and read it back to check that no bit was lost. Exit code 0: equal; 1: --verify found a difference."""

    source: tyro.conf.Positional[Path]
    """A folder written by transformers or jaxformer, a name on the Hugging Face hub, or a file of tensors (with --family)."""
    out: tyro.conf.Positional[Path]
    """The folder to write; with --to torch, a file that ends in .safetensors or .pt."""
    to: Literal["hf", "jax", "torch"]
    """hf: a folder that transformers loads. jax: a folder that jaxformer loads. torch: a state_dict, with the tensor names of
    transformers or of the family, else those of torch_ref.
    """
    family: str | None = None
    """Family that names the tensors of a file, as gpt2 or nanogpt; the file's config.json lies beside it."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the weights. None: unchanged."""
    verify: bool = False
    """Compare with transformers' own model, of the source or, with --to hf, of the written folder, and write the verdict to
    parity.json in the folder, or for a file, to FILE.parity.json beside it.
    """


def main(arguments: list[str]) -> int:
    """Convert, print the table of tensors and the verdicts, and return the exit code."""
    flags = parse(Convert, arguments, prog="jaxformer convert")
    use_cache(flags.cache)
    from jaxformer.checkpoints.describe import tensor_table
    from jaxformer.checkpoints.written import convert

    if flags.verify:
        from jaxformer.checkpoints.describe import verifiers

        verifiers()  # before anything is written
    wanted = {"family": flags.family, "dtype": flags.dtype, "verifiable": flags.verify}
    done = convert(flags.source, flags.out, flags.to, **wanted)
    print("\n".join(tensor_table(done.state)))
    print(done.said)
    if not flags.verify or done.theirs is None:
        return 0
    from jaxformer.checkpoints.describe import certificate_of, certify

    report = certify(done.theirs, done.model, done.files, certificate := certificate_of(flags.out))
    for stage in report.stages:
        print(f"{stage.name}: {stage.status}; {stage.says}")
    print(f"verdict: {report.verdict}; written into {certificate}")
    return report.exit_code
