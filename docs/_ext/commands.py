"""Directive `command-help`: what `--help` prints of every command, by group."""

import contextlib
import io
import os
from collections.abc import Iterator
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from jaxformer.cli.commands import COMMANDS, GROUPS, Command

COLUMNS = 88
"""Width of the help in characters."""


def help_of(command: Command) -> str:
    """Return what a command prints with --help."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS=str(COLUMNS)),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        command.run(["--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def sections() -> Iterator[str]:
    """Return Markdown: a section for each group, and in it one for each command."""
    for group, title in GROUPS.items():
        heading, _, more = title.partition(" (")
        yield f"## {heading}\n\n{more[:1].upper()}{more[1:-1]}{more and '.'}"
        for name, command in COMMANDS.items():
            if group == (name.split()[0] if name.split()[0] in GROUPS else ""):
                example = f"jaxformer {name} {command.example}".strip()
                yield f"### jaxformer {name}\n\n{command.summary[0].upper()}{command.summary[1:]}."
                yield f"```console\n$ {example}\n```"
                yield f":::{{dropdown}} All flags\n```text\n{help_of(command)}\n```\n:::"


class CommandHelp(SphinxDirective):
    """Sections with the help of all commands."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return self.parse_text_to_nodes("\n\n".join(sections()), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
