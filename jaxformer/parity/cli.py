"""`jaxformer parity`: compare two models, read a report again, try the mutants.

The exit code is 0 for equal, 1 for different, 2 for not compared.
"""

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from jaxformer.checks import check_choice, check_size
from jaxformer.errors import InputError
from jaxformer.flags import parse


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare a torch model with its Flax port. Both are named as package.module:function, a function that gives the model, or
    the model and how to call it on the inputs."""

    torch: tyro.conf.Positional[str]
    """The torch side."""
    jax: tyro.conf.Positional[str]
    """The JAX side."""
    rules: Literal["twin", "gpt2"] = "twin"
    """Which tensors are the same."""
    inputs: str | None = None
    """package.module:function that gives a tuple of numpy arrays. None: hostile token ids, from --vocab."""
    vocab: int | None = None
    """Number of token ids."""
    length: int = 66
    """Tokens in a row."""
    json: Path | None = None
    """Where to write the whole report."""


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Print a report that was written before."""

    report: tyro.conf.Positional[Path]
    """The JSON file."""


def main(arguments: list[str]) -> None:
    """One of the commands below; it ends the process."""
    check_choice("parity command", arguments[0] if arguments else "", COMMANDS)
    sys.exit(COMMANDS[arguments[0]](arguments[1:]))


def compare(arguments: list[str]) -> int:
    """Print what the comparison found."""
    flags = parse(Compare, arguments, prog="jaxformer parity compare")
    theirs, call_torch = _model(flags.torch)
    ours, call_jax = _model(flags.jax)
    from jaxformer.convert.families.gpt2 import GPT2
    from jaxformer.convert.families.twin import TWIN
    from jaxformer.parity.comparison import compare

    rules = {"twin": TWIN, "gpt2": GPT2}[flags.rules]
    report = compare(theirs, ours, _inputs(flags), rules=rules, call_torch=call_torch, call_jax=call_jax)
    print(report)
    if flags.json is not None:
        flags.json.write_text(report.to_json(), "utf-8")
        print(f"report {flags.json}")
    return report.exit_code


def explain(arguments: list[str]) -> int:
    """Print a report again."""
    from jaxformer.parity.report import Report

    path = parse(Explain, arguments, prog="jaxformer parity explain").report
    try:
        report = Report.from_json(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a report that --json wrote") from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise InputError(f"{path} is no report; give one that --json wrote") from None
    print(report)
    return report.exit_code


def mutants(arguments: list[str]) -> int:
    """Every bug of the gate against the comparison."""
    if arguments:
        raise InputError(f"unknown flag {arguments[0]}; parity mutants takes none")
    from jaxformer.parity import mutations

    return mutations.main()


COMMANDS: dict[str, Callable[[list[str]], int]] = {"compare": compare, "explain": explain, "mutants": mutants}


def _inputs(flags: Compare) -> tuple[Any, ...]:
    if flags.inputs is not None:
        found = _named(flags.inputs)()
        return found if isinstance(found, tuple) else (found,)
    if flags.vocab is None:
        raise InputError("there is nothing to feed the models; give --vocab for token ids, or --inputs package.module:function")
    check_size("vocab", flags.vocab)
    check_size("length", flags.length, least=4)
    from jaxformer.parity.inputs import probe

    return probe(flags.vocab, 5, flags.length, seed=0)[:1]


def _model(name: str) -> tuple[Any, Callable[..., Any]]:
    from jaxformer.parity.checks import apply

    found = _named(name)()
    return found if isinstance(found, tuple) else (found, apply)


def _named(name: str) -> Callable[[], Any]:
    """The function that 'package.module:function' names, from the current folder too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(f"{name} names no function; give it as package.module:function")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise InputError(f"{name}: there is no module {error.name}; run where it lies, or install it") from None
    except AttributeError:
        raise InputError(f"{name}: module {module} has no {function}") from None
    finally:
        sys.path.remove("")
