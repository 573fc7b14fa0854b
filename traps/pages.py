"""Pages of the traps: their code as it is in the files, and what the comparison says of it."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import jaxformer as jf
from traps import PAGES, TRAPS, UNNAMED
from traps.run import report_of

FOLDER = Path(__file__).parents[1] / "docs/traps"
WIDEST = 220
"""Number of characters after which a line of a report is cut."""
INTRODUCTION = """# {title}

Written by `python -m traps` from `traps/{folder}`; do not edit. Each trap has PyTorch's module, a port that is wrong, what
`jf.compare` says of it in tier A (float64), and a port that is equal. The ports are functions of torch's parameters by name, or
NNX modules with torch's weights. Of a report, checks that are equal and residuals are left out, and a line ends after {widest}
characters.
"""
INDEX = FOLDER.with_suffix(".md")
CONTENTS = """# Porting PyTorch to JAX: forty traps

Written by `python -m traps`; do not edit. Forty places where a port of a PyTorch model to JAX goes wrong while every shape
fits, each with a small module, a wrong port, what the comparison says of it, and the right port. The files are in `traps/` of
the checkout. The ports of the [exercises](exercises.md) are larger, have one bug, and do not say which.

The comparison finds all forty wrong ports different and all forty right ones equal. Of {named} of the wrong ones it names the
cause, of the other {blind} the check and the place (marked below).
"""
NAMED, BLIND = "The cause is named.", "The cause is not named: the report says which check differs, and where."
CAUSE = re.compile(r"torch .+; jax |jax (adds|moves|looks up|as if)|where jax's is not|torch gives")
"""What a verdict with a cause has: what torch does and what JAX does, or what JAX does otherwise."""


def page(folder: str, first: int) -> str:
    """Write the page of a folder of traps; `first` is the number of its first trap."""
    title, names = PAGES[folder]
    parts = [INTRODUCTION.format(title=title, folder=folder, widest=WIDEST)]
    for number, name in enumerate(names.split(), first):
        parts.append(section(number, importlib.import_module(f"traps.{folder}.{name}")))
    return "\n".join(parts)


def section(number: int, trap: Any) -> str:
    """Write the section of one trap."""
    title, _, why = (trap.__doc__ or "").partition("\n")
    source, wrong, right = code_of(trap)
    report = report_of(trap, "wrong")
    told = NAMED if names_cause(report) else BLIND
    parts = [
        f"## {number}. {title.rstrip('.')}",
        why.strip(),
        f"```python\n{source}\n```",
        f"Wrong:\n\n```python\n{wrong}\n```",
        f"```text\n{shortened(report)}\n```",
        f"{told} Right:\n\n```python\n{right}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def code_of(trap: Any) -> tuple[str, str, str]:
    """Cut a trap's file into torch's side with the inputs, the wrong port with what it needs, and the right one."""
    text = inspect.getsource(trap)
    lines, body = text.splitlines(), ast.parse(text).body
    starts = {getattr(node, "name", ""): node.lineno - 1 for node in body}
    named = [(node.targets[0], node.end_lineno or 0) for node in body if isinstance(node, ast.Assign)]
    ends = {target.id: last for target, last in named if isinstance(target, ast.Name)}
    wrong, right = (starts.get(name, starts.get(name.capitalize(), 0)) for name in ("wrong", "right"))
    first = next(node.lineno - 1 for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom))
    split = max([ends.get("INPUTS", 0), ends.get("OPTIONS", 0), ends.get("LAYOUT", 0)]) or starts.get("clip", wrong)
    cut = ["\n".join(lines[a:b]).strip("\n") for a, b in ((first, split), (split, right), (right, len(lines)))]
    return cut[0], cut[1], cut[2]


def shortened(report: jf.Report) -> str:
    """Shorten a report by rule: without equal checks, notes of what is not compared, residuals, and the ends of long lines."""
    equal = {stage.name for stage in report.stages if stage.status in ("equal", "n/a")}
    kept = []
    for line in str(report).splitlines():
        name = re.split(r"  +", line)[0]
        if name in equal or line.startswith(("not compared", "not covered", "taps not")):
            continue
        line = re.sub(r" \(residual [^()]*\)", "", line)
        kept.append(line if len(line) <= WIDEST else f"{line[:WIDEST]}...")
    return "\n".join(kept)


def names_cause(report: jf.Report) -> bool:
    """True if the report tells what torch does and what JAX does, beyond where they differ."""
    return bool(CAUSE.search(report.verdict)) and "tried: " not in report.verdict and "comes to" not in report.verdict


def index() -> str:
    """Write the list of all traps."""
    parts, first = [CONTENTS.format(named=len(TRAPS) - len(UNNAMED), blind=len(UNNAMED))], 1
    for folder, (title, names) in PAGES.items():
        parts.append(f"## [{title}](traps/{folder}.md)\n")
        for number, name in enumerate(names.split(), first):
            said = (importlib.import_module(f"traps.{folder}.{name}").__doc__ or "").partition("\n")[0].rstrip(".")
            parts.append(f"{number}. {said}{' (the place)' if f'{folder}.{name}' in UNNAMED else ''}")
        first += len(names.split())
        parts.append("")
    return "\n".join([*parts, "```{toctree}", ":hidden:", "", *(f"traps/{folder}" for folder in PAGES), "```", ""])


def main() -> None:
    """Write all pages, and count the causes that are named."""
    FOLDER.mkdir(exist_ok=True)
    INDEX.write_text(index(), "utf-8")
    first, named = 1, 0
    for folder, (title, names) in PAGES.items():
        text = page(folder, first)
        (FOLDER / f"{folder}.md").write_text(text, "utf-8")
        first, named = first + len(names.split()), named + text.count(NAMED)
        print(f"docs/traps/{folder}.md · {title} · {text.count(NAMED)} of {len(names.split())} causes named")
    print(f"{named} of {first - 1} causes named")
