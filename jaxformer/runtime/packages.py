"""Optional packages, which pip installs with an extra, and the releases of the packages that compute."""

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
}
"""What is imported -> what pip calls it, and the extra of jaxformer that installs it."""


@contextmanager
def extra_package() -> Iterator[None]:
    """Around the import of one of them: MissingPackageError where it is not installed, or too old for what is imported."""
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
    """Package -> version."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
