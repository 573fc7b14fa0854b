"""Configurations of transformers that are not its usual ones: each is loaded and equal, or refused by name, never another.

    python -m benchmarks.changed --n 400 --seed 0

takes a small model of any model type, changes one or two keys of its configuration, lets transformers build, save and load it,
and compares `jf.load` of the folder with it, in float64. It prints each configuration that is wrong, and how many are equal,
refused, wrong, or no model in transformers either; the exit code is 1 if any is wrong.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import torch
import transformers

import jaxformer as jf
from jaxformer.convert.model_type import ACTIVATIONS
from jaxformer.errors import JaxformerError
from jaxformer.parity.numerics.float64 import to_float64, torch_float64
from parity_tests.fast.test_model_types import call_jax, call_torch
from parity_tests.zoo.model_types import CASES, DYNAMIC, LINEAR, LLAMA3, YARN, Case, in_float64, make_case

Verdict = Literal["equal", "refused", "wrong", "no model"]
NAMES = [name for name in CASES if not name.endswith("base")]
ALLOWED = 1e-10
"""Largest difference, relative to the root mean square of torch's output."""
KEPT = {"architectures", "dtype", "id2label", "label2id", "model_type", "output_attentions", "output_hidden_states"}
KEPT |= {"return_dict", "transformers_version", "vocab_size", "num_labels", "torch_dtype", "problem_type"}
"""Keys that are not changed: what a call returns, the type of the numbers, and ids that a test gives."""
ROPES = (YARN, LLAMA3, LINEAR, DYNAMIC, {"rope_type": "default", "rope_theta": 30.0})
ODD = ("mish", "sigmoid", "gelu_10", "relu6", "linear")
"""Activations of transformers that jaxformer has not."""


OURS = Path(jf.__file__).parent


class Found(NamedTuple):
    """Verdict on a changed configuration."""

    verdict: Verdict
    says: str
    """Reason of a refusal, or what differs."""


def other_value(name: str, value: Any, rng: np.random.Generator) -> Any:
    """Return another value of the same kind for a key of config.json."""
    if name == "rope_parameters":
        return dict(ROPES[rng.integers(len(ROPES))])
    match value:
        case bool():
            return not value
        case int():
            return int(rng.choice([1, 2, 3, 4, 6, 8, 12, 24]))
        case float():
            return float(value * rng.choice([0.25, 0.5, 2.0, 3.0])) if value else 0.5
        case str():
            return str(rng.choice([*ACTIVATIONS, *ODD]))
        case list() if value:
            return [value[i] for i in rng.integers(len(value), size=len(value))]
        case None:
            return rng.choice(np.asarray([True, 2, 4, 0.5], object))
    return value


def change(name: str, rng: np.random.Generator) -> dict[str, Any]:
    """Return one or two keys of a case's configuration with other values; a description that lies within it is whole."""
    described = getattr(transformers, CASES[name][0]).config_class(**CASES[name][1]).to_dict()
    within = {key: value for key, value in described.items() if key.endswith("_config") and isinstance(value, dict)}
    values = {(key,): value for key, value in described.items() if key not in within}
    values |= {(part, key): value for part, its in within.items() for key, value in its.items()}
    keys = sorted(key for key, value in values.items() if key[-1] not in KEPT and value not in ({}, []))
    changes: dict[str, Any] = {}
    for i in rng.choice(len(keys), size=int(rng.integers(1, 3)), replace=False):
        *part, key = keys[i]
        place = changes.setdefault(part[0], dict(within[part[0]])) if part else changes
        place[key] = other_value(key, values[keys[i]], rng)
    return changes


def judge(name: str, changes: Mapping[str, Any], folder: Path) -> Found:
    """Write and load a case with changed keys, and compare the two models."""
    try:
        case = make_case(name, folder, changes)
    except JaxformerError as error:
        return Found("refused", str(error).partition(": ")[2])
    except Exception as error:  # transformers takes few values, and says so in many ways
        ours = any(Path(frame.filename).is_relative_to(OURS) for frame in traceback.extract_tb(error.__traceback__))
        return Found("wrong" if ours else "no model", f"{type(error).__name__}: {error}")
    try:
        theirs = in_float64(case)
        with torch_float64(), torch.no_grad():
            reference = call_torch(theirs).numpy()
    except Exception as error:
        return Found("no model", f"{type(error).__name__}: {error}")
    return compared(case, reference)


def compared(case: Case, reference: np.ndarray) -> Found:
    """Compare jax's output with torch's."""
    if not np.isfinite(reference).all():
        return Found("no model", "its output is not finite")
    try:
        with jax.enable_x64(True):
            found = np.asarray(jax.jit(call_jax)(to_float64(case.jax)))
    except JaxformerError as error:
        return Found("refused", str(error))
    except Exception as error:
        return Found("wrong", f"{type(error).__name__}: {error}")
    if found.shape != reference.shape:
        return Found("wrong", f"{found.shape} for {reference.shape}")
    off = np.abs(found - reference).max() / max(float(np.sqrt(np.square(reference).mean())), 1e-30)
    return Found("equal" if off < ALLOWED else "wrong", f"{off:.1e} off")


def run(n: int, seed: int, *, verbose: bool = False) -> Counter[Verdict]:
    """Judge n changed configurations; print those that are wrong, and with `verbose` all."""
    counted = Counter[Verdict]()
    for i in range(n):
        rng = np.random.default_rng([seed, i])
        name = NAMES[rng.integers(len(NAMES))]
        changes = change(name, rng)
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            found = judge(name, changes, Path(place) / "it")
        counted[found.verdict] += 1
        if verbose or found.verdict == "wrong":
            print(f"{i:4} {found.verdict:8} {name}: {changes}: {found.says:.160}", flush=True)
    return counted


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400, help="number of configurations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print every configuration")
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    counted = run(given.n, given.seed, verbose=given.verbose)
    print(", ".join(f"{counted[verdict]} {verdict}" for verdict in ("equal", "refused", "wrong", "no model")))
    print(f"jaxformer {jf.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    sys.exit(1 if counted["wrong"] else 0)


if __name__ == "__main__":
    main()
