"""A trainer beside a sampler on the same ids: verdicts, figures, and each cause with numbers of its own, beside one that
is close to it and has none."""

import json

import ml_dtypes
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.decoding.sampling import keep_min_p, keep_top_k, keep_top_p
from jaxformer.parity.logprobs.report import LogprobReport
from tests.logits import (
    IDS,
    LENGTH,
    LOGITS,
    NOISE,
    RANDOM,
    ROWS,
    VOCAB,
    bias,
    cap,
    causes,
    chosen,
    flat,
    frequency,
    log_softmax,
    named,
    never,
    repetition,
    rounded,
    temperature,
    wider,
)

SAMPLERS = {
    "temperature": ([temperature(0.85)], [("temperature", 0.85)]),
    "a temperature that is no short number": ([temperature(0.8537)], [("temperature", 0.8537)]),
    "top-k": ([flat(keep_top_k, 6)], [("top-k", 6)]),
    "top-p": ([flat(keep_top_p, 0.77)], [("top-p", 0.77)]),
    "min-p": ([flat(keep_min_p, 0.13)], [("min-p", 0.13)]),
    "temperature, then top-k": ([temperature(1.4), flat(keep_top_k, 9)], [("temperature", 1.4), ("top-k", 9)]),
    "temperature, then top-p": ([temperature(0.6), flat(keep_top_p, 0.9)], [("temperature", 0.6), ("top-p", 0.9)]),
    "top-p, then temperature": ([flat(keep_top_p, 0.71), temperature(0.6)], [("top-p", 0.71), ("temperature", 0.6)]),
    "top-k, then top-p": ([flat(keep_top_k, 4), flat(keep_top_p, 0.9)], [("top-k", 4), ("top-p", 0.9)]),
    "bfloat16": ([rounded(ml_dtypes.bfloat16)], [("rounding", "bfloat16")]),
    "float16": ([rounded(np.float16)], [("rounding", "float16")]),
    "bfloat16, then temperature": (
        [rounded(ml_dtypes.bfloat16), temperature(0.7)],
        [("rounding", "bfloat16"), ("temperature", 0.7)],
    ),
    "temperature, then bfloat16": (
        [temperature(0.7), rounded(ml_dtypes.bfloat16)],
        [("temperature", 0.7), ("rounding", "bfloat16")],
    ),
    "cap": ([cap(7.5)], [("cap", 7.5)]),
    "cap, then temperature": ([cap(6), temperature(0.9)], [("cap", 6), ("temperature", 0.9)]),
    "repetition penalty": ([repetition(1.35)], [("repetition penalty", 1.35)]),
    "repetition penalty, then temperature": (
        [repetition(1.2), temperature(0.65), flat(keep_top_k, 20)],
        [("repetition penalty", 1.2), ("temperature", 0.65), ("top-k", 20)],
    ),
    "frequency penalty": ([frequency], [("frequency penalty", 0.35)]),
    "bias": ([bias], [("bias", {"17": 1.25})]),
    "suppressed ids": ([never], [("suppressed ids", [5, 30])]),
    "vocabulary": ([wider], [("vocabulary", VOCAB + 6)]),
    "vocabulary and temperature": ([temperature(0.85), wider], [("vocabulary", VOCAB + 6), ("temperature", 0.85)]),
    "shift": ([lambda logits: np.roll(logits, 1, 1)], [("shift", -1)]),
    "log base": ([lambda logits: log_softmax(logits) / np.log(np.float32(2))], [("log base", 2)]),
}


def sampled(steps, logits=LOGITS):
    for step in steps:
        logits = step(logits)
    return logits


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_cause_is_found_with_its_number(name):
    steps, wanted = SAMPLERS[name]
    report = jf.compare_logprobs(LOGITS, sampled(steps), IDS)
    assert report.exit_code == 1
    assert [(cause.name, next(iter(cause.args.values()))) for cause in report.causes] == wanted
    assert {cause.side for cause in report.causes} == {"sampler"}
    others = [[cause.name for cause in other] for other in report.alternatives]
    assert others == ([["temperature", "cap"]] if name == "cap, then temperature" else [])


@pytest.mark.first(8)
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "suppressed ids"])
def test_of_other_logits_no_cause_is_told(name):
    """Truncations of other logits are no cause: the ids that are left have other probabilities."""
    other = sampled(SAMPLERS[name][0], LOGITS + NOISE)
    report = jf.compare_logprobs(LOGITS, other, IDS)
    assert report.status == "different"
    assert report.causes == []
    assert report.verdict.endswith("no known cause gives it")


def test_the_side_that_does_it_is_named():
    report = jf.compare_logprobs(rounded(np.float16)(LOGITS), LOGITS, IDS)
    assert causes(report) == [("rounding", "trainer", "float16", "logits")]
    report = jf.compare_logprobs(temperature(0.7)(LOGITS), LOGITS, IDS)
    assert causes(report) == [("temperature", "trainer", 0.7)]
    assert "the trainer divides its logits by temperature 0.7, the sampler does not" in report.verdict


@pytest.mark.parametrize("value", [0.5, 1.25, 2.5, 1.0001, 1.001, 0.123456])
def test_both_sides_that_may_have_a_temperature_are_told(value):
    """Division of one side by T is division of the other by 1 / T."""
    for sampler in (True, False):
        sides = LOGITS, temperature(value)(LOGITS)
        report = jf.compare_logprobs(*(sides if sampler else sides[::-1]), IDS)
        told = {cause.side: cause.args["temperature"] for (cause,) in (report.causes, *report.alternatives)}
        own, other = ("sampler", "trainer") if sampler else ("trainer", "sampler")
        assert told == pytest.approx({own: value, other: 1 / value}, rel=1e-5)
        assert [report.verdict.count(f"the {side} divides its logits by temperature") for side in told] == [1, 1]


def test_truncation_with_and_without_normalising():
    kept = np.isfinite(flat(keep_top_k, 6)(LOGITS))
    values = np.where(kept, log_softmax(LOGITS), -np.inf)
    assert causes(jf.compare_logprobs(LOGITS, values, IDS)) == [("top-k", "sampler", 6, False)]
    assert causes(jf.compare_logprobs(LOGITS, log_softmax(values), IDS)) == [("top-k", "sampler", 6, True)]


def test_several_that_fit_are_all_told():
    logits = np.tile(np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32)), (1, 3, 1))
    report = jf.compare_logprobs(logits, np.where(np.arange(4) < 2, logits, -np.inf), np.array([[0, 1, 0]]))
    assert [named(report), *([cause.name for cause in other] for other in report.alternatives)] == [
        ["top-k"],
        ["top-p"],
        ["min-p"],
    ]
    assert report.verdict.count("or as well") == 2


def test_equal_to_rounding_and_no_further():
    nearly = LOGITS * (1 + 1e-6 * RANDOM.normal(size=LOGITS.shape)).astype(np.float32)
    report = jf.compare_logprobs(LOGITS, log_softmax(nearly), IDS)
    assert (report.exit_code, report.n_different, report.precision) == (0, 0, "float32")
    wide = LOGITS.astype(np.float64)
    report = jf.compare_logprobs(wide, wide * (1 + 1e-6 * RANDOM.normal(size=LOGITS.shape)), IDS)
    assert (report.exit_code, report.precision) == (1, "float64")
    assert report.tolerance < 1e-12
    changed = LOGITS.copy()
    changed[1, 4, 8] += 1e-3
    report = jf.compare_logprobs(LOGITS, changed, IDS)
    assert (report.first, report.n_different) == ([1, 4], 1)


def test_figures():
    trainer, sampler = (
        np.log([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.2, 0.3, 0.5]]]),
        np.log([[[0.25, 0.5, 0.25], [0.2, 0.2, 0.6], [0.2, 0.3, 0.5]]]),
    )
    report = jf.compare_logprobs(trainer, sampler, np.array([[0, 1, 2]]))
    assert np.allclose(report.kl, [[0.25 * np.log(2), 0, 0]])
    assert np.allclose([report.kl_mean, report.kl_max], [0.25 * np.log(2) / 3, 0.25 * np.log(2)])
    assert np.allclose([report.ratio_min, report.ratio_max, report.ratio_mean], [0.5, 1, 0.75])
    assert np.allclose(report.effective_sample_size, 1.5**2 / 1.25 / 2)
    assert np.allclose([report.difference_mean, report.difference_max], [np.log(2) / 2, np.log(2)])


def test_json_and_text():
    report = jf.compare_logprobs(LOGITS, flat(keep_top_k, 6)(LOGITS), IDS)
    assert json.loads(report.to_json())["kl_max"] == "inf"
    again = LogprobReport.from_json(report.to_json())
    assert (again.verdict, again.causes) == (report.verdict, report.causes)
    assert str(report).splitlines()[-1] == report.verdict == "DIFFERENT: the sampler keeps the 6 likeliest ids (top-k 6)"


CHOSEN = {
    "temperature": (lambda: chosen(LOGITS / 0.85), ["temperature"]),
    "bfloat16": (lambda: chosen(rounded(ml_dtypes.bfloat16)(LOGITS)), ["rounding"]),
    "logits": (lambda: np.take_along_axis(LOGITS[:, :-1], IDS[:, 1:, None], -1)[..., 0], ["logits"]),
    "log base": (lambda: chosen(LOGITS) / np.log(10), ["log base"]),
    "sign": (lambda: -chosen(LOGITS), ["sign"]),
    "probability": (lambda: np.exp(chosen(LOGITS)), ["probability"]),
    "scored id": (lambda: np.take_along_axis(log_softmax(LOGITS)[:, :-1], IDS[:, :-1, None], -1)[..., 0], ["scored id"]),
    "shift": (lambda: np.take_along_axis(log_softmax(LOGITS)[:, 1:], IDS[:, 1:, None], -1)[..., 0], ["shift"]),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_of_the_ids_alone(name):
    make, wanted = CHOSEN[name]
    report = jf.compare_logprobs(LOGITS, make().astype(np.float32), IDS)
    assert named(report) == wanted
    assert report.kl is None
    assert report.cannot_tell[0].endswith("that do not follow: one number a place is given by sampler")
    noisy = make() * (1 + 1e-3 * RANDOM.normal(size=(ROWS, LENGTH - 1)))
    assert jf.compare_logprobs(LOGITS, noisy.astype(np.float32), IDS).causes == []


def test_truncation_of_the_ids_alone_shows_where_it_normalises():
    kept = flat(keep_top_p, 0.9)(LOGITS / np.float32(0.75))
    draws = (kept + RANDOM.gumbel(size=kept.shape)).argmax(-1)
    ids = np.concatenate([IDS[:, :1], draws[:, :-1]], 1)
    report = jf.compare_logprobs(LOGITS, chosen(kept, ids), ids)
    assert [(cause.name, next(iter(cause.args.values()))) for cause in report.causes] == [("temperature", 0.75), ("top-p", 0.9)]
    whole = np.where(np.isfinite(kept), log_softmax(LOGITS), -np.inf)
    assert jf.compare_logprobs(LOGITS, np.take_along_axis(whole[:, :-1], ids[:, 1:, None], -1)[..., 0], ids).exit_code == 0


def test_an_end_id_after_which_nothing_comes():
    ids, values = IDS.copy(), LOGITS.copy()
    ids[0, 6], ids[2, 9] = 3, 3
    values[0, 6:], values[2, 9:] = -np.inf, np.nan
    report = jf.compare_logprobs(LOGITS, values, ids)
    assert causes(report) == [("end id", "sampler", 3, 0)]
    assert report.n_places == ROWS * LENGTH - 7 - 4
    zeros = chosen(LOGITS / 0.85, ids)
    zeros[0, 6:], zeros[2, 9:] = 0, 0
    assert named(jf.compare_logprobs(LOGITS, zeros, ids)) == ["temperature", "end id"]
    ids[1, 2] = 3  # this row goes on after it
    report = jf.compare_logprobs(LOGITS, values, ids)
    assert (report.exit_code, causes(report)) == (1, [("NaN", "sampler", 4)])


def nan_at(values, *places):
    return np.where(np.isin(np.arange(LENGTH), places)[:, None], np.float32(np.nan), values)


def test_nan_is_told_and_is_not_the_same():
    report = jf.compare_logprobs(LOGITS, nan_at(LOGITS, 4), IDS)
    assert (report.exit_code, report.n_different, causes(report)) == (1, 0, [("NaN", "sampler", ROWS)])
    assert report.verdict == f"DIFFERENT: the sampler gives NaN at 3 places, first at row 0, place 4, after id {IDS[0, 4]}"
    report = jf.compare_logprobs(nan_at(LOGITS, 4, 12), LOGITS / np.float32(0.85), IDS)
    assert causes(report) == [("temperature", "sampler", 0.85), ("NaN", "trainer", 2 * ROWS)]
    alone = chosen(LOGITS)
    alone[1, 3] = np.nan
    assert causes(jf.compare_logprobs(LOGITS, alone, IDS)) == [("NaN", "sampler", 1)]
    both = nan_at(LOGITS, *range(4, LENGTH))
    report = jf.compare_logprobs(both, both, IDS)
    assert (report.exit_code, report.n_places) == (2, 4 * ROWS)
    assert report.verdict.startswith("COULD NOT COMPARE: both sides give NaN at 27 places, first at row 0, place 4, after id ")
    valid = np.broadcast_to(np.arange(LENGTH) < 4, IDS.shape)
    assert jf.compare_logprobs(both, both, IDS, valid=valid).exit_code == 0
    report = jf.compare_logprobs(both, both / np.float32(0.85), IDS)
    assert (report.exit_code, named(report)) == (1, ["temperature"])
    assert any(note.startswith("both sides give NaN at 27 places") for note in report.notes)


def test_padding_that_is_given_is_not_judged():
    valid = np.ones_like(IDS, bool)
    valid[1, :4] = False
    other = LOGITS.copy()
    other[1, :4] += NOISE[1, :4]
    assert jf.compare_logprobs(LOGITS, other, IDS, valid=valid).exit_code == 0
    assert jf.compare_logprobs(LOGITS, other, IDS).exit_code == 1


def test_too_little_tells_no_number():
    pair = np.array([[[0.0, 1.0]] * 3], np.float32)
    report = jf.compare_logprobs(pair, pair / 2, np.array([[0, 1, 0]]))
    assert (report.exit_code, report.causes) == (1, [])
    some = np.where(np.arange(VOCAB) % 3 == 1, -np.inf, LOGITS[:1, :2])
    assert jf.compare_logprobs(LOGITS[:1, :2], some, IDS[:1, :2]).causes == []


def test_the_plainer_of_two_orders_comes_first():
    logits = (2 * RANDOM.normal(size=(2, 24, 300))).astype(np.float32)
    kept = np.where(logits >= logits.max(-1, keepdims=True) + np.log(np.float32(0.04)), logits, -np.inf)
    report = jf.compare_logprobs(logits, kept / np.float32(0.7), np.zeros((2, 24), int))
    assert named(report) == ["min-p", "temperature"]
    assert report.causes[0].args["p"] == 0.04
    assert [[cause.name for cause in other] for other in report.alternatives] == [["temperature", "min-p"]]


def test_ids_that_a_penalty_drops_are_not_said_to_be_dropped_at_every_place():
    ids = np.full((2, 8), 3)
    logits = LOGITS[:2, :8].copy()
    logits[..., 3] = logits.max(-1) - 0.5
    penalised = np.where(np.arange(VOCAB) == 3, -abs(logits) * 3, logits)
    report = jf.compare_logprobs(logits, flat(keep_top_k, 5)(penalised), ids)
    assert report.status == "different"
    assert report.causes == []
    report = jf.compare_logprobs(logits, flat(keep_top_k, 5)(penalised), ids + 1)  # here id 3 was not read
    assert named(report) == ["suppressed ids", "top-k"]


def test_numbers_that_enlarge_the_tolerance_explain_nothing():
    """Logits with a common offset saturate a cap, and a tiny temperature then makes anything of their rounding."""
    logits = np.random.default_rng(7).normal(size=(3, 11, 300)) - 20
    other = np.random.default_rng(8).normal(size=(3, 11, 300)) - 20
    ids = np.random.default_rng(9).integers(0, 300, (3, 11))
    assert jf.compare_logprobs(logits.astype(np.float32), other.astype(np.float32), ids).causes == []


def test_a_sample_of_places_is_searched_and_holds_what_differs(monkeypatch):
    monkeypatch.setattr("jaxformer.parity.logprobs.search.MOST", 16 * VOCAB)
    sampler = LOGITS.copy()
    sampler[:, 7:] = np.roll(LOGITS, 1, 1)[:, 7:]
    assert jf.compare_logprobs(LOGITS, sampler, IDS).causes == []
    report = jf.compare_logprobs(LOGITS, temperature(0.85)(LOGITS), IDS)
    assert named(report) == ["temperature"]
    assert "causes were searched at 16 of 39 places" in report.notes
