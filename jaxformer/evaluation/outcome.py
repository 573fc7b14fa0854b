"""Outcomes of mutants: the check that noticed each, the module that was named, and the cause."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxformer.evaluation.inject import Mutant
from jaxformer.parity.report.data import Cause, Module
from jaxformer.parity.report.report import Report


def named(pattern: str, causes: Sequence[Cause]) -> bool:
    """True if one of the pattern's alternatives is among the causes of a module."""
    return any(
        all(any(_fits(words, facts(cause)) for cause in causes) for words in _split(alternative, "&"))
        for alternative in _split(shlex.split(pattern), "|")
    )


def choice(formula: str, *settings: str) -> str:
    """Return the pattern of a formula's settings: 'mask=as given, causal' are torch's and jax's choices for the mask."""
    return shlex.join(["formula.choices", f"formula={formula}", *settings])


def structure(cause: Cause) -> str:
    """Return the pattern that fits this cause alone, to be copied from a verdict that is right."""
    return shlex.join(facts(cause))


def facts(cause: Cause) -> list[str]:
    """Return a cause's mutation and its details: 'rotary.base', 'base=1000', 'at=rotary'."""
    said = {name: _text(value) for name, value in cause.args.items()}
    number = {} if cause.value is None else {"value": _text(cause.value)}
    arguments = [f"{name}={text}" for name, text in (said | number).items() if text]
    return [cause.change, *arguments, *(f"at={target.label}" for target in cause.targets)]


def _fits(words: Sequence[str], cause: Sequence[str]) -> bool:
    globs = [re.compile(".*".join(map(re.escape, word.split("*"))), re.DOTALL) for word in words]
    found = [{fact for fact in cause if glob.fullmatch(fact)} for glob in globs]
    placed = any(word.startswith("at=") for word in words)
    asked = {fact for fact in cause if placed or not fact.startswith("at=")}
    return all(found) and asked <= set().union(*found)


def _split(words: Iterable[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == mark:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _text(value: Any) -> str:
    """Format a value; floats get four digits."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{float(f'{value:.4g}'):g}" if isinstance(value, float) else str(value)


LEAST_CAUSES = 0.8
"""Least share of causes that must be named right; modules must all be right."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a mutant."""

    mutant: Mutant
    killed_by: str | None
    """Tier and name of the first check that noticed, as 'A forward'; None for a survivor."""
    reached: bool
    """True if the mutated code ran."""
    modules: Sequence[Module] = field(default_factory=list)
    """Modules that were compared; none if a run is compared as a whole."""
    cause: str = ""
    """Cause that was named, if a run is compared as a whole."""

    @property
    def killed(self) -> bool:
        """True if a check noticed the bug and the mutated code ran."""
        return self.killed_by is not None and self.reached

    @property
    def diverging(self) -> list[Module]:
        """Modules that were named."""
        return [module for module in self.modules if module.diverging]

    @property
    def module_right(self) -> bool:
        """True if every module that contains the bug was named, and no other."""
        named = {path(module) for module in self.diverging}
        return bool(named) and named == {path(module) for module in self.modules if self._declared(module)}

    @property
    def cause_right(self) -> bool:
        """True if all of these modules, or the whole run, were named with the bug's cause."""
        if not self.mutant.diverging:
            return bool(self.mutant.says and re.search(self.mutant.says, self.cause))
        wanted = self.mutant.cause
        return bool(wanted) and self.module_right and all(named(wanted, module.causes) for module in self.diverging)

    def _declared(self, module: Module) -> bool:
        return re.fullmatch(rf"(.*\.)?({self.mutant.diverging})", path(module)) is not None


def path(module: Module) -> str:
    """Path of a module in jax; 'the model' for the model itself."""
    return module.jax or "the model"


def first_failure(report: Report) -> str | None:
    """Return tier and name of the first check that is red. Weights that do not fit count; a run that breaks down does not."""
    for stage in report.stages:
        if stage.status == "different" or (stage.status == "failed" and stage.name == "weights"):
            return f"{report.tier} {stage.name}"
        if stage.status == "failed":
            return None
    return None


def table_row(outcome: Outcome) -> str:
    """Format a row of the table: the bug, what noticed it, the module named, and the cause named."""
    killed_by = outcome.killed_by if outcome.killed else "survived" if outcome.reached else "never ran"
    kinds = list(dict.fromkeys(re.sub(r"\b\d+\b", "*", path(module)) for module in outcome.diverging))
    more = f" and {len(kinds) - 1} more" if len(kinds) > 1 else ""
    module, cause = (f"{kinds[0]}{more}", outcome.diverging[0].cause or "-") if kinds else ("-", outcome.cause or "-")
    if outcome.mutant.diverging:
        module = module if outcome.module_right else f"WRONG: {module}"
    if with_causes([outcome]):
        cause = cause if outcome.cause_right or cause == "-" else f"WRONG: {cause}"
    return f"{outcome.mutant.name:{NAME}}  {killed_by:22}  {module:{MODULE}}  {cause}"


NAME, MODULE = 48, 52
"""Widths of the table's columns."""


def passed(outcomes: Sequence[Outcome]) -> bool:
    """True if all mutants are killed, all modules right, and enough causes right."""
    modules, causes = with_modules(outcomes), with_causes(outcomes)
    right = sum(outcome.cause_right for outcome in causes)
    named = all(outcome.module_right for outcome in modules) and right >= LEAST_CAUSES * len(causes)
    return named and all(outcome.killed for outcome in outcomes)


def with_modules(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of mutants that declare a module."""
    return [outcome for outcome in outcomes if outcome.mutant.diverging]


def with_causes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of mutants that declare a module or the cause of a whole run."""
    return [outcome for outcome in outcomes if outcome.mutant.diverging or outcome.mutant.says]


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Format three lines: modules, causes, and 'N/N mutants killed' with the survivors."""
    modules, causes = with_modules(outcomes), with_causes(outcomes)
    right = sum(outcome.cause_right for outcome in causes)
    share = 100 * right / len(causes) if causes else 100.0
    survivors = [outcome.mutant.name for outcome in outcomes if not outcome.killed]
    killed = f"{len(outcomes) - len(survivors)}/{len(outcomes)} mutants killed"
    return "\n".join(
        [
            f"module named right: {sum(outcome.module_right for outcome in modules)} of {len(modules)}",
            f"cause named right: {right} of {len(causes)} ({share:.0f} %)",
            killed + (f"; survivors: {', '.join(survivors)}" if survivors else ""),
        ]
    )
