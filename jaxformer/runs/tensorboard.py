"""Scalars of a run for TensorBoard, beside its own files: `tensorboard --logdir runs` shows them while the run goes on.

The run does not depend on these files, and never reads them: where one cannot be written, the rest is left out.
"""

import socket
import time
import warnings
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError
from jaxformer.runs.folder import RunFolder
from jaxformer.runtime.packages import extra_package

EVENTS = "tensorboard"
"""Folder, in a run's, of what is written for TensorBoard."""


def tensorboardx() -> tuple[Any, Any, Any]:
    """Return tensorboardX's writer of records and its messages; MissingPackageError if it is not installed."""
    with extra_package():
        from tensorboardX import record_writer  # pyright: ignore[reportMissingImports]
        from tensorboardX.proto import event_pb2, summary_pb2  # pyright: ignore[reportMissingImports]
    return record_writer, event_pb2, summary_pb2


class Events:
    """Writer of one series of scalars, in RUN/tensorboard/NAME, for a run that has taken so many steps.

    MissingPackageError without tensorboardX; OSError if the folder cannot be written.
    """

    def __init__(self, run: Path, name: str, taken: int):
        records, self.kinds, self.summaries = tensorboardx()
        self.folder, self.is_off = run / EVENTS / name, False
        self.folder.mkdir(parents=True, exist_ok=True)
        file = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{taken}"  # TensorBoard reads them in this order
        self.records = records.RecordWriter(str(self.folder / file))
        weakref.finalize(self, _close, self.records)
        self._put(file_version="brain.Event:2")
        starts = self.kinds.SessionLog(status=self.kinds.SessionLog.START)
        self._put(step=taken + 1, session_log=starts)  # what an earlier process wrote of this step and later ones is void

    def _put(self, **fields: Any) -> None:
        self.records.write(self.kinds.Event(wall_time=time.time(), **fields).SerializeToString())
        self.records.flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step; after one that cannot be written, warn, and write no more."""
        if self.is_off:
            return
        scalars = [self.summaries.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        try:
            self._put(step=step, summary=self.summaries.Summary(value=scalars))
        except OSError as error:
            self.is_off = True
            said = f"{self.folder} cannot be written: {error.strerror}; TensorBoard is not given the rest of the run"
            warnings.warn(said, stacklevel=2)


def _close(records: Any) -> None:
    """Close a writer, whose disk may be full."""
    with suppress(OSError):
        records.close()


@dataclass(frozen=True)
class ShownRun(RunFolder):
    """Run folder of --tensorboard: each line of metrics goes to TensorBoard too."""

    events: Events

    @classmethod
    def of(cls, run: RunFolder, taken: int) -> "ShownRun":
        """Return the run after so many steps, with the events of its metrics; InputError if they cannot be written."""
        try:
            return cls(run.path, Events(run.path, "metrics", taken))
        except OSError as error:
            said = f"{run.path / EVENTS} cannot be written: {error.strerror}; remove it, or leave out --tensorboard"
            raise InputError(said) from None

    def log(self, values: Mapping[str, float | int]) -> None:
        super().log(values)
        self.events.write(int(values["step"]), {name: value for name, value in values.items() if name != "step"})
