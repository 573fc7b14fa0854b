"""Run folder: its settings (config.json), metrics (metrics.jsonl), trained weights, and the manifest of these.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxformer.config.configuration import plain
from jaxformer.errors import UNREADABLE, CheckpointError, InputError
from jaxformer.io.atomic import UNFINISHED, remove, to_disk, written_whole
from jaxformer.runs.lock import LOCK, check_held, identity_of, writer_of
from jaxformer.runs.manifest import CONFIG, EVALUATED, MANIFEST, WEIGHTS, Manifest
from jaxformer.runs.metrics import Line, checked_line, checked_lines, read_data, read_lines
from jaxformer.validation.fields import parsed, read_small

METRICS, CHECKPOINTS, TOKENIZER = "metrics.jsonl", "checkpoints", "tokenizer.json"
DAMAGED, LATER = "damaged", "later"
"""Suffixes of the step of a checkpoint that was set aside."""
RUN = "run"
"""Key in config.json: sha256 of the run's first settings and data, to which its checkpoints and metrics are bound."""
NOT_BEGUN = "not begun: it has no checkpoint yet; the same command, or --resume, begins it"
"""Message about a run without a checkpoint."""
NO_SETTINGS = f"not begun: it has no {CONFIG} yet; the same command begins it"
"""Message about a run that ended before it wrote its settings."""
AT_ONCE = LOCK, f"{CONFIG}*{UNFINISHED}", f"{MANIFEST}*{UNFINISHED}"
"""Files left by a run that ended before it had a manifest."""
LEFTOVERS = (
    *(f"{place}*.{'[0-9a-f]' * 8}{UNFINISHED}" for place in ("", f"{EVALUATED}/")),
    *(f"{CHECKPOINTS}/{name}" for name in ("*.orbax-checkpoint-tmp", f"tmp{'?' * 8}")),
)
"""Files left by a process that was killed while it wrote."""


@dataclass(frozen=True)
class RunFolder:
    """Folder that holds one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """Create a new run; InputError if the folder already holds a run, or other files."""
        run = cls(path)
        try:
            run.check_settings()
            if run.holds_model:
                raise InputError(f"{path} holds a saved model and no run; name another folder with --out")
            if not run.is_begun:
                run.check_states()
                raise InputError(f"{path} already holds a run; continue it with --resume, or name another folder with --out")
            if path.is_dir() and run._has_other_files:
                raise InputError(f"{path} holds other files; name an empty or a new folder with --out")
            run.remove_leftovers()
            path.mkdir(parents=True, exist_ok=True)
            for name in (CONFIG, TOKENIZER, MANIFEST):  # the manifest, which lists the others, goes last
                (path / name).unlink(missing_ok=True)
            run.write_config(config)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; name another folder with --out") from None
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run; InputError if there is none, CheckpointError if its settings are lost."""
        if not (path / CONFIG).is_file():
            cls(path).check_settings()
            if cls(path).is_locked_alone:
                raise CheckpointError(f"{path} is {NO_SETTINGS}")
            wrong = f"is not a run folder: it has no {CONFIG}" if path.exists() else "is not there; give a folder that is"
            raise InputError(f"{path} {'is a file; give the folder that it is in' if path.is_file() else wrong}")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        """Settings of the run; CheckpointError if the file cannot be read, or was changed. Warns if the run has lost its
        manifest, which older runs do not have."""
        self.manifest.check(CONFIG)
        config = read_config(self.path)
        if RUN in config and CONFIG not in self.manifest.entries:
            warnings.warn(f"{self.path} has lost its {MANIFEST}: its files are taken as they are, unchecked", stacklevel=2)
        return config

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings."""
        with self.manifest.renewed(self.path / CONFIG) as unfinished:
            unfinished.write_text(json.dumps(config, indent=2, ensure_ascii=False, default=plain) + "\n", "utf-8")

    @cached_property
    def identity(self) -> str:
        """Identity to which checkpoints and metrics are bound; empty if config.json names none, as in older runs."""
        with suppress(CheckpointError, InputError):
            return identity_of(self.path, lambda: str(read_config(self.path).get(RUN, "")))
        return ""

    @property
    def is_locked_alone(self) -> bool:
        """True if a run ended here before it wrote its settings."""
        return self.is_begun and (self.path / LOCK).is_file() and not ((self.path / CONFIG).exists() or self._has_other_files)

    @property
    def has_lost_settings(self) -> bool:
        """True if the settings, which the manifest names, are missing, but not all else of a run or model."""
        with suppress(CheckpointError, InputError):
            return not self.is_begun and not (self.path / CONFIG).exists() and CONFIG in self.manifest.entries
        return False

    def check_settings(self) -> None:
        """Raise CheckpointError if the settings are lost."""
        if self.has_lost_settings:
            lost = f"{self.path} has lost its {CONFIG}, which its {MANIFEST} names"
            raise CheckpointError(f"{lost}; put it back, or name another folder")

    @property
    def holds_model(self) -> bool:
        """True if `save` wrote the folder."""
        with suppress(CheckpointError, InputError):
            return "class" in read_config(self.path)
        return False

    def check_trains(self) -> None:
        """Raise InputError if the folder holds a model, and is no run."""
        for key, what in (("model_type", "is a folder of transformers"), ("class", "holds a saved model")):
            if key in self.config and "recipe" not in self.config:
                raise InputError(f"{self.path} {what}, and no run; `jaxformer info` shows it")

    @property
    def is_foreign(self) -> bool:
        """True if config.json is another program's, and nothing else is a run's."""
        with suppress(CheckpointError):
            theirs = not {"recipe", "class"} & {*read_config(self.path)} and self.is_begun
            return theirs and not any((self.path / name).exists() for name in (MANIFEST, LOCK))
        return False

    @property
    def is_run(self) -> bool:
        """True if the folder has the settings of a recipe, or has lost them."""
        with suppress(CheckpointError, InputError):
            return self.has_lost_settings or "recipe" in read_config(self.path)
        return False

    @property
    def is_begun(self) -> bool:
        """True if there is nothing to continue yet: no checkpoint, none that was set aside, no metrics, no weights."""
        kept = kept_states(self.checkpoints) or self._states_aside
        return not kept and not any((self.path / name).exists() for name in (METRICS, WEIGHTS))

    @property
    def _states_aside(self) -> list[str]:
        """Names of the checkpoints that were set aside."""
        return sorted(path.name for why in (DAMAGED, LATER) for path in self.checkpoints.glob(f"[0-9]*.{why}*"))

    def check_states(self) -> None:
        """Raise CheckpointError if the run took steps, and has lost every checkpoint."""
        if self.checkpoints.exists() and not self.checkpoints.is_dir():
            wrong = "is not a folder; put it back"
        elif self.is_begun or kept_states(self.checkpoints):
            return
        elif aside := self._states_aside:
            wrong = f"holds no checkpoint but {', '.join(aside)}, set aside; rename one that is whole to its step"
        else:
            wrong = f"{'holds no checkpoint any more' if self.checkpoints.exists() else 'is missing'}; put it back"
        raise CheckpointError(f"{self.checkpoints} {wrong}, or start a new run with --out")

    @property
    def _has_other_files(self) -> bool:
        """True if the folder has files besides AT_ONCE, which a run leaves that ended before its manifest. With a manifest the
        folder is a run's, whatever was put there since."""
        with suppress(CheckpointError):
            if CONFIG in self.manifest.entries:
                return False
        left = {path.name for pattern in AT_ONCE for path in self.path.glob(pattern)}
        return not {path.name for path in self.path.iterdir()} <= left

    @property
    def _leftovers(self) -> set[Path]:
        """Files that were being written when an earlier process ended."""
        return {found for pattern in LEFTOVERS for found in self.path.glob(pattern)}

    def remove_leftovers(self) -> None:
        """Remove files that were being written when an earlier process ended. Only for the run's writer."""
        for leftover in self._leftovers:
            remove(leftover)

    @property
    def manifest(self) -> Manifest:
        """Manifest of the run's files."""
        return Manifest(self.path)

    def check_kept(self) -> None:
        """Raise CheckpointError if a file that a resumed run reads was changed or is missing: all but the trained weights.
        Lines of metrics are checked one by one when they are read."""
        for name in self.manifest.entries:
            if name not in (WEIGHTS, METRICS):
                self.manifest.check(name)

    def begin_manifest(self) -> None:
        """Give an older run a manifest of its files as they are. A tokenizer's sha256 is in config.json."""
        weights = [self.weights] if self.weights.exists() else []
        self.manifest.begin([self.path / CONFIG, *weights, *self.evaluated.glob(f"*{self.weights.suffix}")])

    @property
    def weights(self) -> Path:
        """Path of the trained weights."""
        return self.path / WEIGHTS

    def check_trained(self) -> None:
        """Raise CheckpointError if there are no trained weights yet."""
        if not self.weights.exists() and (owner := writer_of(self.path)):
            raise CheckpointError(f"{self.path} is still being written by {owner}, and has no {WEIGHTS} yet; wait for its end")
        if self.is_begun:
            raise CheckpointError(f"{self.path} is {NOT_BEGUN}")
        if not self.weights.exists():
            self.check_states()
            raise CheckpointError(f"{self.path} has no {WEIGHTS} yet; finish the run with --resume")

    @property
    def tokenizer(self) -> Path:
        """Path of the run's own tokenizer, if it has one."""
        return self.path / TOKENIZER

    @property
    def evaluated(self) -> Path:
        """Folder of evaluated weights by step: the newest, which are averaged at the end, and the best."""
        return self.path / EVALUATED

    @property
    def checkpoints(self) -> Path:
        """Folder of whole train states by step."""
        return self.path / CHECKPOINTS

    def log(self, values: Mapping[str, float | int]) -> None:
        """Append a line of metrics; CheckpointError if it cannot be written."""
        check_held(self.path)
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                before = max(file.tell(), self.manifest.least_length(METRICS))  # removed lines stay missed
                file.write(line := checked_line(self.identity, values))
            to_disk(self.path / METRICS)
            self.manifest.enter_length(self.path / METRICS, before + len(line.encode()))
        except OSError as error:
            raise CheckpointError(f"{self.path / METRICS} cannot be written: {error.strerror}") from None

    @property
    def metrics(self) -> list[Line]:
        """Intact lines of metrics so far."""
        least = self.manifest.least_length(METRICS)  # read first: a line comes before its entry
        return read_lines(self.path / METRICS, self.identity, least)

    @property
    def left_out(self) -> int:
        """Number of lines of metrics that are left out because they are corrupted."""
        return checked_lines(read_data(self.path / METRICS), self.identity).count(None)

    def line_of(self, step: int) -> Line | None:
        """Return the line of a step; None if it was not evaluated, or not to its end."""
        return next((line for line in self.metrics if line["step"] == step), None)

    def evaluated_before(self, step: int | float) -> int:
        """Return the last step before this one that has a line; 0 if none has."""
        lines = checked_lines(read_data(self.path / METRICS), self.identity)
        return max((int(line["step"]) for line in lines if line and line["step"] < step), default=0)

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will take again."""
        kept = "".join(checked_line(self.identity, line) for line in self.metrics if line["step"] <= step)
        self.manifest.enter_length(self.path / METRICS, 0)  # until it is replaced, it may be as it was or shorter
        with written_whole(self.path / METRICS) as unfinished:
            unfinished.write_text(kept, encoding="utf-8")
        self.manifest.enter_length(self.path / METRICS, len(kept.encode()))


def kept_states(folder: Path) -> list[int]:
    """Return the steps that have a state, intact or not, in order."""
    return steps_named(path.name for path in folder.glob("*"))


def steps_named(names: Iterable[str]) -> list[int]:
    """Return the steps among the names, in order; only plain decimals count: not "020" or Arabic digits."""
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of any folder; CheckpointError if it cannot be read."""
    try:
        config = parsed(read_small(folder / CONFIG).decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{folder / CONFIG} {UNREADABLE}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder / CONFIG} holds no configuration, but {config!r:.50}")
    return config
