"""The recipe on pairs: it trains, stops when it is right, resumes, and leaves a run that can be used."""

import io
import json
import sys

import jax
import numpy as np
import pytest

from jaxformer.checkpoints.trained import load_trained
from jaxformer.cli import main as cli
from jaxformer.convert.safetensors import load_weights
from jaxformer.errors import InputError
from jaxformer.recipes import reverse
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder

SMALL = {
    "--preset": "copy",
    "--steps": 4,
    "--batch": 3,
    "--evaluate-every": 2,
    "--save-every": 2,
    "--model.d-model": 8,
    "--model.n-heads": 2,
    "--model.n-layers": 1,
    "--model.d-ff": 12,
    "--model.layers": "rolled",
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(reverse, "HELD_OUT", 5)
    monkeypatch.setattr(reverse, "WRITTEN", 4)
    with jax.default_prng_impl("rbg"):
        yield


def flags(**changes: object) -> list[str]:
    values = SMALL | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [part for name, value in values.items() for part in (name, str(value))]


@pytest.fixture(scope="module")
def said_and_folder(tmp_path_factory):
    """What a run prints, and its folder."""
    path = tmp_path_factory.mktemp("runs") / "copy"
    with pytest.MonkeyPatch.context() as patch, jax.default_prng_impl("rbg"):
        patch.setattr(reverse, "HELD_OUT", 5)
        patch.setattr(reverse, "WRITTEN", 4)
        patch.setattr(sys, "stdout", said := io.StringIO())
        reverse.main(flags(out=path, show=1))
    return said.getvalue().splitlines(), path


@pytest.fixture(scope="module")
def folder(said_and_folder):
    return said_and_folder[1]


def test_what_a_run_leaves(folder):
    files = {path.name for path in folder.iterdir()}
    kept = {"checkpoints", "config.json", "manifest.json", "metrics.jsonl", "weights.safetensors"}
    assert files == kept | {"attention.png", "loss.png"}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert all(0 <= line["accuracy"] <= 1 < line["val_loss"] for line in lines)


def test_the_last_line_counts_exact_targets(said_and_folder):
    said, folder = said_and_folder
    assert said[0].startswith("copy · encoder-decoder 1+1, d_model 8, 2 heads, batch 3 · ")
    assert [line.split()[0] for line in said if line[:6] in ("source", "wanted", "predic")] == ["source", "wanted", "predicted"]
    assert " of 4 exact · " in said[-2]
    assert said[-1].startswith(f"next: jaxformer generate {folder} --prompt ")


@pytest.mark.slow
def test_resumed_equals_uninterrupted(folder, tmp_path):
    reverse.main(flags(out=tmp_path / "run", steps=2))
    reverse.main(["--resume", "--out", str(tmp_path / "run"), "--steps", "4"])
    like = load_trained(folder)[0]
    weights = [digest(load_weights(path / "weights.safetensors", like)) for path in (folder, tmp_path / "run")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_it_stops_when_nothing_is_wrong(tmp_path, monkeypatch):
    measure = reverse.measure
    monkeypatch.setattr(reverse, "measure", lambda model, batch: measure(model, batch) | {"accuracy": 1.0})
    reverse.main(flags(out=tmp_path / "run", steps=100))
    run, resume = RunFolder(tmp_path / "run"), ["--resume", "--out", str(tmp_path / "run")]
    before = run.weights.read_bytes()
    run.forget_after(0)  # as one that was stopped in its evaluation
    run.weights.unlink()
    reverse.main(resume)
    assert run.weights.read_bytes() == before
    assert [line["step"] for line in run.metrics] == [2]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["0", "2"]
    with pytest.raises(InputError, match=r"run is finished: it met its goal at step 2; start another --out$"):
        reverse.main(resume)


def test_generate_writes_the_target(folder, capsys):
    cli.dispatch(["generate", str(folder), "--prompt", "31415"])
    said = capsys.readouterr().out
    assert said.endswith("\n")
    assert set(said.strip()) <= set("0123456789<SOPAD>")
    with pytest.warns(UserWarning, match="^prompt: 4 symbols; the model was trained on 5 to 12$"):
        cli.dispatch(["generate", str(folder), "--prompt", "3141"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model.context", "13"], "model.context = 13 is too short for copy; give at least 14"),
        (["--task", "cpoy"], "task = 'cpoy' is not known; did you mean 'copy'?"),
        (["--smoothing", "1"], "smoothing = 1 is out of range; give a number in [0, 1)"),
        (["--preset", "orginal"], "--preset = 'orginal' is not known; did you mean 'original'?"),
    ],
)
def test_refused_flags(refusal, tmp_path, arguments, said):
    assert refusal(reverse.main, [*flags(out=tmp_path / "run"), *arguments]) == said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "holds a model that needs a source; give it with --prompt"),
        (["--prompt", "12a4"], "prompt: character 'a' (position 2) is not one of 0123456789"),
        (["--prompt", "1" * 15], "prompt: 15 symbols; give at most 12, the longest that the model was trained on"),
        (["--prompt", "1", "--temperature", "-1"], "temperature = -1 is out of range"),
    ],
)
def test_refused_prompts(refusal, folder, arguments, said):
    assert said in refusal(cli.dispatch, ["generate", str(folder), *arguments])


@pytest.mark.filterwarnings("ignore:.*has lost its manifest")
def test_a_model_of_another_task(refusal, folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["task"] = "reverse"
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = refusal(cli.dispatch, ["generate", str(tmp_path), "--prompt", "1"])
    assert said.endswith("does not describe a trained model: its model has 13 symbols, its task or text 39")


@pytest.mark.filterwarnings("ignore:.*has lost its manifest")
@pytest.mark.parametrize("task", ["nope", ["reverse"]])
def test_a_task_that_is_none(refusal, folder, tmp_path, task):
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["task"] = task
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = refusal(cli.dispatch, ["generate", str(tmp_path), "--prompt", "1"])
    assert said.endswith(f"does not describe a trained model: its task {task!r} is none of reverse, copy")


@pytest.mark.slow
def test_held_out_pairs_are_not_those_of_any_step():
    from jaxformer.data.tasks import REVERSE
    from jaxformer.training.step import step_keys

    held_out = {bytes(row) for row in np.asarray(REVERSE.draw(reverse.held_out_key(0), 64).source)}
    for step in range(20):
        batch_key, _ = step_keys(jax.random.key(0), jax.numpy.int32(step))
        assert not held_out & {bytes(row) for row in np.asarray(REVERSE.draw(batch_key, 64).source)}
