"""Parity is decided in float64 and with every promotion spelled out."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    """JAX in float64 for one test: tier A."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _strict(request: pytest.FixtureRequest) -> Iterator[None]:
    """No silent promotion of dtypes or ranks; optax's Adam needs the ordinary one of dtypes, and models that are not of this
    project have both."""
    is_marked = request.node.get_closest_marker
    dtype = "standard" if is_marked("optimizers") or is_marked("foreign") else "strict"
    with jax.numpy_dtype_promotion(dtype), jax.numpy_rank_promotion("allow" if is_marked("foreign") else "raise"):
        yield
