"""Outcome of a comparison with a planted bug: if it was noticed, in which module, and with what cause."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from benchmarks.field_bugs import Bug
from jaxformer.evaluation.outcome import named
from jaxformer.parity.report.data import Module
from jaxformer.parity.report.report import Report


@dataclass(frozen=True)
class Outcome:
    """Outcome of a comparison with one bug."""

    bug: Bug
    status: str
    """Status of the report."""
    seconds: float
    blamed: list[str] = field(default_factory=list)
    """torch's names of the diverging modules that may have the bug."""
    innocents: list[str] = field(default_factory=list)
    """torch's names of other diverging modules."""
    named: list[str] = field(default_factory=list)
    """Causes that are the planted one, or list it as an equal alternative."""
    wrong: list[str] = field(default_factory=list)
    """Other causes."""
    silent: list[str] = field(default_factory=list)
    """Names of blamed modules without a cause."""

    @property
    def noticed(self) -> bool:
        """True if the verdict is DIFFERENT."""
        return self.status == "different"

    @property
    def is_named(self) -> bool:
        """True if every blamed module has the right cause."""
        return bool(self.named) and not self.wrong and not self.silent

    @property
    def fails(self) -> list[str]:
        """Words for each failure of the outcome."""
        marks = {
            f"NOT NOTICED ({self.status})": not self.noticed,
            "MODULE": self.noticed and not self.blamed,
            f"INNOCENT {', '.join(self.innocents[:2])}": bool(self.innocents),
            f"WRONG CAUSE {self.wrong[:1]}": bool(self.wrong),
            f"no cause {', '.join(self.silent[:1])}".strip(): self.noticed and not self.is_named and not self.wrong,
        }
        return [mark for mark, is_so in marks.items() if is_so]

    def __str__(self) -> str:
        mark = "; ".join(self.fails) or "ok"
        return f"{self.bug.title:52} {self.seconds:5.1f} s  {mark:10}  {next(iter(self.named), '')}"


def outcome(bug: Bug, report: Report, seconds: float) -> Outcome:
    """Judge a report of a comparison with the bug."""
    blamed = [module for module in report.diverging if fnmatchcase(name_of(module), bug.module)]
    others = [module for module in report.diverging if module not in blamed]
    told = [module for module in blamed if module.cause]
    right = [module for module in told if named(bug.cause, module.causes)]
    return Outcome(
        bug,
        report.status,
        seconds,
        [name_of(module) for module in blamed],
        [name_of(module) for module in others],
        [*dict.fromkeys(module.cause for module in right)],
        [*dict.fromkeys(module.cause for module in told if module not in right)],
        [name_of(module) for module in blamed if not module.cause],
    )


def name_of(module: Module) -> str:
    """Return torch's name of a module, or jax's if there is none."""
    return module.torch or module.jax or "(call)"


def totals(found: Iterable[Outcome]) -> str:
    """Format the figures of all bugs, one per line."""
    every = list(found)
    counted = {
        "noticed": sum(each.noticed for each in every),
        "module right": sum(bool(each.blamed) for each in every),
        "cause named": sum(each.is_named for each in every),
        "wrong causes": sum(bool(each.wrong) for each in every),
        "innocents accused": sum(bool(each.innocents) for each in every),
    }
    lines = [f"{name:18} {n:4} of {len(every)} ({n / max(len(every), 1):.0%})" for name, n in counted.items()]
    return "\n".join([*lines, f"{'seconds each':18} {sum(each.seconds for each in every) / max(len(every), 1):4.1f}"])
