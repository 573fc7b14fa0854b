"""What a comparison found, as data: its checks, the errors of each module, the diverging ones, the verdict."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.summarize import alike, say_alike

Status = Literal["equal", "different", "failed", "n/a", "warning"]
"""'n/a': there is nothing that the check applies to. 'warning': both sides are judged without it, and the user has to know."""
SILENT = ("n/a", "warning")
"""Those that do not count in the verdict."""
EXIT_CODES: dict[Status, int] = {"equal": 0, "different": 1, "failed": 2}
ON_TORCHS = "torch's are used below"
"""What the check of weights says where they differ: the rest runs on torch's."""


@dataclass(frozen=True)
class Stage:
    """The result of one check."""

    name: str
    status: Status
    says: str
    """What it found, in one line."""


@dataclass(frozen=True)
class Target:
    """What a cause is about: an operation of torch's code, a module, a tensor, a setting, an input, one of its arrays."""

    label: str
    """'`q * cos` (rope.py:12)', 'layers.*.norm.eps'"""
    file: str = ""
    """Of the source, if it is an operation of the code."""
    line: int = 0
    column: int = 0
    """Where it begins in the line, counted in bytes."""


@dataclass(frozen=True)
class Cause:
    """One change of what torch does that gives what jax does, as data."""

    operator: str
    """What kind of change it is: 'arguments', 'masks', 'rotary'."""
    change: str
    """Which change of the operator's, as 'axes.reduced'."""
    targets: list[Target]
    """Of torch's."""
    args: dict[str, Any]
    """What is otherwise, by names: numbers, texts, switches and lists of these."""
    value: float | None
    """The number that was solved for, if one was; infinite where it is left out."""
    residual: float | None
    """relL2 of what it gives and jax's array; None where the arrays are the same."""
    certainty: str
    """'exact'; 'float32': but for its rounding; 'ambiguous': other numbers fit too; 'integers': other changes may give them."""
    says: str
    """In words."""


@dataclass(frozen=True)
class Module:
    """One call of a module that both sides have."""

    jax: str
    """Its path in the JAX model; '' for the model itself."""
    torch: str
    propagated: Error
    """Of its output in the normal run, where errors of earlier modules reach it."""
    local: Error
    """The largest that its own code makes when it is given torch's values."""
    what: str
    """Where the local error is: 'output', or 'input of x' for what it hands to its child x."""
    diverging: bool
    """Whether its local error is over the tolerance, forwards or backwards, and changes a result."""
    cause: str = ""
    """Why it diverges; '' where it is not known."""
    causes: list[Cause] = field(default_factory=list)
    """The same as data: the plainest first, and those that give as much. Empty where a check of its own tells the cause."""
    gradient: Error | None = None
    """Of the gradient that comes back to its output in the normal run."""
    local_gradient: Error | None = None
    """The largest of the gradients that its own code sends back when it is given torch's values and gradients."""
    positions: list[float] = field(default_factory=list)
    """relL2 of its output at each position: along axis 1 of arrays with 3 axes or more."""
    heads: list[float] = field(default_factory=list)
    """relL2 of what each attention head computes from torch's values."""
    source: str = ""
    """Line of its JAX code, as 'port.py:12': where it begins, where a library's module is called, or where a tap stands."""
    float32: bool = False
    """Whether no cause is known, and a constant that one side rounds to float32 may be the cause."""
    looks: str = ""
    """Where no cause is known: what was tried, and what the difference looks like."""
    shared: bool = False
    """Whether its own code differs without changing a result: a neighbour does a part of its work."""

    behind: str = ""
    """Another one before it whose difference may come to what it computes, which is not seen: so it is not accused."""

    @property
    def name(self) -> str:
        """Its path in the JAX model, or 'the model'."""
        return self.jax or "the model"


@dataclass(frozen=True)
class Finding:
    """One error of a diverging module that is over its tolerance."""

    where: str
    """'output', 'input of x', or 'gradient'."""
    measure: str
    """'relL2' or 'max/rms'."""
    error: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.where}: {self.measure} {self.error:.1e}, tolerance {self.tolerance:.0e}"


@dataclass(frozen=True)
class Group:
    """Diverging modules with the same name but for layer numbers, and the same cause."""

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
    """The largest max/rms among the parameters; null gradients are left out."""


@dataclass(frozen=True)
class ReportData:
    """All that a comparison found, and the verdict that follows from it."""

    tier: str
    tolerance: float
    """The largest relL2 that counts as equal."""
    stages: list[Stage] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    """In torch's call order."""
    steps: list[Step] = field(default_factory=list)
    """Of training."""
    jax_only: list[str] = field(default_factory=list)
    """Calls that were not compared by themselves: the other side has none with the same parameters."""
    torch_only: list[str] = field(default_factory=list)
    taps: list[str] = field(default_factory=list)
    """jax's taps that were compared with nothing, in words."""
    not_covered: list[str] = field(default_factory=list)
    """What this run could not judge."""
    environment: dict[str, str] = field(default_factory=dict)
    traceback: str = ""
    """Of the error that ended the comparison, if one did."""

    @property
    def diverging(self) -> list[Module]:
        """Those that give other values come first, then those that only send back other gradients."""
        found = [module for module in self.modules if module.diverging]
        return sorted(found, key=lambda module: module.local.relative <= module.local.allowed("activation")[0])

    def groups(self, modules: Iterable[Module]) -> list[Group]:
        """Modules whose names differ only in layer numbers, together: of one cause, or, without one, over the tolerance at the
        same places."""
        found: dict[tuple[str, ...], list[Module]] = {}
        for module in modules:
            cause, places = re.sub(r" \(residual [^)]*\)", "", module.cause), (each.where for each in self.findings(module))
            found.setdefault((alike(module.jax), *map(alike, [cause] if cause else places)), []).append(module)
        return [Group(say_alike([module.name for module in those]), those[0]) for those in found.values()]

    def findings(self, module: Module) -> list[Finding]:
        """What is over the tolerance in a diverging module: its values, its gradients, or both."""
        tolerance, backward = module.local.allowed("activation")[0], module.local_gradient
        forward = Finding(module.what or "output", "relL2", module.local.relative, tolerance)
        if backward is None or backward.peak <= (peak := backward.allowed("gradient")[1]):
            return [forward]
        wrong = [] if module.local.relative <= tolerance else [forward]
        return [*wrong, Finding("gradient", "max/rms", backward.peak, peak)]

    def reason(self, module: Module) -> str:
        """A diverging module's cause; where none is known, its findings."""
        hint = " (float32's size: does a side hold a constant in float32, as torch does its buffers?)" if module.float32 else ""
        looks = f" ({module.looks})" if module.looks else ""
        return module.cause or "; ".join(map(str, self.findings(module))) + hint + looks

    @property
    def status(self) -> Status:
        """The worst of the stages that apply."""
        found = {stage.status for stage in self.stages} - {*SILENT}
        return "equal" if found == {"equal"} else "different" if found <= {"equal", "different"} and found else "failed"

    @property
    def other_weights(self) -> str:
        """What is said of weights that differ, in front of the modules: these were compared on torch's; '' where none do."""
        says = next((stage.says for stage in self.stages if stage.name == "weights" and stage.status == "different"), "")
        wrong, used, _ = says.partition(f"; {ON_TORCHS}")
        return f"weights: {wrong}; beside that, with torch's weights, " if used else ""

    @property
    def warnings(self) -> str:
        """What the user has to know beside the verdict; '' mostly."""
        return "".join(f"; {stage.says}" for stage in self.stages if stage.status == "warning")

    @property
    def exit_code(self) -> int:
        """0: equal. 1: different. 2: could not compare."""
        return EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        """One line."""
        names = [stage.name for stage in self.stages if stage.status not in SILENT]
        if not names:
            return "COULD NOT COMPARE: nothing was checked"
        if self.status == "equal":
            return f"EQUAL: {', '.join(names)} (tier {self.tier}){self.warnings}"
        if self.diverging and self.status == "different":
            first, others = self.diverging[0], len(self.diverging) - 1
            more = f", and {others} more" if others else ""
            return f"DIFFERENT: {self.other_weights}{first.name}: {self.reason(first)}{more}{self.warnings}"
        first = next(stage for stage in self.stages if stage.status == self.status)
        word = "DIFFERENT" if self.status == "different" else "COULD NOT COMPARE"
        return f"{word}: {first.name}: {first.says}{self.warnings}"
