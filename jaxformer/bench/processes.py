"""Parent's end of a worker process: requests out, answers in, and errors as one line."""

import json
import subprocess
import sys
import tempfile
from typing import Any

from jaxformer.errors import JaxformerError

KIBIBYTES = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of ru_maxrss."""


class WorkerError(JaxformerError):
    """Error of a worker that could not do its work."""


class Worker:
    """Process of `jaxformer.bench.worker`, in a session of its own so that Ctrl-C reaches only the parent."""

    def __init__(self, task: str, **request: Any):
        command = [sys.executable, "-m", "jaxformer.bench.worker", json.dumps({"task": task, **request})]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(command, stderr=self.errors, start_new_session=True, **pipes)

    def answer(self) -> dict[str, Any]:
        """Return the next answer; WorkerError if the process ended or refused."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(self.last_words())
        values = json.loads(line)
        if "refused" in values:
            raise WorkerError(values["refused"])
        return values

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, and return the answer."""
        assert self.process.stdin is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkerError(self.last_words()) from None
        return self.answer()

    def last_words(self) -> str:
        """Return the last line that the worker wrote before it failed."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return lines[-1][:200] if lines else f"its process ended with code {code}"

    def close(self) -> None:
        """Kill the process if it still runs."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()


def ask_once(task: str, **request: Any) -> dict[str, Any]:
    """Return the only answer of a process of its own."""
    worker = Worker(task, **request)
    try:
        return worker.answer()
    finally:
        worker.close()
