"""`jaxformer runs compare`: two watched runs on one page, and the first step at which they part."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.errors import printable
from jaxformer.io.atomic import write_text


@dataclass(frozen=True, kw_only=True)
class CompareRuns:
    """Compare two watched runs, torch's and JAX's or any two: losses and norms of both on one page, and the first step at
    which they differ by more than rounding. Exit code 0: there is none; 1: there is one; 2: they could not be compared.
    """

    first: tyro.conf.Positional[Path]
    """Folder of a run that was watched: by --watch, jf.watch or jf.watch_torch."""
    second: tyro.conf.Positional[Path]
    """Folder of another one, watched at the same steps."""
    html: Path = Path("compared.html")
    """The page to write."""


def main(arguments: list[str]) -> int:
    """Print one line and write the page; return 1 if the runs diverge."""
    from jaxformer.runs.compare_page import page  # imports jax
    from jaxformer.runs.compared import Run, compare

    asked = parse(CompareRuns, arguments, prog="jaxformer runs compare")
    comparison = compare(Run.read(asked.first), Run.read(asked.second))
    write_text(asked.html, page(comparison), "name another file with --html")
    print(printable(f"{comparison.verdict} · page {asked.html}"))
    return int(comparison.divergence is not None)
