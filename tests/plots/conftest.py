"""Runs and reports on disk, made without training."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import jaxformer as jf
from jaxformer.config.presets import COPY
from jaxformer.models import GPT, EncoderDecoder
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.folder import RunFolder
from tests.reports import different
from tests.tiny import tiny_config


def save(path: Path, config: dict, model: GPT | EncoderDecoder) -> Path:
    """A run folder of two evaluations."""
    run = RunFolder.create(path, {"recipe": {"steps": 4, "seed": 0, **config.pop("recipe")}, "run": "00", **config})
    write_weights(run, run.weights, model)
    for step in (2, 4):
        run.log({"step": step, "loss": 3.0 / step, "val_loss": 2.5 / step, "tokens_per_second": 10.0})
    return path


@pytest.fixture(scope="module")
def copying(tmp_path_factory) -> Path:
    """A run of the task of copying, whose weights were drawn and not trained."""
    from dataclasses import replace

    config = replace(COPY, d_model=8, n_layers=2, n_heads=2, d_ff=12, layers="rolled")
    model = jf.excite(jf.abstract(config), seed=0)
    path = tmp_path_factory.mktemp("runs") / "copying"
    return save(path, {"recipe": {"task": "copy", "preset": "copy", "model": asdict(config)}}, model)


@pytest.fixture(scope="module")
def writing(tmp_path_factory) -> Path:
    """A run of a GPT on characters."""
    config = tiny_config(vocab_size=5, positions="learned")
    path = tmp_path_factory.mktemp("runs") / "writing"
    about = {"recipe": {"preset": "tiny", "model": asdict(config)}, "characters": " abco"}
    return save(path, about, jf.excite(jf.abstract(config), seed=1))


@pytest.fixture(scope="module")
def rotating(tmp_path_factory) -> Path:
    """A saved model with rotary positions."""
    path = tmp_path_factory.mktemp("models") / "rotating"
    jf.save(jf.excite(jf.abstract(tiny_config(rotary="half", positions="none")), seed=2), path)
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A saved report."""
    path = tmp_path_factory.mktemp("reports") / "report.json"
    path.write_text(different().to_json())
    return path


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    monkeypatch.setattr("jaxformer.plots.style.find_spec", lambda name: None)


def drawn(figure) -> list[np.ndarray]:
    """The arrays of a figure's images, in order."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.get_images()]
