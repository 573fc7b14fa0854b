"""What a comparison found: a verdict, what led to it, and how far each module is off."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report import strict_json
from jaxformer.parity.report.summarize import alike, say_alike, say_names

Status = Literal["equal", "different", "failed"]
EXIT_CODES: dict[Status, int] = {"equal": 0, "different": 1, "failed": 2}


@dataclass(frozen=True)
class Stage:
    """One check, by its name."""

    name: str
    status: Status
    says: str
    """What it found, in a line."""


@dataclass(frozen=True)
class Module:
    """One call of a module that both sides have."""

    jax: str
    torch: str
    propagated: Error
    """Of its output along the normal run."""
    local: Error
    """The largest of what its own code makes of torch's values."""
    what: str
    """Where that is: its output, or what it hands to a child."""
    diverging: bool
    """Whether that is over the line, forwards or backwards, and makes a difference."""
    cause: str = ""
    """Why, where a hypothesis explains both sides."""
    gradient: Error | None = None
    """Of the gradient that comes back to its output, along the normal run."""
    local_gradient: Error | None = None
    """The largest of what its own code sends back, given torch's values and gradients."""
    positions: list[float] = field(default_factory=list)
    """relL2 of its output at each position, where it has some: its axis 1 of 3 or more."""
    heads: list[float] = field(default_factory=list)
    """relL2 of what each of its heads gathers, given torch's values, where it has heads; of scores and weights, their own."""
    float32: bool = False
    """Whether no cause is known, and a constant that one side rounds to float32 may be it."""
    shared: bool = False
    """Whether its own code differs and makes no difference: part of its work stands on the other side of a call."""


@dataclass(frozen=True)
class Finding:
    """One figure of a diverging module that is over its line."""

    where: str
    """'output', 'input of x', or 'gradient'."""
    measure: str
    """'relL2' or 'max/rms'."""
    error: float
    line: float

    def __str__(self) -> str:
        return f"{self.where}: {self.measure} {self.error:.1e}, line {self.line:.0e}"


@dataclass(frozen=True)
class Group:
    """Diverging modules of which the same is said, as those of every layer."""

    name: str
    """Of all of them."""
    first: Module


@dataclass(frozen=True)
class Step:
    """One step of training on both sides."""

    number: int
    loss: float
    """torch's."""
    loss_error: float
    """Relative."""
    parameter_error: float
    """The largest max/rms among the parameters, null gradients left out."""


@dataclass(frozen=True)
class Report:
    """All of it. `print(report)` is plain text; `jaxformer.parity.render` has what is nicer to look at."""

    tier: str
    line: float
    """The largest relL2 that counts as equal."""
    stages: list[Stage] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    """In torch's call order."""
    steps: list[Step] = field(default_factory=list)
    """Of training."""
    jax_only: list[str] = field(default_factory=list)
    """Calls that were not compared by themselves: torch has none with the same parameters."""
    torch_only: list[str] = field(default_factory=list)
    taps: list[str] = field(default_factory=list)
    """Those of ours that were compared with nothing, in words."""
    not_covered: list[str] = field(default_factory=list)
    """What this run could not have judged."""
    environment: dict[str, str] = field(default_factory=dict)
    traceback: str = ""
    """Of the error that ended it, where one did."""

    @property
    def diverging(self) -> list[Module]:
        """Modules whose own code differs: those first that give other values, then those that only send back others."""
        found = [module for module in self.modules if module.diverging]
        return sorted(found, key=lambda module: module.local.relative <= module.local.allowed("activation")[0])

    def groups(self, modules: Iterable[Module]) -> list[Group]:
        """Those of one name but for its numbers, and of one cause, or without any over the line at one place: together."""
        found: dict[tuple[str, ...], list[Module]] = {}
        for module in modules:
            cause, places = re.sub(r" \(residual [^)]*\)", "", module.cause), (each.where for each in self.findings(module))
            found.setdefault((alike(module.jax), *map(alike, [cause] if cause else places)), []).append(module)
        return [Group(say_alike([each.jax or "the model" for each in those]), those[0]) for those in found.values()]

    def findings(self, module: Module) -> list[Finding]:
        """What makes a diverging module diverging: its forward pass, its gradient, or both."""
        line, backward = module.local.allowed("activation")[0], module.local_gradient
        forward = Finding(module.what or "output", "relL2", module.local.relative, line)
        if backward is None or backward.peak <= (peak := backward.allowed("gradient")[1]):
            return [forward]
        wrong = [] if module.local.relative <= line else [forward]
        return [*wrong, Finding("gradient", "max/rms", backward.peak, peak)]

    @property
    def status(self) -> Status:
        """The worst of the stages."""
        found = {stage.status for stage in self.stages}
        return "equal" if found == {"equal"} else "different" if found <= {"equal", "different"} and found else "failed"

    @property
    def exit_code(self) -> int:
        """0 equal, 1 different, 2 could not compare."""
        return EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        """One line."""
        if not self.stages:
            return "COULD NOT COMPARE: nothing was checked"
        if self.status == "equal":
            return f"EQUAL: {', '.join(stage.name for stage in self.stages)} (tier {self.tier})"
        if self.diverging and self.status == "different":
            first, others = self.diverging[0], len(self.diverging) - 1
            more = f", and {others} more" if others else ""
            return f"DIFFERENT: {first.jax or 'the model'}: {self.why(first)}{more}"
        first = next(stage for stage in self.stages if stage.status == self.status)
        return f"{'DIFFERENT' if self.status == 'different' else 'COULD NOT COMPARE'}: {first.name}: {first.says}"

    def why(self, module: Module) -> str:
        """A diverging module's cause; where none is known, what is over which line."""
        hint = " (float32's size: does a side hold a constant in float32, as torch does its buffers?)" if module.float32 else ""
        return module.cause or "; ".join(map(str, self.findings(module))) + hint

    def to_json(self) -> str:
        """Everything, as strict JSON; `from_json` reads it again."""
        return strict_json.dump(self, verdict=self.verdict)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """What `to_json` wrote; InputError in one line where it is anything else."""
        return strict_json.load(cls, text, ignored="verdict")

    def to_markdown(self) -> str:
        """For a pull request or an issue."""
        from jaxformer.parity.report.markdown import markdown

        return markdown(self)

    def to_html(self) -> str:
        """One page that needs nothing else."""
        from jaxformer.parity.report.html import page

        return page(self)

    def __str__(self) -> str:
        width = max((len(stage.name) for stage in self.stages), default=0) + 4
        left, lines = list(self.diverging), []
        for stage in self.stages:
            lines.append(f"{stage.name:{width}}{stage.status:12}{stage.says}".rstrip())
            if stage.name in ("local", "activation gradients"):
                here = [module for module in left if stage.name != "local" or self._wrong_forwards(module)]
                left = [module for module in left if module not in here]
                lines += self._diverging_lines(here)
        lines += self._diverging_lines(left)
        if self.taps:
            lines.append(f"taps not compared: {', '.join(self.taps)}")
        lines += self.alone
        if self.not_covered:
            lines.append(f"not noticed by this run: {', '.join(self.not_covered)}")
        return "\n".join([*lines, self.verdict])

    @property
    def alone(self) -> list[str]:
        """A line where modules were not compared by themselves, with their names."""
        ours = [name for name in self.jax_only if name not in self.taps]
        sides = (("jax", ours), ("torch", self.torch_only))
        found = [
            f"{side} {', '.join(say_names(names, [*names, *(getattr(each, side) for each in self.modules)]))}"
            for side, names in sides
            if names
        ]
        return [f"not compared by themselves: {'; '.join(found)}"] if found else []

    def _wrong_forwards(self, module: Module) -> bool:
        return any(finding.where != "gradient" for finding in self.findings(module))

    def _diverging_lines(self, modules: Iterable[Module]) -> list[str]:
        return [f"  {group.name}   {self.why(group.first)}" for group in self.groups(modules)]
