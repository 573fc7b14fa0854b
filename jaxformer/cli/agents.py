"""`jaxformer skill` and `jaxformer parity schema`: how a program or an agent ports a model with the checker."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from jaxformer.cli.flags import parse
from jaxformer.errors import InputError
from jaxformer.io.atomic import written_whole

BEGIN, END = "<!-- jaxformer: begin -->", "<!-- jaxformer: end -->"
"""Lines around the section of an AGENTS.md."""


@dataclass(frozen=True, kw_only=True)
class Skill:
    """Print a SKILL.md that tells an agent how to port with the checker, or write it, or a section of an AGENTS.md."""

    out: Path | None = None
    """The SKILL.md to write."""
    agents: Path | None = None
    """An AGENTS.md to add the section to; a section from before is replaced, and the rest stays."""


def skill(arguments: list[str]) -> None:
    """Print or write the skill."""
    flags = parse(Skill, arguments, prog="jaxformer skill")
    text = resources.files("jaxformer.cli").joinpath("skill.md").read_text("utf-8")
    if flags.out is not None:
        if (held := read(flags.out)) and not held.startswith(text[: text.index("description:")]):
            raise InputError(f"{flags.out} holds something else; give another name, or remove it")
        write(flags.out, text)
    if flags.agents is not None:
        held = read(flags.agents)
        if held.count(BEGIN) != held.count(END) or held.count(BEGIN) > 1:
            raise InputError(
                f"{flags.agents} does not hold {BEGIN} and {END} once each; put them around the section, or remove both"
            )
        write(flags.agents, with_section(held, text.split("---\n", 2)[2].strip()))
    if flags.out is flags.agents is None:
        print(text, end="")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Print the JSON schema of a report."""

    of: Literal["report", "logprobs", "doctor"] = "report"
    """report: what `jaxformer parity compare --json` and `check --json` save. logprobs: what `compare_logprobs(...).to_json()`
    gives. doctor: what `jaxformer doctor FOLDER --json` saves."""


def schema(arguments: list[str]) -> None:
    """Print the schema."""
    flags = parse(Schema, arguments, prog="jaxformer parity schema")
    print(json.dumps(schema_of(flags.of), indent=1))


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of a kind of report."""
    from jaxformer.convert.versions import finding
    from jaxformer.parity.logprobs import report
    from jaxformer.parity.report.schema import schema

    others = {
        "logprobs": (report.LogprobReport, report.SCHEMA, "Report of jaxformer.compare_logprobs"),
        "doctor": (finding.FolderReport, finding.SCHEMA, "Report of jaxformer doctor"),
    }
    return schema(*others.get(kind, ()))


def with_section(text: str, section: str) -> str:
    """Return the text of an AGENTS.md with this section at the place of an earlier one, or at the end."""
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if found else "\n"
    return f"{before.rstrip()}\n\n{BEGIN}\n{section}\n{END}{after}".lstrip()


def read(path: Path) -> str:
    """Read a text file, '' if there is none; InputError if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""  # line ends stay as they are
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text ({error}); name another file") from None


def write(path: Path, text: str) -> None:
    """Write a text file, and say so; InputError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as unfinished:
            unfinished.write_bytes(text.encode("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; give another name") from None
    print(f"written {path}")
