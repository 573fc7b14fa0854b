"""Optional packages, installed by extras of jaxformer, and the versions of the packages that compute."""

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from jaxformer.errors import MissingPackageError

EXTRAS = {
    "torch": ("torch", "torch"),
    "tokenizers": ("tokenizers", "train"),
    "orbax": ("orbax-checkpoint", "train"),
    "pooch": ("pooch", "train"),
    "cloudpickle": ("cloudpickle", "torch"),
    "matplotlib": ("matplotlib", "viz"),
    "tensorboardX": ("tensorboardX", "tensorboard"),
}
"""Imported name -> (name for pip, extra of jaxformer that installs it)."""


@contextmanager
def extra_package() -> Iterator[None]:
    """Context manager around the import of an optional package: MissingPackageError if it is not installed, or does not fit."""
    try:
        yield
    except ImportError as error:
        imported = (error.name or "").partition(".")[0]
        if imported not in EXTRAS:
            raise
        package, extra = EXTRAS[imported]
        fault = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not fit ({error})"
        raise MissingPackageError(f"{package} {fault}; pip install 'jaxformer[{extra}]'") from None


PACKAGES = "jaxformer", "jax", "jaxlib", "flax", "optax", "numpy"


def releases() -> dict[str, str]:
    """Return package -> version."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
