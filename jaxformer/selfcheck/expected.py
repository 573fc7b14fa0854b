"""Expected causes: what a planted bug has to be called, as structure and not as words.

A pattern has the change and what is said of it, in words with `*` for any part:

    rotary.base own=10000 base=1000 *
    formula.choices formula=norm 'epsilon=1e-05, 1e-06' | parameters.number was=1e-05 value=1e-06 at=*.eps
    sum.factors 'input 1=0, 1' & sum.factors 'input 1=1, 0'

Every word is found in the cause, and all of the cause is named by a word: its arguments, the number that was solved for
(`value=`), and its targets (`at=`) where the pattern has any. A word `*` names whatever is left. Alternatives stand between
bars: mutations that give the same. What stands between ampersands is needed together: causes of several arrays.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from jaxformer.parity.report.data import Cause


def named(pattern: str, causes: Sequence[Cause]) -> bool:
    """Whether one of the pattern's alternatives is among the causes of a module."""
    return any(
        all(any(_fits(words, facts(cause)) for cause in causes) for words in _split(alternative, "&"))
        for alternative in _split(shlex.split(pattern), "|")
    )


def choice(formula: str, *settings: str) -> str:
    """The pattern of other choices in a formula: 'mask=as given, causal' are torch's and jax's of one setting."""
    return shlex.join(["formula.choices", f"formula={formula}", *settings])


def structure(cause: Cause) -> str:
    """The pattern that fits this cause alone: what is copied from a verdict that is right."""
    return shlex.join(facts(cause))


def facts(cause: Cause) -> list[str]:
    """The change, and what it says: 'rotary.base', 'base=1000', 'at=rotary'."""
    said = {name: _text(value) for name, value in cause.args.items()}
    number = {} if cause.value is None else {"value": _text(cause.value)}
    arguments = [f"{name}={text}" for name, text in (said | number).items() if text]
    return [cause.change, *arguments, *(f"at={target.label}" for target in cause.targets)]


def _fits(words: Sequence[str], cause: Sequence[str]) -> bool:
    globs = [re.compile(".*".join(map(re.escape, word.split("*"))), re.DOTALL) for word in words]
    found = [{fact for fact in cause if glob.fullmatch(fact)} for glob in globs]
    placed = any(word.startswith("at=") for word in words)
    asked = {fact for fact in cause if placed or not fact.startswith("at=")}
    return all(found) and asked <= set().union(*found)


def _split(words: Iterable[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == mark:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _text(value: Any) -> str:
    """Numbers have four digits."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{float(f'{value:.4g}'):g}" if isinstance(value, float) else str(value)
