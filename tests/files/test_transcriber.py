"""Audio files and folders of Whisper: what is written of them, and what is refused in one line."""

import json
import shutil
import wave
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.checkpoints.transcriber import load_transcriber
from jaxformer.cli.main import dispatch
from jaxformer.config.spectrogram import SpectrogramConfig
from jaxformer.data.audio import read_wav
from jaxformer.errors import CheckpointError, ConfigError, InputError, shown

V, EOS, SOT, FIRST = 288, 266, 267, 272
SAID = {"suppress_tokens": [EOS, SOT], "begin_suppress_tokens": [32], "lang_to_id": {"<|en|>": 268, "<|de|>": 269}}
SAID |= {"task_to_id": {"transcribe": 270}, "no_timestamps_token_id": FIRST - 1, "max_length": 20, "return_timestamps": False}
SAID |= {"eos_token_id": EOS, "pad_token_id": EOS, "decoder_start_token_id": SOT}
FEATURES = {"feature_size": 6, "sampling_rate": 16000, "hop_length": 160, "chunk_length": 1, "n_fft": 400}
SECOND = np.sin(np.arange(16000, dtype=np.float32) / 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of random weights with the tokens of a tokenizer of bytes."""
    place = tmp_path_factory.mktemp("whisper") / "model"
    sizes = {"d_model": 12, "n_layers": 1, "n_decoder_layers": 1, "n_heads": 2, "d_ff": 16, "padding_idx": EOS}
    config = jf.EncoderDecoderConfig(
        vocab_size=V, context=24, source_features=6, source_context=50, key_bias=False, tied=True, **sizes
    )
    with pytest.warns(UserWarning, match="names no special tokens"):
        jf.save(jf.excite(jf.abstract(config), seed=4), place, like="hf")
    (place / "generation_config.json").write_text(json.dumps(SAID))
    (place / "preprocessor_config.json").write_text(json.dumps(FEATURES))
    jf.Tokenizer.train_bpe(["a b"], vocab_size=260).save(place / "tokenizer.json")
    return place


@pytest.fixture(scope="module")
def transcriber(folder):
    return jf.load_transcriber(folder)


def write_wav(path: Path, samples: np.ndarray, rate: int = 16000, width: int = 2) -> Path:
    """A file of integers, one row a sample."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype(f"<i{width}").tobytes())
    return path


@pytest.mark.slow
def test_a_command_writes_what_the_transcriber_does(folder, transcriber, tmp_path, capsys):
    samples = np.stack([SECOND, SECOND / 2], 1) * 20000
    path = write_wav(tmp_path / "speech.wav", samples)
    waveform, rate = read_wav(path)
    np.testing.assert_allclose(waveform, samples.astype("<i2").mean(1) / 32768, rtol=1e-6)
    assert rate == 16000
    found = transcriber.transcribe(waveform, rate, language="de")
    assert (found.language, len(found.tokens) > 0, found.text is not None) == ("de", True, True)
    dispatch(["transcribe", str(folder), str(path), str(path), "--language", "de", "--no-cache"])
    assert len(capsys.readouterr().out.splitlines()) == 2
    timed = transcriber.transcribe(waveform, rate, language="de", timestamps=True)
    dispatch(["transcribe", str(folder), str(path), "--language", "de", "--timestamps", "--no-cache"])
    lines = [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [[f"{it.start:.2f}", f"{it.end:.2f}"] for it in timed.segments]


@pytest.mark.slow
def test_a_command_reads_a_prompt_and_writes_windows_again(folder, transcriber, tmp_path, capsys):
    path = write_wav(tmp_path / "speech.wav", SECOND[:, None] * 20000)
    waveform, rate = read_wav(path)
    given = "--prompt Ann --temperatures 0 0.7 --logprob-threshold=-0.1 --seed 3"
    dispatch(["transcribe", str(folder), str(path), "--language", "de", *given.split(), "--no-cache"])
    settings = jf.TranscriptionConfig(temperatures=(0.0, 0.7), logprob_threshold=-0.1)
    asked = {"language": "de", "settings": settings, "key": jax.random.key(3)}
    found = transcriber.transcribe(waveform, rate, prompt=" Ann", **asked)
    assert capsys.readouterr().out.strip() == shown(found.text.strip())
    same = transcriber.transcribe(waveform, rate, prompt=transcriber.tokenizer.encode(" Ann"), **asked)
    assert same.tokens.tolist() == found.tokens.tolist()
    others = [transcriber.transcribe(waveform, rate, **asked), transcriber.transcribe(waveform, rate, language="de")]
    assert all(found.tokens.tolist() != other.tokens.tolist() for other in others)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((SECOND, 8000), "sampling_rate = 8000, and this model reads 16000 Hz; resample the audio"),
        ((SECOND[:0], 16000), "audio is empty; give at least one sample"),
        ((np.stack([SECOND] * 2), 16000), r"audio has shape \(2, 16000\); give one channel, as the mean of several"),
        ((np.append(SECOND[:2], np.nan), 16000), r"audio\[2\] = nan; give finite samples"),
        (((SECOND * 999).astype(np.int16), 16000), "audio is int16; give floats within"),
        ((SECOND * 32768, 16000), r"audio has samples up to 3.28e\+04; give floats within"),
    ],
)
def test_audio_that_cannot_be_read(transcriber, given, said):
    with pytest.raises(InputError, match=f"^{said}"):
        transcriber.transcribe(*given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"language": "xx"}, "language = 'xx' is none of this model's; give one of en, de"),
        ({"task": "translate"}, "task = 'translate' is none of this model's; give one of transcribe"),
        ({"task": ["transcribe"]}, "task is a list; give a text"),
        ({"timestamps": "yes"}, "timestamps = 'yes' is a str; give True, False or None"),
        ({"n_tokens": 21}, "n_tokens = 21 is more than the 20 tokens that can be generated at once"),
        ({"prompt": 5}, "prompt = 5 is an int; give a text, or a list of ids"),
        ({"prompt": [SOT]}, "prompt = 267 is not a token id; give a whole number from 0 to 265"),
        ({"prompt": "a" * 11}, "prompt has 12 tokens; give at most 11, half of what the model reads"),
        ({"settings": 0.5}, "settings = 0.5 is a float; give a TranscriptionConfig"),
        (
            {"settings": jf.TranscriptionConfig(temperatures=(0.0, 0.2))},
            r"temperatures = \(0.0, 0.2\) draw at random; give a key",
        ),
    ],
)
def test_what_the_model_does_not_know(transcriber, given, said):
    with pytest.raises(InputError, match=f"^{said}"):
        transcriber.transcribe(SECOND, 16000, **{"language": "en", **given})


def test_long_audio_needs_timestamps(transcriber):
    with pytest.raises(InputError, match=r"^audio of more than 1 s needs timestamps, which say where a window begins"):
        transcriber.transcribe(np.tile(SECOND, 2), 16000, timestamps=False)
    bare = replace(transcriber, speech=replace(transcriber.speech, no_timestamps=None))
    with pytest.raises(InputError, match="names no no_timestamps_token_id"):
        bare.transcribe(np.tile(SECOND, 2), 16000)
    single = replace(transcriber, speech=replace(transcriber.speech, languages={}, tasks={}))
    with pytest.raises(InputError, match="cannot be chosen: this model has one language"):
        single.transcribe(SECOND, 16000, language="en")


@pytest.mark.parametrize(
    ("file", "change", "kind", "said"),
    [
        ("preprocessor_config.json", None, InputError, "has no preprocessor_config.json, which says how audio becomes"),
        ("preprocessor_config.json", {"dither": 0.1}, CheckpointError, "dither = 0.1 of its features is not supported"),
        (
            "preprocessor_config.json",
            {"feature_size": 80},
            CheckpointError,
            "are 100 frames of 80, and the model reads 100 of 6",
        ),
        ("generation_config.json", {"no_speech_threshold": 0.6}, CheckpointError, "not read with logprob_threshold = None"),
        ("generation_config.json", {"prompt_condition_type": "all-segments"}, CheckpointError, "prompt_condition_type of its"),
        ("generation_config.json", {"forced_decoder_ids": [[2, 3]]}, CheckpointError, "leave a place out"),
        ("generation_config.json", {"eos_token_id": [1, 2]}, CheckpointError, "says no way to write transcripts"),
    ],
)
def test_folders_that_are_refused(folder, tmp_path, file, change, kind, said):
    place = Path(shutil.copytree(folder, tmp_path / "other"))
    if change is None:
        (place / file).unlink()
    else:
        (place / file).write_text(json.dumps(json.loads((place / file).read_text()) | change))
    with pytest.raises(kind, match=said):
        load_transcriber(place)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperatures": 0.0}, "temperatures = 0.0 is no tuple of numbers; give one, as"),
        ({"temperatures": (-1.0,)}, "temperatures = -1 is out of range"),
        ({"logprob_threshold": 1.0}, "logprob_threshold = 1 is out of range"),
        ({"no_speech_threshold": 0.6}, "no_speech_threshold = 0.6 is not read with logprob_threshold = None; give both"),
    ],
)
def test_settings_of_windows(fields, said):
    with pytest.raises(ConfigError, match=said):
        jf.TranscriptionConfig(**fields)


def test_settings_that_need_a_token(transcriber):
    bare = replace(transcriber, speech=replace(transcriber.speech, previous=None, no_timestamps=None), tokenizer=None)
    silence = jf.TranscriptionConfig(logprob_threshold=-1.0, no_speech_threshold=0.5)
    for given, said in (
        ({"prompt": "a"}, "a prompt needs a prev_sot_token_id"),
        (
            {"settings": jf.TranscriptionConfig(condition_on_prev_tokens=True)},
            "condition_on_prev_tokens needs a prev_sot_token_id",
        ),
        ({"settings": silence}, "no_speech_threshold needs a no_timestamps_token_id"),
    ):
        with pytest.raises(InputError, match=f"^{said}"):
            bare.transcribe(SECOND, 16000, language="en", **given)
    with pytest.raises(InputError, match=r"^prompt is a text, and the folder has no tokenizer.json; give ids"):
        replace(transcriber, tokenizer=None).transcribe(SECOND, 16000, language="en", prompt="a")


@pytest.mark.parametrize("setting", [{"bad_words_ids": [[47]]}, {"max_new_tokens": 4}, {"forced_eos_token_id": 3}])
def test_settings_that_transcripts_do_not_follow_are_named(folder, tmp_path, setting):
    place = Path(shutil.copytree(folder, tmp_path / "other"))
    (place / "generation_config.json").write_text(json.dumps(SAID | setting))
    with pytest.warns(UserWarning, match=f"{next(iter(setting))} = .* not read here, so transcripts may differ"):
        load_transcriber(place)


def test_the_features_are_copied_with_the_model(folder, tmp_path):
    jf.save(jf.load(folder), tmp_path / "copy", like="hf", source=folder)
    same = [jf.load_transcriber(it).spectrogram for it in (folder, tmp_path / "copy")]
    assert same == [SpectrogramConfig(n_mels=6, seconds=1)] * 2


def test_other_commands_and_files(folder, refusal, tmp_path):
    assert refusal(dispatch, ["translate", str(folder), "a"]).endswith("reads audio; use jaxformer transcribe")
    (tmp_path / "text.wav").write_text("none")
    said = refusal(dispatch, ["transcribe", str(folder), str(tmp_path / "text.wav"), "--no-cache"])
    assert "text.wav is no WAV file of PCM samples" in said
    wide = write_wav(tmp_path / "wide.wav", np.zeros((9, 1)), width=4)
    assert "holds samples of 32 bits; convert it" in refusal(dispatch, ["transcribe", str(folder), str(wide), "--no-cache"])
    slow = write_wav(tmp_path / "slow.wav", np.zeros((9, 1)), rate=8000)
    assert "sampling_rate = 8000" in refusal(dispatch, ["transcribe", str(folder), str(slow), "--no-cache"])


def test_frames_that_a_model_cannot_read(transcriber):
    model, ids = transcriber.model, np.array([[SOT]])
    for frames, said in (
        (np.zeros((1, 4), np.float32), r"shape \(1, 4\); give frames of shape \(batch, frames, 6\)"),
        (np.zeros((1, 101, 6), np.float32), "101 frames; give between 1 and 100"),
        (np.zeros((1, 4, 6), np.int32), "type int32; give frames of floats"),
        (np.full((1, 4, 6), np.inf, np.float32), r"source\[0, 0, 0\] = inf; give finite features"),
    ):
        with pytest.raises(InputError, match=said):
            model(frames, ids)
    with pytest.raises(InputError, match="valid is given for a source of frames"):
        jf.translate(model, np.zeros((1, 4, 6), np.float32), 3, start=SOT, eos=EOS, valid=np.ones((1, 4), bool))
    with pytest.raises(InputError, match=r"start = \(\) is no token"):
        jf.translate(model, np.zeros((1, 4, 6), np.float32), 3, start=(), eos=EOS)
    with pytest.raises(InputError, match="cannot be exported"):
        jf.export(model, "nowhere")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source_vocab_size": 5}, "source_vocab_size = 5 is not read with source_features = 6"),
        ({"projections": "fused"}, "key_bias = False needs projections = 'separate'"),
        ({"qkv_bias": False}, "key_bias = False is not read with qkv_bias = False"),
        ({"source_features": 0}, "source_features = 0 is out of range"),
    ],
)
def test_configurations(transcriber, fields, said):
    with pytest.raises(ConfigError, match=said):
        replace(transcriber.model.config, **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"latest_first_timestamp": 3}, "latest_first_timestamp = 3 is not read with timestamps = None"),
        ({"timestamps": 0}, "timestamps = 0 is out of range"),
        ({"not_first": [1]}, r"not_first = \[1\] is not a tuple"),
    ],
)
def test_rules(fields, said):
    with pytest.raises(ConfigError, match=said):
        jf.SamplingConfig(**fields)


def test_an_end_among_timestamps(transcriber):
    rules = jf.SamplingConfig(temperature=0, timestamps=FIRST)
    frames = jax.numpy.zeros((1, 4, 6))
    with pytest.raises(InputError, match="ends no text with timestamps from 272 on; give one end token below them"):
        jf.translate(transcriber.model, frames, 3, rules, start=SOT, eos=FIRST + 1)
