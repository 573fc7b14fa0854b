"""Report of a run as data: what it was told, how it trained, what its model writes and attends to, and where it ran."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoints.describe import read_certificate
from jaxformer.checkpoints.opened import Opened, open_folder
from jaxformer.checkpoints.trained import describe
from jaxformer.checkpoints.translator import Translator
from jaxformer.config.settings import SamplingConfig
from jaxformer.config.shown import given_fields
from jaxformer.data.tasks import EOS, PAD, SOS, Task
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding import generate, translate
from jaxformer.errors import CheckpointError, ConfigError
from jaxformer.models import GPT, EncoderDecoder, abstract
from jaxformer.parity.report.text import count
from jaxformer.plots.attention import draw_heads
from jaxformer.plots.losses import WORDS
from jaxformer.plots.of_run import points_of
from jaxformer.plots.reading import maps_of
from jaxformer.plots.style import as_png, can_plot
from jaxformer.pytree import count_parameters
from jaxformer.runs.folder import CONFIG, RunFolder
from jaxformer.runs.lock import writer_of

PACE = "tokens_per_second", "seconds_left"
MEANT = {
    "spikes": "spikes {:,} (steps between two evaluations with a loss far above its running mean)",
    "last_spike": "the last spike at step {:,}",
    "skipped": "skipped steps {:,} (between two evaluations; their loss or gradient is not finite)",
    "last_skipped": "the last skipped step {:,}",
}
"""Measures that are rare events -> their words."""
WRITTEN = 300
"""Tokens that a GPT writes for the page."""
SAMPLES = 3
"""Sources of a task whose targets are written for the page."""


@dataclass(frozen=True)
class Sample:
    """Text, and what the model writes for it."""

    text: str
    written: str
    wanted: str | None = None
    """Right target, where a task knows it."""


@dataclass(frozen=True)
class RunReport:
    """Everything that the page of a run shows."""

    name: str
    state: str
    """Progress of the run, in one line."""
    facts: list[str]
    curves: Mapping[str, Mapping[int, float]]
    """Measure -> step -> value: losses, and what else an evaluation measures."""
    settings: Mapping[str, str]
    """Settings of the training, and those of the model that differ from their defaults."""
    environment: Mapping[str, str]
    samples: list[Sample] = field(default_factory=list)
    attention: dict[str, bytes] = field(default_factory=dict)
    """Title -> picture, as PNG."""
    certificate: str = ""
    remarks: list[str] = field(default_factory=list)
    """Parts that the page does not show, with the reason."""


def read_report(folder: Path, text: str | None = None, certificate: Path | None = None) -> RunReport:
    """Read the report of a run; `text` is what its model reads, `certificate` a folder that it was converted into.

    InputError or CheckpointError if there is no run, or it is damaged. A run that is still being written is reported as far
    as it has come.
    """
    run = RunFolder.open(folder)
    run.check_trains()
    config, owner = run.config, writer_of(folder)
    try:
        recipe, (model, _) = dict(config["recipe"]), describe(run)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{folder}/{CONFIG} does not describe a run of this version: {error}") from None
    curves = curves_of(run)
    last, steps = max((max(each) for each in curves.values() if each), default=0), recipe.get("steps", 0)
    state = f"evaluated at step {last:,} of at most {steps:,}" + (f"; still being written by {owner}" if owner else "")
    sizes = abstract(model)
    report = RunReport(
        name=folder.name,
        state=state,
        facts=[
            f"{type(model).__name__.removesuffix('Config')}",
            f"{count_parameters(sizes):,} parameters",
            f"{count_parameters(sizes, embeddings=False):,} without embeddings",
            *(fact(name, [*points.values()][-1]) for name, points in curves.items() if points),
        ],
        curves=curves,
        settings={
            **flat({name: value for name, value in recipe.items() if name != "model"}),
            **{f"model.{name}": str(value) for name, value in given_fields(model).items()},
        },
        environment={name: str(value) for name, value in config.get("environment", {}).items() if str(value)},
        certificate=read_certificate(certificate or folder),
    )
    show_model(report, run, text)
    return report


def fact(name: str, value: float) -> str:
    """Return the last value of a measure, in words."""
    return MEANT.get(name, name.replace("_", " ") + " {:,.5g}").format(value)


def curves_of(run: RunFolder) -> dict[str, dict[int, float]]:
    """Return what the run's evaluations measured, losses first."""
    lines = run.metrics
    return points_of(lines, dict.fromkeys([*WORDS, *(name for line in lines for name in line if name not in ("step", *PACE))]))


def flat(values: Mapping[str, Any], start: str = "") -> dict[str, str]:
    """Return settings by their flags, without those that are null."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{start}{name}.")
        elif value is not None:
            found[start + name] = str(value)
    return found


def show_model(report: RunReport, run: RunFolder, text: str | None) -> None:
    """Add to a report what the model writes and attends to, or a remark why it does not."""
    if not run.weights.exists():
        report.remarks.append("The run has no weights yet: neither samples nor attention are shown.")
        return
    found = open_folder(run.path)
    report.samples.extend(samples_of(found, text))
    if not report.samples:
        report.remarks.append("A translation and its attention are shown for a text: give one with --text.")
    elif can_plot():
        first = report.samples[0]
        for part, (weights, keys, queries) in maps_of(found, first.text, first.written).items():
            title = f"{part} attention, {count(weights.shape[0], 'layer')} of {count(weights.shape[1], 'head')}"
            report.attention[title] = as_png(draw_heads(weights, keys, queries, part))
    else:
        report.remarks.append("Attention is drawn by matplotlib: pip install 'jaxformer[viz]'.")


def samples_of(found: Opened, text: str | None) -> list[Sample]:
    """Return what the model of a run writes: for `text`, or for a text of its own; none for a translator without a text."""
    model, words = found.model, found.words
    if isinstance(model, EncoderDecoder) and isinstance(words, Task):
        return of_task(model, words, text)
    if isinstance(model, EncoderDecoder) and isinstance(words, Tokenizer):
        return [] if text is None else [Sample(text, Translator(model, words).greedy([text])[0])]
    assert isinstance(model, GPT)
    assert isinstance(words, Tokenizer)
    prompt = words.opening if text is None else text
    ids = words.encode(prompt, name="text")[None]
    (written,) = generate(model, ids, WRITTEN, SamplingConfig(temperature=1.0), key=jax.random.key(0))
    return [Sample(prompt, words.decode(written))]


def of_task(model: EncoderDecoder, task: Task, text: str | None) -> list[Sample]:
    """Return targets that the model writes greedily, each with the right one where it was drawn."""
    if text is not None:
        (written,) = translate(model, task.encode(text)[None], model.config.context, start=SOS, eos=EOS)
        return [Sample(text, task.decode(written))]
    pairs = jax.tree.map(np.asarray, task.draw(jax.random.key(2**31), SAMPLES))
    written = translate(model, pairs.source, model.config.context, start=SOS, eos=EOS, valid=pairs.source != PAD)
    return [
        Sample(task.decode_source(source), task.decode(ids), task.decode(target))
        for source, target, ids in zip(pairs.source, pairs.target, written, strict=True)
    ]
