"""`jaxformer plot`: it writes pictures, and says in one line why it cannot."""

import json
import shutil

import numpy as np
import pytest

from jaxformer.cli.commands import COMMANDS
from jaxformer.cli.main import dispatch
from jaxformer.plots.reading import PARTS, attention_of
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.lock import only_writer, writer_of

PNG = b"\x89PNG\r\n\x1a\n"
KINDS = [name.split()[1] for name in COMMANDS if name.startswith("plot ")]


@pytest.fixture
def words(copying, writing, rotating, report) -> dict[str, str]:
    return {"COPYING": str(copying), "WRITING": str(writing), "ROTATING": str(rotating), "REPORT": str(report)}


def filled(line: str, words: dict[str, str]) -> list[str]:
    return [words.get(word, word) for word in line.split()]


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "line",
    [
        "positions WRITING",
        "attention WRITING abacab",
        "losses COPYING WRITING",
        "parity REPORT",
        "positions --kind rotary --positions 9 --d-model 6",
        "positions ROTATING",
        "positions COPYING",
        "masks --tokens 6",
        "attention COPYING 12345",
        "attention COPYING 12345 --part encoder",
    ],
)
def test_each_command_writes_a_picture(line, words, tmp_path, capsys):
    dispatch(["plot", *filled(line, words), "--out", str(tmp_path / "picture.png")])
    assert capsys.readouterr().out == f"saved to {tmp_path}/picture.png\n"
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_attention_of_a_run_is_its_models(copying):
    found = {part: attention_of(copying, "12345", part) for part in PARTS}
    assert found["cross"].keys == ["<SOS>", *"12345", "<EOS>"]
    for part, (weights, keys, queries) in found.items():
        assert weights.shape == (2, 2, len(queries), len(keys)), part
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    later = np.triu(np.ones(found["decoder"].weights.shape[-2:]), 1)
    assert (found["decoder"].weights * later).max() == 0
    assert (found["encoder"].weights * np.triu(np.ones((7, 7)), 1)).max() > 0


REFUSED = [
    ("positions nowhere", "nowhere is not there; give a folder that is"),
    ("positions --kind rotary --d-model 5", "d_model = 5 is odd, and rotary positions turn pairs of units"),
    ("positions --positions 1", "positions = 1 is out of range; give an integer from 2 to 4096"),
    ("masks --window 9", "window = 9 is out of range; give an integer from 1 to 8"),
    ("masks --out x.gif", "x.gif cannot be written; name a .png or .svg file in a folder that exists"),
    ("masks --out nowhere/x.png", "nowhere/x.png cannot be written; name a .png or .svg file in a folder that exists"),
    ("attention nowhere/run abc", "nowhere/run is not there; give a folder that is"),
    ("attention COPYING 12x", "prompt: character 'x' (position 2) is not one of 0123456789"),
    ("attention WRITING abz", "text: character 'z' (position 2) is not in this model's vocabulary of 5 characters"),
    ("attention WRITING abc --part cross", "part = 'cross' is of an encoder-decoder"),
    ("attention ROTATING abc", "has no tokenizer.json: its texts cannot be read"),
    ("alignment WRITING abc", "holds a model of one stack, and an alignment needs an encoder-decoder; see `plot attention`"),
    ("losses", "no run is given; give one or more folders of runs"),
    ("losses WRITING WRITING", "is given twice; give each run once"),
    ("losses nowhere", "nowhere is not there; give a folder that is"),
    ("losses ROTATING", "holds a saved model, and no run; `jaxformer info` shows it"),
    ("parity nowhere.json", "nowhere.json is not there; give a report that --json wrote"),
    ("parity OLDER", "report = 1 is not an object; give what to_json wrote"),
]


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_cannot_be_drawn_is_one_line(line, said, words, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "older.json").write_text("1")
    assert said in refusal(dispatch, ["plot", *filled(line, words | {"OLDER": "older.json"})])
    assert [*tmp_path.iterdir()] == [tmp_path / "older.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_matplotlib(kind, no_matplotlib, refusal, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"attention": "WRITING abc", "alignment": "WRITING abc", "losses": "WRITING", "parity": "REPORT"}
    line = filled(f"{kind} {given.get(kind, '')}", words)
    assert refusal(dispatch, ["plot", *line]) == "plot needs matplotlib; pip install 'jaxformer[viz]'"


def test_a_run_that_is_being_written_is_drawn_as_far_as_it_came(writing, tmp_path, capsys):
    run = shutil.copytree(writing, tmp_path / "run")
    assert writer_of(run) == ""
    with only_writer(run):
        dispatch(["plot", "losses", str(run), "--out", str(tmp_path / "losses.png")])
        owner = writer_of(run)
    assert owner.startswith("process ")
    said = f"{run} is still being written by {owner}: the picture shows what it has so far\n"
    assert capsys.readouterr().out == f"saved to {tmp_path}/losses.png\n{said}"
    assert writer_of(run) == ""


def test_a_run_that_has_evaluated_nothing_yet(writing, tmp_path, refusal):
    run = shutil.copytree(writing, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    (run / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="has lost its manifest"):
        said = refusal(dispatch, ["plot", "losses", str(run), "--out", str(tmp_path / "x.png")])
    assert said == f"{run} has no losses yet; wait for its first evaluation, or go on with --resume"


def test_a_run_of_an_older_layout(tmp_path, refusal):
    (run := tmp_path / "run").mkdir()
    (run / "config.json").write_text(json.dumps({"model": {"d_model": 8}}))
    said = refusal(dispatch, ["plot", "losses", str(run), "--out", str(tmp_path / "x.png")])
    assert said == f"{run}/config.json does not describe a run; give the folder of a training"
    said = refusal(dispatch, ["plot", "attention", str(run), "abc", "--out", str(tmp_path / "x.png")])
    assert said.startswith(f"{run}/config.json does not describe a trained model, nor a saved one")


def test_a_run_without_weights(copying, tmp_path, refusal):
    run = shutil.copytree(copying, tmp_path / "run")
    RunFolder(run).weights.unlink()
    said = refusal(dispatch, ["plot", "attention", str(run), "123", "--out", str(tmp_path / "x.png")])
    assert said == f"{run}/checkpoints is missing; put it back, or start a new run with --out"
