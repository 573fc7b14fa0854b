"""Hold-out test: random mechanical changes of the source of other people's ports, drawn by a seed.

    field-venv/bin/python -m benchmarks.holdout --seed 1 --count 50

`benchmarks/field.py` describes the environment. A change replaces a number, an operator or a comparison, leaves out an argument
or a line, or exchanges two arguments. Only changes count with which the port runs and gives another output, beyond rounding.

Each outcome has three parts: if the comparison is DIFFERENT; if it names a module whose class has the change, or one that such
a module makes; and if the cause is right. A cause is right if the same mutation of torch's code explains the port on other
weights and inputs too, since a chance fit does not repeat. A change that names layers in another way makes the port draw new
weights, which is no fault of a module's code: where the comparison finds these alone, or refuses them, it is counted as noticed
and apart. For work on the engine, use one seed; the other seeds measure it, and nothing is tuned on them.
"""

import ast
import importlib
import inspect
import random
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from flax import linen

from benchmarks.field import Field, compared
from benchmarks.field_kinds import KINDS, Kind
from benchmarks.field_models import Port, as_of_old, file_of, flax_release, ported
from benchmarks.field_source import with_source
from jaxformer.cli.flags import parse, run
from jaxformer.parity.report.data import Cause, Module
from jaxformer.parity.report.report import Report

CLEAR = 1e-4
"""Least difference (relL2 in float32) of an output that is above rounding."""
SAME = 1e-6
"""Relative tolerance of numbers that two comparisons solved for."""
OPERATORS: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
}
COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt()}


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Draw changes of the sources of ports, and judge the comparisons with them."""

    seed: int = 0
    """Seed by which changes are drawn."""
    count: int = 20
    """Number of changes that change the output of a port."""
    only: tuple[str, ...] = ()
    """Names of ports; none given: all that are equal to torch's models as they are."""


@dataclass(frozen=True)
class Change:
    """One change of a source."""

    where: str
    """Class or function that is changed."""
    line: int
    before: str
    after: str
    text: str
    """Whole source with the change."""


@dataclass
class Outcome:
    """Verdict of a comparison on a change."""

    kind: Kind
    change: Change
    noticed: bool = False
    passed: bool = False
    """True if the comparison says equal; one that is not noticed else could not be made, and says why."""
    drawn: bool = False
    """True if the change names layers in another way, so that the port draws new weights for them: these alone differ, or have
    no place in torch's model."""
    module: bool = False
    innocent: bool = False
    cause: str = ""
    """Judgement of the cause: 'right', 'false', or 'none'."""
    says: str = ""
    seconds: float = 0.0
    failed: str = ""

    def __str__(self) -> str:
        module = "weights alone" if self.drawn else "module" if self.module else "MODULE"
        marks = ["noticed" if self.noticed else "NOT NOTICED", module, f"cause {self.cause}", *["INNOCENT"] * self.innocent]
        what = f"{self.kind.name} {self.change.where}:{self.change.line} {self.change.before!r} -> {self.change.after!r}"
        return f"{self.seconds:5.1f} s  {', '.join(marks):40} {what}\n{'':10}{self.says}"


def main(arguments: list[str]) -> None:
    """Print a line for each change, then the figures."""
    flags = parse(Holdout, arguments, prog="python -m benchmarks.holdout")
    as_of_old()
    draw, found = random.Random(flags.seed), list[Outcome]()
    kinds = [each for each in KINDS if not each.differs and (not flags.only or each.name in flags.only)]
    while len(found) < flags.count:
        kind = draw.choice(kinds)
        change = draw.choice([*changes(inspect.getsource(importlib.import_module(file_of(kind))))])
        if is_live(kind, change):
            found.append(judged(kind, change))
            print(found[-1], flush=True)
    in_code = [each for each in found if not each.drawn]
    for says, count, of in (
        ("noticed", sum(each.noticed for each in found), found),
        ("passed as equal", sum(each.passed for each in found), found),
        ("weights alone", len(found) - len(in_code), found),
        ("module right", sum(each.module for each in in_code), in_code),
        ("innocents accused", sum(each.innocent for each in in_code), in_code),
        ("cause right", sum(each.cause == "right" for each in in_code), in_code),
        ("cause false", sum(each.cause == "false" for each in in_code), in_code),
    ):
        print(f"{says:18} {count:4} of {len(of)} ({count / max(len(of), 1):.0%})")
    print(f"{'seconds each':18} {np.mean([each.seconds for each in found]):4.1f}")


def changes(source: str) -> Iterator[Change]:
    """Yield every change of a source's modules and functions."""
    tree, lines = ast.parse(source), source.split("\n")
    for top in tree.body:
        if isinstance(top, ast.FunctionDef) or (isinstance(top, ast.ClassDef) and has_call(top)):
            for node in ast.walk(top):
                for new in otherwise(node):
                    yield put(lines, top.name, node, new)


def has_call(node: ast.ClassDef) -> bool:
    """True for a class of modules: it has a `__call__`, and no `init_weights`, which the models have."""
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return "__call__" in names and "init_weights" not in names


def otherwise(node: ast.AST) -> Iterator[str]:
    """Yield other code for a node of a program."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        for value in {node.value + 1, node.value * 2, node.value - 1} - {node.value}:
            yield repr(value)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield repr(not node.value)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)], node.right))
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield ast.unparse(ast.Compare(node.left, [COMPARISONS[type(node.ops[0])], *node.ops[1:]], node.comparators))
    elif isinstance(node, ast.Call):
        for i in range(len(node.keywords)):
            yield ast.unparse(ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :]))
        names = [i for i, each in enumerate(node.args) if isinstance(each, ast.Name)]
        for i, j in pairwise(names):
            args = [*node.args]
            args[i], args[j] = args[j], args[i]
            yield ast.unparse(ast.Call(node.func, args, node.keywords))
    elif isinstance(node, ast.Assign) and reads_its_target(node):
        yield "pass"


def reads_its_target(node: ast.Assign) -> bool:
    """True for `x = f(x)`."""
    (target, *_), read = node.targets, {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    return isinstance(target, ast.Name) and target.id in read


def put(lines: list[str], where: str, node: Any, new: str) -> Change:
    """Replace a node of a source by other code."""
    first, last = node.lineno - 1, node.end_lineno - 1
    text = "\n".join(lines[first : last + 1]).encode()
    end = len(text) - len(lines[last].encode()) + node.end_col_offset
    before, old, after = text[: node.col_offset], text[node.col_offset : end], text[end:]
    changed = (before + new.encode() + after).decode().split("\n")
    return Change(where, node.lineno, old.decode(), new, "\n".join([*lines[:first], *changed, *lines[last + 1 :]]))


def is_live(kind: Kind, change: Change) -> bool:
    """True if the port runs with the change, and gives another output."""

    def given() -> np.ndarray:
        port = ported(kind, flax_release(kind.package))
        return np.asarray(port.call_jax(port.params, *port.inputs), np.float64)

    whole = given()
    try:
        with with_source(file_of(kind), change.text):
            other = given()
    except Exception:  # a change with which the port does not run is not counted
        return False
    if other.shape != whole.shape or not np.isfinite(other).all():
        return False
    return float(np.linalg.norm(other - whole)) > CLEAR * float(np.linalg.norm(whole))


def judged(kind: Kind, change: Change) -> Outcome:
    """Compare the changed port on two sets of weights and inputs, and judge the reports."""
    outcome, start = Outcome(kind, change), time.perf_counter()
    with with_source(file_of(kind), change.text):
        classes = classes_of(ported(kind, flax_release(kind.package)))
        first, _ = compared(kind, Field())
        outcome.seconds = time.perf_counter() - start
        second, _ = compared(kind, Field(), seed=1)
    wrong = {stage.name for stage in first.stages if stage.status in ("different", "failed")}
    outcome.noticed, outcome.passed = first.status == "different" or wrong == {"weights"}, first.status == "equal"
    outcome.says = first.verdict
    owners = owners_of(change)
    compared_alone = {module.jax for module in first.modules}
    paths = [module.jax.partition(" (call ")[0] for module in first.diverging]
    guilty = [
        any(classes.get(each) in owners for each in (*around(path), *inside(path, classes, compared_alone))) for path in paths
    ]
    outcome.module, outcome.innocent = any(guilty), not all(guilty)
    outcome.drawn = not guilty and wrong == {"weights"}
    outcome.cause = cause_of(first, second)
    return outcome


def classes_of(port: Port) -> dict[str, str]:
    """Return the classes of the port's modules, by the modules' paths."""
    found: dict[str, str] = {}

    def noted(method, args, kwargs, context):
        found.setdefault(".".join(context.module.path), type(context.module).__name__)
        return method(*args, **kwargs)

    with linen.intercept_methods(noted):
        port.call_jax(port.params, *port.inputs)
    return found


def around(path: str) -> list[str]:
    """Return the paths of a module and of the modules around it, which made it and give it its inputs."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) + 1)]


def inside(path: str, paths: Iterable[str], compared_alone: Container[str]) -> list[str]:
    """Return the modules inside another one that are not compared by themselves, so that their code shows in its output."""
    return [each for each in paths if each.startswith(f"{path}." if path else "") and each not in compared_alone]


def owners_of(change: Change) -> set[str]:
    """Return the classes whose code has the change, and those that call a changed function, directly or through others."""
    owners = {change.where}
    named = {
        top.name: {each.id for each in ast.walk(top) if isinstance(each, ast.Name)}
        for top in ast.parse(change.text).body
        if isinstance(top, (ast.ClassDef, ast.FunctionDef))
    }
    callers = None if has_class(change) else owners
    while callers:
        callers = {name for name, calls in named.items() if calls & callers} - owners
        owners |= callers
        callers = {name for name in callers if f"class {name}(" not in change.text}
    return owners


def has_class(change: Change) -> bool:
    """True if the change is inside a class."""
    return f"class {change.where}(" in change.text


def cause_of(first: Report, second: Report) -> str:
    """Judge the causes of the first comparison: 'right' if the second one confirms them all, 'false' if not, or 'none'."""
    named = [module for module in first.diverging if module.causes]
    if not named:
        return "none"
    other = {module.torch: module.causes for module in second.diverging}
    return "right" if all(is_confirmed(module, other) for module in named) else "false"


def is_confirmed(module: Module, other: dict[str, list[Cause]]) -> bool:
    """True if one of a module's alternative causes explains it in the other comparison too."""
    return any(same(cause, its) for cause in module.causes for its in other.get(module.torch, []))


def same(one: Cause, other: Cause) -> bool:
    """True for the same mutation of the same code, with the same number up to a tolerance."""
    alike = (one.change, one.targets, one.args) == (other.change, other.targets, other.args)
    if not alike or one.value is None or other.value is None:
        return alike and one.value == other.value
    return one.value == other.value or abs(one.value - other.value) <= SAME * abs(one.value)


if __name__ == "__main__":
    run(main)
