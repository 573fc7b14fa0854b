"""Sides as the parent process sees them: values to compare, rounds, and final figures.

A worker process gets requests and gives answers, and its errors are one line."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from jaxformer.bench.items import COLD, JAXFORMER, Item
from jaxformer.errors import JaxformerError

KIBIBYTES = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of ru_maxrss."""


class WorkerError(JaxformerError):
    """Error of a worker that could not do its work."""


ENVIRONMENTS = {
    "cpu": {"JAX_PLATFORMS": "cpu"},
    "gpu": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DEFAULT_MATMUL_PRECISION": "highest"},
}
"""Device -> environment of a process that works on it. On a GPU all sides share the memory, and float32 products are torch's:
of float32."""


class Worker:
    """Process of `jaxformer.bench.worker`, in a session of its own so that Ctrl-C reaches only the parent."""

    def __init__(self, task: str, *, on: str = "cpu", **request: Any):
        command = [sys.executable, "-m", "jaxformer.bench.worker", json.dumps({"task": task, **request})]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        environment = os.environ | ENVIRONMENTS[on]
        self.process = subprocess.Popen(command, stderr=self.errors, start_new_session=True, env=environment, **pipes)

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


DATA = "multi30k-de-en"
SHORT_RUN = "--steps 2 --evaluate-every 1 --batch 256 --shapes 2 --model.vocab-size 300"
SHORT_MODEL = "--model.d-model 16 --model.n-heads 2 --model.d-ff 32"


class Runner(Protocol):
    """One side of an item."""

    def check(self) -> list[float] | None:
        """Return values that must be equal on all sides; None if another side does the same work."""
        ...

    def warm_up(self) -> None:
        """Do the work that comes only once."""
        ...

    def round(self) -> float:
        """Run a round, and return its seconds."""
        ...

    def finish(self) -> dict[str, float]:
        """Return the final figures."""
        ...

    def close(self) -> None:
        """End the side's process."""
        ...


class InWorker:
    """Process that stays for all rounds, with its model loaded and compiled; it waits between rounds."""

    def __init__(self, item: Item, peer: str, folder: Path, validate: bool):
        request: dict[str, Any] = {"group": item.group, "peer": peer, "folder": str(folder), "count": item.repeats}
        self.worker = Worker("side", on=item.device, **request, validate=validate)

    def check(self) -> list[float] | None:
        return self.worker.answer()["check"]

    def warm_up(self) -> None:
        self.worker.ask("warm up")

    def round(self) -> float:
        return self.worker.ask("run")["seconds"]

    def finish(self) -> dict[str, float]:
        return self.worker.ask("end")

    def close(self) -> None:
        self.worker.close()


class WholeProcess:
    """New process for each round, timed from start to end. The first one is the check."""

    def __init__(self, item: Item, peer: str, folder: Path, options: dict[str, Any]):
        self.item, self.peer, self.folder, self.options = item, peer, folder, options
        self.cache, self.out = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
        self.process: subprocess.Popen[str] | None = None
        self.memory = 0

    def command(self) -> list[str]:
        """Return the command of this side."""
        data = self.options.get("data") or DATA
        if self.item.build == "checkpoint":
            return ["jaxformer.bench.first_text", self.peer, str(self.folder)]
        if self.peer == "twin":
            return ["jaxformer.bench.twin_run", str(self.folder), data]
        short = [*SHORT_RUN.split(), *SHORT_MODEL.split()] if self.options.get("short") else []
        preset = ["--preset", self.item.settings["preset"], "--data", data, "--tested", "8", "--out", str(self.out / "run")]
        return ["jaxformer", "train", "translate", *preset, *short]

    def run(self) -> float:
        """Run the process once, and return its seconds."""
        shutil.rmtree(self.out / "run", ignore_errors=True)
        if self.peer == COLD:
            shutil.rmtree(self.cache)
            self.cache.mkdir()
        cached = {"JAX_COMPILATION_CACHE_DIR": str(self.cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        with (self.out / "printed").open("w") as out, (self.out / "errors").open("w") as errors:
            start = time.perf_counter()
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
            command = [sys.executable, "-m", *self.command()]
            environment = os.environ | ENVIRONMENTS[self.item.device] | cached
            process = self.process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        self.memory = max(self.memory, usage.ru_maxrss * KIBIBYTES)
        if process.returncode:
            lines = (self.out / "errors").read_text("utf-8", "replace").strip().splitlines()
            raise WorkerError(lines[-1][:200] if lines else f"its process ended with code {process.returncode}")
        return seconds

    def check(self) -> list[float] | None:
        if self.peer == COLD:
            return None
        self.run()
        metrics = self.out / "run/metrics.jsonl"
        if self.peer == JAXFORMER and metrics.exists():
            return [json.loads(metrics.read_text("utf-8").splitlines()[-1])["val_loss"]]
        return json.loads((self.out / "printed").read_text("utf-8").splitlines()[-1])

    def warm_up(self) -> None:
        """Do nothing: the check was the warm-up."""

    def round(self) -> float:
        return self.run()

    def finish(self) -> dict[str, float]:
        return {"memory": self.memory}

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for folder in (self.cache, self.out):
            shutil.rmtree(folder, ignore_errors=True)
