"""Command-line flags from dataclasses, and errors as one line. Does not import jax, so that --help is quick."""

import contextlib
import difflib
import inspect
import io
import os
import re
import shlex
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jaxformer.errors import InputError, printable
from jaxformer.runs.orbax_errors import tell_unraisable
from jaxformer.runtime.compilation_cache import stated
from jaxformer.runtime.refusals import is_verbose, refusal
from jaxformer.runtime.shutdown import stop_listening
from jaxformer.runtime.stdio import kept_streams, lead_nowhere, restore_streams

T = TypeVar("T")
EMPTY = "it is empty; give a path"
NARROWEST, WIDEST = 40, 10_000
"""Minimum width of help in columns, and the width of an error message, which is one line."""


def parse(kind: type[T], arguments: Sequence[str], *, prog: str, default: T | None = None) -> T:
    """Parse flags into a dataclass; InputError, in one line with the nearest name, for a flag or value that does not fit."""
    import tyro

    printed = io.StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(printed), _with_files(), _terminal(arguments):
            value, unknown = tyro.cli(kind, prog=prog, args=list(arguments), return_unknown_args=True, **given)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        message, names = _first_line(printed.getvalue()), flag_names(kind if default is None else default)
        odd = next((word for word in _flags_in(arguments) if not {word, word.replace("--no-", "--", 1)} & {*names}), None)
        if odd is not None and not message.startswith("Missing value for argument '-"):
            raise _unknown(odd, names, prog) from None
        message = _about_dashes(message, arguments)
        raise InputError(message.removeprefix(f"Error parsing {kind.__name__}: ")) from None
    if unknown:
        flag = unknown[0].split("=")[0]
        if not flag.startswith("-"):
            raise InputError(
                f"unexpected argument {unknown[0]!r}; {_meant(kind, unknown[0], arguments) or f'see {prog} --help'}"
            )
        names = flag_names(kind if default is None else default)
        if flag in names:
            raise InputError(f"{flag} stands after --, where nothing is a flag; put it before --")
        raise _unknown(flag, names, prog)
    return value


def _unknown(flag: str, names: Sequence[str], prog: str) -> InputError:
    """Return an error that suggests the nearest flag."""
    near = difflib.get_close_matches(flag, names, 1)
    return InputError(f"unknown flag {flag}; " + (f"did you mean {near[0]}?" if near else f"see {prog} --help"))


def _flags_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the words that are flags, as help writes them: what stands before = and before a lone --."""
    for word in arguments[: arguments.index("--") if "--" in arguments else None]:
        if word.startswith("--"):
            yield word.split("=")[0].replace("_", "-")


def _meant(kind: type, word: str, arguments: Sequence[str]) -> str:
    """Suggest a command's first flag for a word that has none, if it takes a text or a path and is not given; else ''."""
    own = inspect.get_annotations(kind)
    name = next((name for name, hint in own.items() if not hasattr(hint, "__metadata__")), "")  # a positional has some
    flag = "--" + name.replace("_", "-")
    fits = own.get(name) in (str, str | None, Path, Path | None) and flag not in _flags_in(arguments)
    return f"did you mean {flag} {shlex.quote(word)}?" if fits else ""


def _about_dashes(message: str, arguments: Sequence[str]) -> str:
    """Return the message; if a value is missing because a word begins with a dash, return what to write instead."""
    missing = re.match(r"Missing value for argument '(-*)(.*?)'", message)
    if missing and missing[1]:
        flag = "".join(missing.groups())
        return f"{flag} has no value; give one, as {flag}=VALUE where it begins with -"
    word = next((word for word in arguments if re.match(r"-[^-\d.]", word)), None)
    if word is None or not (missing or (message.endswith(EMPTY) and "" not in arguments)):
        return message
    return f"{word} is read as a flag, and is none; write ./{word} where it is a path"


@contextlib.contextmanager
def _terminal(arguments: Sequence[str]) -> Iterator[None]:
    """Context manager: tyro formats help for the terminal's width, and errors without colours and line breaks."""
    changes = {"COLUMNS": str(WIDEST), "TERM": "dumb"}
    if {"-h", "--help"} & {*arguments}:
        changes = {"COLUMNS": str(max(NARROWEST, shutil.get_terminal_size().columns))}
    before = {name: os.environ.pop(name) for name in changes if name in os.environ}
    os.environ |= changes
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]
        os.environ |= before


def _with_files() -> contextlib.AbstractContextManager[Any]:
    """Context manager: a FixedTable is read from a file, and an empty path, which would be the current folder, is refused."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    from jaxformer.config.configuration import FixedTable  # imports numpy

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def table(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[FixedTable] | None:
        return None if info.type is not FixedTable else spec

    spec = PrimitiveConstructorSpec(
        nargs=1,
        metavar="FILE.npy",
        instance_from_str=lambda names: FixedTable.load(names[0]),
        is_instance=lambda value: isinstance(value, FixedTable),
        str_from_instance=lambda table: [str(table)],
    )

    @registry.primitive_rule
    def path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
        return None if info.type is not Path else paths

    paths = PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda names: _path(names[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    )
    return registry


def _path(name: str) -> Path:
    if not name:
        raise ValueError(EMPTY)
    return Path(name)


def flag_names(value: Any, start: str = "--") -> list[str]:
    """Return every flag of a dataclass; nested ones have a dot."""
    names = []
    for field in fields(value):
        flag = start + field.name.replace("_", "-")
        inner = getattr(value, field.name, field.type)
        names += flag_names(inner, flag + ".") if is_dataclass(inner) else [flag]
    return names


def peek(arguments: Sequence[str], flag: str) -> str | None:
    """Return the value of one flag before the others are parsed, `--flag value` or `--flag=value`; the last one counts."""
    found = None
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            found = arguments[i + 1]
        elif argument.startswith(flag + "="):
            found = argument.split("=", 1)[1]
    return found


def run(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Call main with the command line, and exit with the code that it returns; None means 0.

    A JaxformerError, or an error of the operating system, is one line on stderr and exit code 2; `-v` before the command shows
    the traceback instead. A bug in jaxformer is a traceback and code 2 too: code 1 is a command's own answer, as "different".
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _worded_once()
    sys.unraisablehook = tell_unraisable
    with kept_streams():
        code = _code_of(main)
    sys.exit(code or 0)


def _code_of(main: Callable[[list[str]], int | None]) -> Any:
    """Call main, and return its exit code; an error is reported, and its code returned."""
    verbose = is_verbose()
    try:
        code = main(sys.argv[1 + verbose :])
        restore_streams()
        sys.stdout.flush()
        if line := stated():
            _tell(line)
    except KeyboardInterrupt:  # from Python or the user's code: a signal ends the process otherwise
        _tell("stopped by KeyboardInterrupt")
        code = 130
    except SystemExit as stop:  # rich exits when the reader of its output is gone
        code = 141 if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except Exception as error:
        restore_streams()
        refused = refusal(error)
        said, code = refused or ("", 2)
        if verbose or refused is None:
            traceback.print_exc()
        elif said:
            _tell(said)
        if isinstance(error, OSError):
            lead_nowhere(sys.stdout)
    finally:
        restore_streams()
        stop_listening()
    return code


def _worded_once() -> Callable[..., str]:
    """Return a formatter that writes a warning as one line, and '' for a warning that was written before."""
    told = set[str]()

    def worded(message: Warning | str, *_: Any) -> str:
        line = f"warning: {printable(str(message))}\n"
        is_new = line not in told
        told.add(line)
        return line if is_new else ""

    return worded


def _tell(line: str) -> None:
    """Print a line to stderr; errors in writing are ignored."""
    restore_streams()
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)


def _first_line(box: str) -> str:
    """Extract the message from tyro's box of lines or dashes: its first paragraph, reworded if a value could not be parsed."""
    words: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│ ")
        if not set(text) <= set("─-╰╯"):
            words.append(text)
        elif words:
            break
    message = " ".join(words) or box.strip()
    flag = r"--[\w.-]+|\[(?:\{None\}\|)?INT\]"
    if number := re.match(rf"Error parsing ({flag}): .*(INT|base 10|FLOAT|to float)\b.*?'(.*?)'", message):
        kind = "a whole number" if number[2] in ("INT", "base 10") else "a number"
        flag = f"{number[1]} = " if number[1].startswith("--") else ""
        return f"{flag}{number[3]!r} is not {kind}; give one"
    if EMPTY in message or "PATH could be" in message:
        return re.sub(r"^Error parsing (.+?): .*", rf"\1: {EMPTY}", message)
    if refused := re.match(r"Error parsing (--)?([\w.-]+): ([\w.]+ = .*)", message):
        return f"{refused[2]}.{refused[3]}" if refused[1] else refused[3]
    return message
