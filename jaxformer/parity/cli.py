"""`jaxformer parity`: compare two models, at once or in two environments, read a report again, try the mutants.

The exit code is 0 for equal, 1 for different, 2 for not compared.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from jaxformer.errors import InputError, JaxformerError
from jaxformer.flags import is_verbose, parse
from jaxformer.validation.fields import check_choice, check_size

if TYPE_CHECKING:
    from jaxformer.convert.rules import Family
    from jaxformer.parity.report.report import Report

Name = tyro.conf.Positional[str]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What both models are fed."""

    inputs: str | None = None
    """package.module:function that gives a tuple of numpy arrays. None: adversarial token ids, from --vocab."""
    vocab: int | None = None
    """Number of token ids."""
    length: int = 66
    """Tokens in a row."""


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How both are compared."""

    rules: str | None = None
    """Which tensors are the same: a family by name, or package.module:FAMILY. None: those of the same values."""
    tier: Literal["A", "B", "C"] = "B"
    """A: float64 alone. B: float32 too. C: bfloat16 too."""
    checks: tuple[str, ...] = ()
    """Some of weights, forward, local, gradients, 'activation gradients', sensitivity. None: all."""


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Where the whole report goes."""

    json: Path | None = None
    """As JSON, for `explain` and for programs."""
    markdown: Path | None = None
    """As Markdown."""
    html: Path | None = None
    """As one page that needs nothing else."""


@dataclass(frozen=True, kw_only=True)
class Compare(Inputs, Judging, Writing):
    """Compare a torch model with its JAX port. Both are named as package.module:function, a function that gives the model, or
    the model and how to call it on the inputs."""

    torch: Name
    """The torch side."""
    jax: Name
    """The JAX side."""
    training: str | None = None
    """package.module:name of a `TrainingSpec`: train copies of both, step beside step."""
    generate: str | None = None
    """package.module:name of two functions of a model that write ids: torch's and JAX's."""


@dataclass(frozen=True, kw_only=True)
class Dump(Inputs):
    """Write down all that torch says, for `check` in another environment."""

    torch: Name
    """package.module:function that gives the torch model, or the model and how to call it on the inputs."""
    folder: tyro.conf.Positional[Path]
    """What to make."""
    tier: Literal["A", "B", "C"] = "B"
    """A: float64 alone. B: float32 too. C: bfloat16 too."""


@dataclass(frozen=True, kw_only=True)
class Check(Judging, Writing):
    """Compare a JAX model with what torch said before; torch is not needed."""

    folder: tyro.conf.Positional[Path]
    """What `dump` made."""
    jax: Name
    """package.module:function that gives the JAX model, or the model and how to call it on the inputs."""


@dataclass(frozen=True, kw_only=True)
class Explain(Writing):
    """Print a report that was written before, or write it in another form."""

    report: tyro.conf.Positional[Path]
    """The JSON file."""


def main(arguments: list[str], more: Mapping[str, Callable[[list[str]], int]] = {}) -> None:
    """One of the commands below, or of `more`; it ends the process."""
    commands = {**COMMANDS, **more}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: jaxformer parity {'|'.join(commands)} ...   (jaxformer parity COMMAND --help explains its flags)")
        sys.exit()
    check_choice("parity command", arguments[0], commands)
    sys.exit(commands[arguments[0]](arguments[1:]))


def compare(arguments: list[str]) -> int:
    """Both models here."""
    flags = parse(Compare, arguments, prog="jaxformer parity compare")
    theirs, call_torch = _model(flags.torch)
    ours, call_jax = _model(flags.jax)
    from jaxformer.parity.compare import compare

    options: dict[str, Any] = _judging(flags) | {"call_torch": call_torch, "call_jax": call_jax}
    options |= {name: _named(value) for name in ("training", "generate") if (value := getattr(flags, name)) is not None}
    return _show(compare(theirs, ours, _inputs(flags), **options), flags)


def dump(arguments: list[str]) -> int:
    """The torch side."""
    flags = parse(Dump, arguments, prog="jaxformer parity dump")
    model, call = _model(flags.torch)
    from jaxformer.parity.compare import dump

    reference = dump(model, _inputs(flags), flags.folder, call_torch=call, tier=flags.tier)
    said = f"{len(reference.weights)} tensors, {len(reference.calls) - 1} calls of modules, tier {flags.tier}"
    print(f"{said} · saved to {flags.folder}")
    print(f"next: jaxformer parity check {flags.folder} package.module:jax_model")
    return 0


def check(arguments: list[str]) -> int:
    """The JAX side."""
    flags = parse(Check, arguments, prog="jaxformer parity check")
    from jaxformer.parity.compare import check
    from jaxformer.parity.record.archive import load

    reference = load(flags.folder)
    model, call = _model(flags.jax)
    return _show(check(reference, model, call_jax=call, **_judging(flags)), flags)


def explain(arguments: list[str]) -> int:
    """Print a report again."""
    from jaxformer.parity.report.report import Report

    flags = parse(Explain, arguments, prog="jaxformer parity explain")
    try:
        report = Report.from_json(flags.report.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{flags.report} cannot be read: {error.strerror}; give a report that --json wrote") from None
    except (InputError, UnicodeDecodeError):
        raise InputError(f"{flags.report} is no report; give one that --json wrote") from None
    return _show(report, flags)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "compare": compare,
    "dump": dump,
    "check": check,
    "explain": explain,
}


def _show(report: "Report", flags: Writing) -> int:
    """The verdict comes last; with -v, before it, the traceback of what failed."""
    from jaxformer.parity.report.terminal import show

    for path, write in ((flags.json, report.to_json), (flags.markdown, report.to_markdown), (flags.html, report.to_html)):
        if path is not None:
            try:
                path.write_text(write(), "utf-8")
            except OSError as error:
                raise InputError(f"{path} cannot be written: {error.strerror}; give another name") from None
            print(f"report {path}")
    if report.traceback and is_verbose():
        print(report.traceback)
    show(report)
    return report.exit_code


def _judging(flags: Judging) -> dict[str, Any]:
    return {"rules": _rules(flags), "tier": flags.tier} | ({"checks": flags.checks} if flags.checks else {})


def _rules(flags: Judging) -> "Family | str | None":
    return _named(flags.rules) if flags.rules is not None and ":" in flags.rules else flags.rules


def _inputs(flags: Inputs) -> tuple[Any, ...]:
    if flags.inputs is not None:
        found = _made(flags.inputs)
        return found if isinstance(found, tuple) else (found,)
    if flags.vocab is None:
        raise InputError("there is nothing to feed the models; give --vocab for token ids, or --inputs package.module:function")
    check_size("vocab", flags.vocab)
    check_size("length", flags.length, least=4)
    from jaxformer.parity.probe.inputs import probe

    return probe(flags.vocab, 5, flags.length, seed=0)[:1]


def _model(name: str) -> tuple[Any, Callable[..., Any]]:
    from jaxformer.parity.record.reference import apply

    found = _made(name)
    return found if isinstance(found, tuple) else (found, apply)


def _made(name: str) -> Any:
    """What the function of that name gives."""
    try:
        return _named(name)()
    except JaxformerError:
        raise
    except Exception as error:
        from jaxformer.parity.capture.source_lines import line_of

        at = f" (at {place})" if (place := line_of(error)) else ""
        raise InputError(f"{name} fails: {type(error).__name__}: {str(error).strip().split(chr(10))[0]}{at}") from error


def _named(name: str) -> Any:
    """What 'package.module:name' names, from the current folder too."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError(f"{name} names no function; give it as package.module:function")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(f"{name}: there is no module {error.name}; run where it lies, or install it") from None
    except AttributeError:
        raise InputError(f"{name}: module {module} has no {attribute}") from None
    finally:
        sys.path.remove("")
