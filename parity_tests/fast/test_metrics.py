"""The judges themselves: each goes red when it should."""

import numpy as np
import pytest
import torch

from jaxformer.errors import ParityError
from jaxformer.parity.numerics.metrics import EXACT, Noise, check_float32, check_float64, check_gradients, difference, rms

T64 = np.random.default_rng(0).standard_normal((5, 7))


def spoiled(at, value, array=T64):
    array = array.copy()
    array.flat[at] = value
    return array


def test_distances():
    found = difference("x", np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    assert (found.relative, found.peak) == (1 / np.sqrt(2), 1.0)


def test_torch_tensors_are_read():
    assert difference("x", T64, torch.from_numpy(T64).requires_grad_()).relative == 0


def test_tier_a_accepts_rounding():
    check_float64("x", T64 * (1 + 2**-52), T64)


@pytest.mark.parametrize("kind", ["activation", "loss"])
def test_tier_a_refuses_1e_12(kind):
    with pytest.raises(ParityError, match="tier A allows"):
        check_float64("x", T64 * (1 + 1e-12), T64, kind)


def test_tier_a_refuses_one_gradient_off():
    with pytest.raises(ParityError, match="max/rms"):
        check_float64("x", spoiled(3, T64.flat[3] + 2e-12), T64, "gradient")


@pytest.mark.parametrize("sides", [(np.float32, np.float64), (np.float64, np.float32)], ids=["jax", "torch"])
def test_tier_a_refuses_float32(sides):
    with pytest.raises(ParityError, match="tier A compares float64"):
        check_float64("x", *(T64.astype(side) for side in sides))


def test_another_shape():
    with pytest.raises(ParityError, match="shape"):
        check_float64("x", T64.T, T64)


@pytest.mark.parametrize("ours", [np.nan, -np.inf, 1.0], ids=str)
def test_another_pattern_of_infinities(ours):
    with pytest.raises(ParityError, match="NaN or infinity"):
        check_float64("x", spoiled(3, ours), spoiled(3, np.inf))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_the_same_pattern_is_equal(value):
    check_float64("x", spoiled(3, value), spoiled(3, value))


def test_zeros_are_equal_to_zeros_alone():
    check_float64("x", np.zeros(3), np.zeros(3))
    with pytest.raises(ParityError):
        check_float64("x", np.full(3, 1e-300), np.zeros(3))


def test_nan_is_never_within_the_line():
    with pytest.raises(ParityError):
        check_float64("x", np.full(3, np.nan), np.zeros(3))


MASKS = (-1e9, -1e30, np.finfo(np.float64).min)


@pytest.mark.parametrize("mask", MASKS)
def test_beside_masks_the_others_are_seen(mask):
    found = difference("x", spoiled(3, mask, T64 * 1.5), spoiled(3, mask))
    assert found.relative == pytest.approx(0.5)
    assert found.peak > 0.5
    assert difference("x", spoiled(3, mask), spoiled(3, mask)).peak == 0


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_of_another_number_is_seen(mask):
    found = difference("x", spoiled(3, mask / 2), spoiled(3, mask))
    assert found.relative == pytest.approx(0.5)
    assert found.peak == pytest.approx(0.5 * np.sqrt(T64.size))


@pytest.mark.parametrize("size", [1.0, 1e8, 1e12])
def test_it_is_never_less_than_that_of_all_entries(size):
    theirs, mismatch = T64 * size, spoiled(3, 2.0, T64 * 1e-3)
    found, norm = difference("x", theirs + mismatch, theirs), np.linalg.norm
    assert found.relative >= norm(theirs + mismatch - theirs) / norm(theirs) * (1 - 1e-9)
    assert found.peak >= np.abs(theirs + mismatch - theirs).max() / norm(theirs) * np.sqrt(T64.size) * (1 - 1e-9)


def test_rounding_beside_masks_is_that_of_the_others():
    noise = Noise(1e-3, 1e-3)
    assert noise.of(spoiled(3, -1e9)) == noise.of(np.delete(T64, 3))
    assert noise.of(T64 * 1e9) < noise.of(T64)


@pytest.mark.parametrize("others", [T64, T64 * 0], ids=["numbers", "zeros"])
def test_rounding_of_huge_numbers_counts_too(others):
    """Gradients of 1e25 are no masks: their rounding relaxes the tolerance, whatever stands beside them."""
    theirs = spoiled(3, 1e25, others)
    noise = Noise.between(spoiled(3, 1e25 * (1 + 1e-6), others), theirs)
    assert noise.of(theirs) == pytest.approx((1e-6, 1e-6 * np.sqrt(T64.size)), rel=1e-6)
    check_float64("x", spoiled(3, 1e25 * (1 + 3e-6), others), theirs, "gradient", noise)
    with pytest.raises(ParityError, match="tier A allows"):
        check_float64("x", spoiled(3, 1e25 * (1 + 3e-5), others), theirs, "gradient", noise)


@pytest.mark.parametrize("mask", [-1e9, np.finfo(np.float64).min])
def test_tier_b_sees_the_others_beside_masks(mask):
    narrow = max(mask, np.finfo(np.float32).min)
    theirs = spoiled(3, narrow, THEIRS)
    check_float32("x", theirs, theirs, spoiled(3, mask, TRUTH))
    with pytest.raises(ParityError, match="tier B allows"):
        check_float32("x", spoiled(3, narrow, THEIRS * 1.5), theirs, spoiled(3, mask, TRUTH))


def test_truth_is_a_number():
    assert difference("x", np.array([True, False]), np.array([True, True])).relative == pytest.approx(np.sqrt(0.5))


def test_imaginary_parts_count():
    assert difference("x", T64 + 1j, T64 + 2j).peak == pytest.approx(1 / np.sqrt(np.mean(T64**2 + 4)))
    assert check_float32("x", *(np.complex64(1j * THEIRS),) * 2, 1j * TRUTH) <= 0.25
    with pytest.raises(ParityError, match="tier B allows"):
        check_float32("x", np.complex64(2j * THEIRS), np.complex64(1j * THEIRS), 1j * TRUTH)


TRUTH = T64.astype(np.float32).astype(np.float64)
THEIRS = (TRUTH * (1 + 1e-7)).astype(np.float32)


def test_tier_b_accepts_torchs_own_error():
    assert check_float32("x", THEIRS, THEIRS, TRUTH) <= 0.25


def test_tier_b_refuses_ten_times_torchs_error():
    with pytest.raises(ParityError, match="tier B allows"):
        check_float32("x", (TRUTH * (1 + 2e-6)).astype(np.float32), THEIRS, TRUTH)


def test_tier_b_refuses_one_entry_far_off():
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    with pytest.raises(ParityError, match="tier B allows"):
        check_float32("x", spoiled(3, x[3] + 1e-5, x), x, x.astype(np.float64))


def test_tier_b_refuses_other_infinities():
    with pytest.raises(ParityError, match="NaN or infinity"):
        check_float32("x", spoiled(3, np.nan, THEIRS), THEIRS, TRUTH)


GRADIENTS = {"kernel": T64, "key.bias": np.full(7, 1e-17)}


def test_null_gradients_are_named():
    assert check_gradients(GRADIENTS | {"key.bias": np.full(7, -3e-17)}, GRADIENTS) == ["key.bias"]


@pytest.mark.parametrize("null_side", ["jax", "torch"])
def test_a_null_gradient_on_one_side_alone(null_side):
    other = GRADIENTS | {"key.bias": np.full(7, 1e-3)}
    with pytest.raises(ParityError, match=r"key\.bias"):
        check_gradients(*((GRADIENTS, other) if null_side == "jax" else (other, GRADIENTS)))


def test_beside_a_huge_gradient_nothing_is_null():
    """As that of a mask that is added 1e9 times."""
    huge = GRADIENTS | {"mask": np.full(3, 1e9), "small": T64 * 1e-5}
    assert check_gradients(huge, huge) == ["key.bias"]
    with pytest.raises(ParityError, match="small"):
        check_gradients(huge | {"small": T64 * 2e-5}, huge)


def test_gradients_of_other_tensors():
    with pytest.raises(ParityError, match=r"\['key.bias'\]"):
        check_gradients({"kernel": T64}, GRADIENTS)


def test_a_gradient_off_by_1e_11():
    with pytest.raises(ParityError, match="kernel"):
        check_gradients(GRADIENTS | {"kernel": T64 * (1 + 1e-11)}, GRADIENTS)


def test_a_nan_gradient_is_not_null():
    with pytest.raises(ParityError, match=r"key\.bias"):
        check_gradients(GRADIENTS | {"key.bias": np.full(7, np.nan)}, GRADIENTS)


def test_torchs_own_error_is_one_draw():
    """Where torch is right by luck, twice what rounding does to it is allowed; a noise without a bound allows nothing."""
    truth = np.random.default_rng(0).standard_normal(90)
    theirs, off = truth.astype(np.float32), 3e-6 * np.linalg.norm(truth) / np.sqrt(90)
    ours = truth + off * np.where(np.arange(90) % 2, 1, -1)
    usual = Noise(2e-6 * np.linalg.norm(truth) / 2**29, 2e-6 / 2**29)
    assert check_float32("x", ours, theirs, truth, usual) < 1
    for noise in (EXACT, Noise(usual.size / 2, usual.peak / 2), Noise(np.inf, np.inf)):
        with pytest.raises(ParityError, match="tier B"):
            check_float32("x", ours, theirs, truth, noise)


def test_the_size_of_arrays_of_any_type():
    assert rms([np.array([True, False])]) == np.sqrt(0.5)
    assert rms([np.array([[3, -4], [0, 0]])]) == 2.5
    assert rms([np.array([1.0, 2e9, np.inf]), np.array([[7.0]])]) == 5.0
