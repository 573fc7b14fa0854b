"""The `jaxformer` command. Modules are imported only after Ctrl-C is caught, and a command's own when it is called."""

import _signal  # pyright: ignore[reportMissingImports]  # `signal` without its enums, which take milliseconds
import os

from jaxformer import __version__

HELP, VERSION = ("-h", "--help", "help"), "--version"


def dispatch(arguments: list[str]) -> int | None:
    """Run the command that is named first with the arguments after it; return its exit code, None for 0."""
    from jaxformer.cli.commands import GROUPS, find, usage

    first, *rest = arguments or HELP
    if first == VERSION:
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


def main(*command: str) -> None:
    """Run the console script; `command` is put before the arguments."""
    catch_interrupt()
    from jaxformer.runtime.shutdown import listen
    from jaxformer.runtime.stdio import open_closed_streams

    open_closed_streams()
    listen()
    os.environ["MPLBACKEND"] = "agg"  # plots go to files; MPLBACKEND may name Jupyter's backend, which may be missing
    from jaxformer.cli.flags import run

    run(lambda arguments: checked([*command, *arguments]))


def catch_interrupt() -> None:
    """Let Ctrl-C end the process at once until `listen` takes over, unless SIGINT is ignored by the parent's wish."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: object) -> None:
    try:
        os.write(2, b"stopped by Ctrl-C\n")
    finally:  # also if standard error is closed
        os._exit(128 + number)


def checked(arguments: list[str]) -> int | None:
    """Run the command as `dispatch` does, with XLA's threads limited and its flags checked; a supervised command has its own
    process.
    """
    if not {*HELP, VERSION} & {*arguments}:
        from jaxformer.cli.supervised import SUPERVISED, supervised
        from jaxformer.runtime.cores import limit_threads
        from jaxformer.runtime.crashes import NOTES
        from jaxformer.runtime.environment import check_xla_flags

        limit_threads()
        check_xla_flags()
        if arguments[:2] in SUPERVISED and NOTES not in os.environ:
            return supervised(arguments)
    return dispatch(arguments)
