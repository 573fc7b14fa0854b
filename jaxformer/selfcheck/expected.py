"""Expected causes: what a planted bug has to be called, as structure and not as words.

A pattern has the change, then what its arguments, its number and its targets are, each with `*` for any part:

    rotary.base value=1000
    formula.choices epsilon=1e-06 | norms.epsilon at='*self.norm*'

Alternatives stand between bars: mutations that give the same.
"""

import shlex
from fnmatch import fnmatchcase

from jaxformer.parity.report.data import Cause


def fits(pattern: str, cause: Cause) -> bool:
    """Whether a cause is one of the pattern's alternatives."""
    return any(_is(shlex.split(alternative), cause) for alternative in pattern.split(" | "))


def structure(cause: Cause) -> str:
    """The whole of a cause as a pattern that only it fits: what is copied from a verdict that is right."""
    said = [shlex.quote(f"{name}={value}") for name, value in _said(cause).items()]
    return " ".join([cause.change, *said, *(shlex.quote(f"at={target.label}") for target in cause.targets)])


def _is(words: list[str], cause: Cause) -> bool:
    change, *settings = words
    said = _said(cause)
    labels = [target.label for target in cause.targets]
    wanted = [setting.split("=", 1) for setting in settings]
    return fnmatchcase(cause.change, change) and all(
        any(fnmatchcase(label, value) for label in labels) if name == "at" else name in said and fnmatchcase(said[name], value)
        for name, value in wanted
    )


def _said(cause: Cause) -> dict[str, str]:
    number = {} if cause.value is None else {"value": f"{cause.value:.6g}"}
    return {name: str(value) for name, value in cause.args.items()} | number
