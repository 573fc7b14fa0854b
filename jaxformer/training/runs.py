"""A run folder: its settings (config.json), its course (metrics.jsonl), and the trained weights.

Only the JAX side has runs: the twin has none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.config.configuration import plain
from jaxformer.errors import CheckpointError, InputError
from jaxformer.whole_files import written_whole

CONFIG, METRICS, WEIGHTS, CHECKPOINTS = "config.json", "metrics.jsonl", "weights.safetensors", "checkpoints"
TOKENIZER, EVALUATED = "tokenizer.json", "evaluated"


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """A new run; InputError where the folder holds a run already, or other files."""
        if any((path / name).exists() for name in (METRICS, WEIGHTS, CHECKPOINTS)):
            raise InputError(f"{path} already holds a run; continue it with --resume, or name another folder with --out")
        if path.is_dir() and any(file.name != CONFIG for file in path.iterdir()):
            raise InputError(f"{path} holds other files; name an empty or a new folder with --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write(path / CONFIG, json.dumps(config, indent=2, ensure_ascii=False, default=plain) + "\n")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; name another folder with --out") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run; InputError where there is none."""
        if not (path / CONFIG).is_file():
            raise InputError(f"{path} is not a run folder: it has no {CONFIG}")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """The settings; CheckpointError where the file cannot be read."""
        try:
            config = json.loads((self.path / CONFIG).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / CONFIG} cannot be read: {error}") from None
        if not isinstance(config, dict):
            raise CheckpointError(f"{self.path / CONFIG} holds no configuration, but {config!r:.50}")
        return config

    @property
    def weights(self) -> Path:
        """The trained weights."""
        return self.path / WEIGHTS

    @property
    def tokenizer(self) -> Path:
        """The run's own tokenizer, where it has one."""
        return self.path / TOKENIZER

    @property
    def evaluated(self) -> Path:
        """Evaluated weights by step, which are averaged at the end."""
        return self.path / EVALUATED

    @property
    def best(self) -> Path:
        """The evaluated weights of the lowest validation loss."""
        return self.evaluated / f"best{Path(WEIGHTS).suffix}"

    @property
    def checkpoints(self) -> Path:
        """Whole train states by step."""
        return self.path / CHECKPOINTS

    def log(self, values: Mapping[str, float | int]) -> None:
        """One more line of metrics; CheckpointError where it cannot be written."""
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise CheckpointError(f"{self.path / METRICS} cannot be written: {error.strerror}") from None

    @property
    def metrics(self) -> list[dict[str, float | int]]:
        """Every complete line so far: a crash can leave the last one incomplete."""
        path = self.path / METRICS
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        try:
            return [json.loads(line) for line in lines if line.endswith("\n")]
        except ValueError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will take again."""
        kept = [json.dumps(line) + "\n" for line in self.metrics if line["step"] <= step]
        _write(self.path / METRICS, "".join(kept))


def free_folder(parent: Path, name: str) -> Path:
    """`parent/name-0`, or the first number that no run has."""
    number = 0
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def _write(path: Path, text: str) -> None:
    with written_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
