"""Report of a comparison: its data, its output formats, and a plot of training, which needs the `viz` extra.

Its JSON is strict, and is read back with every value checked. JSON has no infinity and no NaN; they are written as the strings
'inf', '-inf' and 'nan'."""

import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from jaxformer.errors import InputError
from jaxformer.parity.numerics.metrics import LOSS, PARAMETER
from jaxformer.parity.report.data import ReportData, Step
from jaxformer.parity.report.html import in_notebook, page
from jaxformer.parity.report.text import markdown, plain_text

T = TypeVar("T")
SCHEMA = 1
"""Version of a report's JSON, which `report.schema` describes."""
NO_NUMBERS = ("inf", "-inf", "nan")
WORDS = {float: "a number", int: "an integer", str: "a text", bool: "true or false", list: "a list", dict: "an object"}
"""Names of the expected types in error messages."""


OLDER = {"guilty": "diverging", "unnoticed": "not_covered", "line": "tolerance"}
"""Old names of fields -> today's, so that older reports can still be read."""


def as_strict_json(value: Any, **more: str | int) -> str:
    """Serialise a dataclass of numbers, texts, lists, dicts and other such dataclasses, with `more` beside its fields."""
    return json.dumps(plain(value) | more, indent=1, allow_nan=False)


def from_strict_json(kind: type[T], text: str, *, ignored: Sequence[str]) -> T:
    """Parse what `as_strict_json` wrote, without the keys `ignored`; InputError in one line for anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"the text is not a {kind.__name__.lower()}: it is not JSON; give what to_json wrote") from None
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in ignored}
    return read(kind, values, kind.__name__.lower())


def plain(value: Any) -> Any:
    """Convert a value to types that JSON knows."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def read(kind: Any, value: Any, where: str) -> Any:
    """Convert a parsed JSON value to `kind`, the annotation of a field; `where` names the value in errors."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return read_fields(kind, value, where)
    if outer is list and isinstance(value, list):
        return [read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if outer is dict and isinstance(value, dict):
        return {name: read(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if outer is Literal and isinstance(value, str) and value in inner:
        return value
    if NoneType in inner:
        return None if value is None else read(inner[0], value, where)
    if kind is float and (value in NO_NUMBERS if isinstance(value, str) else type(value) in (float, int)):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise wrong(where, value, " or ".join(map(repr, inner)) if outer is Literal else WORDS[outer])


def read_fields(kind: Any, value: Any, where: str) -> Any:
    """Build a dataclass from its fields: fields without a default are required, unknown ones are refused."""
    if not isinstance(value, dict):
        raise wrong(where, value, "an object")
    kinds = get_type_hints(kind)
    value = {name if name in kinds else OLDER.get(name, name): item for name, item in value.items()}
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    if missing := [name for name in kinds if name in needed - set(value)]:
        raise InputError(f"{where} has no {missing[0]}; give what to_json wrote")
    if unknown := [name for name in value if name not in kinds]:
        raise InputError(
            f"{where} has a field {shortened(unknown[0])} that is not known; give what to_json of this version wrote"
        )
    return kind(**{name: read(kinds[name], item, f"{where}.{name}") for name, item in value.items()})


def wrong(where: str, value: Any, wanted: str) -> InputError:
    """Return the error for a value of the wrong type."""
    return InputError(f"{where} = {shortened(value)} is not {wanted}; give what to_json wrote")


def shortened(value: Any) -> str:
    """Format a value in at most 40 characters, on one line."""
    said = json.dumps(value)
    return said if len(said) <= 40 else f"{said[:37]}..."


@dataclass(frozen=True)
class Report(ReportData):
    """All findings of a comparison; `print(report)` shows it as plain text."""

    def to_json(self) -> str:
        """Serialise the report as strict JSON; `from_json` reads it back."""
        return as_strict_json(self, verdict=self.verdict, schema=SCHEMA)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Parse what `to_json` wrote; InputError in one line for anything else."""
        return from_strict_json(cls, text, ignored=("verdict", "schema"))

    def to_markdown(self) -> str:
        """Render Markdown, for a pull request or an issue."""
        return markdown(self)

    def to_html(self) -> str:
        """Render a self-contained HTML page that needs no other file and no network."""
        return page(self)

    def _repr_html_(self) -> str:
        """Render the verdict, the causes and the checks for a notebook."""
        return in_notebook(self)

    def __str__(self) -> str:
        return plain_text(self)


FLOOR = 1e-17
"""Height at which an exact zero is drawn."""


def plot_training(steps: Sequence[Step], path: Path) -> None:
    """Plot both losses, and below them the errors of jax's loss and parameters with the tolerances of tier A, to `path`.

    A step stores how far its losses are apart, not which one is larger: JAX's is drawn above torch's.
    """
    if find_spec("matplotlib") is None:
        raise InputError("plot_training needs matplotlib; pip install 'jaxformer[viz]'")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    numbers = [step.number for step in steps]
    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot(numbers, [step.loss for step in steps], marker=".", color="C0", label="torch")
    above.plot(numbers, [step.loss * (1 + step.loss_error) for step in steps], "--", color="C1", label="jax")
    above.set(ylabel="loss", title="training on both sides")
    for error, tolerance, color, label in (
        ([step.loss_error for step in steps], LOSS, "C1", "loss, relative"),
        ([step.parameter_error for step in steps], PARAMETER, "C2", "parameters, max/rms"),
    ):
        below.plot(numbers, [max(value, FLOOR) for value in error], marker=".", color=color, label=label)
        below.axhline(tolerance, color=color, linestyle=":", linewidth=1)
    below.set(yscale="log", xlabel="optimizer step", ylabel="difference (dotted: tolerance of tier A)")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
