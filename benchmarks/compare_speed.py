"""Measure the time and memory of a whole `compare`, each case in a process of its own."""

import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from jaxformer.cli.flags import parse, run
from jaxformer.validation.fields import check_choice

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"vocab": 23, "length": 12, "width": 24, "layers": 2, "heads": 4},
    "readme": {"vocab": 65, "length": 32, "width": 48, "layers": 3, "heads": 4},
    "small": {"vocab": 50257, "length": 64, "width": 768, "layers": 12, "heads": 12},
}
CASES = {"clean": ("tiny", False), "bug": ("tiny", True), "readme": ("readme", True), "gpt2": ("small", True)}
"""Cases by name: the sizes of a GPT-2, and True for the bug of gelu by erf in the place of gelu by tanh."""


@dataclass(frozen=True, kw_only=True)
class CompareSpeed:
    """Measure whole comparisons: wall time and processor time in seconds, memory, and compiled programs."""

    cases: tuple[str, ...] = ("clean", "bug", "readme")
    """Names of cases: clean, bug, readme, gpt2 (124 M parameters)."""
    rounds: int = 3
    """Number of runs of each case, in turns; the minimum is shown."""


def main(arguments: list[str]) -> None:
    """Print the table."""
    flags = parse(CompareSpeed, arguments, prog="python -m benchmarks.compare_speed")
    for name in flags.cases:
        check_choice("cases", name, CASES)
    found: dict[str, list[list[float]]] = {name: [] for name in flags.cases}
    for _ in range(flags.rounds):
        for name in flags.cases:
            command = [sys.executable, "-c", f"import benchmarks.compare_speed as it; it.measured({name!r})"]
            said = subprocess.run(command, check=True, capture_output=True, text=True)
            found[name].append([float(each) for each in said.stdout.split()[-3:]] + [len(re.findall(COMPILED, said.stderr))])
    print("| case | s | s of processor | GB | programs |\n|---|---|---|---|---|")
    for name, rows in found.items():
        wall, processor, memory, programs = map(min, zip(*rows, strict=True))
        print(f"| {name} | {wall:.1f} | {processor:.1f} | {memory:.1f} | {programs:.0f} |")


COMPILED = "Finished XLA compilation"
"""Text that JAX logs for each compiled program."""


def measured(name: str) -> None:
    """Run one case, and print its wall time, processor time and memory."""
    import jax

    compared = comparison(*CASES[name])
    begun, used = time.perf_counter(), time.process_time()
    with jax.log_compiles():
        compared()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(time.perf_counter() - begun, time.process_time() - used, memory)


def comparison(size: str, bug: bool) -> Any:
    """Prepare a comparison of transformers' GPT-2 with ours, ready to run."""
    import transformers

    import jaxformer as jf

    vocab, length, width, layers, heads = SIZES[size].values()
    sizes: dict[str, Any] = {
        "n_positions": length,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    theirs = jf.excite(transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab, **sizes)).eval(), seed=0)
    config = replace(jf.preset("gpt2_small"), vocab_size=vocab, context=length, d_model=width, n_layers=layers, n_heads=heads)
    config = replace(config, d_ff=4 * width, **({"activation": "gelu"} if bug else {}))
    port, ids = jf.from_torch(theirs, jf.abstract(config), "gpt2"), jf.probe(vocab=vocab, length=length)[0]
    ids = ids[:1] if size == "small" else ids
    return lambda: jf.compare(theirs, port, (ids,), rules="gpt2", call_torch=lambda model, ids: model(ids.long()).logits)


if __name__ == "__main__":
    run(main)
