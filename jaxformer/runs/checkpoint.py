"""Checkpoints of the whole train state, with orbax and a digest, since orbax silently restores flipped bits and other dtypes.

Only jaxformer has runs: the PyTorch twin has no such module.
"""

import errno
import hashlib
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.errors import UNREADABLE, CheckpointError, why_unread, why_unwritten
from jaxformer.io.atomic import check_descriptors, check_room, to_disk
from jaxformer.parallel.group import exchange, from_first, is_first
from jaxformer.parallel.mesh import ONE_DEVICE, mesh_name
from jaxformer.parallel.placement import on_host
from jaxformer.pytree import map_named, n_bytes, named_leaves
from jaxformer.runs.folder import DAMAGED, LATER, METRICS, RunFolder, kept_states
from jaxformer.runs.lock import check_held, own_path
from jaxformer.runs.orbax_errors import damage, end_of_fault, read_from, silent_orbax
from jaxformer.runtime.packages import extra_package
from jaxformer.runtime.shutdown import cleaned_up
from jaxformer.validation.fields import check_file

KEPT = 2
"""Number of newest checkpoints to keep: the last, and one to fall back to."""
ADDED = "health."
"""Prefix of leaves that older checkpoints lack: these start from their initial values."""
DESCRIPTION = "description is"


def orbax() -> Any:
    """Return orbax's checkpoint module; MissingPackageError if not installed, OSError if too few files can be opened."""
    with extra_package():
        from orbax.checkpoint import v1
    check_descriptors()
    return v1


@contextmanager
def _checkpointer(folder: Path) -> Iterator[Any]:
    ocp = orbax()
    policy: Any = ocp.training.preservation_policies.LatestN(KEPT)
    with ocp.training.Checkpointer(str(folder.absolute()), preservation_policy=policy) as checkpointer:
        yield checkpointer


def digest(state: PyTree) -> str:
    """Return the sha256 over every leaf's name, dtype, shape and bytes."""
    return digest_of(named_leaves(state))


def digest_of(leaves: Mapping[str, Any]) -> str:
    """Return the sha256 over leaves given by name, in the order of the state."""
    total = hashlib.sha256()
    for name, leaf in leaves.items():
        array = on_host(leaf)
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def save_state(folder: Path, step: int, state: PyTree) -> None:
    """Write the state under its step; a crash leaves the older checkpoints as they are."""
    with silent_orbax():
        if fault := _save(folder, step, state):
            end_of_fault()
    if fault:
        raise CheckpointError(fault)


def _save(folder: Path, step: int, state: PyTree) -> str:
    """Write the state; return why it could not be written, or ""."""
    own, run = own_path(folder.parent) / folder.name, RunFolder(folder.parent)
    try:
        identity = run.identity
        check_held(run.path)
        own.mkdir(exist_ok=True)
        check_room(own, n_bytes(state))
        TemporaryDirectory(dir=own).cleanup()  # if none can be made, orbax's threads wait for one for five minutes
        with cleaned_up(partial(_remove_unfinished, own)), _checkpointer(own) as checkpointer:
            leaves = named_leaves(state)
            described = {"sha256": digest(state), "names": [*leaves], "step": step, "run": identity}
            described["evaluated"] = run.evaluated_before(step)
            if mesh_name() != ONE_DEVICE:
                described["mesh"] = mesh_name()
            saved = checkpointer.save(step, leaves, custom_metadata=described, overwrite=True)
        if is_first():
            check_held(folder.parent)
            to_disk(*(own / str(step)).rglob("*"), own)
    except CheckpointError as error:
        return str(error)
    except Exception as error:
        _remove_unfinished(own)
        return f"{folder / str(step)} cannot be written: {why_unwritten(error)}"
    return "" if saved else f"{folder / str(step)} was not written: {folder} holds a later step"


def _remove_unfinished(folder: Path) -> None:
    for unfinished in folder.glob("*.orbax-checkpoint-tmp"):
        shutil.rmtree(unfinished, ignore_errors=True)


def load_state(folder: Path, like: PyTree, step: int | None = None) -> PyTree:
    """Load the newest intact state, or that of `step`, in the structure of `like`; CheckpointError if there is none.

    Corrupted newer states are set aside with a warning, since orbax would not save a step that precedes them; so are those
    after `step`.
    """
    steps = from_first(lambda: kept_states(folder))
    if not steps:
        raise CheckpointError(f"{folder} holds no checkpoint")
    if step is not None:
        return _load_step(folder, like, step, steps)
    faults: dict[int, str] = {}
    for step in reversed(steps):
        with silent_orbax():
            found, fault = _attempt(folder, step, like)
            if fault:
                end_of_fault()
        if fault.startswith(UNREADABLE):
            raise CheckpointError(f"{folder}: step {step} {fault}; let this process read it, or move it away")
        if fault:
            faults[step] = fault
            continue
        for damaged, fault in faults.items():
            _set_aside(folder / str(damaged), DAMAGED)
            warnings.warn(f"{folder}: step {damaged}: {fault}; set aside, going on from step {step}", stacklevel=2)
        return _from_its_mesh(folder, step, *found)
    listed = "; ".join(f"step {step}: {fault}" for step, fault in faults.items())
    raise CheckpointError(f"{folder} holds no whole checkpoint of this model: {listed}; put one back, or start another --out")


def verdict(folder: Path, step: int) -> str:
    """Say if the state of a step is what was saved: whole, damaged, or not checked if an older version wrote it."""
    with silent_orbax():
        if (found := _verdict(folder, step)).startswith("damaged"):
            end_of_fault()
    return found


def _verdict(folder: Path, step: int) -> str:
    try:
        path = _path(folder, step)
        arrays, described = _description(path)
        if "names" not in described:
            return "not checked"
        if {*described["names"]} != {*arrays}:
            raise damage(path, DESCRIPTION)
        check_belongs(folder, step, described)
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])  # whatever mesh it was written on
        wanted = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here) for name, leaf in arrays.items()}
        leaves = _arrays(path, wanted)
        is_whole = digest_of({name: leaves[name] for name in described["names"]}) == described["sha256"]
        return "whole" if is_whole else "damaged: its sha256 differs"
    except Exception as error:
        fault = why_unread(error)
        return f"not checked: {fault}" if fault.startswith(UNREADABLE) else f"damaged: {fault}"


def lost_lines(run: RunFolder, step: int) -> str:
    """Report metrics lines that were there when the state of this step was saved, and no longer are; '' if none are lost."""
    try:
        with silent_orbax():
            described = orbax().metadata(_path(run.checkpoints, step)).custom_metadata or {}
    except Exception:  # `verdict` says what is wrong
        return ""
    if (end := run.evaluated_before(math.inf)) >= described.get("evaluated", 0):
        return ""
    said = f"{run.path / METRICS} ends at step {end:,}, and there is a checkpoint of step {step:,}"
    return f"{said}: lines are lost, or an older copy was laid over the run"


def _load_step(folder: Path, like: PyTree, step: int, steps: list[int]) -> PyTree:
    """Load the state of that step and no other."""
    if step not in steps:
        raise CheckpointError(f"{folder} holds no checkpoint of step {step}; it holds {', '.join(map(str, steps))}")
    with silent_orbax():
        found, fault = _attempt(folder, step, like)
        if fault:
            end_of_fault()
    if fault:
        said = f"{folder} holds no whole checkpoint of step {step}: {fault}"
        raise CheckpointError(f"{said}; put it back, or give --resume without a step: it takes the newest whole one")
    for later in steps[steps.index(step) + 1 :]:
        _set_aside(folder / str(later), LATER)
        warnings.warn(f"{folder}: step {later} is set aside: the run goes on from step {step}", stacklevel=3)
    return _from_its_mesh(folder, step, *found)


def _from_its_mesh(folder: Path, step: int, state: PyTree, mesh: str) -> PyTree:
    """Return the state; warn if it was written on another mesh."""
    if mesh != mesh_name():
        said = f"step {step} was written on mesh {mesh} and goes on on {mesh_name()}: close, not bit-identical"
        warnings.warn(f"{folder}: {said}", stacklevel=3)
    return state


def _set_aside(path: Path, why: str) -> None:
    if not is_first():
        return
    aside, number = path.with_name(f"{path.name}.{why}"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.{why}-{number}")
    path.rename(aside)


def _attempt(folder: Path, step: int, like: PyTree) -> tuple[Any, str]:
    """Return the state of that step and its mesh, or why there is none, on whichever process."""
    leaves, described, fault = {}, {}, ""
    try:
        leaves, described = _read(folder, step, like)
    except Exception as error:
        fault = why_unread(error)
    if fault := next(filter(None, exchange(fault)), ""):
        return None, fault
    try:
        return _checked(like, leaves, described), ""
    except CheckpointError as error:
        return None, str(error)


def _path(folder: Path, step: int) -> str:
    """Return the path of one step; InputError if one of its files is a pipe or a device, PermissionError for an
    unreadable one.
    """
    path = (folder / str(step)).absolute()
    for file in (path, *path.rglob("*")):
        if file.exists() and not os.access(file, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        if not file.is_dir():
            check_file(file)
    return str(path)


def check_belongs(folder: Path, step: int, described: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a state is of another step or run; older states do not say what they are of."""
    if described.get("step", step) != step:
        raise CheckpointError(f"it is the state of step {described['step']}")
    if described.get("run", "") != RunFolder(folder.parent).identity:
        raise CheckpointError(f"it is of another run, which has other settings than {folder.parent}")


def _read(folder: Path, step: int, like: PyTree) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Read the leaves that the state has, and its description: each process reads its own parts."""
    wanted, path = named_leaves(like), _path(folder, step)
    arrays, described = _description(path)
    check_belongs(folder, step, described)
    found = {name: _described(leaf) for name, leaf in arrays.items()}
    for name in [*wanted]:
        if name.startswith(ADDED) and name not in found:
            del wanted[name]
    for name in sorted(set(found) | set(wanted)):
        here, expected = found.get(name, "not there"), _described(wanted[name]) if name in wanted else "none"
        if here != expected:
            remedy = "; set JAX_ENABLE_X64 as it was" if here.replace("64", "32") == expected.replace("64", "32") else ""
            raise CheckpointError(f"{name} is {here}, the model wants {expected}{remedy}")
    return _arrays(path, wanted), described


def _description(path: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arrays of one step, and the description that was saved with them."""
    with read_from(path, DESCRIPTION):
        meta = orbax().metadata(path)
    if meta.metadata is None or "sha256" not in (meta.custom_metadata or {}):
        raise damage(path, DESCRIPTION)
    return meta.metadata, meta.custom_metadata


def _arrays(path: str, wanted: dict[str, Any]) -> dict[str, Any]:
    with read_from(path, "arrays are"):
        return orbax().load(path, wanted)


def _described(leaf: Any) -> str:
    return f"{leaf.dtype}{[*leaf.shape]}"


def _checked(like: PyTree, leaves: dict[str, Any], described: Mapping[str, Any]) -> tuple[PyTree, str]:
    """Return the state, and the mesh that it was written on; all processes take part, since each has a part of the state."""
    state = map_named(lambda name, begun: leaves.get(name, begun), like)
    if digest(map_named(lambda name, leaf: leaf if name in leaves else None, state)) != described["sha256"]:
        raise CheckpointError("the data are not what was saved (sha256 differs)")
    return state, described.get("mesh", ONE_DEVICE)
