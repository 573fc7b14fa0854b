"""Sides of a comparison of log-probabilities: functions of ids, steps with a cache, outputs of `generate`, and what is none."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.errors import InputError
from tests.logits import IDS, LENGTH, LOGITS, NOISE, ROWS, VOCAB, causes, named, temperature


class Model:
    """A tiny GPT, compiled for one length: as a function of ids, and decoding step by step."""

    def __init__(self):
        config = jf.GPTConfig(vocab_size=VOCAB, context=20, d_model=12, n_layers=1, n_heads=2, d_ff=20)
        self.model = jf.excite(jf.abstract(config), seed=1)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_two_sides_of_log_probabilities_alone_are_judged_without_a_cause():
    chosen = np.log(np.random.default_rng(0).uniform(0.1, 0.9, (ROWS, LENGTH - 1))).astype(np.float32)
    report = jf.compare_logprobs(chosen, chosen / 0.7, IDS)
    assert report.verdict.startswith("DIFFERENT: first at row 0, place 0; no known cause gives it")
    assert "causes are searched in logits, and both sides give log-probabilities alone" in report.notes
    assert jf.compare_logprobs(chosen, chosen, IDS).exit_code == 0
