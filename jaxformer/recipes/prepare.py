"""The settings of a recipe: a preset or those of a run to resume, changed by flags. Imports no jax."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxformer.config.configuration import from_dict
from jaxformer.errors import CheckpointError, ConfigError, InputError
from jaxformer.flags import parse, peek
from jaxformer.training.runs import RunFolder
from jaxformer.validation.fields import check_choice

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

CHANGEABLE = ("out", "resume", "cache", "steps", "sample", "show", "evaluate_every", "save_every", "mesh")
"""Flags that may change when a run is resumed; every other one decides what is learned."""
RENAMED_PRESETS = {"seed": "tiny"}
"""Older names of presets, as the config.json of a run has them -> their names now."""


def read_recipe(presets: Mapping[str, R], arguments: Sequence[str], *, prog: str) -> R:
    """A recipe from flags; the first preset is the default, and --resume takes the one in --out."""
    first = next(iter(presets))
    kind = type(presets[first])
    if "--resume" not in arguments:
        name = peek(arguments, "--preset") or first
        check_choice("--preset", name, presets)
        return parse(kind, arguments, prog=prog, default=presets[name])
    folder = peek(arguments, "--out")
    if folder is None:
        raise InputError("--resume needs the run folder; give it with --out")
    before = recipe_of(Path(folder), kind)
    recipe = parse(kind, arguments, prog=prog, default=before)
    for field in fields(kind):
        then, now = getattr(before, field.name), getattr(recipe, field.name)
        if field.name not in CHANGEABLE and then != now:
            raise InputError(f"--{field.name} is not as in {folder}, which is resumed; leave it out, or start another --out")
    return recipe


def recipe_of(folder: Path, kind: type[R]) -> R:
    """The recipe that a run was started with; CheckpointError where its config.json describes no recipe of this kind."""
    try:
        values = RunFolder.open(folder).config["recipe"]
        preset = values["preset"]
        return from_dict(kind, {**values, "preset": RENAMED_PRESETS.get(preset, preset)})
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{folder}/config.json does not describe this recipe: {error}") from None


def start_run(recipe: Any, facts: Mapping[str, str], state: Any, *, unfinished: bool = False) -> tuple[RunFolder, Any]:
    """A new run folder and the state given, or the run to resume and its last state.

    `facts` describe the data; a resumed run has to be given the same ones. A run at its last step is refused, unless what
    comes after the training is `unfinished`.
    """
    from jaxformer.training.checkpoint import load_state, orbax

    orbax()  # missing, it would be missed at the first checkpoint
    if not recipe.resume:
        return RunFolder.create(recipe.out, {"recipe": asdict(recipe), **facts}), state
    folder = RunFolder.open(recipe.out)
    folder.check_kept()
    if any(folder.config.get(name) != value for name, value in facts.items()):
        raise InputError(f"--data is not what {recipe.out} began with; give the same texts")
    state = load_state(folder.checkpoints, state)
    if recipe.steps <= int(state.step) and not (unfinished and recipe.steps == int(state.step)):
        raise InputError(f"{recipe.out} is at step {int(state.step)} already; give --steps a larger number to go on")
    folder.forget_after(int(state.step))
    folder.begin_manifest()
    return folder, state


def saved_files(folder: RunFolder) -> str:
    """Says where the run is saved, and its files."""
    files = ", ".join(sorted(path.name for path in folder.path.iterdir() if path.is_file()))
    return f"saved to {folder.path} ({files})"
