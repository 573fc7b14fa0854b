"""Worker process of a measurement: `python -m jaxformer.bench.worker REQUEST`, with a line of JSON for each answer.

The request names a task. `peak` measures the machine. `prepare` makes a problem. `side` loads one side; it answers the values
to compare, then the seconds of the warm-up and of a round for each input line, and after `end` its memory and figures.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxformer.bench.runners import KIBIBYTES
from jaxformer.errors import JaxformerError, first_line

Answer = Callable[[dict[str, Any]], None]


def main() -> None:
    """Answer on standard output, which nothing else may write to."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=out, flush=True)

    request = json.loads(sys.argv[1])
    try:
        TASKS[request.pop("task")](answer, **request)
    except (JaxformerError, MemoryError) as error:
        answer({"refused": first_line(error)})


def peak(answer: Answer, device: str) -> None:
    """Answer the device's peak."""
    from jaxformer.bench.limits import measure_peak

    answer(vars(measure_peak(device)))


def prepare(answer: Answer, item: str, folder: str, options: dict[str, Any]) -> None:
    """Prepare the problem of an item, and answer its cost."""
    from jaxformer.bench.items import find_item
    from jaxformer.bench.limits import cost_of
    from jaxformer.bench.prepare import prepare

    answer(cost_of(prepare(find_item(item), Path(folder), options))._asdict())


def side(answer: Answer, group: Any, peer: str, folder: str, count: int, validate: bool) -> None:
    """Run one side of an item."""
    from jaxformer.bench.items import make_side
    from jaxformer.bench.problems import load_problem

    made: Any = make_side(group, peer, Path(folder), count)
    answer({"check": made.check()})
    lines = iter(sys.stdin)
    rounds(answer, made, lines)
    figures = {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTES, **made.figures()}
    if validate:
        figures["validation_loss"] = made.mean_loss(load_problem(Path(folder)).held_out)
    answer(figures)


def rounds(answer: Answer, made: Any, lines: Iterable[str]) -> None:
    """Warm up at the first line, and run a round at each other line; answer the seconds."""
    work = made.warm_up
    for line in lines:
        if line.strip() == "end":
            return
        start = time.perf_counter()
        work()
        answer({"seconds": time.perf_counter() - start})
        work = made.run


TASKS = {"peak": peak, "prepare": prepare, "side": side}

if __name__ == "__main__":
    main()
