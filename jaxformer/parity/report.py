"""What a comparison found: a verdict, what led to it, and how far each module is off."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

Status = Literal["equal", "different", "failed"]
EXIT_CODES: dict[Status, int] = {"equal": 0, "different": 1, "failed": 2}


@dataclass(frozen=True)
class Stage:
    """One check: 'weights', 'forward', 'local', 'gradients' or 'float32'."""

    name: str
    status: Status
    says: str
    """What it found, in a line."""


@dataclass(frozen=True)
class Module:
    """One call of a module that both sides have."""

    jax: str
    torch: str
    propagated: float
    """relL2 of its output along the normal run."""
    local: float
    """The largest relL2 of what its own code makes of torch's values."""
    what: str
    """Where that is: its output, or what it hands to a child."""
    guilty: bool
    """Whether that is over the line."""
    cause: str = ""
    """Why, where a hypothesis explains both sides."""


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
    """All of it; `print(report)` is for the terminal."""

    tier: str
    line: float
    """The largest relL2 that counts as equal."""
    stages: list[Stage] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    """In torch's call order."""
    jax_only: list[str] = field(default_factory=list)
    """Modules with parameters, or the model's own calls, that were not compared by themselves."""
    torch_only: list[str] = field(default_factory=list)
    unnoticed: list[str] = field(default_factory=list)
    """Parameters that this run could not have judged."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def guilty(self) -> list[Module]:
        """Modules whose own code differs."""
        return [module for module in self.modules if module.guilty]

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
        if self.status == "equal":
            return f"EQUAL: {', '.join(stage.name for stage in self.stages)} (tier {self.tier})"
        if self.guilty and self.status == "different":
            first, others = self.guilty[0], len(self.guilty) - 1
            more = f", and {others} more" if others else ""
            return f"DIFFERENT: {first.jax or 'the model'}{': ' + first.cause if first.cause else ''}{more}"
        first = next(stage for stage in self.stages if stage.status == self.status)
        return f"{'DIFFERENT' if self.status == 'different' else 'COULD NOT COMPARE'}: {first.name}: {first.says}"

    def to_json(self) -> str:
        """Everything; `from_json` reads it again."""
        return json.dumps(asdict(self) | {"verdict": self.verdict}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """What `to_json` wrote."""
        values = json.loads(text)
        values.pop("verdict")
        values["stages"] = [Stage(**stage) for stage in values["stages"]]
        values["modules"] = [Module(**module) for module in values["modules"]]
        return cls(**values)

    def __str__(self) -> str:
        width = max((len(stage.name) for stage in self.stages), default=0) + 4
        lines = []
        for stage in self.stages:
            lines.append(f"{stage.name:{width}}{stage.status:12}{stage.says}".rstrip())
            if stage.name == "local":
                lines += [f"  {module.jax or 'the model'}   {module.cause or module.what}" for module in self.guilty]
        if self.unnoticed:
            lines.append(f"not noticed by this run: {', '.join(self.unnoticed)}")
        return "\n".join([*lines, self.verdict])
