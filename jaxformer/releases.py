"""Which releases compute: other ones may give other bits."""

import importlib.metadata

PACKAGES = "jaxformer", "jax", "jaxlib", "flax", "optax", "numpy"


def releases() -> dict[str, str]:
    """Package -> version."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
