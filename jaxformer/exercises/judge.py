"""Judgement of a learner's port: by the comparison, and by numbers that a process of its own computes from the port.

The torch side comes from the package. The second judgement sees other weights and inputs than the first, and its process has
neither torch nor the judge, so that a port which changes the comparison, or asks torch, is not taken for a right one.
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import jaxformer
from jaxformer.errors import InputError
from jaxformer.exercises.apart import FAILED, of_kind
from jaxformer.exercises.catalogue import Exercise
from jaxformer.exercises.source import import_port, module_of
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import error
from jaxformer.parity.report.report import Report
from jaxformer.parity.runs.session import SECONDS

SHOWN, HIDDEN = 0, 1
"""Seeds of the weights and inputs of the comparison, and of the second judgement."""
TOLERANCE = 1e-10
"""Largest relL2 of the second judgement, in float64: a right port has rounding, 1e-13, and the smallest planted bug 1e-3."""
LONGEST = 300.0
"""Seconds after which a port that is computed apart is stopped."""
PORT, ORIGINAL = "port.py", "original.py"


def torch_side(exercise: Exercise, folder: Path) -> ModuleType:
    """Run the torch side that the package holds; reports name the learner's copy."""
    return module_of(exercise.original, folder / ORIGINAL)


def compared(exercise: Exercise, folder: Path, *, search_seconds: float = SECONDS) -> Report:
    """Compare the learner's port with torch, and search for the cause for at most `search_seconds`."""
    import jax.numpy as jnp

    from jaxformer.parity.compare import compare
    from jaxformer.parity.probe import excite
    from jaxformer.parity.training.trainers import TrainingSpec

    torch_module, port = torch_side(exercise, folder), import_port(folder / PORT)
    theirs, inputs = excite(torch_module.Model().eval(), SHOWN), torch_module.inputs(SHOWN)
    weights = {name: jnp.asarray(array) for name, array in arrays_of(theirs).items()}
    options: dict[str, Any] = {}
    if exercise.defines("optimizer"):
        options["training"] = TrainingSpec(
            batches=torch_module.batches(SHOWN),
            torch_loss=torch_module.loss,
            jax_loss=port.loss,
            torch_optimizer=torch_module.optimizer,
            torch_schedule=torch_module.schedule,
            jax_optimizer=port.optimizer(),
            clip_norm=torch_module.LIMIT,
        )
    if exercise.defines("steps"):
        prompt = inputs[0]
        options["generate"] = tuple(lambda model, side=side: side.steps(model, prompt) for side in (torch_module, port))
    return compare(theirs, port.make(weights), inputs, call_jax=port.call, tier="A", search_seconds=search_seconds, **options)


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Return the floats of a torch module's state by name."""
    state = model.state_dict()
    return {name: tensor.detach().numpy() for name, tensor in state.items() if tensor.is_floating_point()}


def differs(exercise: Exercise, folder: Path) -> str:
    """Compute the port apart, and compare its numbers with torch's; '' if they are equal.

    InputError, with the line of the port, if it raises.
    """
    file = folder / PORT
    if not file.is_file():
        begin = "`jaxformer exercise` with the number begins it"
        raise InputError(f"{file} is not there; {begin}, anew if you move {folder} away")
    with tempfile.TemporaryDirectory() as held:
        found, given = Path(held) / "found.npz", io.BytesIO()
        command = [sys.executable, "-P", "-m", "jaxformer.exercises.apart", str(file), str(found)]
        paths = [str(Path(jaxformer.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        pipe, environment = subprocess.PIPE, os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        with subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, env=environment) as started:
            try:
                with torch_float64():  # while that process imports jax
                    arrays, wanted = expected(exercise, torch_side(exercise, folder))
                np.savez(given, **arrays)
                _, said = started.communicate(given.getvalue(), timeout=LONGEST)
            except subprocess.TimeoutExpired:
                raise InputError(f"{file} takes more than {LONGEST:.0f} s; take out what waits") from None
            finally:
                started.kill()
        if started.returncode == FAILED:
            line = (said.decode(errors="replace").splitlines() or [""])[-1]
            raise InputError(f"{line}; mend it, and check again")
        if started.returncode or not found.is_file():
            raise InputError(f"{file} ends its process with code {started.returncode}; mend it, and check again")
        with np.load(found, allow_pickle=False) as arrays:
            return difference(wanted, dict(arrays))


def difference(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    """Describe the first kind of numbers that differ by more than the tolerance; '' if there is none."""
    for kind in ("output", "gradient", "parameter", "step"):
        named, got = of_kind(wanted, kind), of_kind(found, kind)
        if any(name not in got or got[name].shape != array.shape for name, array in named.items()):
            return f"{kind}s of other names or shapes"
        if named:
            flat = [np.concatenate([np.asarray(each[name], np.float64).ravel() for name in named]) for each in (got, named)]
            if not (off := error(flat[0], flat[1]).relative) <= TOLERANCE:
                return f"{kind}s differ by relL2 {off:.1e}"
    return ""


def expected(exercise: Exercise, side: ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute torch's numbers: what the port is given, and what it has to give."""
    import copy

    import torch

    from jaxformer.parity.probe import excite

    model, inputs = excite(side.Model().eval(), HIDDEN).double(), side.inputs(HIDDEN)
    inputs = [each.astype(np.float64) if each.dtype.kind == "f" else each for each in inputs]
    given = {f"weight:{name}": array.copy() for name, array in arrays_of(model).items()}
    given |= {f"input:{i}": each for i, each in enumerate(inputs)}
    output = model(*map(torch.from_numpy, inputs))
    given["cotangent"] = np.random.default_rng(HIDDEN).standard_normal(output.shape)
    output.backward(torch.as_tensor(given["cotangent"]))
    wanted = {"output:": output.detach().numpy()}
    wanted |= {f"gradient:{name}": each.grad.numpy().copy() for name, each in model.named_parameters() if each.grad is not None}
    if exercise.defines("optimizer"):
        given |= {f"batch:{i}": batch[0] for i, batch in enumerate(side.batches(HIDDEN))}
        wanted |= {f"parameter:{name}": array for name, array in trained(side, copy.deepcopy(model)).items()}
    if exercise.defines("steps"):
        steps = side.steps(model, inputs[0])
        logits = [next(steps).detach().numpy()]
        for i in range(side.STEPS):
            given[f"fed:{i}"] = (logits[-1][:, -1] if logits[-1].ndim == 3 else logits[-1]).argmax(-1).astype(np.int32)
            logits.append(steps.send(torch.from_numpy(given[f"fed:{i}"])).detach().numpy())
        wanted |= {f"step:{i}": each for i, each in enumerate(logits)}
    return given, wanted


def trained(side: ModuleType, model: Any) -> dict[str, np.ndarray]:
    """Train a copy of torch's model; return its parameters."""
    import torch

    optimizer = side.optimizer(model)
    schedule = side.schedule(optimizer)
    for batch in side.batches(HIDDEN):
        optimizer.zero_grad()
        side.loss(model, *map(torch.from_numpy, batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), side.LIMIT)
        optimizer.step()
        schedule.step()
    return {name: each.detach().numpy() for name, each in model.named_parameters()}
