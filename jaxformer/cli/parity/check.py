"""`jaxformer parity check`: compare a JAX model with what `parity dump` recorded, without torch."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.cli.parity.names import model_and_call, no_exit
from jaxformer.cli.parity.shared_flags import JaxName, JudgeFlags, ReportFlags
from jaxformer.runtime.compilation_cache import use_cache
from jaxformer.runtime.environment import check_jax


@dataclass(frozen=True, kw_only=True)
class Check(JudgeFlags, ReportFlags):
    """Compare a JAX model with what `jaxformer parity dump` recorded; torch is not needed. Exit code 0: equal, 1: different,
    2: could not compare."""

    folder: tyro.conf.Positional[Path]
    """The folder that `dump` wrote."""
    jax: JaxName
    """package.module:function that returns the JAX model, or a tuple: the model and a function that calls it."""


def main(arguments: list[str]) -> int:
    """Compare, print the report, and return its exit code."""
    flags = parse(Check, arguments, prog="jaxformer parity check")
    use_cache(flags.cache)
    check_jax()
    from jaxformer.parity.compare import check
    from jaxformer.parity.trace.archive import load

    reference = load(flags.folder)
    model, call_jax = model_and_call(flags.jax)
    with no_exit("the model, or what calls it,"):
        report = check(reference, model, call_jax=call_jax, **flags.options())
    return flags.show(report)
