"""Log-mel spectrograms: in float64 those of torch's own transform, in float32 as close to it as transformers' extractor."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from jaxformer.config.spectrogram import SpectrogramConfig
from jaxformer.errors import ParityError
from jaxformer.nn import spectrogram
from jaxformer.nn.spectrogram import log_mel, mel_filters
from jaxformer.parity.numerics.metrics import check_float64
from parity_tests.support.helpers import check_function
from torch_ref.nn.spectrogram import log_mel as torch_log_mel
from torch_ref.nn.spectrogram import mel_filters as torch_mel_filters

CONFIGS = {n_mels: SpectrogramConfig(n_mels=n_mels, seconds=2) for n_mels in (80, 128)}
bins = pytest.mark.parametrize("n_mels", CONFIGS)


def waveform() -> np.ndarray:
    """1.3 s of a tone that rises, with noise, and silence around it."""
    time = np.arange(20800) / 16000
    tone = 0.3 * np.sin(2 * np.pi * (200 + 900 * time) * time) * (np.abs(time - 0.7) < 0.4)
    return (tone + 0.01 * np.random.default_rng(0).standard_normal(time.size) * (time < 1)).astype(np.float32)


@functools.cache
def exact(n_mels: int) -> np.ndarray:
    """The twin's features in float64, of audio that silence follows."""
    padded = torch.zeros(CONFIGS[n_mels].n_samples, dtype=torch.float64)
    padded[:20800] = torch.from_numpy(waveform())
    return torch_log_mel(padded, CONFIGS[n_mels]).numpy()


def features(n_mels: int, dtype: type, found: Callable = log_mel) -> np.ndarray:
    """The features in JAX."""
    padded = np.pad(waveform(), (0, CONFIGS[n_mels].n_samples - 20800)).astype(dtype)
    return np.asarray(jax.jit(lambda waveform: found(waveform, CONFIGS[n_mels]))(padded))


@bins
def test_mel_filters_are_transformers(n_mels):
    wanted = WhisperFeatureExtractor(feature_size=n_mels).mel_filters
    for found in (mel_filters(CONFIGS[n_mels]), torch_mel_filters(CONFIGS[n_mels]).numpy()):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-15)


@bins
@pytest.mark.usefixtures("float64")
def test_features_in_float64(n_mels):
    check_float64("features", features(n_mels, np.float64), torch.from_numpy(exact(n_mels)))


@bins
def test_features_in_float32_are_as_close_as_transformers(n_mels):
    extractor = WhisperFeatureExtractor(feature_size=n_mels, chunk_length=2)
    (theirs,) = extractor(waveform(), sampling_rate=16000).input_features
    ours = features(n_mels, np.float32)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.T.shape == exact(n_mels).shape == (200, n_mels)
    assert np.abs(ours - exact(n_mels)).max() < 2 * np.abs(theirs.T - exact(n_mels)).max()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("name", "value"), [("FLOOR", 1e-9), ("RANGE", 7.9), ("LINEAR_STEP", 66.0), ("AT_ONCE", 70)])
def test_a_number_that_is_off_is_noticed(name, value, monkeypatch):
    """But the number of frames at once."""
    monkeypatch.setattr(spectrogram, name, value)
    if name == "FLOOR":
        monkeypatch.setattr(spectrogram, "RANGE", 80.0)
    found = features(80, np.float64)
    if name == "AT_ONCE":
        check_float64("features", found, torch.from_numpy(exact(80)))
    else:
        with pytest.raises(ParityError):
            check_float64("features", found, torch.from_numpy(exact(80)))


def test_value_and_gradient():
    config = SpectrogramConfig(n_mels=5, n_fft=40, hop=16, seconds=1)
    loud = np.random.default_rng(1).standard_normal(500)
    check_function(lambda x: log_mel(x, config), lambda x: torch_log_mel(x, config), loud)
