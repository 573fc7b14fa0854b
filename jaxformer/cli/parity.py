"""`jaxformer parity`: compare two models, record the torch side to check in another environment, show a saved report.

`sharded` compares a step on a mesh with one device; `mutants` plants known bugs in jaxformer's own models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from jaxformer.cli.flags import parse
from jaxformer.cli.parity_flags import (
    InputFlags,
    JaxName,
    JudgeFlags,
    ReportFlags,
    SelectFlags,
    Tier,
    TorchName,
    load,
    model_and_call,
    no_exit,
)
from jaxformer.config.mesh import MeshConfig
from jaxformer.config.presets import PRESETS
from jaxformer.errors import InputError
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache
from jaxformer.runtime.environment import check_jax
from jaxformer.runtime.stdio import restore_streams
from jaxformer.validation.fields import read_small


@dataclass(frozen=True, kw_only=True)
class Compare(InputFlags, SelectFlags, JudgeFlags, ReportFlags):
    """Compare a torch model with its JAX port. Name each as package.module:function. The function returns the model, or a
    tuple: the model and a function that calls it on the inputs. Exit code 0: equal, 1: different, 2: could not compare."""

    torch: TorchName
    """The torch model."""
    jax: JaxName
    """The JAX model."""
    training: str | None = None
    """package.module:name of a `TrainingSpec`: train copies of both, step by step."""
    generate: str | None = None
    """package.module:name of a pair of functions, torch's and JAX's: each takes its model and returns ids, or yields the logits
    of each step."""


def compare(arguments: list[str]) -> int:
    """Compare, print the report, and return its exit code."""
    flags = parse(Compare, arguments, prog="jaxformer parity compare")
    with flags.refused():
        use_cache(flags.cache)
        check_jax()
        torch_model, call_torch = model_and_call(flags.torch)
        jax_model, call_jax = model_and_call(flags.jax)
        from jaxformer.parity import compare as parity

        options: dict[str, Any] = flags.options(flags.jax) | flags.selected() | {"call_torch": call_torch, "call_jax": call_jax}
        if flags.training is not None:
            options["training"] = load(flags.training)
        if flags.generate is not None:
            options["generate"] = load(flags.generate)
        with no_exit("a model, or what calls it,"):
            report = parity.compare(torch_model, jax_model, flags.arrays(), **options)
    return flags.show(report)


@dataclass(frozen=True, kw_only=True)
class Check(JudgeFlags, ReportFlags):
    """Compare a JAX model with what `jaxformer parity dump` recorded; torch is not needed. Exit code 0: equal, 1: different,
    2: could not compare."""

    folder: tyro.conf.Positional[Path]
    """The folder that `dump` wrote."""
    jax: JaxName
    """package.module:function that returns the JAX model, or a tuple: the model and a function that calls it."""


def check(arguments: list[str]) -> int:
    """Compare, print the report, and return its exit code."""
    flags = parse(Check, arguments, prog="jaxformer parity check")
    with flags.refused():
        use_cache(flags.cache)
        check_jax()
        from jaxformer.parity import recorded

        model, call_jax = model_and_call(flags.jax)
        with no_exit("the model, or what calls it,"):
            report = recorded.check(flags.folder, model, call_jax=call_jax, **flags.options(flags.jax))
    return flags.show(report)


@dataclass(frozen=True, kw_only=True)
class Dump(InputFlags, SelectFlags):
    """Record the torch model, for `jaxformer parity check` in an environment without torch."""

    torch: TorchName
    """package.module:function that returns the torch model, or a tuple: the model and a function that calls it."""
    folder: tyro.conf.Positional[Path]
    """The folder to write."""
    tier: Tier = "B"
    """A: float64 only. B: float32 too. C: bfloat16 too."""


def dump(arguments: list[str]) -> int:
    """Record, save, and print the next command."""
    flags = parse(Dump, arguments, prog="jaxformer parity dump")
    model, call_torch = model_and_call(flags.torch)
    from jaxformer.parity import recorded

    with no_exit("the model, or what calls it,"):
        options = {"call_torch": call_torch, "tier": flags.tier, **flags.selected()}
        reference = recorded.dump(model, flags.arrays(), flags.folder, **options)
    restore_streams()
    kept = f"tier {flags.tier}" if flags.keep == "tensors" else flags.keep
    contents = f"{len(reference.weights)} tensors, {len(reference.calls) - 1} calls of modules, {kept}"
    print(f"{contents} · saved to {flags.folder}")
    print(f"next: jaxformer parity check {flags.folder} package.module:jax_model")
    return 0


@dataclass(frozen=True, kw_only=True)
class Explain(ReportFlags):
    """Print a saved report, or write it in another format. The exit code is that of the comparison."""

    report: tyro.conf.Positional[Path]
    """The JSON file."""


def explain(arguments: list[str]) -> int:
    """Read the report, print it, and return its exit code."""
    flags = parse(Explain, arguments, prog="jaxformer parity explain")
    from jaxformer.parity.report.report import Report

    try:
        text = read_small(flags.report)
    except OSError as error:
        raise InputError(f"{flags.report} cannot be read: {error.strerror}; give a report that --json wrote") from None
    try:
        report = Report.from_json(text.decode("utf-8"))
    except (InputError, UnicodeDecodeError):
        raise InputError(f"{flags.report} is not a report; give one that --json wrote") from None
    return flags.show(report)


MOST_DEVICES = 64
"""Maximum number of devices of one process. With a thousand simulated ones, XLA gives up waiting for them."""


@dataclass(frozen=True, kw_only=True)
class Sharded(CacheFlag, ReportFlags):
    """Compare one train step on a mesh of devices with the same step on one device, in float64: every activation, gradient
    and update. On a CPU the devices are simulated. Exit code 0: equal, 1: different, 2: could not compare."""

    model: tyro.conf.Positional[str] = ""
    """The folder of a run or of a model, or a preset by name, which gets random parameters."""
    mesh: str = "data=2,fsdp=2,tensor=2"
    """Devices by axes: data, fsdp, tensor, sequence."""
    mutants: bool = False
    """Put known mistakes of sharded code into a small model instead, and count those that are found."""


def sharded(arguments: list[str]) -> int:
    """Compare, print the report, and return its exit code."""
    flags = parse(Sharded, arguments, prog="jaxformer parity sharded")
    use_cache(flags.cache)
    from jaxformer.parallel.mesh import simulate

    if flags.mutants:
        from jaxformer.evaluation.sharded.try_mutants import DEVICES
        from jaxformer.evaluation.sharded.try_mutants import main as try_mutants

        simulate(DEVICES)
        return try_mutants()
    mesh = MeshConfig.read(flags.mesh)
    if mesh.devices > MOST_DEVICES:
        raise InputError(f"mesh = {mesh} has {mesh.devices} devices; give one of at most {MOST_DEVICES}, to run the step on")
    simulate(mesh.devices)
    from jaxformer.evaluation.sharded.compare import compare_sharded

    return flags.show(compare_sharded(found(flags.model), mesh))


def found(name: str) -> Any:
    """Load the model of a folder, or return a preset's configuration."""
    if name in PRESETS:
        return PRESETS[name]
    if not Path(name).is_dir() or not name:
        raise InputError(f"model = {name!r} is no folder and no preset; give a run's folder, or one of {', '.join(PRESETS)}")
    from jaxformer.checkpoints import opened

    return opened.load(Path(name))


@dataclass(frozen=True, kw_only=True)
class Mutants(CacheFlag):
    """Plant every known bug in the JAX side of jaxformer's own models, and count those that the comparison finds. It takes
    minutes. Exit code 0: all were found.
    """


def mutants(arguments: list[str]) -> int:
    """Run every mutant."""
    use_cache(parse(Mutants, arguments, prog="jaxformer parity mutants").cache)
    check_jax()
    from jaxformer.evaluation import run

    return run.main()
