"""Findings about a folder: one line each, with what both versions make of a value and what to do; and the report of all."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jaxformer.errors import printable

Level = Literal["differs", "wrong", "note"]
SCHEMA = 1
"""Version of the report's JSON."""
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


@dataclass(frozen=True)
class FolderReport:
    """Findings about a folder of transformers."""

    folder: str
    status: Literal["equal", "different"]
    findings: list[Finding]
    """All findings: those of level differs first, then wrong, then note."""

    @property
    def verdict(self) -> str:
        """Last line of the report."""
        if self.status == "equal":
            return "EQUAL: nothing found that transformers 4 and 5 make differently of this folder"
        differs, wrong = (sum(it.level == level for it in self.findings) for level in ("differs", "wrong"))
        return f"DIFFERENT: {differs} read differently by transformers 4 and 5, {wrong} wrong in both"

    def to_json(self) -> str:
        """Serialise the report."""
        return json.dumps(asdict(self) | {"verdict": self.verdict, "schema": SCHEMA}, indent=1)


def shown(value: Any) -> str:
    """Write a value as a file has it, at most 60 characters of it."""
    if value is ABSENT:
        return "is missing"
    text = json.dumps(value, ensure_ascii=False)
    return f"= {text[:57]}..." if len(text) > 60 else f"= {text}"
