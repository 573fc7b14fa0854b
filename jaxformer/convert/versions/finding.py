"""Findings about a folder: one line each, with what both versions make of a value and what to do."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jaxformer.errors import printable

Level = Literal["differs", "wrong", "note"]
ORDER: tuple[Level, ...] = ("differs", "wrong", "note")
"""Order in which findings are shown."""
ABSENT = object()
"""Value of a key that a file does not have."""


@dataclass(frozen=True)
class Finding:
    """Value that the versions read differently (differs), that no version can use as it is (wrong), or that changes neither
    the model nor a text (note)."""

    level: Level
    file: str
    key: str
    value: str
    four: str
    """Predicate with transformers 4 as its subject, as `uses 10000.0`; empty where neither version has a part in it."""
    five: str
    """Predicate with transformers 5 as its subject."""
    remedy: str

    @property
    def line(self) -> str:
        """The finding as one line."""
        both = f": each of transformers 4 and 5 {self.four}" if self.four else ""
        said = both if self.four == self.five else f": transformers 4 {self.four}, 5 {self.five}"
        return printable(f"{self.level:8}{self.file}: {self.key} {self.value}{said}; {self.remedy}")

    @property
    def data(self) -> dict[str, str]:
        """The finding as an object of JSON."""
        return asdict(self)


def shown(value: Any) -> str:
    """Write a value as a file has it, at most 60 characters of it."""
    if value is ABSENT:
        return "is missing"
    text = json.dumps(value, ensure_ascii=False)
    return f"= {text[:57]}..." if len(text) > 60 else f"= {text}"
