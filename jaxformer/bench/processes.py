"""The parent's end of a worker: requests out, answers in, and what went wrong in one line."""

import json
import subprocess
import sys
import tempfile
from typing import Any

from jaxformer.errors import JaxformerError

KIBIBYTES = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of ru_maxrss."""


class WorkerError(JaxformerError):
    """A worker that could not do its work."""


class Worker:
    """A process of `jaxformer.bench.worker`. It is in a session of its own, so that Ctrl-C reaches the parent alone."""

    def __init__(self, task: str, **request: Any):
        command = [sys.executable, "-m", "jaxformer.bench.worker", json.dumps({"task": task, **request})]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(command, stderr=self.errors, start_new_session=True, **pipes)

    def answer(self) -> dict[str, Any]:
        """The next one; WorkerError where the process ended or refused."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(self.last_words())
        values = json.loads(line)
        if "refused" in values:
            raise WorkerError(values["refused"])
        return values

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to a line."""
        assert self.process.stdin is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkerError(self.last_words()) from None
        return self.answer()

    def last_words(self) -> str:
        """The last line that it wrote as it failed."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return lines[-1][:200] if lines else f"its process ended with code {code}"

    def close(self) -> None:
        """End the process, if it has not ended."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()


def ask_once(task: str, **request: Any) -> dict[str, Any]:
    """The one answer of a process of its own."""
    worker = Worker(task, **request)
    try:
        return worker.answer()
    finally:
        worker.close()
