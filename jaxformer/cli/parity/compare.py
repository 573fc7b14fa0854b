"""`jaxformer parity compare`: compare two models in one environment."""

from dataclasses import dataclass
from typing import Any

from jaxformer.cli.flags import parse
from jaxformer.cli.parity.names import load, model_and_call, no_exit
from jaxformer.cli.parity.shared_flags import InputFlags, JaxName, JudgeFlags, ReportFlags, TorchName
from jaxformer.runtime.compilation_cache import use_cache
from jaxformer.runtime.environment import check_jax


@dataclass(frozen=True, kw_only=True)
class Compare(InputFlags, JudgeFlags, ReportFlags):
    """Compare a torch model with its JAX port. Name each as package.module:function. The function returns the model, or a
    tuple: the model and a function that calls it on the inputs. Exit code 0: equal, 1: different, 2: could not compare."""

    torch: TorchName
    """The torch model."""
    jax: JaxName
    """The JAX model."""
    training: str | None = None
    """package.module:name of a `TrainingSpec`: train copies of both, step by step."""
    generate: str | None = None
    """package.module:name of a pair of functions, torch's and JAX's: each takes its model and returns ids, or yields the logits
    of each step."""


def main(arguments: list[str]) -> int:
    """Compare, print the report, and return its exit code."""
    flags = parse(Compare, arguments, prog="jaxformer parity compare")
    use_cache(flags.cache)
    check_jax()
    torch_model, call_torch = model_and_call(flags.torch)
    jax_model, call_jax = model_and_call(flags.jax)
    from jaxformer.parity.compare import compare

    options: dict[str, Any] = flags.options() | {"call_torch": call_torch, "call_jax": call_jax}
    if flags.training is not None:
        options["training"] = load(flags.training)
    if flags.generate is not None:
        options["generate"] = load(flags.generate)
    with no_exit("a model, or what calls it,"):
        report = compare(torch_model, jax_model, flags.arrays(), **options)
    return flags.show(report)
