"""The packages import one way and the frameworks stay apart: read from the source."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import jaxformer
import jaxformer.parity

ROOT = Path(jaxformer.__file__).parents[1]
ABOVE_ALL = ("pytest_plugin", "__main__")
"""Top-level files that are no ground: they stand on everything else."""
MODELS_OF_TORCH = {"torch_gpt.py", "train_torch.py", "train_cuda.py", "generate_torch.py", "twin_run.py"}
"""Files of `bench` that run in processes of torch's alone."""
TORCH_SIDES = "originals"
"""Folder of the exercises' torch sides: sources that are read, and run where torch is."""
RUNS_TORCH = "diagnose"
"""The folder of what replays torch's code: imported where a torch model is at hand."""
WITHOUT_TORCH = {
    "by_arrays",
    "formulas",
    "explainers.py",
    "evidence.py",
    "diagnosis.py",
    "mutation.py",
    "numbers_and_orders.py",
    "mesh.py",
    "mesh_repairs.py",
}
"""What of it is imported where torch is not."""
HEAVY = ("torch", "transformers", "matplotlib", "tensorboardX", "sacrebleu")


@cache
def order() -> dict[str, int]:
    """Package -> height, as the docstring lists them, bottom to top; the ground is 0."""
    heights = {name: height for height, name in enumerate(listed(jaxformer.__doc__ or ""))}
    ground = {path.stem: 0 for path in (ROOT / "jaxformer").glob("*.py")} | {"config": 0, "validation": 0}
    return heights | ground | dict.fromkeys(ABOVE_ALL, len(heights))


@cache
def order_in_parity() -> list[str]:
    return listed(jaxformer.parity.__doc__ or "")


def listed(docstring: str) -> list[str]:
    """What a docstring lists at its end, a line each."""
    lines = docstring.rpartition("\n\n")[2].splitlines()
    return [match[1] for line in lines if (match := re.match(r"    (\w.*?)  +\w", line))]


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imports(path: Path, *, top_only: bool = False) -> set[str]:
    """Modules that a file imports; with `top_only`, those that importing the file imports."""
    found = set()
    for node in _nodes(ast.parse(path.read_text("utf-8")), top_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [alias.name for alias in node.names if _file(f"{node.module}.{alias.name}")]
            found |= {f"{node.module}.{name}" for name in names} | ({node.module} if len(names) < len(node.names) else set())
    return found


def _nodes(node: ast.AST, top_only: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        lazy = isinstance(child, ast.FunctionDef) or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
        if not (top_only and lazy):
            yield child
            yield from _nodes(child, top_only)


def _file(module: str) -> Path | None:
    stem = ROOT.joinpath(*module.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def reached(path: Path, seen: set[str] | None = None) -> set[str]:
    """Every module that importing this file imports, directly or not, the packages on the way included."""
    seen = set() if seen is None else seen
    for module in imports(path, top_only=True):
        parts = module.split(".")
        for name in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):
            if name not in seen:
                seen.add(name)
                if inner := _file(name):
                    reached(inner, seen)
    return seen


def roots(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def test_the_order_names_every_package():
    packages = {path.parent.name for path in (ROOT / "jaxformer").glob("*/__init__.py")}
    assert packages <= set(order())
    assert (
        order()["config"] == 0 < order()["parity"] < order()["nn"] < order()["models"] < order()["evaluation"] < order()["cli"]
    )
    inside = {path.relative_to(ROOT / "jaxformer/parity").parts[0].removesuffix(".py") for path in sources("jaxformer/parity")}
    assert inside - {"__init__"} == set(order_in_parity())


def test_a_package_imports_only_those_under_it():
    assert not imports(ROOT / "jaxformer/__init__.py", top_only=True)
    assert not above("jaxformer", order(), 1)


def test_scripts_import_no_package_above_the_recipes():
    found = {module.split(".")[1] for path in sources("train") for module in imports(path) if module.startswith("jaxformer.")}
    assert {name for name in found if order()[name] > order()["recipes"]} == set()
    assert "training" in found


def test_inside_parity_too():
    assert not above("jaxformer/parity", {name: height for height, name in enumerate(order_in_parity())}, 2)


def above(folder: str, heights: dict[str, int], depth: int) -> list[str]:
    """'nn/stack.py imports jaxformer.models.gpt': imports of packages that stand above the importing one."""
    found = []
    for path in sources(folder):
        mine = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        for module in imports(path) if mine != "__init__" else ():
            if module.startswith(folder.replace("/", ".") + "."):
                other = module.split(".")[depth]
                if other != mine and not (heights[other] < heights[mine] or heights[other] == heights[mine] == 0):
                    found.append(f"{path.relative_to(ROOT / folder)} imports {module}")
    return found


def test_no_two_files_import_each_other():
    """Imports inside of functions count; those for type checkers, in the table of public names, do not."""
    files = [path for path in sources("jaxformer") if path != ROOT / "jaxformer/__init__.py"]
    graph = {path: {inner for module in imports(path) if (inner := _file(module))} for path in files}
    order = TopologicalSorter({path: graph[path] & {*files} - {path} for path in files})
    assert order.prepare() is None  # CycleError names the circle


def test_folders_are_small_and_flat():
    folders = Counter(path.parent.relative_to(ROOT) for path in sources("jaxformer") if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > 30 or len(folder.parts) > 4} == {}


def test_the_comparison_loads_neither_torch_nor_our_models():
    modules = loaded("import jaxformer.parity.compare, jaxformer.parity.testing, jaxformer.cli.parity", whole=True)
    assert not {"torch", *(f"jaxformer.{name}" for name in ("nn", "models", "decoding", "training", "evaluation"))} & modules


def test_the_library_stands_without_its_surroundings():
    for path in sources("jaxformer"):
        assert not roots(imports(path)) & {"train", "benchmarks", "tests", "parity_tests"}, path
        if not {"evaluation", "bench"} & {*path.parts}:
            assert "torch_ref" not in roots(imports(path)), path


def test_no_heavy_import_at_module_top():
    for path in (*sources("jaxformer"), *sources("train")):
        replays = RUNS_TORCH in path.parts and not WITHOUT_TORCH & {*path.parts}
        if path.name in MODELS_OF_TORCH or replays or TORCH_SIDES in path.parts:
            continue
        assert not roots(imports(path, top_only=True)) & {*HEAVY, "torch_ref"}, path
    for path in sources("jaxformer"):
        if "torch" in roots(imports(path)):
            assert {"parity", "convert", "evaluation", "bench", "exercises"} & {*path.parts}, path


@pytest.mark.torch
def test_a_measurement_loads_one_framework():
    """The parent loads none, a side of torch's no jax."""
    parent = loaded("import jaxformer.bench.commands, jaxformer.bench.measure, jaxformer.bench.worker")
    assert not parent & {*HEAVY, "jax", "flax"}
    torchs = loaded("import jaxformer.bench.train_torch, jaxformer.bench.generate_torch, jaxformer.bench.twin_run")
    assert "torch" in torchs
    assert not torchs & {"jax", "flax", "optax"}


GROUND = (
    "errors",
    "validation/fields",
    "validation/images",
    "validation/inputs",
    *(f"config/{path.stem}" for path in sources("jaxformer/config") if path.stem != "__init__"),
)


@pytest.mark.parametrize("name", [*GROUND, "cli/flags", "recipes/prepare", "data/tokenizers", "runs/folder"])
def test_the_ground_imports_no_jax(name):
    assert not roots(reached(ROOT / f"jaxformer/{name}.py")) & {"jax", "jaxlib", "flax", "optax", "orbax", "tyro"}


def test_the_twin_imports_nothing_of_jax():
    for path in sources("torch_ref"):
        assert not roots(imports(path)) & {"jax", "jaxlib", "flax", "optax", "orbax", "numpy"}, path
        for module in imports(path):
            if module.startswith("jaxformer"):
                assert module.removeprefix("jaxformer.").replace(".", "/") in GROUND, (path, module)


def loaded(statement: str, *, whole: bool = False) -> set[str]:
    """Modules in a fresh interpreter after a statement; `whole` names, or packages alone."""
    code = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    return modules if whole else roots(modules)


def test_importing_the_configuration_or_the_tokenizers_loads_no_jax():
    assert not loaded(
        "import jaxformer.config.models, jaxformer.cli.flags, jaxformer.recipes.prepare, jaxformer.data.tokenizers"
    ) & {
        "jax",
        "jaxlib",
        "flax",
        "optax",
    }


def test_the_help_of_a_command_loads_no_jax():
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources("jaxformer/cli")]
    assert "jaxformer.cli.parity" in modules
    statement = f"import {', '.join(modules)}; jaxformer.cli.commands.usage()"
    assert not loaded(statement) & {"jax", "jaxlib", "flax", "optax", "torch", "tokenizers"}


def test_the_pytest_plugin_loads_nothing_heavy():
    """Every project's pytest loads it."""
    modules = loaded("import jaxformer.pytest_plugin")
    assert "pytest" in modules
    assert not modules & {*HEAVY, "jax", "jaxlib", "flax", "numpy", "jaxtyping"}


def test_importing_a_recipe_loads_nothing_heavy():
    modules = loaded("import jaxformer.recipes.shakespeare")
    assert "jax" in modules
    assert not modules & {*HEAVY, "pooch", "orbax"}
