"""What several tests compile, in this process or in those that they start, is compiled once a session."""

import os
import tempfile

import pytest

FOLDER, LEAST = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def pytest_configure(config: pytest.Config) -> None:
    """The first process makes the cache; workers and commands find it in their environment, which jax reads at its import."""
    if FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="jaxformer-tests-", ignore_cleanup_errors=True)
        os.environ |= {FOLDER: folder.name, LEAST: "0.2"}
        config.add_cleanup(folder.cleanup)
