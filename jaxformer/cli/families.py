"""`jaxformer families`: the model types of transformers that folders are loaded from, and what the tests prove of each."""

import json
from dataclasses import dataclass
from importlib import resources

from jaxformer.cli.flags import parse

COLUMNS = ("forward", "gradients", "bits", "ids")
"""Proofs: outputs and gradients in float64 are torch's to rounding; a folder is read and written back bit for bit; greedy and
beam search write transformers' ids."""


@dataclass(frozen=True, kw_only=True)
class Families:
    """List the model types of transformers' folders, what each is loaded as, and what the tests prove of it."""

    json: bool = False
    """Print JSON instead of a table."""


def main(arguments: list[str]) -> None:
    """Print the list."""
    flags = parse(Families, arguments, prog="jaxformer families")
    from jaxformer.convert.registry import MODEL_TYPES

    proven = json.loads(resources.files("jaxformer.convert").joinpath("proven.json").read_text("utf-8"))
    rows = {
        name: {"class": kind.config.__name__.removesuffix("Config"), "proven": proven["types"].get(name, [])}
        for name, kind in sorted(MODEL_TYPES.items())
    }
    if flags.json:
        print(json.dumps({"versions": proven["versions"], "types": rows}, indent=1))
        return
    width = max(map(len, rows))
    print(f"{'model_type':{width}}  {'class':14}  {'  '.join(COLUMNS)}")
    for name, row in rows.items():
        marks = "  ".join(f"{'yes' if each in row['proven'] else '-':{len(each)}}" for each in COLUMNS)
        print(f"{name:{width}}  {row['class']:14}  {marks}".rstrip())
    versions = ", ".join(f"{name} {version}" for name, version in proven["versions"].items())
    print(f"forward, gradients: in float64, to rounding; bits: read and written back; ids: greedy and beam search ({versions})")
