"""Large arrays wait in a temporary file, and come back bit for bit."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.io import on_disk
from jaxformer.io.on_disk import kept, kept_tree

TREES = {
    ("a", 1): [np.arange(6.0).reshape(2, 3), np.array(-0.0)],
    ("b", 0): [np.zeros((0, 3), np.float32)],
    ("c", 2): [np.asarray(jnp.ones((2, 5), jnp.bfloat16)), np.arange(12).reshape(3, 4).T],
}


@pytest.fixture
def always(monkeypatch):
    """Arrays of any size count as large."""
    monkeypatch.setattr(on_disk, "LARGE", 0)


def test_large_arrays_come_from_the_file_as_they_were(always):
    found = kept(TREES)
    assert found is not TREES
    assert list(found) == list(TREES)
    for key, arrays in TREES.items():
        for array, own in zip(found[key], arrays, strict=True):
            assert (array.dtype, array.shape) == (own.dtype, own.shape)
            assert array.tobytes() == own.tobytes()
            assert not np.shares_memory(array, own)
            assert not array.size or not array.flags.writeable


def test_trees_of_jax_arrays_come_back_in_their_shape(always):
    tree = {"w": jnp.arange(3.0), "deep": [jnp.ones((2, 2)), None]}
    found = kept_tree(tree)()
    assert found["deep"][1] is None
    np.testing.assert_array_equal(found["w"], [0, 1, 2])


def test_small_arrays_stay_in_memory():
    assert kept(TREES) is TREES


def test_without_room_on_the_disk_arrays_stay_in_memory(always, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(on_disk.tempfile, "TemporaryFile", full)
    assert kept(TREES) is TREES
