"""Supervised commands run the user's models in a process of their own: a crash ends only that process, with one line."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from jaxformer.runtime.crashes import Outcome, has_ended, lifeline, name_of, twice
from jaxformer.runtime.shutdown import cleaned_up

SUPERVISED = (["parity", "compare"], ["parity", "check"])
START = """
import sys
sys.path[:] = {path!r}
sys.argv[1:] = {arguments!r}
from jaxformer.cli.main import main
from jaxformer.runtime.crashes import end_with_parent
from jaxformer.runtime.crashes import ENDED, note
end_with_parent({lifeline})
try:
    main()
finally:
    note(ENDED)
"""
OWN_CODES = range(128)
"""Exit codes that do not stand for a signal."""


def supervised(arguments: Sequence[str]) -> int:
    """Run a command, twice if its process crashes; return its exit code, or that of a report that says it crashed."""
    outcome, crash = twice(lambda environment: to_its_end(arguments, environment))
    if not crash:
        return outcome.value
    from jaxformer.cli.flags import parse
    from jaxformer.cli.parity import Check, Compare
    from jaxformer.parity.isolate import ended

    kind = Compare if arguments[1] == "compare" else Check
    return parse(kind, arguments[2:], prog=f"jaxformer {' '.join(arguments[:2])}").show(ended(crash))


def to_its_end(arguments: Sequence[str], environment: dict[str, str]) -> Outcome:
    """Run the command in a process of its own; a signal that ends this process ends it too.

    Its standard error is shown when it has ended, unless it crashed: XLA then writes pages.
    """
    with tempfile.TemporaryFile() as errors, lifeline() as pipe:
        code = START.format(path=sys.path, arguments=[*arguments], lifeline=pipe)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=(pipe,),
            env={**os.environ, **environment},
            stderr=errors,
            start_new_session=True,
        )
        with cleaned_up(process.kill):
            ended = process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    crashed = ended < 0 or (ended in OWN_CODES and not has_ended(environment))
    sys.stderr.write("" if crashed else said)
    return Outcome(ended, name_of(ended) if crashed else "", crashed)
