"""Run measurements: item after item, each printed and saved at once, so that finished work is kept whatever ends the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from jaxformer.bench import limits
from jaxformer.bench.items import Item, key_of
from jaxformer.bench.limits import Peak
from jaxformer.bench.measure import Plan, measure_item
from jaxformer.bench.processes import ask_once
from jaxformer.bench.results import Result, add_results, read_results
from jaxformer.bench.tables import draw, peaks, show, summary
from jaxformer.errors import InputError

WIDTH = 100
"""Minimum width of the tables, in columns."""
IDLE = 0.25
"""Load per core up to which a machine counts as idle."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Files for the results."""

    json: Path | None
    chart: Path | None

    def check(self) -> None:
        """Raise InputError, before anything is measured, if a file cannot be written."""
        for path in (self.json, self.chart):
            if path is not None and not path.resolve().parent.is_dir():
                raise InputError(f"{path} cannot be written: its folder does not exist; name one that does")
        if self.chart is not None and self.chart.suffix != ".png":
            raise InputError(f"chart = {self.chart} is not a .png file; give it that ending")
        if self.chart is not None and not find_spec("matplotlib"):
            raise InputError("--chart needs matplotlib; pip install 'jaxformer[viz]'")
        if self.json is not None:
            read_results(self.json)

    def keep(self, results: list[Result]) -> None:
        """Write the results; the chart shows everything in the JSON file."""
        if self.json is not None:
            add_results(self.json, results)
        if self.chart is not None:
            draw(self.chart, results if self.json is None else read_results(self.json))


def bench(items: Sequence[Item], plan: Plan, outputs: Outputs) -> None:
    """Measure the items, and print and save each result at once; KeyboardInterrupt if Ctrl-C ended the run."""
    outputs.check()
    console, results, stopped = Console(highlight=False, soft_wrap=True), [], False
    console.width = max(console.width, WIDTH)
    tell_load(console, "before the start", IDLE)
    try:
        peak = Peak(**ask_once("peak"))
        console.print(f"{limits.described()['cores']} cores of {limits.processor()}: {peaks(peak.flops, peak.bandwidth)}")
        for item in items:
            result, stopped = measure_item(item, plan, peak)
            if result is not None:
                results.append(result)
                show(console, result)
                outputs.keep(results)
            if stopped:
                raise KeyboardInterrupt
    finally:
        tell_load(console, "at the end", 1 + IDLE)
        if results:
            console.print(summary(results), markup=False)
        if len(results) < len(items) or stopped:
            missing = [key_of(item) for item in items if key_of(item) not in {key_of(result) for result in results}]
            console.print(f"not measured: {', '.join(missing) or 'the last rounds'}", markup=False)


def tell_load(console: Console, when: str, idle: float) -> None:
    """Warn if other work runs beside the measurement; at the end, its own load is included."""
    load, cores = limits.load(), limits.cores()
    if load is not None and load > idle * cores:
        console.print(f"the machine is loaded: {load:.1f} processes on {cores} cores {when}; times are longer, and ratios vary")
