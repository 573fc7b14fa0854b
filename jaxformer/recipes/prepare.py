"""Settings of a recipe: a preset, or those of a run to resume, changed by flags. Does not import jax."""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxformer.cli.flags import parse, peek
from jaxformer.config.configuration import from_dict, plain
from jaxformer.config.settings import OptimizerConfig
from jaxformer.errors import CheckpointError, ConfigError, InputError
from jaxformer.parallel.group import check_alike, count, from_first, is_first
from jaxformer.runs.folder import NOT_BEGUN, RUN, RunFolder, kept_states
from jaxformer.runs.metrics import Goal, is_last
from jaxformer.runs.places import free_folder, refuse_inside_a_run
from jaxformer.runs.tensorboard import ShownRun, tensorboardx
from jaxformer.runs.watched import Monitor, forget_rows
from jaxformer.runtime.cores import cores
from jaxformer.runtime.environment import processor
from jaxformer.runtime.packages import releases
from jaxformer.validation.fields import check_choice

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from jaxformer.runtime.products import Library

R = TypeVar("R", bound="DataclassInstance")

PLACES = ("data", "validation", "test", "tokenizer")
KEPT = ("unpacked", "mesh", "steps", "sample", "show", "evaluate_every", "save_every", "watch", "tensorboard", *PLACES)
CHANGEABLE = ("out", "resume", "checkpoint", "cache", *KEPT)
"""Flags that may change when a run is resumed; every other one decides what is learned.

The data that PLACES name may have moved by then: their content is checked. New values of KEPT are written to config.json.
"""
RENAMED_PRESETS = {"seed": "tiny"}
"""Older names of presets in the config.json of runs -> present names."""
SETTINGS = (
    *("jax_default_matmul_precision", "jax_default_prng_impl", "jax_enable_x64", "jax_threefry_partitionable"),
    *("jax_random_seed_offset", "jax_high_dynamic_range_gumbel", "jax_softmax_custom_jvp", "jax_allow_f16_reductions"),
    *("jax_disable_jit", "jax_disable_most_optimizations", "jax_optimization_level", "jax_exec_time_optimization_effort"),
    *("jax_compiler_enable_remat_pass", "jax_memory_fitting_level", "jax_memory_fitting_effort", "jax_use_direct_linearize"),
)
"""Settings of jax that change numbers. Not every version has all of them."""
FORMER_PRODUCTS = "ynnpack"
"""Kernel library of runs whose config.json names none."""


def read_recipe(presets: Mapping[str, R], arguments: Sequence[str], *, prog: str) -> R:
    """Build a recipe from flags; the first preset is the default, and --resume starts from the settings in --out."""
    first, arguments = next(iter(presets)), _with_checkpoint(arguments)
    kind = type(presets[first])
    if "--resume" not in arguments:
        name = peek(arguments, "--preset") or first
        check_choice("--preset", name, presets)
        refuse_inside_a_run(Path(peek(arguments, "--out") or "runs"))
        return parse(kind, arguments, prog=prog, default=presets[name])
    folder = peek(arguments, "--out")
    if folder is None:
        raise InputError("--resume needs the run folder; give it with --out")
    before = recipe_of(Path(folder), kind)
    recipe = parse(kind, arguments, prog=prog, default=before)
    for field in fields(kind):
        then, now = getattr(before, field.name), getattr(recipe, field.name)
        if isinstance(then, OptimizerConfig):
            then = replace(then, learning_rate=now.learning_rate)  # allowed to change: start_run warns
        if field.name not in CHANGEABLE and then != now:
            raise InputError(f"--{field.name} is not as in {folder}, which is resumed; leave it out, or start another --out")
    return recipe


def _with_checkpoint(arguments: Sequence[str]) -> list[str]:
    """Rewrite `--resume 500` and `--resume=500` as `--resume --checkpoint 500`; InputError if flags name two steps."""
    found = [part for each in arguments for part in (each.split("=", 1) if each.startswith("--resume=") else [each])]
    asked = peek(found, "--checkpoint")
    for i, argument in enumerate(found[:-1]):
        if argument == "--resume" and not found[i + 1].startswith("-"):
            if asked not in (None, found[i + 1]):
                raise InputError(f"--resume {found[i + 1]} and --checkpoint {asked} are two steps; give one of them")
            asked = found[i + 1]
            found.insert(i + 1, "--checkpoint")
    return found


def recipe_of(folder: Path, kind: type[R]) -> R:
    """Read the recipe that a run was started with; CheckpointError if config.json describes no recipe of this kind."""
    config = RunFolder.open(folder).config
    if "recipe" not in config:
        raise CheckpointError(f"{folder}/config.json describes no run; start one without --resume in another --out")
    try:
        values = config["recipe"]
        if unknown := {*values} - {field.name for field in fields(kind)}:
            said = f"has {min(unknown)}, which {kind.__name__} has not: it is of another recipe, or of a newer jaxformer"
            raise CheckpointError(f"{folder}/config.json {said}")
        preset = values["preset"]
        return from_dict(kind, {"products": FORMER_PRODUCTS, **values, "preset": RENAMED_PRESETS.get(preset, preset)})
    except (KeyError, TypeError, ConfigError, InputError) as error:
        raise CheckpointError(f"{folder}/config.json does not describe this recipe: {error}") from None


def start_run(
    recipe: Any, facts: Mapping[str, str], state: Any, *, goal: Goal | None = None, unfinished: bool = False
) -> tuple[RunFolder, Any]:
    """Create a run folder for the given state, or open the run to resume and load its last state.

    `facts` describe the data; a resumed run must be given the facts that it recorded. A run that is at its last step or has met
    its goal is refused, unless its evaluation or its weights are missing, or work after training is `unfinished`.
    """
    from jaxformer.runs.averaging import forget_lost_weights, write_weights
    from jaxformer.runs.checkpoint import load_state, orbax

    orbax()  # fail now if a package is missing, not at the first checkpoint
    if recipe.tensorboard:
        tensorboardx()
    described = {"recipe": asdict(recipe), **facts}
    identity = sha256(json.dumps(described, default=plain).encode()).hexdigest()
    check_alike({"recipe and data": identity})
    if not recipe.resume:
        if is_first():
            RunFolder.create(recipe.out, described | {"environment": environment(), RUN: identity})
        return _shown(recipe, RunFolder(recipe.out), state), state
    folder = RunFolder.open(recipe.out)
    if is_first():
        forget_lost_weights(folder)
        folder.check_kept()
        folder.check_states()
        folder.remove_leftovers()
    _check_facts(folder, facts)
    has_weights = from_first(lambda: folder.weights.exists())
    check = partial(_check_goes_on, recipe, folder, goal=goal, is_whole=has_weights and not unfinished)
    check(recipe.checkpoint or 0)  # before later checkpoints are set aside
    if from_first(lambda: bool(kept_states(folder.checkpoints))):
        state = load_state(folder.checkpoints, state, recipe.checkpoint)
    check(int(state.step))
    if is_first():
        _begin_again(folder, recipe, int(state.step))
    if recipe.checkpoint is not None or (int(state.step) and not has_weights):
        write_weights(folder, folder.weights, state.model)  # the weights there are of a later step, or were removed
    return _shown(recipe, folder, state), state


def _shown(recipe: Any, folder: RunFolder, state: Any) -> RunFolder:
    """Return the folder, or with --tensorboard the one that the first process logs to TensorBoard with."""
    return ShownRun.of(folder, int(state.step)) if recipe.tensorboard and is_first() else folder


def _check_facts(folder: RunFolder, facts: Mapping[str, str]) -> None:
    """Raise InputError if the data differ from those that the run began with."""
    config = folder.config
    if any(config.get(name, value) != value for name, value in facts.items()):
        raise InputError(f"--data is not what {folder.path} began with; give the same texts")


def _check_goes_on(recipe: Any, folder: RunFolder, step: int, *, goal: Goal | None, is_whole: bool) -> None:
    """Raise InputError if a run is past its last step or complete; CheckpointError if it has no checkpoint to resume from."""
    if recipe.checkpoint is not None and from_first(lambda: folder.is_begun):
        raise CheckpointError(f"{recipe.out} is {NOT_BEGUN}")
    line = from_first(lambda: folder.line_of(step))
    if step > recipe.steps or (step == recipe.steps and line is not None and is_whole):
        raise InputError(f"{recipe.out} is at step {step} already; give --steps a larger number to go on")
    if is_whole and line is not None and is_last(line, recipe.steps, goal):
        raise InputError(f"{recipe.out} is finished: it met its goal at step {step}; start another --out")


def _begin_again(folder: RunFolder, recipe: Any, step: int) -> None:
    """Remove what the resumed run will redo, warn of what has changed, and write changed flags to config.json."""
    from jaxformer.runs.averaging import forget_weights_after
    from jaxformer.runs.checkpoint import lost_lines

    if said := lost_lines(folder, step):
        warnings.warn(said, stacklevel=3)
    folder.begin_manifest()
    folder.forget_after(step)
    forget_rows(folder.path, step, folder.identity)
    forget_weights_after(folder, step)
    _warn_of_changes(folder, recipe, differences(folder.config.get("environment", {}), environment()))
    _keep_flags(folder, recipe)


def _warn_of_changes(folder: RunFolder, recipe: Any, changed: Sequence[str]) -> None:
    """Warn why the resumed run is not bit-identical with an uninterrupted one; write a new learning rate to config.json."""
    if changed:
        said = f"{folder.path} was begun elsewhere ({', '.join(changed)}): from here on it is close to, not bit-identical with"
        warnings.warn(f"{said} the run that goes on there", stacklevel=3)
    config = folder.config
    optimizer = config["recipe"]["optimizer"]
    if (rate := recipe.optimizer.learning_rate) != optimizer["learning_rate"]:
        said = f"the learning rate is {rate:g} from here on, and was {optimizer['learning_rate']:g}"
        warnings.warn(f"{said}: the run is no longer the one that was begun", stacklevel=3)
        optimizer["learning_rate"] = rate
        folder.write_config(config)


def _keep_flags(folder: RunFolder, recipe: Any) -> None:
    """Write changed flags to config.json, so that the next --resume uses them."""
    config = folder.config
    values = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name in KEPT}
    changed = config["recipe"] | json.loads(json.dumps(values, default=plain))
    if changed != config["recipe"]:
        folder.write_config(config | {"recipe": changed})


def begin_watch(recipe: Any, folder: RunFolder, taken: int, console: Any) -> Monitor | None:
    """Return what writes the rows of --watch, after so many steps; None without that flag."""
    if recipe.watch is None:
        return None
    return Monitor.begin(folder.path, recipe.watch, taken, run=folder.identity, say=console.print)


def begin(recipe: Any) -> Any:
    """Enable the compilation cache, and fix the kernel library of the run's products: its own, or the fastest one here.

    All processes use the first one's, and a resumed run the one that it began with: the order of sums decides the last bits.
    """
    from jaxformer.runtime.compilation_cache import use_cache
    from jaxformer.runtime.products import fix, library, named_in_flags, work_of_width

    if recipe.products and not recipe.resume and named_in_flags():
        raise InputError(f"products = {recipe.products}, and XLA_FLAGS name a library too; leave one of them out")
    use_cache(recipe.cache)
    name: Library | None = from_first(lambda: recipe.products or library(work_of_width(recipe.model.d_model)))
    if name:
        fix(name)
    return replace(recipe, products=name)


def run_path(recipe: Any, name: str) -> Path:
    """Path of the run folder: --out, or the first free `runs/name-N`."""
    return recipe.out or Path(from_first(lambda: str(free_folder(Path("runs"), name))))


def check_vocabulary(arguments: Sequence[str], size: int, *names: str) -> None:
    """Raise InputError if a flag in `names` gives a vocabulary size other than that of the texts."""
    spelled = [word.replace("_", "-") if word.startswith("--") else word for word in arguments]
    for flag in (f"--model.{name}" for name in names):
        if (given := peek(spelled, flag)) not in (None, "None", str(size)):
            raise InputError(f"{flag} {given} is not the number of symbols, which is {size} here; leave it out")


def saved_files(folder: RunFolder) -> str:
    """Format where the run is saved, and the names of its files."""
    files = ", ".join(sorted(path.name for path in folder.path.iterdir() if path.is_file()))
    return f"saved to {folder.path} ({files})"


def environment() -> dict[str, str]:
    """Return versions, processor, devices and flags."""
    import jax

    from jaxformer.runtime.products import options

    settings = {name: str(getattr(jax.config, name)) for name in SETTINGS if hasattr(jax.config, name)}
    return {
        **releases(),
        "processor": processor(),
        "cores": str(cores()),
        "device": jax.devices()[0].device_kind,
        "devices": str(jax.device_count()),
        "processes": str(count()),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "XLA options": " ".join(f"{name}={value}" for name, value in options("large").items()),
        **settings,
    }


def differences(before: Any, now: Mapping[str, str]) -> list[str]:
    """List what has changed, each as `jax 0.9.0 -> 0.9.1`; a `before` that is no mapping gives nothing."""
    before = before if isinstance(before, Mapping) else {}
    return [f"{name} {before[name]!r:.60} -> {value!r:.60}" for name, value in now.items() if before.get(name, value) != value]
