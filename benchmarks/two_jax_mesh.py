"""Compare a user's model on one device with the same, written by hand for a mesh, on eight simulated devices.

    JAX_NUM_CPU_DEVICES=8 python -m benchmarks.two_jax_mesh

The model of `benchmarks.two_jax_mesh_model` is compared as it is, and with each of 15 mistakes of sharded code; each has to be
noticed, and the verdict has to name the axis of the mesh.
"""

import time
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.field_source import planted
from benchmarks.two_jax_mesh_model import LENGTH, ROWS, SHAPES, VOCAB
from jaxformer.cli.flags import parse, run
from jaxformer.errors import InputError, ParityError
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report

MODEL = "benchmarks.two_jax_mesh_model"
DEVICES = 8


class Mistake(NamedTuple):
    """Mistake: a text of a function of the model, what stands in its place, and the axis that has to be named."""

    name: str
    where: str
    old: str
    new: str
    axis: str = "part"


SCATTER = 'jax.lax.psum_scatter(jax.nn.relu(h) @ down, "part", scatter_dimension=1, tiled=True)'
OWN_SLICE = '(jax.nn.relu(h) @ down).reshape(len(x), PARTS, -1, WIDTH)[:, jax.lax.axis_index("part")]'
TOTAL, MOST = 'jax.lax.psum(powers.sum(1, keepdims=True), "part")', "jax.lax.stop_gradient(scores).max(1, keepdims=True)"
AROUND = "[(i, (i + 1) % PARTS) for i in range(PARTS)]"
UPWARDS = '[(i, i + 1) for i in range(jax.lax.axis_size("part") - 1)]'
VARIANCE = "((h - mean) ** 2).mean(-1, keepdims=True)"
MISTAKES = (
    Mistake("a sum left out", "units", SCATTER, OWN_SLICE),
    Mistake("a mean for a sum", "units", SCATTER, f"{SCATTER} / PARTS"),
    Mistake("a sum taken twice", "ends", TOTAL, f'jax.lax.psum({TOTAL}, "part")'),
    Mistake("a mean along another axis", "ends", 'pmean(x.mean(1), "part")', 'pmean(x.mean(1), "data")'),
    Mistake(
        "parts in another order",
        "tokens",
        'x @ p["value"], "part"',
        f'jax.lax.ppermute(x @ p["value"], "part", {AROUND}), "part"',
    ),
    Mistake("sent the other way", "tokens", UPWARDS, "[(i + 1, i) for i in range(PARTS - 1)]"),
    Mistake("sent around", "tokens", UPWARDS, AROUND),
    Mistake("softmax by own sums", "ends", TOTAL, "powers.sum(1, keepdims=True)"),
    Mistake("softmax by own maxima", "ends", f'jax.lax.pmax({MOST}, "part")', MOST),
    Mistake("a norm's own statistics", "units", f'jax.lax.pmean({VARIANCE}, "part")', VARIANCE),
    Mistake(
        "a remainder dropped",
        "ends",
        "(powers[..., None] * x).sum(1)",
        "(powers[..., None] * x)[:, : x.shape[1] // 4 * 4 or 1].sum(1)",
    ),
    Mistake("positions from 0", "tokens", 'p["positions"][places]', 'p["positions"][jnp.arange(n)]'),
    Mistake("a mask from 0", "tokens", 'rows = jax.lax.axis_index("part") * n + jnp.arange(n)', "rows = jnp.arange(n)"),
    Mistake("a mean over own tokens", "ends", 'jax.lax.pmean(x.mean(1), "part")', "x.mean(1)"),
    Mistake("a gradient of own rows", "ends", 'jax.lax.pmean(gradient, "data")', "gradient", "data"),
)


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Compare a model on one device with the same on a mesh of eight simulated devices."""

    only: tuple[str, ...] = ()
    """Names of mistakes; none given: all."""


def main(arguments: list[str]) -> None:
    """Print the verdict on the model as it is, and with each mistake; ParityError if one is not as expected."""
    flags = parse(Mesh, arguments, prog="python -m benchmarks.two_jax_mesh")
    if jax.device_count() < DEVICES:
        raise InputError(f"there are {jax.device_count()} devices; set JAX_NUM_CPU_DEVICES={DEVICES}")
    if unknown := {*flags.only} - {mistake.name for mistake in MISTAKES}:
        raise InputError(f"only = {unknown.pop()} is not one of {', '.join(mistake.name for mistake in MISTAKES)}")
    report = compared()
    print(f"{'as it is':26} {report.verdict}", flush=True)
    failed = ["as it is"] if report.exit_code else []
    chosen = [mistake for mistake in MISTAKES if not flags.only or mistake.name in flags.only]
    noticed = 0
    for mistake in chosen:
        start = time.perf_counter()
        with planted(MODEL, mistake.where, mistake.old, mistake.new):
            report = compared()
        noticed += report.exit_code == 1
        failed += [] if report.exit_code == 1 and f"'{mistake.axis}'" in report.verdict else [mistake.name]
        print(f"{mistake.name:26} {time.perf_counter() - start:5.1f} s  {report.verdict}", flush=True)
    print(f"{noticed}/{len(chosen)} noticed, {len(chosen) - len({*failed} - {'as it is'})}/{len(chosen)} with the axis")
    if failed:
        raise ParityError(f"not as expected: {', '.join(failed)}")


def compared() -> Report:
    """Compare the model as its source is now."""
    model = import_module(MODEL)
    params = excite({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, seed=0)
    ids = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH), dtype=np.int32)
    calls = {"call_torch": model.one_device, "call_jax": model.on_mesh}
    return compare(params, params, (ids,), **calls, tier="A", checks=("weights", "forward", "local"), search_seconds=300)


if __name__ == "__main__":
    run(main)
