"""SVG plots of the HTML report: error over depth, over position and over training steps, and heat strips of attention heads."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxformer.io.html_elements import Markup, code, tag, together
from jaxformer.parity.report.data import Module, Step
from jaxformer.parity.report.text import figure, rank

LEFT, RIGHT = 52.0, 14.0
"""Margins of a plot; tick labels stand in the left one."""
BAND = 18.0
"""Distance of zero below the lowest power of ten, and of infinity above the highest."""
LOWEST, HIGHEST = -20, 8
"""Exponents of the smallest and largest power of ten; errors beyond them are drawn at the ends."""
EXPONENTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class LogAxis:
    """Logarithmic axis: powers of ten from `low` to `high`, drawn between the heights `bottom` and `top`."""

    low: int
    high: int
    top: float
    bottom: float
    infinite: bool = False
    """True if there are values at infinity."""

    @classmethod
    def over(cls, values: Iterable[float], *, top: float, bottom: float) -> "LogAxis":
        """Return an axis that holds all values and at least three powers of ten, between two heights."""
        given = list(values)
        finite = [abs(value) for value in given if math.isfinite(value) and value]
        infinite = any(not math.isfinite(value) for value in given)
        low = max(math.floor(math.log10(min(finite, default=1e-16))), LOWEST)
        high = min(math.ceil(math.log10(max(finite, default=1e-12))), HIGHEST)
        return cls(min(low, HIGHEST - 3), max(high, low + 3), top + (BAND if infinite else 0), bottom - BAND, infinite)

    def y(self, value: float) -> float:
        """Return the height of a value; NaN is drawn at infinity."""
        if not math.isfinite(value):
            return self.top - BAND
        if value == 0:
            return self.zero
        part = (math.log10(abs(value)) - self.low) / (self.high - self.low)
        return self.bottom - min(max(part, 0.0), 1.0) * (self.bottom - self.top)

    @property
    def zero(self) -> float:
        """Height of zero."""
        return self.bottom + BAND

    def grid(self, width: float) -> Markup:
        """Draw labelled lines across the plot."""
        every = next((n for n in (1, 2, 4) if (self.high - self.low) / n <= 6), 8)
        marks = [
            (float(f"1e{e}"), f"10{str(e).translate(EXPONENTS)}") for e in range(self.low, self.high + 1) if e % every == 0
        ]
        marks += [(0.0, "0"), *([(math.inf, "∞")] if self.infinite else [])]
        return together(*(rule(self.y(value), label, width) for value, label in marks))


@dataclass(frozen=True)
class LinearAxis:
    """Linear axis: finite values between two heights."""

    low: float
    high: float
    top: float
    bottom: float

    @classmethod
    def over(cls, values: Iterable[float], *, top: float, bottom: float) -> "LinearAxis":
        """Return an axis that holds all values."""
        given = list(values)
        low, high = min(given, default=0.0), max(given, default=1.0)
        return cls(low, high if high > low else low + 1, top, bottom)

    def y(self, value: float) -> float:
        """Return the height of a value."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def grid(self, width: float) -> Markup:
        """Draw five labelled lines across the plot."""
        marks = [self.low + part / 4 * (self.high - self.low) for part in range(5)]
        return together(*(rule(self.y(mark), f"{mark:.{4 if abs(mark) >= 0.1 else 2}g}", width) for mark in marks))


def rule(y: float, label: str, width: float) -> Markup:
    """Draw one grid line with its label."""
    return together(
        tag("line", class_="grid", x1=LEFT, x2=width - RIGHT, y1=y, y2=y),
        tag("text", label, class_="tick", x=LEFT - 8, y=y + 4, text_anchor="end"),
    )


def tolerance_line(y: float, width: float) -> Markup:
    """Draw the tolerance: errors below this line count as equal."""
    return tag("line", class_="noise", x1=LEFT, x2=width - RIGHT, y1=y, y2=y)


def path(xs: Iterable[float], ys: Iterable[float]) -> str:
    """Return the SVG path of a polyline through points."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


WIDTH, HEIGHT = 720.0, 260.0
NARROWEST = 600.0
"""Minimum width of a plot in pixels; narrower windows scroll it sideways."""
DIGIT = 7.2
"""Width of a digit."""
COLUMN = 7.0
"""Minimum width of a call's column."""
TOP = 26.0
"""Free space above a plot, for a module's name."""
FOOT = 26.0
"""Free space below a plot, for the labels of its horizontal axis."""
COLUMNS = 240
"""Maximum number of steps in a plot over positions; with more positions, a step shows the largest error of several."""


def depth(
    modules: Sequence[Module],
    tolerance: float,
    *,
    label: str,
    normal: Callable[[Module], float | None],
    own: Callable[[Module], float | None],
    says: Callable[[Module], str],
) -> Markup:
    """Draw a column for each call, in order: a line through the errors of the normal run, and a stem for each module's own
    error.

    `normal` and `own` return the errors of a module, None if there is none; `says` returns the column's tooltip.
    """
    width = max(WIDTH, LEFT + RIGHT + COLUMN * len(modules))
    step = (width - LEFT - RIGHT) / len(modules)
    values = [value for module in modules for value in (normal(module), own(module)) if value is not None]
    axis = LogAxis.over([*values, tolerance], top=TOP, bottom=HEIGHT)
    wrong = [module.diverging and (value := own(module)) is not None and not value <= tolerance for module in modules]
    first = next((i for i, over in enumerate(wrong) if over), None)
    columns = []
    for i, module in enumerate(modules):
        x = LEFT + (i + 0.5) * step
        hit = tag("rect", class_="hit", x=x - step / 2, y=0.0, width=step, height=HEIGHT + FOOT)
        drawn = _dot(x, normal(module), axis, "normal"), _stem(x, own(module), axis)
        kind = "call diverging" if wrong[i] else "call"
        columns.append(tag("a", tag("title", says(module)), hit, *drawn, href=f"#call-{i}", tabindex="-1", class_=kind))
    points = [(LEFT + (i + 0.5) * step, value) for i, module in enumerate(modules) if (value := normal(module)) is not None]
    line = path([x for x, _ in points], [axis.y(value) for _, value in points]) if points else "M0,0"
    return svg(
        axis.grid(width),
        tolerance_line(axis.y(tolerance), width),
        *columns,
        tag("path", class_="normal", d=line),
        _name(modules[first], LEFT + (first + 0.5) * step, width) if first is not None else Markup(),
        tag("text", "first call", class_="tick", x=LEFT, y=HEIGHT + FOOT - 4),
        tag("text", "last call", class_="tick", x=width - RIGHT, y=HEIGHT + FOOT - 4, text_anchor="end"),
        width=width,
        label=label,
    )


def positions(module: Module, tolerance: float) -> Markup:
    """Draw the error of a module's output at each position."""
    size = math.ceil(len(module.positions) / COLUMNS)
    starts = range(0, len(module.positions), size)
    values = [max(module.positions[i : i + size], key=rank) for i in starts]
    axis = LogAxis.over([*values, tolerance], top=10.0, bottom=HEIGHT)
    step = (WIDTH - LEFT - RIGHT) / len(values)
    stairs = "".join(f"V{axis.y(value):.1f}H{LEFT + (i + 1) * step:.1f}" for i, value in enumerate(values))
    shown = sorted({round(part * (len(values) - 1) / 4) for part in range(5)})
    return svg(
        axis.grid(WIDTH),
        tag("path", class_="stairs", d=f"M{LEFT},{axis.zero}{stairs}V{axis.zero}"),
        tolerance_line(axis.y(tolerance), WIDTH),
        *(number(LEFT + (i + 0.5) * step, starts[i]) for i in shown),
        width=WIDTH,
        label=f"Error of {module.name} over positions 0 to {len(module.positions) - 1}. {position_words(module, tolerance)}",
    )


def position_words(module: Module, tolerance: float) -> str:
    """Describe the position of the largest error, and the first position over the tolerance."""
    worst = max(range(len(module.positions)), key=lambda i: rank(module.positions[i]))
    over = [i for i, value in enumerate(module.positions) if not value <= tolerance]
    says = f"Largest {figure(module.positions[worst])} at position {worst}; "
    if not over:
        return says + f"all {len(module.positions)} positions are within the tolerance."
    return says + f"{len(over)} of {len(module.positions)} positions are over the tolerance, first position {over[0]}."


def training_curves(steps: Sequence[Step]) -> tuple[Markup, Markup]:
    """Draw torch's loss where it is finite, and the errors of the loss and of the parameters."""
    first, span = steps[0].number, max(steps[-1].number - steps[0].number, 1)
    xs = [LEFT + (step.number - first) / span * (WIDTH - LEFT - RIGHT) for step in steps]
    numbers = together(*(number(xs[i], steps[i].number) for i in sorted({0, len(steps) // 2, len(steps) - 1})))
    finite = [(x, step.loss) for x, step in zip(xs, steps, strict=True) if math.isfinite(step.loss)]
    linear = LinearAxis.over([loss for _, loss in finite], top=10.0, bottom=HEIGHT)
    errors = [step.loss_error for step in steps], [step.parameter_error for step in steps]
    log = LogAxis.over([*errors[0], *errors[1]], top=10.0, bottom=HEIGHT)
    return (
        svg(
            linear.grid(WIDTH),
            curve("loss", [x for x, _ in finite], [loss for _, loss in finite], linear),
            numbers,
            width=WIDTH,
            label="torch's loss over steps",
        ),
        svg(
            log.grid(WIDTH),
            curve("normal", xs, errors[0], log),
            curve("parameters", xs, errors[1], log),
            numbers,
            width=WIDTH,
            label="Errors of loss and parameters over steps",
        ),
    )


def heat_strips(modules: Sequence[Module], tolerance: float) -> Markup:
    """Draw a strip for each attention module with a cell for each head: the hotter, the further over the tolerance."""
    most = max(len(module.heads) for module in modules)
    numbers = [tag("th", str(head), scope="col") for head in range(most)]
    rows = []
    for module in modules:
        cells = [
            tag(
                "td",
                figure(error),
                style=f"--heat: {100 * _heat(error, tolerance):.0f}%",
                title=f"head {head}: {figure(error)}",
            )
            for head, error in enumerate(module.heads)
        ]
        rows.append(tag("tr", tag("th", code(module.name), scope="row"), *cells))
    return tag("table", tag("thead", tag("tr", tag("td", "head"), *numbers)), tag("tbody", *rows), class_="strips")


def _heat(error: float, tolerance: float) -> float:
    """Return the heat of an error: 0 within the tolerance, else 0.15 to 1; 1 is an error of 1 or more."""
    if error <= tolerance:
        return 0.0
    measurable = math.isfinite(error) and 0 < tolerance < 1
    return 0.15 + 0.85 * min(math.log(error / tolerance) / math.log(1 / tolerance), 1.0) if measurable else 1.0


def svg(*children: str, width: float, label: str) -> Markup:
    """Draw a plot; `label` describes it to those who cannot see it."""
    height = HEIGHT + FOOT
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "style": f"min-width: {width / WIDTH * NARROWEST:.0f}px"}
    return tag("svg", *children, role="img", aria_label=label, **size)


def curve(kind: str, xs: Sequence[float], values: Sequence[float], axis: LogAxis | LinearAxis) -> Markup:
    """Draw a line through values, with a dot at its end."""
    ys = [axis.y(value) for value in values]
    if not ys:
        return Markup()
    return together(tag("path", class_=kind, d=path(xs, ys)), tag("circle", class_=kind, cx=xs[-1], cy=ys[-1], r=2.5))


def number(x: float, value: int) -> Markup:
    """Draw a label of the horizontal axis, whole at its end too."""
    label = f"{value:,}"
    return tag(
        "text", label, class_="tick", x=min(x, WIDTH - len(label) * DIGIT / 2), y=HEIGHT + FOOT - 4, text_anchor="middle"
    )


def _dot(x: float, value: float | None, axis: LogAxis, kind: str) -> Markup:
    return Markup() if value is None else tag("circle", class_=kind, cx=x, cy=axis.y(value), r=2.2)


def _stem(x: float, value: float | None, axis: LogAxis) -> Markup:
    if value is None:
        return Markup()
    y = axis.y(value)
    return together(
        tag("line", class_="own", x1=x, x2=x, y1=axis.zero, y2=y),
        tag("circle", class_="own", cx=x, cy=y, r=3.2),
    )


def _name(module: Module, x: float, width: float) -> Markup:
    """Draw a module's name above its column."""
    anchor, by = ("start", 4) if x < width / 2 else ("end", -4)
    return together(
        tag("line", class_="pointer", x1=x, x2=x, y1=4.0, y2=TOP + BAND),
        tag("text", module.name, class_="name", x=x + by, y=13.0, text_anchor=anchor),
    )
