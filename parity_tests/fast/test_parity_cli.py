"""`jaxformer parity`: the verdict on the last line, in the exit code and in the report."""

import re
import sys

import pytest

from jaxformer.cli.main import dispatch
from jaxformer.errors import JaxformerError
from jaxformer.parity.report.report import Report

pytestmark = pytest.mark.torch

MINE = """
from dataclasses import replace
import numpy as np
import optax
import torch
from jaxformer.models import abstract, GPT
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.evaluation.ladder import load_torch
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import gpt_config
from torch_ref.models import GPT as Twin

from jaxformer.convert.families.twin import TWIN as RULES

CONFIG = gpt_config(n_layers=1, layers="rolled")

def torch_model():
    return load_torch(Twin(CONFIG), jax_model())

def jax_model():
    return excite(abstract(CONFIG), seed=0)

def other_epsilon():
    return excite(abstract(replace(CONFIG, norm_epsilon=1e-6)), seed=0), lambda model, tokens: model(tokens)

def deeper():
    return abstract(replace(CONFIG, n_layers=2))

def with_mask():
    return torch_model(), lambda model, ids, valid: model(ids)

def nothing():
    return None

def three():
    return 1, 2, 3

def tokens():
    return (np.array([[1, 2, 3, 4, 5]], np.int32),)

def an_array():
    return np.array([[1, 2, 3, 4, 5]], np.int32)

IDS = np.arange(10, dtype=np.int32).reshape(2, 5)
WRITERS = (
    lambda model: model(torch.from_numpy(IDS)).argmax(-1).numpy(),
    lambda model: np.asarray(model(IDS).argmax(-1)),
)
LEARNING = TrainingSpec(
    batches=[(IDS,)],
    torch_loss=lambda model, ids: model(ids).square().mean(),
    jax_loss=lambda model, ids: (model(ids) ** 2).mean(),
    torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    jax_optimizer=optax.sgd(0.1),
)
"""


@pytest.fixture
def parity(tmp_path, monkeypatch, capsys):
    """parity(arguments) -> the exit code and the lines printed."""
    (tmp_path / "ported_models.py").write_text(MINE)
    (tmp_path / "needs.py").write_text("import numpy\nimport nowhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ported_models", raising=False)

    def run(*arguments: str) -> tuple[object, list[str]]:
        return dispatch(["parity", *arguments]), capsys.readouterr().out.splitlines()

    return run


def test_equal(parity):
    code, said = parity("compare", "ported_models:torch_model", "ported_models:jax_model", "--vocab", "23", "--length", "11")
    assert code == 0
    assert said[-1] == "EQUAL: weights, forward, local, gradients, activation gradients, sensitivity, float32 (tier B)"


def test_different_and_explained_again(parity, tmp_path):
    sides = "ported_models:torch_model", "ported_models:other_epsilon", "--rules", "twin"
    written = "--json", "report.json", "--html", "report.html", "--markdown", "report.md", "--reduce-to", "failing.py"
    code, said = parity("compare", *sides, "--inputs", "ported_models:tokens", *written)
    assert code == 1
    assert said[:3] == ["report report.json", "report report.md", "report report.html"]
    assert said[-1].startswith("DIFFERENT: stack.blocks.0.attention_norm: torch epsilon 1e-05; jax epsilon 1e-06 (residual ")
    assert Report.from_json((tmp_path / "report.json").read_text()).exit_code == 1
    assert parity("explain", "report.json") == (1, said[3:])
    assert "smallest failing call: pytest failing.py fails until it is mended" in said
    assert "    return ported_models.other_epsilon()\n" in (tmp_path / "failing.py").read_text()
    assert said[-1].split(":")[0] in (tmp_path / "report.html").read_text()
    assert said[-1].split(":")[0] in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.optimizers
def test_trained_and_written(parity):
    sides = "ported_models:torch_model", "ported_models:jax_model", "--inputs", "ported_models:tokens", "--checks", "weights"
    more = "--training", "ported_models:LEARNING", "--generate", "ported_models:WRITERS"
    code, said = parity("compare", *sides, "--rules", "twin", "--tier", "A", *more)
    assert code == 0
    assert said[-1] == "EQUAL: weights, loss, optimizer, train, generate (tier A)"


def test_dumped_and_checked(parity):
    code, said = parity("dump", "ported_models:torch_model", "mine", "--vocab", "23", "--length", "11")
    assert code == 0
    assert said[0].endswith(" · saved to mine")
    assert parity("check", "mine", "ported_models:jax_model", "--rules", "twin")[0] == 0
    assert parity("check", "mine", "ported_models:other_epsilon", "--rules", "ported_models:RULES")[0] == 1


@pytest.mark.slow
def test_statistics_are_dumped_and_checked(parity):
    model, ids = "ported_models:torch_model", ("--vocab", "23", "--length", "11")
    code, said = parity("dump", model, "few", *ids, "--keep", "statistics", "--names", "stack.*")
    assert code == 0
    assert said[0].endswith(" calls of modules, statistics · saved to few")
    code, said = parity("check", "few", "ported_models:jax_model", "--rules", "twin")
    assert code == 0, said
    code, said = parity("check", "few", "ported_models:other_epsilon", "--rules", "twin")
    assert code == 1
    assert said[-1].startswith("DIFFERENT: stack.blocks.0.attention_norm: output: relL2")


def test_not_compared(parity):
    code, said = parity("compare", "ported_models:torch_model", "ported_models:deeper", "--vocab", "23", "--rules", "twin")
    assert code == 2
    assert said[-1].startswith("COULD NOT COMPARE: weights: tensors do not match the model: 16 missing, first stack.blocks.1.")
    code, said = parity("compare", "ported_models:with_mask", "ported_models:jax_model", "--vocab", "23")
    assert code == 2
    assert said[-1].endswith(
        "argument: 'valid'; it takes more inputs than it was given: return them all as a tuple (on the "
        "command line --inputs module:function)"
    )


MODELS = ("compare", "ported_models:torch_model", "ported_models:jax_model")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("comprae",), "command = 'parity comprae' is not known; did you mean 'parity compare'?"),
        (MODELS, "the models have no inputs; give --vocab for token ids, or --inputs package.module:function"),
        ((*MODELS, "--vocab", "0"), "vocab = 0 is out of range"),
        ((*MODELS, "--vocab", "23", "--rules", "gtp2"), "rules = 'gtp2' is not known; did you mean 'gpt2'?"),
        (("compare", "ported_models", "a:b"), "'ported_models' names no function; give it as package.module:function"),
        (
            ("compare", "nowhere:a", "a:b"),
            "nowhere:a: there is no module nowhere; run in the folder that holds it",
        ),
        (("compare", "mine.py:a", "a:b"), "'mine.py:a' names a file; write mine:a, and run in its folder"),
        (("compare", "../x/mine.py:a", "a:b"), "'../x/mine.py:a' names a file; write mine:a, and run in ../x"),
        (("compare", ".mine:a", "a:b"), "'.mine:a' names no function; give it as package.module:function"),
        (
            ("compare", "needs:a", "a:b"),
            "needs:a: needs.py:2 imports nowhere, and there is no module nowhere; run in the folder",
        ),
        (("compare", "ported_models:a", "a:b"), "ported_models:a: module ported_models has no a"),
        (("compare", "", "a:b"), "'' names no function; give it as package.module:function"),
        ((*MODELS[:2], "ported_models:nothing", "--vocab", "23"), "ported_models:nothing returns None; return the model, or a"),
        (
            (*MODELS[:2], "ported_models:three", "--vocab", "23"),
            "ported_models:three returns a tuple of 3; return the model, or the model and a function that calls it",
        ),
        (
            (*MODELS, "--inputs", "ported_models:an_array"),
            "inputs is an ndarray; give a tuple of arrays, (x,) for one",
        ),
        (("check", "nowhere", MODELS[2]), "nowhere cannot be read: No such file or directory; give a folder that dump wrote"),
        (("check", "", MODELS[2]), "PATH: it is empty; give a path"),
        (("explain", "none.json"), "none.json cannot be read: No such file or directory; give a report that --json wrote"),
        (("explain", "ported_models.py"), "ported_models.py is not a report; give one that --json wrote"),
        (("mutants", "--all"), "unknown flag --all; see jaxformer parity mutants --help"),
    ],
)
def test_refusals(parity, arguments, said):
    with pytest.raises(JaxformerError) as refused:
        dispatch(["parity", *arguments])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("arguments", [(*MODELS, "--inputs", "ported_models:three"), ("check", "nowhere", MODELS[2])])
def test_no_older_report_stays(parity, tmp_path, arguments):
    report = tmp_path / "report.json"
    report.write_text(Report("A", 0.0).to_json())
    before = report.read_text()
    with pytest.raises(JaxformerError) as refused:
        parity(*arguments, "--json", "report.json")
    assert report.read_text() != before
    written = Report.from_json(report.read_text())
    assert (written.exit_code, written.verdict) == (2, f"COULD NOT COMPARE: forward: {refused.value}")
    with pytest.raises(JaxformerError, match="^" + re.escape(str(refused.value))):
        parity(*arguments, "--json", "nowhere/report.json")
