"""What `pip install jaxformer` puts into an environment, and that a recipe runs there without the checkout."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from jaxformer.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what the wheel holds."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(built) as files:
        files.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_installs_its_own_packages_alone(installed):
    names = {path.name for path in installed.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"jaxformer", "torch_ref"}
    held = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    wanted = {path.relative_to(ROOT) for package in ("jaxformer", "torch_ref") for path in (ROOT / package).rglob("*")}
    assert held >= {path for path in wanted if path.suffix in (".py", ".css", ".js")}
    scripts = {path.name for path in (ROOT / "train").glob("*.py") if path.name != "__init__.py"}
    assert {path.name for path in (installed / "jaxformer/recipes").iterdir()} >= scripts > {"reverse.py"}


def test_the_console_script_of_the_wheel_is_a_function(installed):
    (metadata,) = installed.glob("*.dist-info")
    (script,) = PathDistribution(metadata).entry_points.select(group="console_scripts")
    assert script.name == "jaxformer"
    assert script.load() is main


@pytest.mark.slow
def test_a_recipe_trains_outside_of_the_checkout(installed, tmp_path):
    small = (
        "--preset copy --steps 4 --evaluate-every 2 --batch 3 --show 0 --out run "
        "--model.n-layers 1 --model.n-heads 2 --model.d-model 8 --model.d-ff 12 --model.layers rolled"
    )
    without_train = "import sys; sys.modules['train'] = None"
    code = f"{without_train}; import jaxformer; from jaxformer.cli.main import main; print(jaxformer.__file__); main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "train", "reverse", *small.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed))
    assert "next: jaxformer generate run --prompt " in done.stdout
    assert (tmp_path / "run/weights.safetensors").is_file()
