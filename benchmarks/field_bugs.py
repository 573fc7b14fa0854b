r"""Bugs that are planted in the clean ports of the field, as people who port make them: the table is `field_bugs.txt`.

A bug is one change of a port's source. Behind the heading of its port, `== llama`, it reads

    base
      in      create_sinusoidal_positions
    - (10000 **
    + (1000 **
      blames  model.layers.*.self_attn*
      because {rotary}

`in` is the class or function that has the text, once. `blames` is torch's module that has to be blamed, a star for any part of
its name. `because` is a regular expression of what the cause has to say, whatever the case; words in braces are those below.
"""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import InputError

TABLE = Path(__file__).with_suffix(".txt")
WORDS = {
    "times": r"\btimes\b|factor|scal(e|ing)|jax with \S+ for \S+ there",
    "activation": r"gelu|relu|silu|swish|tanh|sigmoid|identity|activation|act\w*\(.*leaves it out",
    "sum": r"\badds\b|\btimes\b|residual (connection|input|of)|missing|without|operand alone",
    "epsilon": r"epsilon|\beps\b",
    "keys": r"\bkeys?\b|mask|window",
    "rotary": r"rotat|rotar|rope|interleav|\bhal(f|ves)\b|pairs|position|\bbase\b|theta|frequenc|\bsign\b",
    "bias": r"bias|offset",
    "bf16": r"bfloat16|bf16|rounded|rounding",
    "position": r"position|shift|\bids\b|\brow",
    "norm": r"norm|gain|weight|mean|variance|epsilon|scale|\b1 \+",
    "pool": r"mean|first|last|pool|largest|maximum|\bmax\b|position|token",
    "heads": r"head|group|repeat|\btile|order|axes",
    "qkv": r"query|\bkey|value|exchanged|order|permut|packed|axes",
    "conv": r"\bpad|stride|dilat|kernel|flip|transpos|axes|group|convolution|bias",
}
"""What a cause of each kind may say."""


@dataclass(frozen=True)
class Bug:
    """A bug, and what a comparison has to say of it."""

    port: str
    name: str
    where: str
    """The class or function of the port's source that has it."""
    old: str
    new: str
    module: str
    """torch's that has to be blamed, with `*` for any part of a name."""
    cause: str
    """A regular expression."""

    @property
    def title(self) -> str:
        """'llama: base'."""
        return f"{self.port}: {self.name}"


def read(text: str) -> list[Bug]:
    """The bugs of a table."""
    bugs, port = [], ""
    for block in text.strip().split("\n\n"):
        if block.startswith("== "):
            port = block.removeprefix("== ")
            continue
        name, *lines = block.split("\n")
        found = {mark: "\n".join(line[2:] for line in lines if line[:1] == mark) for mark in "-+"}
        said = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
        if not port or said.keys() != {"in", "blames", "because"} or not found["-"]:
            raise InputError(f"{TABLE.name}: the bug that begins with {name!r} is not of the form in benchmarks/field_bugs.py")
        cause = said["because"].format(**WORDS)
        bugs.append(Bug(port, name, said["in"], found["-"], found["+"], said["blames"], cause))
    return bugs


BUGS = read(TABLE.read_text())
"""All of them."""
