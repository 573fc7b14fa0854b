"""The figures that README.md and docs/*.md quote, as the code has them.

    python -m tests.figures

writes them anew into these files, for instance after a mutant was added. The tables between `<!-- bench -->` and `<!-- end -->`
are written from docs/performance.json, where it exists: `jaxformer bench train --json docs/performance.json` adds to it.
"""

import re
from pathlib import Path

from benchmarks.clean import Clean
from benchmarks.field_kinds import KINDS
from jaxformer.bench.results import markdown, read_results, short_markdown
from jaxformer.convert.registry import FAMILIES, MODEL_TYPES
from jaxformer.evaluation.mutants import MUTANTS
from tests.tricky import TRICKY

ROOT = Path(__file__).parent.parent

MODULES = [mutant for mutant in MUTANTS if mutant.diverging]
"""The gate asserts of each that its module is named."""
CAUSES = [mutant for mutant in MUTANTS if mutant.diverging or mutant.says]
"""Those whose cause is asked for."""
RIGHT = [mutant for mutant in MUTANTS if mutant.cause or mutant.says]
"""Those that declare one. The gate asserts of each that it is named; where none is declared, it counts as not right."""

FIGURES: dict[str, tuple[int, ...]] = {
    r"(\d+)/(\d+) mutants killed": (len(MUTANTS), len(MUTANTS)),
    r"(\d+)/(\d+) noticed; of the (\d+) with one module to blame, (\d+) named right; of the (\d+) with one cause, (\d+)": (
        *(len(MUTANTS), len(MUTANTS), len(MODULES), len(MODULES), len(CAUSES), len(RIGHT)),
    ),
    r"modules? named right: (\d+) of (\d+)": (len(MODULES), len(MODULES)),
    r"causes? named right: (\d+) of (\d+) \((\d+) %\)": (len(RIGHT), len(CAUSES), round(100 * len(RIGHT) / len(CAUSES))),
    r"(\d+)/(\d+) equal": (Clean().count, Clean().count),
    r"(\d+) Flax models of transformers": (len(KINDS),),
    r"(\d+) are equal": (len([kind for kind in KINDS if not kind.differs]),),
    r"(\d+) tricky strings": (len(TRICKY),),
    r"the (\d+) model types": (len(MODEL_TYPES),),
}
"""Pattern -> its numbers. Every one of them is somewhere, and wherever it is, its numbers are these."""
NAMES = tuple(name for name in FAMILIES if name not in ("twin", "torch_attention_widths"))
"""Of the families of other people's checkpoints: each stands in backticks somewhere. The last is a case of torch_attention."""


def documents() -> list[Path]:
    """README.md and docs/*.md."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


TABLES = {"bench": markdown, "bench in short": short_markdown}
"""Between these marks in a document -> what writes it from the results of `jaxformer bench`."""
MEASURED = ROOT / "docs/performance.json"


def with_tables(text: str, path: Path = MEASURED) -> str:
    """The text with every table of speed as it was measured."""
    if results := read_results(path):
        for mark, write in TABLES.items():
            between = rf"(?<=<!-- {mark} -->\n).*?(?=<!-- end -->)"
            text = re.sub(between, lambda _, write=write: f"\n{write(results)}\n\n", text, flags=re.S)
    return text


def corrected(text: str) -> str:
    """The text with every figure as it is in the code, and every table as it was measured."""
    text = with_tables(text)
    for pattern, numbers in FIGURES.items():
        text = re.sub(pattern, lambda match, numbers=numbers: _with(match, numbers), text)
    return text


def _with(match: re.Match[str], numbers: tuple[int, ...]) -> str:
    left = iter(numbers)
    return re.sub(r"\d+", lambda _: str(next(left)), match[0])


def main() -> None:
    """Write the figures, and name the files that changed."""
    for path in documents():
        text = path.read_text("utf-8")
        if corrected(text) != text:
            path.write_text(corrected(text), "utf-8")
            print(f"{path.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
