"""Every drawing in a docstring, on both sides."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer.nn.masks as ours
import torch_ref.nn.masks as theirs

SIDES = {"jax": (ours, jnp.asarray), "torch": (theirs, torch.tensor)}

sides = pytest.mark.parametrize(("masks", "array"), SIDES.values(), ids=SIDES)


def drawing(mask) -> str:
    """The matrices of a rank-4 mask, or the one of a rank-2 array."""
    return "\n".join(" ".join("1" if seen else "." for seen in row) for row in np.asarray(mask).reshape(-1, mask.shape[-1]))


@sides
def test_causal(masks, array):
    assert drawing(masks.causal_mask(3)) == "1 . .\n1 1 .\n1 1 1"


@sides
def test_causal_behind_a_cache(masks, array):
    assert drawing(masks.causal_mask(2, 4, offset=1)) == "1 1 . .\n1 1 1 ."


@sides
def test_padding(masks, array):
    assert drawing(masks.padding_mask(array([[True, True, False]]))) == "1 1 ."


@sides
def test_lengths(masks, array):
    assert drawing(masks.lengths_to_valid(array([1, 3]), 3)) == "1 . .\n1 1 1"


@sides
def test_ids(masks, array):
    assert drawing(masks.ids_to_valid(array([[5, 0, 6], [0, 7, 8]]), pad=0)) == "1 . 1\n. 1 1"


@sides
def test_seen_keys(masks, array):
    padding = masks.padding_mask(array([[False, True, True]]))
    assert drawing(masks.seen_keys(padding, 3)) == ". 1 1"
    assert drawing(masks.seen_keys(masks.combine(padding, masks.causal_mask(2, 3)), 3)) == ". 1 ."
    assert drawing(masks.seen_keys(None, 2)) == "1 1"


@sides
def test_combine(masks, array):
    mask = masks.combine(masks.causal_mask(3), None, masks.padding_mask(array([[False, True, True]])))
    assert drawing(mask) == ". . .\n. 1 .\n. 1 1"


@sides
def test_nothing_to_combine(masks, array):
    assert masks.combine(None, None) is None


DRAWN = {
    ours.causal_mask: ["1 . .                 1 1 . .", "1 1 .                 1 1 1 .", "1 1 1"],
    ours.padding_mask: ["1 1 ."],
    ours.lengths_to_valid: ["1 . .", "1 1 1"],
    ours.ids_to_valid: ["1 . 1", ". 1 1"],
    ours.seen_keys: [". 1 1"],
    ours.combine: [". . .", ". 1 .", ". 1 1"],
}
"""The drawings that the tests above assert, as the docstrings have them."""


@pytest.mark.parametrize("function", DRAWN, ids=lambda function: function.__name__)
def test_the_docstrings_have_these_drawings(function):
    lines = [line.strip() for line in function.__doc__.splitlines()]
    assert [line for line in lines if line and set(line) <= set("1. ")] == DRAWN[function]


@sides
def test_masks_are_boolean_and_of_rank_4(masks, array):
    found = [masks.causal_mask(3, 5), masks.padding_mask(array([[True, False]]))]
    assert [(tuple(mask.shape), str(mask.dtype).removeprefix("torch.")) for mask in found] == [
        ((1, 1, 3, 5), "bool"),
        ((1, 1, 1, 2), "bool"),
    ]
