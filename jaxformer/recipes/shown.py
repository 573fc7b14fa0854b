"""Lines and pictures that recipes show: the headline, the table of evaluations, predictions, and attention."""

from collections.abc import Mapping

import numpy as np
from rich.console import Console

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.data.tasks import EOS, PAD, SOS, Pairs, Task
from jaxformer.decoding import translate
from jaxformer.models import EncoderDecoder
from jaxformer.parallel.mesh import devices_in_use
from jaxformer.parallel.placement import on_host
from jaxformer.plots.of_run import plot_attention
from jaxformer.plots.style import can_plot
from jaxformer.pytree import count_parameters
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.metrics import Goal, clock, is_last
from jaxformer.runtime.jit import jit
from jaxformer.runtime.stdio import standard_output

COLUMNS = {"step": ("step", "7,"), "batch loss": ("loss", "11.4f")}
"""First columns of every table of evaluations: heading -> name of the measure, and its format."""


def plain_console() -> Console:
    """Return the console that recipes print to; if printing fails, a run in training is saved first."""
    return Console(file=standard_output(), highlight=False, soft_wrap=True, markup=False, emoji=False)


def print_headline(console: Console, model: object, *described: str, step: int) -> None:
    """Print the first line of a run: what is trained, the number of its parameters, the devices, and the step it resumes at."""
    name, *data = described
    size = f"{count_parameters(model):,} parameters, {count_parameters(model, embeddings=False):,} without embeddings"
    resumed = [f"resumed at step {step:,}"] if step else []
    console.print(" · ".join([name, size, *data, devices_in_use(), *resumed]))


def layers(config: EncoderDecoderConfig) -> str:
    """Describe an encoder-decoder: the numbers of its layers, its width and its heads."""
    return f"encoder-decoder {config.n_layers}+{config.decoder.n_layers}, d_model {config.d_model}, {config.n_heads} heads"


class EvaluationTable:
    """Table of a run's evaluations, printed line by line; `measures` are the recipe's columns, as in `COLUMNS`."""

    def __init__(self, console: Console, measures: Mapping[str, tuple[str, str]], steps: int, goal: Goal | None = None):
        self.console, self.steps, self.goal = console, steps, goal
        self.columns = {**COLUMNS, **measures, "tokens/s": ("tokens_per_second", "10,.0f")}
        self.has_header = False

    def print(self, line: Mapping[str, float]) -> None:
        """Print one evaluation, after the header if it is the first."""
        if not self.has_header:
            widths = [len(format(0.0, form)) for _, form in self.columns.values()]
            headings = zip(self.columns, widths, strict=True)
            self.console.print(*(f"{heading:>{width}}" for heading, width in headings), f"{'left':>7}")
            self.has_header = True
        left = "done" if is_last(line, self.steps, self.goal) else clock(line["seconds_left"])
        self.console.print(*(format(line[name], form) for name, form in self.columns.values()), f"{left:>7}")


def show_predictions(console: Console, task: Task, pairs: Pairs, model: EncoderDecoder, *, show: int) -> int:
    """Decode targets token by token, print the first `show` of them, and return how many are exact."""
    source = np.asarray(pairs.source)
    ids = translate(model, source, pairs.target.shape[1] - 1, start=SOS, eos=EOS, valid=source != PAD)
    wanted, predicted = [task.decode(row) for row in pairs.target], [task.decode(row) for row in ids]
    for row in range(min(show, len(wanted))):
        console.print(f"\nsource     {task.decode_source(pairs.source[row])}")
        console.print(f"wanted     {wanted[row]}\npredicted  {predicted[row]}")
    console.print()
    return sum(map(str.__eq__, wanted, predicted))


def draw_attention(folder: RunFolder, task: Task, model: EncoderDecoder, pairs: Pairs) -> None:
    """Save a picture of the cross-attention weights of the first pair."""
    if not can_plot():
        return
    source, target = task.decode_source(pairs.source[0]), task.decode(pairs.target[0])
    attention_weights = jit(EncoderDecoder.attention_weights)
    maps = attention_weights(model, pairs.source[:1, : len(source) + 2], pairs.target[:1, : len(target) + 1])
    plot_attention(folder, on_host(maps.cross)[:, 0], ["<SOS>", *source, "<EOS>"], [*target, "<EOS>"])
