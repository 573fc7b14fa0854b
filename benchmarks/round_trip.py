"""Check dumps that another environment wrote: the verdicts and causes have to be the same, word for word but for rounding.

    python -m benchmarks.round_trip write FOLDER    (with torch and transformers)
    python -m benchmarks.round_trip check FOLDER    (in any environment, torch or none)

`write` also checks the dumps and keeps the results beside them. With --brief after the first word, only the first two ports of
each small torch model are checked.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import round_trip_ports as ports
from jaxformer.errors import InputError
from jaxformer.parity.numerics.jax_operations import are_unset
from jaxformer.parity.recorded import check, dump
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.archive import load

SAYS = "says.json"
TOLD = r"jax reads jnp\.empty, which is uninitialised since jax 0\.11 \(at \S*round_trip_ports\.py:\d+\); use jnp\.zeros"


@dataclass(frozen=True)
class Kind:
    """torch model and its ports, of which some are right and others have one bug each."""

    torch_model: str
    """Name of a function of `round_trip_torch`, which is only imported where torch is installed."""
    inputs: Callable[[], tuple[np.ndarray, ...]]
    ports: ports.Ports
    call: str = "apply"
    """Name of the function of the same file that calls the torch model."""
    rules: str | None = None
    mode: Any = "eval"
    is_small: bool = True


KINDS: dict[str, Kind] = {
    "gpt2": Kind("gpt2", ports.ids, ports.GPT2, "call_gpt2", rules="gpt2"),
    "translator": Kind("translator", ports.pairs, ports.TRANSLATOR, "call_twin", rules="twin", is_small=False),
    "functions": Kind("layers", ports.rows, ports.FUNCTIONS),
    "linen": Kind("layers", ports.rows, ports.LINEN),
    "dropout": Kind("dropped", ports.rows, ports.DROPPED, mode="train"),
}


def said(report: Report) -> dict[str, Any]:
    """Return the parts of a report that have to be the same: the verdict, the checks and the causes."""
    stages = [f"{stage.name}: {stage.status}" for stage in report.stages]
    causes = [f"{module.name}: {module.cause or module.looks}" for module in report.diverging]
    return {"verdict": report.verdict, "checks": stages, "causes": causes}


def without_rounding(said: Any) -> str:
    """Remove residuals that are rounding, as 4e-16 or 0e+00, from words: compilers round in different ways."""
    return re.sub(r" \(residual (\de-1[4-9]|0e\+00)\)", "", json.dumps(said))


def checked(folder: Path, few: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Check each port, and yield its name, such as 'gpt2, relu', and the parts of its report; `few`: ports of a small model."""
    for name, kind in KINDS.items():
        reference = load(folder / name)
        for port, make in [*kind.ports.items()][: None if few is None else few * kind.is_small]:
            model, call = make(reference.weights)
            report = check(reference, model, rules=kind.rules, call_jax=call)
            yield f"{name}, {port}", said(report)


def write(folder: Path, few: int | None) -> None:
    """Write dumps of all torch models, and the results of the ports in this environment."""
    from benchmarks import round_trip_torch

    folder.mkdir(parents=True)
    for name, kind in KINDS.items():
        model, call = getattr(round_trip_torch, kind.torch_model)(), getattr(round_trip_torch, kind.call)
        dump(model, kind.inputs(), folder / name, call_torch=call, mode=kind.mode)
    (folder / SAYS).write_text(json.dumps(dict(checked(folder, few)), indent=1), "utf-8")


def compare(folder: Path, few: int | None) -> tuple[int, int]:
    """Check the dumps here; return the number of equal verdicts, and of all. Results that differ are printed with the written
    ones."""
    wanted, same, count = json.loads((folder / SAYS).read_text("utf-8")), 0, 0
    for name, found in checked(folder, few):
        count += 1
        if without_rounding(found) == without_rounding(wanted[name]):
            same += 1
            continue
        for part, here in found.items():
            if without_rounding(here) != without_rounding(wanted[name][part]):
                print(f"{name}: {part}\n  written: {wanted[name][part]}\n  here:    {here}")
    return same, count


def tells_unset(folder: Path) -> bool:
    """True if the report names `jnp.empty` where this jax leaves it uninitialised, and finds the port equal elsewhere."""
    reference = load(folder / "functions")
    model, call = ports.UNSET(reference.weights)
    report = check(reference, model, call_jax=call, checks=("weights", "forward", "local"))
    if not are_unset():
        return report.status == "equal"
    return bool(re.search(TOLD, report.verdict))


def main(arguments: list[str]) -> int:
    """Run the command; exit code 1 if a verdict differs."""
    few = 2 if "--brief" in arguments else None
    match [each for each in arguments if each != "--brief"]:
        case ["write", folder]:
            write(Path(folder), few)
            print(f"{len(KINDS)} dumps written to {folder}")
            return 0
        case ["check", folder] if (Path(folder) / SAYS).is_file():
            begin = time.monotonic()
            same, count = compare(Path(folder), few)
            unset = "" if tells_unset(Path(folder)) else "; jnp.empty is not told"
            print(f"round trip: {same} of {count} verdicts and causes are the same{unset}, {time.monotonic() - begin:.0f} s")
            return int(same != count or bool(unset))
    raise InputError("give write FOLDER, or check FOLDER with what that wrote")


if __name__ == "__main__":
    from jaxformer.cli.flags import run

    run(lambda given: main(given))
