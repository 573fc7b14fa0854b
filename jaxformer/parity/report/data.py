"""Result of a comparison as data: its checks, the errors of each module, the diverging modules, the verdict."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.summarize import alike, say_alike

Status = Literal["equal", "different", "failed", "n/a", "warning"]
"""Result of a check. 'n/a': there is nothing that the check applies to. 'warning': both sides are judged without this check,
and the user has to know."""
SILENT = ("n/a", "warning")
"""Statuses that do not count in the verdict."""
EXIT_CODES: dict[Status, int] = {"equal": 0, "different": 1, "failed": 2}
ON_TORCHS = "torch's are used below"
"""Suffix of the weights check's finding if weights differ: the rest of the comparison runs on torch's weights."""


@dataclass(frozen=True)
class Stage:
    """Result of one check."""

    name: str
    status: Status
    says: str
    """Finding in one line."""


@dataclass(frozen=True)
class Target:
    """Object of a cause: an operation of torch's code, a module, a tensor, a setting, an input, or one of a module's arrays."""

    label: str
    """Name in words: '`q * cos` (rope.py:12)', 'layers.*.norm.eps'."""
    file: str = ""
    """Source file, if the target is an operation of the code."""
    line: int = 0
    column: int = 0
    """Start of the operation in its line, counted in bytes."""


@dataclass(frozen=True)
class Cause:
    """Mutation of what torch computes that reproduces jax's array, as data."""

    operator: str
    """Mutation operator: 'arguments', 'masks', 'rotary'."""
    change: str
    """Mutation within the operator, such as 'axes.reduced'."""
    targets: list[Target]
    """Mutated objects on torch's side."""
    args: dict[str, Any]
    """Mutated settings by name: numbers, texts, switches and lists of these."""
    value: float | None
    """Solved free parameter, if there is one; infinite if it is left out."""
    residual: float | None
    """relL2 between the mutation's result and jax's array; None if the two are identical."""
    certainty: str
    """Certainty of the cause: 'exact'; 'float32': exact but for float32's rounding; 'ambiguous': other numbers fit too;
    'integers': other mutations may give the same integers."""
    says: str
    """Description in words."""


@dataclass(frozen=True)
class Module:
    """One call of a module that exists on both sides."""

    jax: str
    """Path in the JAX model; '' for the model itself."""
    torch: str
    propagated: Error
    """Error of the output in the normal run, which errors of earlier modules reach."""
    local: Error
    """Largest error that the module's own code makes when it is given torch's values."""
    what: str
    """Place of the local error: 'output', or 'input of x' for what the module hands to its child x."""
    diverging: bool
    """True if the local error is over the tolerance, forward or backward, and changes a result."""
    cause: str = ""
    """Cause of the divergence in words; '' if unknown."""
    causes: list[Cause] = field(default_factory=list)
    """Candidate causes as data: the plainest first, then others with the same result. Empty if a dedicated check tells the
    cause."""
    gradient: Error | None = None
    """Error of the gradient that comes back to the output in the normal run."""
    local_gradient: Error | None = None
    """Largest error of the gradients that the module's own code sends back when it is given torch's values and gradients."""
    positions: list[float] = field(default_factory=list)
    """relL2 of the output at each position: along axis 1 of arrays with 3 axes or more."""
    heads: list[float] = field(default_factory=list)
    """relL2 of what each attention head computes from torch's values."""
    source: str = ""
    """Line of the JAX code, such as 'port.py:12': where the module's code begins, where a library's module is called, or where
    a tap is."""
    float32: bool = False
    """True if no cause is known, and a constant that one side rounds to float32 may be the cause."""
    looks: str = ""
    """Diagnostics if no cause is known: the mutations tried, and a description of the difference."""
    shared: bool = False
    """True if the module's own code differs without changing a result: a neighbour does part of its work."""

    behind: str = ""
    """Earlier module whose difference may reach this one's computation unseen; this module is then not accused. '' if there is
    none."""

    @property
    def name(self) -> str:
        """Path in the JAX model, or 'the model'."""
        return self.jax or "the model"


@dataclass(frozen=True)
class Finding:
    """Error of a diverging module that is over its tolerance."""

    where: str
    """Place of the error: 'output', 'input of x', or 'gradient'."""
    measure: str
    """Error measure: 'relL2' or 'max/rms'."""
    error: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.where}: {self.measure} {self.error:.1e}, tolerance {self.tolerance:.0e}"


@dataclass(frozen=True)
class Group:
    """Diverging modules whose names differ only in layer numbers, with the same cause."""

    name: str
    """Common name of the modules."""
    first: Module


@dataclass(frozen=True)
class Reduced:
    """Smallest call that differs, as a test file (see `reduce_to` of `compare`)."""

    file: str = ""
    """Path of the test; '' if none was written."""
    module: str = ""
    """Path in the JAX model of the module that the test calls; '' for the model itself."""
    why: str = ""
    """Reason why no test was written."""

    def __str__(self) -> str:
        return f"pytest {self.file} fails until it is mended" if self.file else f"not written: {self.why}"


@dataclass(frozen=True)
class Step:
    """One step of training on both sides."""

    number: int
    loss: float
    """torch's loss."""
    loss_error: float
    """Relative error of jax's loss."""
    parameter_error: float
    """Largest max/rms among the parameters, null gradients left out."""


@dataclass(frozen=True)
class ReportData:
    """All findings of a comparison, and the verdict that follows from them."""

    tier: str
    tolerance: float
    """Largest relL2 that counts as equal."""
    stages: list[Stage] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    """Module calls in torch's order."""
    steps: list[Step] = field(default_factory=list)
    """Steps of training."""
    jax_only: list[str] = field(default_factory=list)
    """Calls that were not compared by themselves: the other side has no call with the same parameters."""
    torch_only: list[str] = field(default_factory=list)
    taps: list[str] = field(default_factory=list)
    """jax's taps that were compared with nothing, in words."""
    not_covered: list[str] = field(default_factory=list)
    """Parts of the model and inputs that this run could not judge."""
    environment: dict[str, str] = field(default_factory=dict)
    reduced: Reduced | None = None
    """Smallest call that differs; None if none was requested."""
    traceback: str = ""
    """Traceback of the error that ended the comparison, if any."""

    @property
    def diverging(self) -> list[Module]:
        """Diverging modules: first those with other values, then those that only send back other gradients."""
        found = [module for module in self.modules if module.diverging]
        return sorted(found, key=lambda module: module.local.relative <= module.local.allowed("activation")[0])

    def groups(self, modules: Iterable[Module]) -> list[Group]:
        """Group modules whose names differ only in layer numbers, by cause, or, if none is known, by the places that are over
        the tolerance."""
        found: dict[tuple[str, ...], list[Module]] = {}
        for module in modules:
            cause, places = re.sub(r" \(residual [^)]*\)", "", module.cause), (each.where for each in self.findings(module))
            found.setdefault((alike(module.jax), *map(alike, [cause] if cause else places)), []).append(module)
        return [Group(say_alike([module.name for module in those]), those[0]) for those in found.values()]

    def findings(self, module: Module) -> list[Finding]:
        """Return the errors over tolerance of a diverging module: of its values, its gradients, or both."""
        tolerance, backward = module.local.allowed("activation")[0], module.local_gradient
        forward = Finding(module.what or "output", "relL2", module.local.relative, tolerance)
        if backward is None or backward.peak <= (peak := backward.allowed("gradient")[1]):
            return [forward]
        wrong = [] if module.local.relative <= tolerance else [forward]
        return [*wrong, Finding("gradient", "max/rms", backward.peak, peak)]

    def reason(self, module: Module) -> str:
        """Return a diverging module's cause, with its array where that is in another order; without a cause, its findings."""
        hint = " (float32's size: does a side hold a constant in float32, as torch does its buffers?)" if module.float32 else ""
        looks = f" ({module.looks})" if module.looks else ""
        if module.cause:
            in_order = any(each.operator == "order" and Target(module.what) in each.targets for each in module.causes[:1])
            place = module.what.replace(f"input of {module.jax}.", "input of ")
            return f"{place}: {module.cause}" if in_order else module.cause
        return "; ".join(map(str, self.findings(module))) + hint + looks

    @property
    def status(self) -> Status:
        """Worst status of the stages that apply."""
        found = {stage.status for stage in self.stages} - {*SILENT}
        return "equal" if found == {"equal"} else "different" if found <= {"equal", "different"} and found else "failed"

    @property
    def other_weights(self) -> str:
        """Prefix of the verdict if weights differ: the modules were compared on torch's weights; '' if they do not."""
        says = next((stage.says for stage in self.stages if stage.name == "weights" and stage.status == "different"), "")
        wrong, used, _ = says.partition(f"; {ON_TORCHS}")
        return f"weights: {wrong}; beside that, with torch's weights, " if used else ""

    @property
    def warnings(self) -> str:
        """Warnings appended to the verdict; '' if there are none."""
        return "".join(f"; {stage.says}" for stage in self.stages if stage.status == "warning")

    @property
    def exit_code(self) -> int:
        """Exit code: 0 for equal, 1 for different, 2 if the comparison failed."""
        return EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        """Verdict in one line."""
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
