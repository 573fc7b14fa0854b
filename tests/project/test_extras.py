"""What an extra installs is needed by what it is for alone; where it is missing, one line says how to get it."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jaxformer.runtime.packages import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

MODELS = """
import numpy as np
import jaxformer as jf
from flax import nnx

sizes = {"vocab_size": 7, "context": 8, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8}
model = jf.excite(jf.abstract(jf.GPTConfig(**sizes)), seed=0)
assert jf.generate(model, np.array([[1, 2]]), 2).shape == (1, 2)
jf.make_optimizer(jf.OptimizerConfig(name="adam", learning_rate=0.1), jf.ScheduleConfig()).init(model)
jf.save(model, "model")
assert jf.load("model").config == model.config
"""
CHECKER = """
import torch
from jaxformer.cli.main import dispatch

class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.up(x)

theirs = jf.excite(Theirs().eval(), seed=0)
params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
inputs = (np.eye(3, dtype=np.float32),)
ours = {"call_jax": lambda params, x: jf.tap("up", x @ params["up.weight"].T + params["up.bias"]), "tier": "A"}
for report in (jf.compare(theirs, params, inputs, **ours), jf.check(jf.dump(theirs, inputs, "recorded"), params, **ours)):
    assert report.exit_code == 0, report
from pathlib import Path
Path("report.json").write_text(report.to_json())
assert dispatch(["parity", "explain", "report.json"]) == 0
"""

BLOCKED = """
class Blocked:
    def find_spec(name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked)
"""


def run(code: str, folder: Path, *missing: str) -> str:
    """What a fresh interpreter, in which these packages cannot be imported, prints."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); missing = {missing}"
    done = subprocess.run([sys.executable, "-c", start + BLOCKED + code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_models_and_the_checker_need_nothing_of_train(tmp_path):
    assert {name for name, (_, extra) in EXTRAS.items() if extra == "train"} == {"tokenizers", "orbax", "pooch"}
    run(MODELS + CHECKER, tmp_path, "tokenizers", "orbax", "pooch", "matplotlib", "sacrebleu")


REFUSED = {
    "tokenizers": ("jf.Tokenizer", "tokenizers", "train"),
    "pooch": ("from jaxformer.data import corpora; corpora.read_corpus('tinyshakespeare')", "pooch", "train"),
    "orbax": ("jf.cli.main.dispatch('train reverse --out run --model.n-layers 1'.split())", "orbax-checkpoint", "train"),
    "torch": ("jf.compare(None, None, ())", "torch", "torch"),
    "torch, for the mutants": ("jf.cli.main.dispatch(['parity', 'mutants'])", "torch", "torch"),
    "torch, for a state dict": (
        "jf.to_torch({'scale': np.ones(2)}, jf.Family('f', {}, (jf.Rule('scale', 'w'),)))",
        "torch",
        "torch",
    ),
}


@pytest.mark.slow
def test_what_is_missing_is_named_with_the_extra_that_has_it(tmp_path):
    """One interpreter tells of all: it takes seconds to start."""
    lines = [
        "import os; os.environ.pop('JAXFORMER_DATA', None)",
        "import numpy as np",
        "import jaxformer as jf, jaxformer.cli.main",
    ]
    for statement, *_ in REFUSED.values():
        lines += ["try:", f"    {statement}", "except jf.errors.MissingPackageError as error:", "    print(error)"]
    said = run("\n".join(lines), tmp_path, *EXTRAS).splitlines()
    assert said == [f"{package} is not installed; pip install 'jaxformer[{extra}]'" for _, package, extra in REFUSED.values()]
    assert not [*tmp_path.iterdir()]


def test_one_that_is_too_old_is_named():
    code = "import types; sys.modules['orbax.checkpoint'] = types.ModuleType('orbax.checkpoint')  # an older one, without v1\n"
    code += "from jaxformer.runs.checkpoint import orbax\ntry: orbax()\nexcept ImportError as error: print(error)"
    assert run(code, ROOT).startswith("orbax-checkpoint does not fit (")


@pytest.mark.parametrize("extra", sorted({extra for _, extra in EXTRAS.values()}))
def test_an_extra_installs_what_is_said_of_it(extra):
    installed = {Requirement(text).name for text in PROJECT["optional-dependencies"][extra]}
    assert installed == {package for package, other in EXTRAS.values() if other == extra}
    assert not installed & {Requirement(text).name for text in PROJECT["dependencies"]}


def pulled(requirement: Requirement, found: set[tuple[str, str]]) -> set[str]:
    """Names of all packages that pip installs for a requirement; of one that is not installed here, its name alone."""
    for extra in ("", *requirement.extras):
        if (requirement.name, extra) in found:
            continue
        found.add((requirement.name, extra))
        try:
            needed = map(Requirement, metadata.requires(requirement.name) or ())
        except metadata.PackageNotFoundError:
            continue
        for inner in needed:
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                pulled(inner, found)
    return {name for name, _ in found}


@pytest.mark.parametrize("extra", ["", *sorted({*PROJECT["optional-dependencies"]} - {"torch", "test", "dev"})])
def test_no_extra_but_torchs_installs_torch(extra):
    """PyTorch takes gigabytes."""
    wanted = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    own = [it for it in map(Requirement, wanted) if it.name == "jaxformer"]
    wanted = [*wanted, *(text for it in own for name in it.extras for text in PROJECT["optional-dependencies"][name])]
    names = set().union(*(pulled(Requirement(text), set()) for text in wanted if not text.startswith("jaxformer")))
    assert "numpy" in names or extra in ("export", "tpu", "cuda12", "cuda13", "tensorboard")
    assert "torch" not in names


def test_the_readme_names_a_torch_that_its_extras_take():
    """Else pip would put another build in its place."""
    command = r"pip install torch==([\d.]+) --index-url https://download\.pytorch\.org/whl/cpu`"
    (version,) = re.findall(command, (ROOT / "README.md").read_text("utf-8"))
    texts = [text for extra in ("torch", "test") for text in PROJECT["optional-dependencies"][extra]]
    asked = [it.specifier for it in map(Requirement, texts) if it.name == "torch"]
    assert len(asked) == 2
    assert all(f"{version}+cpu" in it for it in asked)
