"""`jaxformer parity mutants`: plant known bugs in jaxformer's own models, one by one; the comparison has to find each."""

from dataclasses import dataclass

from jaxformer.cli.flags import parse
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache
from jaxformer.runtime.environment import check_jax


@dataclass(frozen=True, kw_only=True)
class Mutants(CacheFlag):
    """Plant every known bug in the JAX side of jaxformer's own models, and count those that the comparison finds. It takes
    minutes. Exit code 0: all were found.
    """


def main(arguments: list[str]) -> int:
    """Run every mutant."""
    use_cache(parse(Mutants, arguments, prog="jaxformer parity mutants").cache)
    check_jax()
    from jaxformer.evaluation import run

    return run.main()
