"""Directives `public-names` and `all-public-names`: the names of `import jaxformer as jf` with signature, fields and docstring.

Everything is read from the source: annotations as they are written there, and docstrings as the Markdown that they are.
"""

import ast
import copy
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Literal, get_origin

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import jaxformer as jf

Definition = ast.ClassDef | ast.FunctionDef
DRAWN = re.compile(r"^[1. ]+$", re.M)
"""A row of a drawn mask."""


@cache
def definitions(module: ModuleType) -> dict[str, Definition]:
    """Return the classes and functions of a module by name."""
    found = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, Definition))
    return {node.name: node for node in found}


class WithChoices(ast.NodeTransformer):
    """Names of `Literal`s replaced by what they stand for: `Tier` by `Literal['A', 'B', 'C']`."""

    def __init__(self, module: ModuleType):
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the choices, or the name."""
        value = getattr(self.module, node.id, None)
        return ast.parse(repr(value).removeprefix("typing."), mode="eval").body if get_origin(value) is Literal else node


def written(node: ast.AST, module: ModuleType) -> str:
    """Return the source of an annotation, with the choices of its literals."""
    return ast.unparse(WithChoices(module).visit(copy.deepcopy(node)))


def signature(node: ast.FunctionDef, module: ModuleType, *, method: bool = False) -> str:
    """Return `(x: int, *, y: bool = True) -> str`, of a method without `self`."""
    arguments = copy.deepcopy(node.args)
    if method:
        del arguments.args[0]
    return f"({written(arguments, module)})" + (f" -> {written(node.returns, module)}" if node.returns else "")


def markdown(node: Definition) -> str:
    """Return the docstring, dedented, with drawings of masks as blocks of code."""
    first, *rest = (ast.get_docstring(node, clean=False) or "").splitlines() or [""]
    text = "\n".join([first, *(line[node.body[0].col_offset :] for line in rest)]).strip()
    paragraphs = text.split("\n\n")
    return "\n\n".join(re.sub("^", "    ", part, flags=re.M) if DRAWN.search(part) else part for part in paragraphs)


def entry(kind: str, name: str, options: dict[str, str | None], text: str, depth: int = 5) -> str:
    """Return a directive of Sphinx's Python domain."""
    given = [f":{key}: {value}".strip() for key, value in options.items() if value is not None]
    fence = "`" * depth
    return "\n".join([f"{fence}{{py:{kind}}} {name}", *given, "", text, fence])


def fields(node: ast.ClassDef, module: ModuleType) -> Iterator[str]:
    """Return the fields of a dataclass, each with type, default and the docstring under it."""
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_"):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            default = ast.unparse(item.value) if item.value else None
            options = {"type": written(item.annotation, module), "value": default, "no-contents-entry": ""}
            yield entry("attribute", item.target.id, options, inspect.cleandoc(str(said)), depth=4)


def methods(node: ast.ClassDef, module: ModuleType) -> Iterator[str]:
    """Return the public methods and properties that have a docstring."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and ast.get_docstring(item) and re.match(r"__call__|[a-z]", item.name):
            marks = {decorator.id for decorator in item.decorator_list if isinstance(decorator, ast.Name)}
            if "property" in marks or "cached_property" in marks:
                returned = written(item.returns, module) if item.returns else None
                yield entry("property", item.name, {"type": returned, "no-contents-entry": ""}, markdown(item), depth=4)
            else:
                options = {"classmethod" if "classmethod" in marks else "no-contents-entry": ""}
                yield entry("method", item.name + signature(item, module, method=True), options, markdown(item), depth=4)


def described(thing: Any) -> str:
    """Return the entry of a class or a function."""
    module = inspect.getmodule(thing)
    assert module is not None
    node = definitions(module)[thing.__name__]
    if isinstance(node, ast.FunctionDef):
        return entry("function", node.name + signature(node, module), {"module": "jaxformer"}, markdown(node))
    inner = [*fields(node, module), *methods(node, module)]
    made = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    name = node.name + (signature(made, module, method=True) if made else "")
    above = [base.__name__ for base in bases(thing)]
    has = [f"It also has the fields of {', '.join(f'{{py:obj}}`{base}`' for base in above)}."] if above else []
    return entry("class", name, {"module": "jaxformer"}, "\n\n".join([markdown(node), *has, *inner]))


def bases(thing: Any) -> list[Any]:
    """Return the classes of ours that a class inherits fields from."""
    return [base for base in getattr(thing, "__mro__", ())[1:] if base.__module__.startswith("jaxformer.")]


class PublicNames(SphinxDirective):
    """Entries of the names in its content, and of the classes that they inherit fields from."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the entries."""
        things = [getattr(jf, name) for name in " ".join(self.content).split()]
        shown = dict.fromkeys([*things, *(base for thing in things for base in bases(thing))])
        return self.parse_text_to_nodes("\n\n".join(map(described, shown)))


class AllPublicNames(SphinxDirective):
    """List of all public names; one that has no entry on any page is a reference to nothing, which is a warning."""

    def run(self) -> list[nodes.Node]:
        """Return the list."""
        return self.parse_text_to_nodes("\n".join(f"- {{py:obj}}`jaxformer.{name}`" for name in jf.__all__))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("all-public-names", AllPublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
