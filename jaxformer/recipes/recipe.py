"""Settings that every recipe has."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from jaxformer.config.mesh import MeshConfig
from jaxformer.config.settings import OptimizerConfig, Precision, ScheduleConfig
from jaxformer.errors import InputError
from jaxformer.runtime.compilation_cache import CacheFlag
from jaxformer.runtime.products import LIBRARIES, Library
from jaxformer.validation.fields import check_choice, check_size


@dataclass(frozen=True, kw_only=True)
class Recipe(CacheFlag):
    """Settings that every recipe has."""

    out: Path | None = None
    """The run folder. None: the first free one in runs/."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the settings that it was started with."""
    checkpoint: int | None = None
    """Step to resume from, with --resume; `--resume 500` is short for it. None: the newest complete checkpoint."""
    seed: int = 0
    """Seed of the random numbers."""
    steps: int
    """Maximum number of optimizer steps."""
    batch: int
    """Examples per step."""
    evaluate_every: int
    """Steps between evaluations on held-out data."""
    save_every: int
    """Steps between checkpoints of the whole train state."""
    watch: int | None = None
    """Steps between rows of watch.jsonl: norms of each layer's gradients, updates, activations and moments. None: no rows."""
    tensorboard: bool = False
    """Write the lines of metrics.jsonl for TensorBoard too, to tensorboard/ in the run's folder."""
    precision: Precision = "float32"
    """Precision of matrix products in training; parameters, moments, norms, softmax and losses are always float32."""
    mesh: str | None = None
    """Devices to train on, by axes: data=4,tensor=2. Axes are data, fsdp, tensor and sequence. None: one device."""
    products: Library | None = None
    """Kernel library of matrix products on a CPU. None: the fastest one here."""
    optimizer: OptimizerConfig
    """The optimizer."""
    schedule: ScheduleConfig
    """The learning-rate schedule."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "evaluate_every", "save_every"):
            check_size(name, getattr(self, name))
        check_size("seed", self.seed, least=0)
        if self.watch is not None:
            check_size("watch", self.watch)
        if not str(self.out).isprintable():
            raise InputError(f"out = {str(self.out)!r} has characters that no terminal prints; give another name")
        if self.checkpoint is not None:
            check_size("checkpoint", self.checkpoint, least=0)
            if not self.resume:
                raise InputError(f"checkpoint = {self.checkpoint} says where --resume goes on; give --resume too")
        check_choice("precision", self.precision, get_args(Precision))
        if self.products is not None:
            check_choice("products", self.products, LIBRARIES)
        if self.layout is not None:
            object.__setattr__(self, "mesh", str(self.layout))

    @property
    def layout(self) -> MeshConfig | None:
        """Parsed mesh; None for one device."""
        return None if self.mesh is None else MeshConfig.read(self.mesh)

    @property
    def row_parts(self) -> int:
        """Number of parts that the mesh divides the sequences of a batch into."""
        return 1 if self.layout is None else self.layout.rows
