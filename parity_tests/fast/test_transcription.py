"""Audio -> ids: those of transformers' generate, of a language, a task, with timestamps, and window after window."""

from dataclasses import replace
from itertools import product

import jax
import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

import jaxformer as jf
import torch_ref.models as torch_models
from jaxformer.checkpoints import transcriber
from jaxformer.checkpoints.windows import Attempt, compression_ratio, cut_segments
from jaxformer.decoding.likelihood import log_probabilities
from jaxformer.evaluation.cases import DECODINGS, check_decoding, decode_jax, decode_torch
from jaxformer.evaluation.ladder import load_torch
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from parity_tests.support.helpers import usually
from parity_tests.zoo.whisper import EOS, GENERATION, NO_TIMESTAMPS, chirp, write_whisper
from torch_ref.decoding.likelihood import log_probabilities as torch_log_probabilities

FIRST = NO_TIMESTAMPS + 1
AUDIO = {"short": chirp(0, 0.7), "a window": chirp(1, 1.0), "long": chirp(2, 2.63)}
ASKED = {"German": {"language": "de"}, "detected": {}, "into English": {"task": "translate"}}
CASES = {
    f"{audio}, {asked}, {'timestamps' if timestamps else 'text'}, {beams}": (AUDIO[audio], ASKED[asked], timestamps, beams)
    for audio, asked, timestamps, beams in product(AUDIO, ASKED, (False, True), (1, 3))
    if timestamps or audio != "long"
}


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    theirs = write_whisper(folder, seed=7).double()
    with jax.enable_x64(True):
        ours = jf.load_transcriber(folder)
        return theirs, replace(ours, model=to_float64(ours.model))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", usually(CASES, "long, into English, timestamps, 3"))
def test_ids_are_transformers(name, whisper):
    (theirs, ours), (audio, asked, timestamps, beams) = whisper, CASES[name]
    features = torch.from_numpy(ours.features(audio, 16000).copy()).T[None]
    with torch.no_grad():
        (wanted,) = theirs.generate(features, num_beams=beams, return_timestamps=timestamps, **asked)
    beam = None if beams == 1 else jf.BeamConfig(width=beams)
    found = ours.transcribe(audio, 16000, timestamps=timestamps, beam=beam, **asked)
    np.testing.assert_array_equal(found.tokens, wanted)
    assert len(np.unique(found.tokens)) > 3
    assert (found.tokens >= FIRST).any() or not timestamps
    assert found.language in (("de",) if "language" in asked else ("de", "en", "fr"))
    times = [time for segment in found.segments for time in segment[:2]]
    assert times == sorted(times) or not timestamps
    assert len(found.segments) > 1 or len(audio) < 32000


DRAWN = {"temperatures": (0.0, 0.6), "condition_on_prev_tokens": True}
"""A window that is drawn is not read before the next one, which is how a test sees that it was."""
AGAIN = {
    "an unlikely window": (DRAWN | {"logprob_threshold": -0.62}, None, 1),
    "no speech": ({"logprob_threshold": -0.62, "no_speech_threshold": 8e-5}, None, 1),
    "a window that repeats itself": (DRAWN | {"compression_ratio_threshold": 0.75}, [6, 8, 9], 1),
    "the text before": ({"condition_on_prev_tokens": True}, None, 1),
    "a prompt": ({}, [6, 8, 9], 1),
    "no speech in beams": (DRAWN | {"logprob_threshold": -0.8, "no_speech_threshold": 3e-4}, [6, 8, 9], 3),
}


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", AGAIN)
def test_windows_that_are_written_again_are_transformers(name, whisper):
    (theirs, ours), (settings, prompt, beams) = whisper, AGAIN[name]
    features = torch.from_numpy(ours.features(AUDIO["long"], 16000).copy()).T[None]
    given = {"temperature": (0.0,)} | settings
    given["temperature"] = given.pop("temperatures", (0.0,))
    given |= {} if prompt is None else {"prompt_ids": torch.tensor([4, *prompt])}
    with torch.no_grad():
        wanted = theirs.generate(features, num_beams=beams, return_timestamps=True, language="de", **given)
    wanted = wanted if torch.is_tensor(wanted) else wanted["sequences"]
    given = {"language": "de", "beam": None if beams == 1 else jf.BeamConfig(width=beams)}
    found = ours.transcribe(
        AUDIO["long"], 16000, prompt=prompt, settings=jf.TranscriptionConfig(**settings), key=jax.random.key(0), **given
    )
    np.testing.assert_array_equal(found.tokens, wanted[0])
    without = ours.transcribe(AUDIO["long"], 16000, **given)
    assert found.tokens.tolist() != without.tokens.tolist()


LONGEST = 14
"""Most tokens of the first window in the test below."""
SUPPRESSED = tuple(sorted({*range(38), *GENERATION["suppress_tokens"]} - {4, 9, 17, 30, 31, 32}))
"""Tokens that are never written in the test below: of the few others, some windows end by themselves."""


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_lengths_and_likelihoods_of_windows_are_transformers(whisper, monkeypatch):
    """Windows behind a prompt and the text before them; some end by themselves, and some are cut."""
    (theirs, ours), wanted, found = whisper, [], []
    measure = WhisperGenerationMixin._retrieve_avg_logprobs

    def measured(scores, tokens, temperature):
        wanted.append((len(tokens), int(tokens[-1]) == EOS, float(measure(scores, tokens, temperature))))
        return wanted[-1][-1]

    def attempted(tokens, *given):
        found.append(Attempt(tokens, *given))
        return found[-1]

    monkeypatch.setattr(theirs, "_retrieve_avg_logprobs", measured)
    monkeypatch.setattr(theirs.generation_config, "max_length", LONGEST)
    monkeypatch.setattr(theirs.generation_config, "suppress_tokens", [*SUPPRESSED])
    monkeypatch.setattr(transcriber, "Attempt", attempted)
    ours = replace(ours, speech=replace(ours.speech, longest=LONGEST, rules={**ours.speech.rules, "suppressed": SUPPRESSED}))
    settings = {"logprob_threshold": -99.0, "condition_on_prev_tokens": True}
    features = torch.from_numpy(ours.features(AUDIO["long"], 16000).copy()).T[None]
    given = {"return_timestamps": True, "language": "de", "prompt_ids": torch.tensor([4, 6, 8, 9]), "temperature": (0.0,)}
    with torch.no_grad():
        theirs.generate(features, **settings, **given)
    ours.transcribe(AUDIO["long"], 16000, language="de", prompt=[6, 8, 9], settings=jf.TranscriptionConfig(**settings))
    assert [(len(it.tokens), it.tokens[-1] == EOS) for it in found] == [it[:2] for it in wanted]
    np.testing.assert_allclose([it.log_probability for it in found], [it[2] for it in wanted], rtol=1e-5)  # of float32
    assert {ended for _, ended, _ in wanted} == {True, False}
    assert max(length for length, _, _ in wanted) > LONGEST


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_times_are_transformers(whisper):
    theirs, ours = whisper
    features = torch.from_numpy(ours.features(AUDIO["long"], 16000).copy()).T[None]
    with torch.no_grad():
        wanted = theirs.generate(features, return_timestamps=True, language="en", return_segments=True)["segments"][0]
    found = ours.transcribe(AUDIO["long"], 16000, language="en").segments
    assert [it.tokens.tolist() for it in found] == [it["tokens"].tolist() for it in wanted]
    times = [[float(it["start"]), float(it["end"])] for it in wanted]
    np.testing.assert_allclose([it[:2] for it in found], times, rtol=1e-12)


@pytest.mark.slow
def test_the_twin_writes_the_same_timestamps():
    """A target that begins with two tokens."""
    case = DECODINGS["timestamps"]
    found = decode_jax(case)
    check_decoding(found, decode_torch(case))
    assert (found.tokens >= 9).any(-1).all()


@pytest.mark.parametrize("top_k", [0, 5])
@pytest.mark.usefixtures("float64")
def test_a_target_is_as_likely_to_the_twin(top_k):
    """By the rules of timestamps, behind a start of two tokens."""
    case = DECODINGS["timestamps"]
    twin = load_torch(torch_models.build(case.model), case.weights()).double().eval()
    rules = jf.SamplingConfig(timestamps=9, not_first=(11,), no_repeat_ngram=2, top_k=top_k)
    tokens, given = [10, 2, 12, 12, 3], {"start": [*case.start], "eos": case.eos}
    source, _ = case.sources()
    found = log_probabilities(to_float64(case.weights()), source[:1], np.array(tokens), rules, **given)
    wanted = torch_log_probabilities(twin, torch.from_numpy(source[:1]), tokens, rules, **given)
    for name, ours, theirs in zip(("tokens", "start"), found, wanted, strict=True):
        finite = torch.isfinite(theirs).numpy()
        np.testing.assert_array_equal(np.isfinite(ours), finite)
        check_float64(name, ours[finite], theirs[finite])
        assert finite.any()


@pytest.mark.slow
def test_the_twin_writes_the_same_timestamps_greedily():
    case = DECODINGS["timestamps"]
    greedy = replace(case, beam=None, sampling=jf.SamplingConfig(temperature=0, timestamps=9, not_first=(11,)))
    check_decoding(decode_jax(greedy), decode_torch(greedy))


@pytest.mark.parametrize("vocab_size", [99, 51865])
def test_how_much_a_text_repeats_itself_is_transformers(vocab_size):
    tokens = np.random.default_rng(0).integers(0, 5, 300)
    theirs = WhisperGenerationMixin._retrieve_compression_ratio(torch.from_numpy(tokens), vocab_size)
    assert compression_ratio(tokens, vocab_size) == theirs > 2


def test_a_window_is_cut_at_pairs_of_timestamps():
    """0 to 9 are text, and 10 is the first timestamp, at 0 s."""

    def cut(*tokens: int) -> tuple[list[tuple[int, int, list[int]]], int]:
        parts, read = cut_segments(np.array(tokens, np.int32), 10, 100)
        return [(begin, end, some.tolist()) for begin, end, some in parts], read

    assert cut(10, 1, 14, 14, 2, 20, 20, 3) == ([(0, 4, [10, 1, 14]), (4, 10, [14, 2, 20, 20])], 20)
    assert cut(10, 1, 14, 14, 2, 20) == ([(0, 4, [10, 1, 14]), (4, 10, [14, 2, 20])], 100)
    assert cut(10, 1, 14) == ([(0, 4, [10, 1, 14])], 100)
    assert cut(10, 1, 2) == ([(0, 50, [10, 1, 2])], 100)
    assert cut(1, 2) == ([(0, 50, [1, 2])], 100)
    assert cut() == ([(0, 50, [])], 100)
