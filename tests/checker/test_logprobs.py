"""A trainer beside a sampler on the same ids: verdicts, figures, and each cause with numbers of its own, beside one that
is close to it and has none."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import jaxformer as jf
from jaxformer.decoding.sampling import keep_min_p, keep_top_k, keep_top_p, penalise
from jaxformer.errors import InputError
from jaxformer.parity.logprobs.report import LogprobReport

ROWS, LENGTH, VOCAB = 3, 13, 37
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(4, VOCAB, (ROWS, LENGTH))
LOGITS = (3 * RANDOM.normal(size=(ROWS, LENGTH, VOCAB))).astype(np.float32)
NOISE = (2e-3 * RANDOM.normal(size=LOGITS.shape)).astype(np.float32)


def flat(rule, *numbers):
    """One of our sampler's rules at every place."""
    return lambda logits: np.array(rule(jnp.asarray(logits.reshape(-1, VOCAB)), *numbers)).reshape(logits.shape)


def temperature(value):
    return lambda logits: logits / np.float32(value)


def cap(value):
    return lambda logits: np.float32(value) * np.tanh(logits / np.float32(value))


def rounded(dtype):
    return lambda logits: logits.astype(dtype).astype(np.float32)


def repetition(value):
    seen = np.array([[[token in row[: t + 1] for token in range(VOCAB)] for t in range(LENGTH)] for row in IDS])
    return lambda logits: flat(penalise, jnp.asarray(seen.reshape(-1, VOCAB)), value)(logits)


def bias(logits):
    return logits + np.where(np.arange(VOCAB) == 17, np.float32(1.25), 0)


def frequency(logits):
    counts = np.array([[np.bincount(row[: t + 1], minlength=VOCAB) for t in range(LENGTH)] for row in IDS])
    return logits - np.float32(0.35) * counts


def never(logits):
    return np.where(np.isin(np.arange(VOCAB), (5, 30)), -np.inf, logits)


def wider(logits):
    return np.concatenate([logits, np.zeros((ROWS, LENGTH, 6), np.float32)], -1)


def log_softmax(logits):
    return np.array(jax.nn.log_softmax(logits))


def chosen(logits, ids=IDS):
    return np.take_along_axis(log_softmax(logits)[:, :-1], ids[:, 1:, None], -1)[..., 0]


def causes(report):
    return [(cause.name, cause.side, *(v for v in cause.args.values() if not isinstance(v, dict))) for cause in report.causes]


def named(report):
    return [cause.name for cause in report.causes]


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
    assert any("KL" in said for said in report.cannot_tell)
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
    assert (report.exit_code, report.causes) == (1, [])


def test_padding_that_is_given_is_not_judged():
    valid = np.ones_like(IDS, bool)
    valid[1, :4] = False
    other = LOGITS.copy()
    other[1, :4] += NOISE[1, :4]
    assert jf.compare_logprobs(LOGITS, other, IDS, valid=valid).exit_code == 0
    assert jf.compare_logprobs(LOGITS, other, IDS).exit_code == 1


class Model:
    """A tiny GPT, compiled for one length: as a function of ids, and decoding step by step."""

    def __init__(self):
        config = jf.GPTConfig(vocab_size=VOCAB, context=20, d_model=12, n_layers=1, n_heads=2, d_ff=20)
        self.model = jf.excite(jf.GPT(config, rngs=nnx.Rngs(0)), seed=1)
        self.forward = jax.jit(lambda model, ids, positions: model(ids, positions=positions))
        self.extend = jax.jit(lambda ids, cache, positions: self.model.extend(ids, cache, positions=positions))

    def __call__(self, ids, positions=None):
        return self.of(self.model, ids, positions)

    def of(self, model, ids, positions=None):
        positions = np.tile(np.arange(ids.shape[1]), (len(ids), 1)) if positions is None else positions
        return self.forward(model, ids.astype(np.int32), positions.astype(np.int32))

    def steps(self, ids, off_by=0, start=0):
        place, cache = ids.shape[1], jf.empty_cache(self.model, batch=len(ids), capacity=20)
        logits, cache = self.extend(ids.astype(np.int32), cache, np.arange(place, dtype=np.int32)[None])
        while True:
            ids = yield logits if place == 5 else logits[:, -1]
            position = place + (off_by if place >= start else 0)
            logits, cache = self.extend(ids[:, None].astype(np.int32), cache, np.full((1, 1), position, np.int32))
            place += 1


@pytest.fixture(scope="module")
def model():
    return Model()


def test_steps_with_a_cache(model):
    report = jf.compare_logprobs(model, model.steps, IDS, prompt=5)
    assert report.exit_code == 0
    assert report.n_places == ROWS * LENGTH
    report = jf.compare_logprobs(model, lambda ids: model.steps(ids, -1, 8), IDS, prompt=5)
    assert report.first == [0, 8]
    assert [(cause.name, cause.args) for cause in report.causes] == [("positions", {"place": 8, "by": -1})]


def test_other_ids_are_read(model):
    own = np.array(model(IDS))

    def repeated(ids):
        return np.roll(np.array(model(np.concatenate([ids[:, :1], ids[:, :-1]], 1))), -1, 1)

    report = jf.compare_logprobs(model, repeated(IDS)[:, :-1], IDS[:, :-1])
    assert causes(report) == [("repeated id", "sampler", 0, 0)]
    without = np.concatenate([own[:, :1], np.array(model(np.roll(IDS, -1, 1)))[:, :-1]], 1)
    assert causes(jf.compare_logprobs(model, without / np.float32(0.7), IDS)) == [
        ("left-out ids", "sampler", 0, 0),
        ("temperature", "sampler", 0.7),
    ]
    window = own.copy()
    for t in range(5, LENGTH):
        window[:, t] = np.array(model(np.roll(IDS, -(t - 4), 1)))[:, 4]
    assert causes(jf.compare_logprobs(model, window, IDS)) == [("window", "sampler", 5)]
    other = own + np.where(np.arange(LENGTH)[:, None] >= 5, NOISE, 0)
    report = jf.compare_logprobs(model, other, IDS)
    assert report.causes == []
    assert any("all places before 5 are the same" in note for note in report.notes)


@pytest.mark.parametrize("given", [True, False])
def test_padding_at_the_left(model, given):
    n_pads = np.array([4, 0, 2])
    ids = IDS.copy()
    for row, n in enumerate(n_pads):
        ids[row, :n] = 0
    valid = np.arange(LENGTH) >= n_pads[:, None]
    moved = np.stack([np.roll(row, -n) for row, n in zip(ids, n_pads, strict=True)])

    def put(logits):
        return np.stack([np.roll(row, n, 0) for row, n in zip(np.array(logits), n_pads, strict=True)])

    places = np.tile(np.arange(LENGTH), (ROWS, 1))
    right, counted = put(model(moved)), put(model(moved, places + n_pads[:, None]))
    more = {"valid": valid} if given else {}
    assert causes(jf.compare_logprobs(model, right, ids, **more)) == [("padding", "trainer", [0, 2])]
    assert causes(jf.compare_logprobs(right, model, ids, **more)) == [("padding", "sampler", [0, 2])]
    if given:
        assert causes(jf.compare_logprobs(model, counted, ids, valid=valid)) == [("padding", "sampler", [0, 2], True)]
        report = jf.compare_logprobs(right, counted, ids, valid=valid)
        assert report.causes == []
        assert "these are the rows with padding" in report.notes
    else:
        assert jf.compare_logprobs(model, right + NOISE, ids).causes == []


def test_a_side_that_draws_is_not_compared(model):
    draws = np.random.default_rng(0)
    report = jf.compare_logprobs(model, lambda ids: np.array(model(ids)) + draws.normal(size=(ROWS, LENGTH, VOCAB)), IDS)
    assert report.exit_code == 2
    assert "sampler gives other log-probabilities when it is called again" in report.verdict


def test_changed_weights_have_no_cause(model):
    leaves, tree = jax.tree.flatten(model.model)
    reports = []
    for n in range(0, len(leaves), 4):
        noise = 0.01 * NOISE.ravel()[: leaves[n].size].reshape(leaves[n].shape)
        changed = [leaf * (1 + noise) if m == n else leaf for m, leaf in enumerate(leaves)]
        reports.append(jf.compare_logprobs(model, model.of(jax.tree.unflatten(tree, changed), IDS), IDS))
    assert sum(report.status == "different" for report in reports) > 2
    assert [report.causes for report in reports] == [[]] * len(reports)


def test_output_of_generate():
    logits = temperature(0.7)(LOGITS)
    steps = tuple(logits[:, t] for t in range(4, LENGTH - 1))
    report = jf.compare_logprobs(LOGITS, SimpleNamespace(sequences=IDS, scores=steps, logits=None), IDS)
    assert named(report) == ["temperature"]
    assert report.n_places == ROWS * len(steps)
    assert np.isnan(report.kl[0][3])
    with pytest.raises(InputError, match="sequences that sampler generated"):
        jf.compare_logprobs(LOGITS, SimpleNamespace(sequences=IDS[:, 1:], scores=steps), IDS)
    with pytest.raises(InputError, match="output_scores=True"):
        jf.compare_logprobs(LOGITS, SimpleNamespace(sequences=IDS), IDS)


@pytest.mark.slow
@pytest.mark.torch
def test_generate_of_transformers():
    import torch
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=12, n_layer=1, n_head=2, eos_token_id=None, pad_token_id=0
    )
    theirs = jf.excite(transformers.GPT2LMHeadModel(config).eval(), seed=0)
    prompt = torch.tensor(IDS[:, :5])
    how = {"attention_mask": torch.ones_like(prompt), "return_dict_in_generate": True, "output_scores": True}
    torch.manual_seed(0)
    rules = {"temperature": 0.8, "top_k": 0, "top_p": 0.85, "repetition_penalty": 1.3}
    found = theirs.generate(prompt, max_new_tokens=8, do_sample=True, **rules, **how)
    report = jf.compare_logprobs(theirs, found, found.sequences)
    assert [(cause.name, next(iter(cause.args.values()))) for cause in report.causes] == [
        ("repetition penalty", 1.3),
        ("temperature", 0.8),
        ("top-p", 0.85),
    ]
    plain = theirs.generate(prompt, max_new_tokens=8, do_sample=False, **how)
    assert jf.compare_logprobs(theirs, plain, plain.sequences).exit_code == 0


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (LOGITS[:, :-1], r"^sampler gave logits \[3, 12, 37\] for ids \[3, 13\]; give `B L V`"),
        (LOGITS[:, :, 0], r"^sampler is float32\[3, 13\] for ids \[3, 13\]; give \[3, 12\], value t for ids\[:, t \+ 1\]"),
        (IDS, r"^sampler is int64\[3, 13\]; give a function of ids, logits `B L V`"),
        ("x", r"^sampler is <U1\[\]; give"),
        (None, r"^sampler is a NoneType; give"),
        (LOGITS[:, :, :20], r"^id \d+ is beyond the 20 logits of sampler"),
        (lambda ids: ids / 0 and missing, r"^sampler\(ids\) raised"),  # noqa: F821
        (lambda ids: (LOGITS[:, t] for t in range(0)), r"^sampler yielded nothing"),
    ],
)
def test_bad_input_is_one_line(sampler, said):
    with np.errstate(all="ignore"), pytest.raises(InputError, match=said) as caught:
        jf.compare_logprobs(LOGITS, sampler, IDS)
    assert "\n" not in str(caught.value)


def test_bad_ids_and_padding():
    for ids in (IDS[0], IDS.astype(float), IDS[:, :1], IDS - 10):
        with pytest.raises(InputError, match=r"^ids are"):
            jf.compare_logprobs(LOGITS, LOGITS, ids)
    with pytest.raises(InputError, match=r"^valid has shape \[3, 12\]"):
        jf.compare_logprobs(LOGITS, LOGITS, IDS, valid=IDS[:, 1:] > 0)
    with pytest.raises(ValueError, match="prompt"):
        jf.compare_logprobs(LOGITS, LOGITS, IDS, prompt=LENGTH)


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
