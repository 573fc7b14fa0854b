"""Flags that several commands of `jaxformer parity` share, with their defaults, and the user's objects that they name.

A name is `package.module:name`: of a function, or of the models or inputs that it returns."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxformer.errors import InputError, JaxformerError, first_line, message_of
from jaxformer.runtime.compilation_cache import CacheFlag
from jaxformer.runtime.refusals import is_verbose
from jaxformer.runtime.stdio import restore_streams
from jaxformer.validation.fields import check_size

if TYPE_CHECKING:
    from jaxformer.parity.report.report import Report


TorchName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TORCH_MODEL")]
JaxName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="JAX_MODEL")]
Tier = Literal["A", "B", "C"]


@dataclass(frozen=True, kw_only=True)
class InputFlags:
    """Inputs that both models are called on."""

    inputs: str | None = None
    """package.module:function that returns a tuple of numpy arrays. None: adversarial token ids, below --vocab."""
    vocab: int | None = None
    """Number of token ids."""
    length: int = 66
    """Number of tokens in a row."""

    def arrays(self) -> tuple[Any, ...]:
        """Return the inputs."""
        if self.inputs is not None:
            return call(self.inputs)
        if self.vocab is None:
            raise InputError("the models have no inputs; give --vocab for token ids, or --inputs package.module:function")
        check_size("vocab", self.vocab)
        check_size("length", self.length, least=4)
        from jaxformer.parity.probe import probe

        return probe(self.vocab, 5, self.length, seed=0)[:1]


@dataclass(frozen=True, kw_only=True)
class SelectFlags:
    """Selection of the torch model's arrays that are kept."""

    names: str = "*"
    """Pattern of the paths of modules that are compared by themselves: 'decoder.layers.[0-3].*'."""
    every: int = 1
    """One in so many layers is compared by itself."""
    keep: Literal["tensors", "statistics"] = "tensors"
    """Whole arrays, or a few numbers of each: then JAX runs on its own weights, and no causes are searched."""

    def selected(self) -> dict[str, Any]:
        """Return keyword arguments of the recording."""
        return {"names": self.names, "every": self.every, "keep": self.keep}


@dataclass(frozen=True, kw_only=True)
class JudgeFlags(CacheFlag):
    """Settings of the comparison."""

    rules: str | None = None
    """Pairing of tensors: a family by name, or package.module:FAMILY. None: matched by their values."""
    tier: Tier = "B"
    """A: float64 only. B: float32 too. C: bfloat16 too."""
    checks: tuple[str, ...] = ()
    """Some of weights, forward, local, gradients, 'activation gradients', sensitivity. None: all."""
    search_seconds: float = 60.0
    """Time limit of the search for causes, in seconds; 0 leaves it out."""
    reduce_to: Path | None = None
    """Write the first call that differs as a test, failing.py, with torch's arrays beside it."""

    def options(self, jax: str) -> dict[str, Any]:
        """Return keyword arguments of the comparison; `jax` is the name of the JAX model."""
        rules = load(self.rules) if self.rules is not None and ":" in self.rules else self.rules
        options = {"rules": rules, "tier": self.tier, "search_seconds": self.search_seconds}
        options |= {"checks": self.checks} if self.checks else {}
        return options | ({"reduce_to": (self.reduce_to, load(jax))} if self.reduce_to else {})


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Files for the whole report."""

    json: Path | None = None
    """Save the report as JSON, for `jaxformer parity explain` and for programs."""
    markdown: Path | None = None
    """Save the report as Markdown."""
    html: Path | None = None
    """Save the report as one HTML page that needs no other file."""

    def show(self, report: "Report") -> int:
        """Save the report, print it (verdict last; with -v, also the first failure's traceback), and return the exit code."""
        from jaxformer.parity.report.text import show

        restore_streams()
        self.save(report)
        if report.traceback and is_verbose():
            print(report.traceback)
        show(report)
        return report.exit_code

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Context manager: where a command ends before it has a report, the files say so, and no older report stays in them."""
        try:
            yield
        except Exception as error:
            if self.json or self.markdown or self.html:
                from jaxformer.parity.isolate import ended

                with suppress(InputError):
                    self.save(ended(first_line(error)))
            raise

    def save(self, report: "Report") -> None:
        """Write the report to the files that are named."""
        for path, write in ((self.json, report.to_json), (self.markdown, report.to_markdown), (self.html, report.to_html)):
            if path is not None:
                try:
                    path.write_text(write(), "utf-8")
                except OSError as error:
                    raise InputError(f"{path} cannot be written: {error.strerror}; give another name") from None
                print(f"report {path}")


def load(name: str) -> Any:
    """Load the object with this name; modules in the current folder are found too."""
    module, _, attribute = name.partition(":")
    file = Path(module)
    if attribute and (file.suffix == ".py" or file.name != module):
        place = "its folder" if file.name == module else file.parent
        raise InputError(f"{name!r} names a file; write {file.name.removesuffix('.py')}:{attribute}, and run in {place}")
    if not module or not attribute or module.startswith("."):
        raise InputError(f"{name!r} names no function; give it as package.module:function")
    sys.path.insert(0, "")
    try:
        with no_exit(name):
            return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        from jaxformer.parity.trace.source_lines import line_of

        own = f"{module}.".startswith(f"{error.name}.")
        what = "there is" if own else f"{line_of(error) or module} imports {error.name}, and there is"
        raise InputError(f"{name}: {what} no module {error.name}; run in the folder that holds it, or install it") from None
    except AttributeError:
        raise InputError(f"{name}: module {module} has no {attribute}") from None
    finally:
        sys.path.remove("")


@contextmanager
def no_exit(name: str) -> Iterator[None]:
    """Context manager: user code that exits the process raises InputError, so that no exit code 0 passes for equality."""
    try:
        yield
    except SystemExit as error:
        raise InputError(f"{name} ends the process with sys.exit({error.code!r:.40}); take that out") from None
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"{name} fails: {type(error).__name__}: {first_line(error)}") from error


def call(name: str) -> Any:
    """Call the function with this name, and return its result; InputError says where it failed."""
    with blamed(name):
        return load(name)()


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Context manager: any error of user code becomes an InputError that says where it occurred."""
    try:
        with no_exit(name):
            yield
    except JaxformerError:
        raise
    except Exception as error:
        from jaxformer.parity.trace.source_lines import line_of

        at = f" (at {place})" if (place := line_of(error)) else ""
        raise InputError(f"{name} fails: {type(error).__name__}: {message_of(error).strip().split(chr(10))[0]}{at}") from error


def model_and_call(name: str) -> tuple[Any, Callable[..., Any]]:
    """Return the model that the function returns, and the function that calls it on the inputs."""
    from jaxformer.parity.trace.reference import apply

    found = call(name)
    if found is None:
        raise InputError(f"{name} returns None; return the model, or a tuple: the model and a function that calls it")
    if not isinstance(found, tuple):
        return found, apply
    with blamed(name):
        given = [*found]
    if len(given) != 2 or not callable(given[1]):
        raise InputError(f"{name} returns a tuple of {len(given)}; return the model, or the model and a function that calls it")
    return given[0], given[1]
