"""Check for false alarms: random models without a bug against their PyTorch twins; each has to be found equal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

import torch_ref.models
from benchmarks.random_models import drawn
from jaxformer.cli.flags import parse, run
from jaxformer.convert.families.twin import TWIN
from jaxformer.errors import ParityError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import abstract
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.validation.fields import check_size

BATCH, LENGTH = 5, 9
CHECKS = ("weights", "forward", "local", "gradients", "activation gradients")
"""All checks in float64."""


@dataclass(frozen=True, kw_only=True)
class Clean:
    """Compare random clean models with their PyTorch twins; each has to be equal, with no module named."""

    count: int = 200
    """Number of models."""
    first: int = 0
    """Number of the first model: the number is the seed of a model, its weights and its inputs."""


def main(arguments: list[str]) -> None:
    """Print the report of each model that is not equal, and count the others; ParityError if some are not equal."""
    flags = parse(Clean, arguments, prog="python -m benchmarks.clean")
    check_size("count", flags.count)
    start, equal = time.perf_counter(), 0
    for number in range(flags.first, flags.first + flags.count):
        report = compared(number)
        if report.status == "equal" and not report.diverging:
            equal += 1
        else:
            print(f"{number}: {drawn(number)}\n{report}", flush=True)
    counted = f"{equal}/{flags.count} equal"
    print(f"{time.perf_counter() - start:.0f} s")
    if equal < flags.count:
        raise ParityError(counted)
    print(counted)


def compared(number: int) -> Report:
    """Compare one model op by op; every second one without rules, so that weights are matched by values."""
    config = drawn(number)
    model = excite(abstract(config), number)
    twin = load_torch(torch_ref.models.build(config), model).eval()
    inputs = adversarial_inputs(config, BATCH, LENGTH, seed=number)
    rules = TWIN if number % 2 else None
    with jax.disable_jit(), strict():
        return compare(twin, model, inputs, rules=rules, call_torch=call_torch, call_jax=call_jax, checks=CHECKS, tier="A")


@contextmanager
def strict() -> Iterator[None]:
    """Run JAX with strict promotion: a dtype or rank that changes on the way is a bug."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


if __name__ == "__main__":
    run(main)
