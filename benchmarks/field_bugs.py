"""Bugs that are planted in the clean ports of the field, of the kinds that porters make; `field_bugs.txt` lists them.

A bug is one change of a port's source. Under the heading of its port, `== llama`, it reads

    base
      in      create_sinusoidal_positions
    - (10000 **
    + (1000 **
      blames  model.layers.*.self_attn*
      because rotary.base own=10000 base=1000 *

`in` is the class or function whose source has the old text, exactly once. `blames` is torch's module that has to be blamed,
with a star for any part of its name. `because` is the expected cause, a pattern of `jaxformer.evaluation.outcome`; alternative
patterns follow on lines of their own, after `or`.
"""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import InputError

TABLE = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class Bug:
    """Bug, and the expected result of a comparison."""

    port: str
    name: str
    where: str
    """Class or function of the port's source that is changed."""
    old: str
    new: str
    module: str
    """torch's module that has to be blamed, with `*` for any part of its name."""
    cause: str
    """Pattern of the structure of the expected cause."""

    @property
    def title(self) -> str:
        """Title, as 'llama: base'."""
        return f"{self.port}: {self.name}"


def read(text: str) -> list[Bug]:
    """Parse the table of bugs; InputError for a bug of another form."""
    bugs, port = [], ""
    for block in text.strip().split("\n\n"):
        if block.startswith("== "):
            port = block.removeprefix("== ")
            continue
        name, *lines = block.split("\n")
        found = {mark: "\n".join(line[2:] for line in lines if line[:1] == mark) for mark in "-+"}
        said = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
        if not port or [word for word, _ in said[:3]] != ["in", "blames", "because"] or not found["-"]:
            raise InputError(f"{TABLE.name}: the bug that begins with {name!r} is not of the form in benchmarks/field_bugs.py")
        (_, where), (_, module), *causes = said
        cause = " | ".join(pattern for _, pattern in causes)
        bugs.append(Bug(port, name, where, found["-"], found["+"], module, cause))
    return bugs


BUGS = read(TABLE.read_text())
"""All bugs of `field_bugs.txt`."""
