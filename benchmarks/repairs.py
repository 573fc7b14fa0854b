"""Small repairs of a port's source, as a script can make them, and the order in which a report calls for them.

A repair replaces the text of one part of the syntax tree. Without a report, all repairs of a file are drawn at random. With
one, those in the code of the module that it blames come first, and among them those of the kind that its cause calls for.
"""

import ast
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WORDS = {
    "gelu": ("gelu",),
    "gelu by tanh": ("gelu_new", "gelu_pytorch_tanh"),
    "quick gelu": ("quick_gelu",),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
    "tanh": ("tanh",),
}
"""Names of activations in causes -> their names in code."""
NUMBERS = (0.0, 1.0, 2.0, 1e-12, 1e-6, 1e-5, 10000.0)
"""Numbers that are tried where no report gives one."""
WANTED = {
    "attention.solved": ("factor",),
    "children.behind": ("exchange", "move"),
    "children.left_out": ("imitate", "add"),
    "exchange": ("exchange",),
    "formula.choices": ("number", "word", "keyword", "cast"),
    "masks": ("shift", "term", "flip", "call"),
    "operations.arithmetic": ("flip",),
    "operations.centered": ("term",),
    "order": ("index", "exchange", "number"),
    "pairs": ("term", "number"),
    "parameters.left_out": ("keyword", "factor", "add"),
    "parameters.read": ("cast", "term", "factor"),
    "results.multiple": ("factor",),
    "rotary.backwards": ("flip", "exchange"),
    "rotary.unrotated": ("imitate",),
    "rotary.use": ("call", "imitate"),
    "values": ("factor", "flip", "call"),
}
"""Change that a cause names, or its operator -> the kinds of repairs that it calls for, the likeliest first."""
CASTS = ("asarray", "array", "astype")
MODULES = ("flax", "jax", "jnp", "lax", "nn", "np", "self")
"""Names whose functions are no methods."""
OPPOSITES: dict[type, str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.And: "or",
    ast.Or: "and",
}


Place = ast.AST | tuple[int, int]
"""Part of the tree, or where its text begins and ends."""


@dataclass(frozen=True)
class Repair:
    """Replacement of one part of a source."""

    kind: str
    start: int
    end: int
    text: str
    depth: int
    """Number of calls between the blamed module's code and this part."""

    def applied(self, source: str) -> str:
        """Return the repaired source."""
        return source[: self.start] + self.text + source[self.end :]


class Source:
    """Source of a port: its text, its definitions, and the repairs of each."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(text)
        self.definitions = {each.name: each for each in self.tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}

    def drawn(self, seed: int) -> list[Repair]:
        """Return the repairs of the whole file in a random order."""
        found = [repair for each in self.definitions.values() for repair in self._repairs(each, 0, {})]
        random.Random(seed).shuffle(found)
        return found

    def ordered(self, report: Mapping[str, Any]) -> list[Repair]:
        """Return the repairs that a report calls for, the likeliest first: for its first module with a cause."""
        modules = [module for module in report["modules"] if module["diverging"]]
        if not modules:
            return []
        module = next((each for each in modules if each["causes"]), modules[0])
        cause = next(iter(module["causes"]), {"change": "", "args": {}, "value": None})
        kinds, numbers = kinds_of(cause), exchanged(cause)
        found = [
            repair
            for definition, depth in self._reached(int(module["source"].rpartition(":")[2] or 0)).items()
            for repair in self._repairs(definition, depth, numbers)
        ]
        last = len(kinds)
        place = {kind: number for number, kind in enumerate(kinds)}
        exact = {"number", "word"} if numbers else set()
        return sorted(found, key=lambda it: (it.kind not in exact, place.get(it.kind, last), it.depth))

    def _reached(self, line: int) -> dict[ast.AST, int]:
        """Return the function at a line, the definition around it, and those that its code names, with the number of names
        between; the function is one nearer than the rest of its class."""
        held = [it for it in self.definitions.values() if it.lineno <= line <= (it.end_lineno or 0)]
        depth: dict[ast.AST, int] = {}
        for each in held:
            methods = [it for it in each.body if isinstance(it, ast.FunctionDef) and it.lineno <= line <= (it.end_lineno or 0)]
            depth |= dict.fromkeys(methods, 0) | {each: 1}
        for each in (queue := list(held)):
            names = {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
            for other in (it for name, it in self.definitions.items() if name in names and it not in depth):
                depth[other] = depth[each] + 1
                queue.append(other)
        return depth

    def _repairs(self, definition: ast.AST, depth: int, numbers: Mapping[str, str]) -> Iterator[Repair]:
        """Return all repairs of a definition; with `numbers`, literals become the one that a report gives."""
        for node in ast.walk(definition):
            for kind, place, text in self._of(node, numbers):
                yield Repair(kind, *(place if isinstance(place, tuple) else self._span(place)), text, depth)

    def _of(self, node: ast.AST, numbers: Mapping[str, str]) -> Iterator[tuple[str, Place, str]]:
        """Return kind, place and text of the repairs of one node."""
        match node:
            case ast.Constant(value=bool()):
                yield "flip", node, str(not node.value)
            case ast.Constant(value=int() | float() as number):
                yield from (("number", node, new) for new in self._other(number, numbers))
            case ast.Constant(value=str() as word):
                yield from (("word", node, repr(new)) for new in self._words(word, numbers))
            case ast.BinOp():
                left, right = self._text(node.left), self._text(node.right)
                kind = "factor" if isinstance(node.op, ast.Mult | ast.Div) else "term"
                yield from ((kind, node, left), (kind, node, right))
                if type(node.op) in OPPOSITES:
                    yield "flip", node, f"({left}) {OPPOSITES[type(node.op)]} ({right})"
            case ast.UnaryOp(op=ast.USub()):
                yield "flip", node, self._text(node.operand)
            case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
                yield "flip", node, f"{self._text(node.left)} {OPPOSITES[type(op)]} {self._text(node.comparators[0])}"
            case ast.Call():
                yield from self._of_call(node)
            case ast.Subscript(ctx=ast.Load()):
                yield "index", node, self._text(node.value)
            case ast.Slice(lower=ast.Constant(value=1), upper=ast.BinOp(op=ast.Add(), left=end)):
                yield "shift", node, f":{self._text(end)}"
            case ast.Tuple() | ast.List():
                yield from self._of_row(node, node.elts)
            case ast.FunctionDef():
                yield from self._of_statements(node)

    def _of_call(self, node: ast.Call) -> Iterator[tuple[str, Place, str]]:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        method = owner is not None and not (isinstance(owner, ast.Name) and owner.id in MODULES)
        kind = "cast" if isinstance(node.func, ast.Attribute) and node.func.attr in CASTS else "call"
        for kept in [owner] if method and owner else node.args[:1]:
            yield kind, node, self._text(kept)
        yield from self._of_row(node, node.args)
        for each in node.keywords:
            start, end = self._span(each)
            after = re.match(r"\s*,\s*", self.text[end:])
            whole = self._text(node)
            at = start - self._span(node)[0]
            yield "keyword", node, whole[:at] + whole[at + end - start + (after.end() if after else 0) :]

    def _of_row(self, node: ast.AST, items: list[ast.expr]) -> Iterator[tuple[str, Place, str]]:
        """Return the exchanges of neighbours in a row of expressions."""
        first = self._span(node)[0]
        for one, two in pairwise(items):
            (a, b), (c, d) = self._span(one), self._span(two)
            whole = self._text(node)
            text = whole[: a - first] + self.text[c:d] + self.text[b:c] + self.text[a:b] + whole[d - first :]
            yield "exchange", node, text

    def _of_statements(self, node: ast.FunctionDef) -> Iterator[tuple[str, Place, str]]:
        """Return repairs of whole statements: made like another one, moved, or with one more operand."""
        assigned = [
            (each, each.targets[0].id, self._text(each.value))
            for each in ast.walk(node)
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
        ]
        for each, name, value in assigned:
            for other, name_of_other, like in assigned:
                new = re.sub(rf"\b{name_of_other}\b", name, like)
                if other is not each and name != name_of_other and new not in (value, like):
                    yield "imitate", each.value, new
        names = {name for _, name, _ in assigned} | {each.arg for each in node.args.args} - {"self"}
        read = Counter(it.id for it in ast.walk(node) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load))
        seldom = sorted(names, key=lambda name: (read[name], name))
        for each, _, value in sorted(assigned, key=lambda it: not isinstance(it[0].value, ast.Name)):  # first of all copies
            yield from (("add", each.value, f"{value} + {name}") for name in seldom if name != value)
        for block in (getattr(it, "body", None) for it in ast.walk(node)):
            for one, two in pairwise(block if isinstance(block, list) else ()):
                (a, b), (c, d) = self._span(one), self._span(two)
                yield "move", (a, d), self.text[c:d] + self.text[b:c] + self.text[a:b]

    def _other(self, value: float, numbers: Mapping[str, str]) -> Iterator[str]:
        if not numbers:
            yield from (repr(new) for new in {*NUMBERS, value + 1, value - 1} - {value})
        for had, wanted in numbers.items():
            if (number := as_number(had)) is not None and math.isclose(number, value, rel_tol=1e-4):
                yield wanted

    def _words(self, word: str, numbers: Mapping[str, str]) -> Iterator[str]:
        spoken = {name: said for said, names in WORDS.items() for name in names}
        if word in spoken:
            allowed = {numbers.get(spoken[word], "")} if numbers else set(WORDS)
            yield from (names[0] for said, names in WORDS.items() if said in allowed and word not in names)

    def _span(self, node: Any) -> tuple[int, int]:
        """Return where a node's text begins and ends."""
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        return start + len(self.text[start : self.starts[line]].encode()[:column].decode())

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.text[start:end]


def kinds_of(cause: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of repairs that a cause calls for, the likeliest first."""
    change = cause["change"]
    if change == "sum.factors":
        lost, new = (any(pair[way] == 0 for pair in cause["args"].values() if isinstance(pair, list)) for way in (1, 0))
        return ("move", "add", "term") if lost and new else ("add", "move") if lost else ("term", "factor", "cast")
    if "mask" in cause["args"]:
        return WANTED["masks"]
    return WANTED.get(change, WANTED.get(change.partition(".")[0], ()))


def exchanged(cause: Mapping[str, Any]) -> dict[str, str]:
    """Return what jax has -> what torch has, as far as a cause gives numbers or words for both."""
    args, found = cause["args"], {}
    if cause["change"] == "sum.factors":
        return found  # factors of terms, which the code does not spell out
    for name in ("own", "was"):
        for other in ("value", "other", "base", "epsilon"):
            if name in args and other in args | {"value": cause["value"]}:
                found[str((args | {"value": args.get("value", cause["value"])})[other])] = str(args[name])
    for pair in args.values():
        if isinstance(pair, list) and len(pair) == 2 and pair[0] != pair[1]:
            found[str(pair[1])] = str(pair[0])
    return found


def as_number(word: str) -> float | None:
    """Return the number that a word is; None for other words."""
    try:
        return float(word)
    except ValueError:
        return None
