"""`jaxformer plot`: pictures of positions, masks, attention, alignments, losses and reports."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from jaxformer.cli.flags import parse
from jaxformer.errors import InputError, first_line, printable
from jaxformer.plots.style import check_can_plot, check_picture, write
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache
from jaxformer.validation.fields import check_file, check_size, read_small

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 4096
"""Maximum number of positions, and of units, that are drawn."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Draw positions as a heat map, and beside it how alike two positions are at each distance."""

    folder: tyro.conf.Positional[Path | None] = None
    """A run or a model whose own positions are drawn: learned, fixed or rotary. None: --kind."""
    kind: Literal["sinusoid", "sinusoid_blocks", "rotary"] = "sinusoid"
    """Kind of positions. Of rotary ones the cosines of all angles are drawn, then the sines."""
    positions: int = 128
    """Number of positions, of a folder's at most its context."""
    d_model: int = 64
    """Width of a position; of rotary ones, of a head."""
    out: Path = Path("positions.png")
    """The picture to write."""

    def __post_init__(self) -> None:
        check_size("positions", self.positions, least=2, most=MOST)
        check_size("d_model", self.d_model, least=2, most=MOST)
        if self.kind == "rotary" and self.d_model % 2:
            raise InputError(f"d_model = {self.d_model} is odd, and rotary positions turn pairs of units; give an even number")
        check_picture(self.out)


def positions(arguments: list[str]) -> None:
    """Write the picture, and print its path."""
    flags = parse(Positions, arguments, prog="jaxformer plot positions")
    check_can_plot("plot")
    from jaxformer.plots.positions import draw_positions, read_table, table_of

    if flags.folder is None:
        title, table = flags.kind, table_of(flags.kind, flags.positions, flags.d_model)
    else:
        title, table = read_table(flags.folder, flags.positions)
    finish(draw_positions(table, title), flags.out)


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Draw the masks of attention beside each other."""

    tokens: int = 8
    """Length of the sequence."""
    window: int = 3
    """Tokens that a sliding window reaches, the query's own among them."""
    prefix: int = 3
    """First tokens, which every query reads."""
    padding: int = 2
    """Last tokens, which are padding."""
    out: Path = Path("masks.png")
    """The picture to write."""

    def __post_init__(self) -> None:
        check_picture(self.out)


def masks(arguments: list[str]) -> None:
    """Write the picture, and print its path."""
    flags = parse(Masks, arguments, prog="jaxformer plot masks")
    check_can_plot("plot")
    from jaxformer.plots.masks import draw_masks, usual_masks

    finish(draw_masks(usual_masks(flags.tokens, flags.window, flags.prefix, flags.padding)), flags.out)


@dataclass(frozen=True, kw_only=True)
class Attention(CacheFlag):
    """Draw what each head of a saved model reads, as it reads a text, or writes the target of a source."""

    folder: tyro.conf.Positional[Path]
    """The run folder, or a folder that transformers wrote, with its tokenizer.json."""
    text: tyro.conf.Positional[str]
    """The text; of an encoder-decoder the source, whose target it writes itself."""
    part: Literal["encoder", "decoder", "cross"] | None = None
    """Attention of an encoder-decoder: of the source, of the target, or of the target on the source. None: cross."""
    out: Path = Path("attention.png")
    """The picture to write."""

    def __post_init__(self) -> None:
        check_picture(self.out)


def attention(arguments: list[str]) -> None:
    """Write the picture, and print its path."""
    flags = parse(Attention, arguments, prog="jaxformer plot attention")
    check_can_plot("plot")
    use_cache(flags.cache)
    from jaxformer.plots.attention import draw_heads
    from jaxformer.plots.reading import attention_of

    found = attention_of(flags.folder, flags.text, flags.part)
    finish(draw_heads(*found, f"{flags.part or 'attention'} of {flags.folder.name}"), flags.out)


@dataclass(frozen=True, kw_only=True)
class Alignment(CacheFlag):
    """Draw which source token a translator reads as it writes each target token: the mean over the heads of its last layer."""

    folder: tyro.conf.Positional[Path]
    """The run folder, or a folder that transformers wrote, with its tokenizer.json."""
    text: tyro.conf.Positional[str]
    """The source."""
    out: Path = Path("alignment.png")
    """The picture to write."""

    def __post_init__(self) -> None:
        check_picture(self.out)


def alignment(arguments: list[str]) -> None:
    """Write the picture, and print its path."""
    flags = parse(Alignment, arguments, prog="jaxformer plot alignment")
    check_can_plot("plot")
    use_cache(flags.cache)
    from jaxformer.plots.attention import draw_alignment
    from jaxformer.plots.reading import alignment_of

    found = alignment_of(flags.folder, flags.text)
    finish(draw_alignment(found.weights[-1].mean(0), found.keys, found.queries), flags.out)


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Draw the losses of runs, also of one that is still being written: as far as it has come."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders; of several runs all are in one picture."""
    out: Path = Path("losses.png")
    """The picture to write."""

    def __post_init__(self) -> None:
        if not self.folders:
            raise InputError("no run is given; give one or more folders of runs")
        if twice := next((folder for folder in self.folders if self.folders.count(folder) > 1), None):
            raise InputError(f"{twice} is given twice; give each run once")
        check_picture(self.out)


def losses(arguments: list[str]) -> None:
    """Write the picture, and print its path."""
    flags = parse(Losses, arguments, prog="jaxformer plot losses")
    check_can_plot("plot")
    from jaxformer.plots.losses import draw_losses
    from jaxformer.plots.of_run import read_losses
    from jaxformer.runs.lock import writer_of

    curves = {str(folder): read_losses(folder) for folder in flags.folders}
    finish(draw_losses(curves), flags.out)
    for folder in flags.folders:
        if owner := writer_of(folder):
            print(printable(f"{folder} is still being written by {owner}: the picture shows what it has so far"))


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Draw the error of each module over depth: in the normal run, and of the module alone."""

    report: tyro.conf.Positional[Path]
    """A report that `jaxformer parity compare --json` or Report.to_json wrote."""
    out: Path = Path("parity.png")
    """The picture to write."""

    def __post_init__(self) -> None:
        check_picture(self.out)


def parity(arguments: list[str]) -> None:
    """Write the picture, and print its path."""
    flags = parse(Parity, arguments, prog="jaxformer plot parity")
    check_can_plot("plot")
    from jaxformer.parity.report.report import Report
    from jaxformer.plots.parity import draw_errors

    try:
        report = Report.from_json(read_small(check_file(flags.report)).decode("utf-8"))
        figure = draw_errors(report)
    except FileNotFoundError:
        raise InputError(f"{flags.report} is not there; give a report that --json wrote") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{flags.report} cannot be drawn: {first_line(error)}") from None
    finish(figure, flags.out)


def finish(figure: "Figure", out: Path) -> None:
    """Write a figure, and print its path."""
    write(figure, out)
    print(printable(f"saved to {out}"))
