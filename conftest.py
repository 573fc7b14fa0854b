"""What several tests compile is compiled once a session, and quickly: LLVM optimises nothing and is given each program in one
piece, and an older part of XLA writes the fusions, which takes half of the time away. `benchmarks` measures programs as users
run them. Every process keeps to one thread of torch's, and seldom looks for garbage: a tenth of the time went to looking
through all that jax and torch have."""

import gc
import importlib.util
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.xla_flags import xla_flags

QUICKLY = xla_flags(
    {
        "xla_backend_optimization_level": "0",
        "xla_llvm_disable_expensive_passes": "true",
        "xla_cpu_use_fusion_emitters": "false",
        "xla_cpu_parallel_codegen_split_count": "1",
    }
)
FOLDER, LEAST = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


LONGEST = "test_sharding.py", "test_model_types.py", "test_runs.py", "test_promises.py", "test_translate.py"
"""Files that begin first: at the end one worker would wait for the other."""

gc.set_threshold(50_000, 50, 100)


def pytest_configure(config: pytest.Config) -> None:
    """The first process sets the environment that workers and commands inherit, and that jax and torch read at their import."""
    config.add_cleanup(_heed_interrupts())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", QUICKLY)
    os.environ.setdefault("JAXFORMER_PRODUCTS", "ynnpack")  # not the fastest here: tests give the same everywhere
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    if FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="jaxformer-tests-", ignore_cleanup_errors=True)
        os.environ |= {FOLDER: folder.name, LEAST: "0"}
        config.add_cleanup(folder.cleanup)


def _heed_interrupts() -> Callable[[], None]:
    """A shell's background processes ignore SIGINT, and so would those that tests start. What it gives ends that: xdist
    interrupts its workers when they are done."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def restore() -> None:
        signal.signal(signal.SIGINT, before)

    return restore


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; of a test that is marked `first(n)`, the cases after the first n are slow."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    seen = Counter[tuple[Path, str]]()
    for item in items:
        mark = item.get_closest_marker("first")
        if mark and not item.get_closest_marker("slow"):
            test = item.path, getattr(item, "originalname", item.name)
            seen[test] += 1
            if seen[test] > mark.args[0]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _one_ir_context() -> Iterator[None]:
    """Programs are lowered in one MLIR context, but for those that are lowered inside of another: to make one for each took a
    seventh of the time."""
    if "jax" not in sys.modules:
        yield
        return
    from jax._src.interpreters import mlir

    make = mlir.make_ir_context
    shared = cache(make)

    def context() -> Any:
        return shared() if mlir.ir.Context.current is None else make()

    with mock.patch.object(mlir, "make_ir_context", context):
        yield


HAS_TORCH = importlib.util.find_spec("torch") is not None
MISSING = re.compile(r"No module named '(torch|transformers|haiku|equinox)\b|needs (PyTorch|transformers)")
"""What a test says that needs PyTorch, or a package that is installed beside it."""
_not_collected: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A file that imports PyTorch is not collected where there is none."""
    report = yield
    if not HAS_TORCH and report.failed and isinstance(collector, pytest.Module) and MISSING.search(report.longreprtext):
        _not_collected.add(collector.path.name)
        report.outcome, report.longrepr, report.result = "passed", None, []
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nor does a test run that is marked, and needs it."""
    if not HAS_TORCH and item.get_closest_marker("torch"):
        pytest.skip("needs PyTorch")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line that tells of them."""
    if _not_collected:
        terminalreporter.write_line(f"no PyTorch here: {len(_not_collected)} files of tests that import it are left out")
