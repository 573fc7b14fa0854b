"""Comparison of a large model with random weights: its time, and the most memory that the process had.

    python -m benchmarks.large --layers 22 --width 2048                     # 1.2 B parameters
    python -m benchmarks.large --layers 22 --width 2048 --keep statistics

A GPT with GPT-2's vocabulary, on both sides; the wrong one has GELU without its tanh. JAX's model is a copy of the weights, as
that of a port is. `--whole` compares with gradients too, which takes 90 bytes a parameter.
"""

import resource
import time
from dataclasses import dataclass, replace
from typing import Literal
from unittest import mock

import numpy as np
import torch

import torch_ref.models
from jaxformer.cli.flags import parse, run
from jaxformer.config.presets import GPT2_SMALL
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax
from jaxformer.models import abstract
from jaxformer.parity import large
from jaxformer.parity.compare import compare
from jaxformer.runtime.memory import gigabytes

IDS = 16
"""Number of tokens."""


@dataclass(frozen=True, kw_only=True)
class Large:
    """Compare a GPT of some size with a port."""

    layers: int = 12
    """Number of layers."""
    width: int = 768
    """Width of the model, a multiple of 64."""
    keep: Literal["tensors", "statistics"] = "tensors"
    """Whole arrays, or a few numbers of each."""
    wrong: bool = False
    """Compare with a port that has another activation."""
    whole: bool = False
    """Compare gradients too, whatever memory that takes."""


def main(arguments: list[str]) -> int:
    """Compare, and print the verdict, the time and the memory."""
    flags = parse(Large, arguments, prog="python -m benchmarks.large")
    sizes = {"n_layers": flags.layers, "d_model": flags.width, "n_heads": flags.width // 64, "d_ff": 4 * flags.width}
    config = replace(GPT2_SMALL, **sizes)
    torch.manual_seed(0)
    model = torch_ref.models.build(config).eval()
    port = replace(config, activation="gelu") if flags.wrong else config
    ours = to_jax({name: tensor.numpy() for name, tensor in model.state_dict().items()}, abstract(port), TWIN)
    held, began = peak(), time.perf_counter()
    free = None if flags.whole else 0
    with mock.patch.object(large, "free_bytes", return_value=free):
        inputs = (np.random.default_rng(0).integers(0, config.vocab_size, (1, IDS)).astype(np.int32),)
        options = {"rules": TWIN, "keep": flags.keep}
        report = compare(model, ours, inputs, **options)
    parameters = sum(each.numel() for each in model.parameters())
    seconds = time.perf_counter() - began
    print(report.verdict)
    print(f"{parameters:,} parameters, {seconds:.0f} s, memory {gigabytes(peak())}, {gigabytes(held)} of it before")
    return report.exit_code


def peak() -> int:
    """Most memory in bytes that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    run(main)
