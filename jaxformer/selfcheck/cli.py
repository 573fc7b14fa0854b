"""`jaxformer parity mutants`."""

from jaxformer.errors import InputError


def mutants(arguments: list[str]) -> int:
    """Every mutant against the comparison; 0 if all were killed."""
    if arguments in (["-h"], ["--help"]):
        print("usage: jaxformer parity mutants   (puts every bug of the gate into the JAX side; it takes minutes)")
        return 0
    if arguments:
        raise InputError(f"unknown flag {arguments[0]}; parity mutants takes none")
    from jaxformer.selfcheck import run

    return run.main()
