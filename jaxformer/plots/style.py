"""Style of the pictures: colours that colour-blind readers tell apart, and files that are the same each time they are written.

Needs the `viz` extra.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.errors import InputError, MissingPackageError, first_line
from jaxformer.runtime.packages import extra_package

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAT, SIGNED, PAIR = "viridis", "cividis", ("#f3f1ec", "#0072B2")
"""Colour maps of amounts and of numbers with a sign, and the two colours of a mask: hidden and seen."""
LINES = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"
"""Colours of lines (Okabe and Ito 2008); what they tell apart, the markers tell apart too."""
MARKERS = "o", "s", "^", "D", "v", "P", "X"
KINDS = ".png", ".svg"
"""Suffixes of a picture's file."""
DOTS_PER_INCH = 110
MOST_LABELS = 64
"""Tokens that are written at an edge of a map; with more of them, their places are numbered instead."""


def can_plot() -> bool:
    """True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_can_plot(what: str) -> None:
    """Raise MissingPackageError if matplotlib is not installed, before anything is computed for `what`."""
    if not can_plot():
        raise MissingPackageError(f"{what} needs matplotlib; pip install 'jaxformer[viz]'")


@contextmanager
def plain_style() -> Iterator[None]:
    """Context manager: matplotlib's default style, since the user's settings may require a missing LaTeX, and our colours.

    MissingPackageError if matplotlib is not installed.
    """
    with extra_package():
        import matplotlib
        from cycler import cycler
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["axes.prop_cycle"] = cycler(color=LINES) + cycler(marker=MARKERS)
        matplotlib.rcParams["svg.hashsalt"] = "jaxformer"
        yield


def check_picture(path: Path) -> None:
    """Raise InputError if no picture can be written there, before anything is computed for it."""
    if path.suffix not in KINDS or not path.parent.is_dir():
        raise InputError(f"{path} cannot be written; name a {' or '.join(KINDS)} file in a folder that exists")


@plain_style()
def write(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG or SVG, without the time of writing; InputError if the file cannot be written."""
    check_picture(path)
    try:
        if path.suffix == ".svg":
            figure.savefig(path, metadata={"Date": None})
        else:
            path.write_bytes(as_png(figure))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or first_line(error)}") from None


@plain_style()
def as_png(figure: "Figure") -> bytes:
    """Return a figure as the bytes of a small PNG, of 256 colours."""
    from PIL import Image  # matplotlib needs it

    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH)
    Image.open(drawn).convert("RGB").quantize(256).save(small, "png", optimize=True)
    return small.getvalue()
