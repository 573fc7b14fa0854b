"""Docstrings begin with a verb, or with the noun that the thing is; and retired words stay retired."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("jaxformer", "torch_ref", "train", "benchmarks")
OPENINGS = re.compile(
    r"(Of|What|Whether|The same|Those|These|This|That|They|It|Its|Which|How|Who|Whom|Whose|Where|When|Why|Inside|As|Or|And|But|"
    r"None|Else|To|By|In|On|At|For|From|With|Without|Only|So|Such|If|Unless|After|Before|After|Beside|Nothing|Something|Not|No|"
    r"Is|Are|Has|Must|May|Can|Up to|There|Here|Then|Now|Also|Again)\b"
)
RETIRED = re.compile(
    r"\b(alterations?|rerun|dial|dials|whole_files|quiet_orbax|freed_memory|keep_mask|in_parts|handed_on|sent_by_wrong|selfcheck)\b"
)
"""Words that others took the place of: mutation, replay, free parameter, atomic, orbax_errors, ..."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, and those of attributes, under their assignments."""
    for node in ast.walk(ast.parse(source)):
        for each in body if isinstance(body := getattr(node, "body", None), list) else []:
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
                yield each.lineno, each.value.value.lstrip()


def sources() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def test_docstrings_begin_with_a_verb_or_a_noun():
    found = [
        f"{name}:{line}: {text:.60}" for name, source in sources() for line, text in docstrings(source) if OPENINGS.match(text)
    ]
    assert found == []


def test_retired_words_are_not_used():
    assert [f"{name}: {match[0]}" for name, source in sources() for match in RETIRED.finditer(source)] == []


def test_both_find_what_they_look_for():
    ((_, first), (_, second)) = docstrings('"""Whether it is."""\nX = 1\n"""Number of rows."""\n')
    assert OPENINGS.match(first)
    assert not OPENINGS.match(second)
    assert RETIRED.search("an alteration of it")
