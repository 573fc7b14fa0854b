"""Selection of the calls that are compared, by the paths of modules and by layers."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from jaxformer.errors import ParityError
from jaxformer.parity.trace.call_sites import ATTENTION, last, parent
from jaxformer.validation.fields import check_kind, check_size

NEAREST = 3
"""Number of paths that a message proposes."""


@dataclass(frozen=True)
class Selection:
    """Selection by the reference's paths; the call of the whole model is always selected."""

    names: str = "*"
    """Pattern of paths, as a shell has it: 'decoder.layers.[0-3].*'."""
    every: int = 1
    """Interval of the layers that are selected, by their numbers: 4 for the layers 0, 4, 8 and so on."""

    def __post_init__(self) -> None:
        check_kind("names", self.names, str, "a pattern of paths such as 'decoder.layers.[0-3].*'")
        check_size("every", self.every)

    def has(self, path: str) -> bool:
        """True if the calls of this module are compared."""
        path = parent(path) if last(path) in ATTENTION else path
        layer = next((int(part) for part in path.split(".") if part.isdigit()), 0)
        return not path or (layer % self.every == 0 and fnmatchcase(path, self.names))

    def among(self, paths: Iterable[str]) -> str:
        """Describe what is selected of these paths, '' for all; ParityError, with the nearest paths, if it is none."""
        every = {path for path in paths if path and last(path) not in ATTENTION}
        chosen = {path for path in every if self.has(path)}
        if every and not chosen:
            near = difflib.get_close_matches(self.names, sorted(every), NEAREST, 0.0)
            raise ParityError(
                f"names = {self.names!r} with every = {self.every} select none of {len(every)} modules; the nearest are "
                f"{', '.join(near)}"
            )
        left = f"{len(every) - len(chosen)} of {len(every)} modules"
        return "" if chosen == every else f"{left}, which names = {self.names!r} and every = {self.every} leave out"


ALL = Selection()
