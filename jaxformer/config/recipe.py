"""What every training recipe is asked for."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.validation.fields import check_size


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every recipe is asked for."""

    out: Path | None = None
    """The run folder. None: the first free one in runs/."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, as it was begun."""
    seed: int = 0
    """Start of the random numbers."""
    steps: int
    """Most optimizer steps."""
    batch: int
    """Examples a step."""
    evaluate_every: int
    """Steps between evaluations on held-out data."""
    save_every: int
    """Steps between checkpoints of the whole train state."""
    optimizer: OptimizerConfig
    """The optimizer."""
    schedule: ScheduleConfig
    """The course of the learning rate."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "evaluate_every", "save_every"):
            check_size(name, getattr(self, name))
        check_size("seed", self.seed, least=0)
