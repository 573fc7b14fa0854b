"""SVG plots of two runs: a series of both over the steps, with one step marked."""

import math
from collections.abc import Mapping
from itertools import count

from jaxformer.io.html_elements import Markup, tag, together
from jaxformer.parity.report.charts import HEIGHT, LEFT, RIGHT, WIDTH, LinearAxis, LogAxis, curve, number, svg

MOST_POINTS = 240
"""Maximum number of points of a curve; of longer series, points at even distances are drawn."""
MOST_TICKS = 6
"""Maximum number of labels of the steps."""
DECADES = 2.0
"""Ratio of the largest to the smallest value, in powers of ten, from which the axis is logarithmic."""
Curve = Mapping[int, float]
"""Step -> value."""


def overlay(label: str, curves: Mapping[str, Curve], marked: int | None = None) -> Markup:
    """Draw curves, by the kind of their colour, in one plot, with a vertical line at the marked step.

    Values that are not finite are left out of a curve.
    """
    drawn = {kind: thinned({step: v for step, v in each.items() if math.isfinite(v)}) for kind, each in curves.items()}
    steps = sorted({step for each in curves.values() for step in each})
    first, span = steps[0], max(steps[-1] - steps[0], 1)

    def x(step: int) -> float:
        return LEFT + (step - first) / span * (WIDTH - LEFT - RIGHT)

    values = [value for each in drawn.values() for value in each.values()]
    axis = axis_of(values)
    return svg(
        axis.grid(WIDTH),
        *(curve(kind, [*map(x, each)], [*each.values()], axis) for kind, each in drawn.items()),
        Markup() if marked is None else step_mark(x(marked), marked),
        together(*(number(x(step), step) for step in ticks(steps[0], steps[-1]))),
        width=WIDTH,
        label=label,
    )


def ticks(first: int, last: int) -> range:
    """Return at most MOST_TICKS round numbers at even distances between two steps."""
    sizes = (digit * 10**power for power in count() for digit in (1, 2, 5))
    size = next(each for each in sizes if (last - first) // each < MOST_TICKS)
    return range(-(-first // size) * size, last + 1, size)


def step_mark(x: float, step: int) -> Markup:
    """Draw a vertical line with its step."""
    anchor, by = ("start", 4) if x < WIDTH / 2 else ("end", -4)
    return together(
        tag("line", class_="pointer", x1=x, x2=x, y1=2.0, y2=HEIGHT),
        tag("text", f"step {step:,}", class_="name", x=x + by, y=9.0, text_anchor=anchor),
    )


def axis_of(values: list[float]) -> LinearAxis | LogAxis:
    """Return an axis for values of any size."""
    positive = [value for value in values if value > 0]
    is_wide = len(positive) == len(values) > 0 and math.log10(max(positive) / min(positive)) >= DECADES
    return (LogAxis if is_wide else LinearAxis).over(values, top=10.0, bottom=HEIGHT)


def thinned(points: Curve) -> dict[int, float]:
    """Return at most about MOST_POINTS points, the last one among them."""
    every = max(1, math.ceil(len(points) / MOST_POINTS))
    steps = sorted(points)
    return {step: points[step] for step in sorted({*steps[::every], *steps[-1:]})}
