"""The `jaxformer` command. Imports no command before it is called, so that --help is quick."""

from jaxformer import __version__
from jaxformer.cli.commands import GROUPS, find, usage
from jaxformer.flags import run

HELP = ("-h", "--help", "help")


def dispatch(arguments: list[str]) -> int | None:
    """Run the command that is named first with the arguments after it; its exit code, None for 0."""
    first, *rest = arguments or HELP
    if first == "--version":
        print(f"jaxformer {__version__}")
    elif first == "help" and rest:
        return dispatch([*rest, "--help"])
    elif first in HELP:
        print(usage())
    elif first in GROUPS and (not rest or rest[0] in HELP):
        print(usage(first))
    else:
        command, flags = find(arguments)
        return command.run(flags)
    return 0


def main() -> None:
    """The console script."""
    run(dispatch)
