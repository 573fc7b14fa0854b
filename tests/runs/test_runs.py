"""A run can be stopped anywhere and goes on as if it had not been; what it leaves is whole."""

import errno
import gc
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer as jf
import jaxformer.recipes.reverse as reverse
import jaxformer.recipes.shakespeare as shakespeare
from jaxformer.checkpoints.trained import load_trained
from jaxformer.cli import info, runs
from jaxformer.errors import CheckpointError, InputError, NonFiniteError
from jaxformer.plots.attention import draw_alignment
from jaxformer.plots.of_run import plot_attention, plot_losses
from jaxformer.plots.style import write
from jaxformer.recipes import prepare
from jaxformer.recipes.prepare import check_vocabulary, from_dict, read_recipe
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import NOT_BEGUN, RunFolder, kept_states
from jaxformer.runs.places import free_folder
from jaxformer.training.loop import StoppedError
from tests.tiny import flags, quick_recipe, tiny_config

pytestmark = [
    pytest.mark.usefixtures("little_to_collect"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Orbax's threads still answer reads of a damaged checkpoint when nobody listens any more; commands keep that to themselves."""


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_recipe():
        yield


@pytest.fixture(scope="module")
def whole(text_file, tmp_path_factory) -> Path:
    """A run of six steps, with dropout, nothing in its way."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    with quick_recipe():
        shakespeare.main(flags(data=text_file, out=out, save_every=2))
    return out


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """The same run, to spoil."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.slow
def test_bfloat16_is_another_run_and_resumes_as_it_began(whole, text_file, tmp_path):
    out = tmp_path / "bf16"
    with quick_recipe():
        shakespeare.main(flags(data=text_file, out=out, precision="bf16", steps=3))
        shakespeare.main(["--resume", "--out", str(out), "--steps", "6"])
    assert RunFolder.open(out).config["recipe"]["precision"] == "bf16"
    found, wanted = ([line["loss"] for line in RunFolder.open(run).metrics] for run in (out, whole))
    assert found != wanted
    assert found == pytest.approx(wanted, rel=0.02)


def final(out: Path) -> str:
    """Digest of the last state, over step, parameters and moments, as it was saved."""
    description = json.loads((out / "checkpoints/6/_CHECKPOINT_METADATA").read_text())
    return description["custom_metadata"]["sha256"]


def steps_of(run: Path) -> list[float]:
    return [line["step"] for line in RunFolder.open(run).metrics]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_run_leaves(whole):
    assert {path.name for path in whole.iterdir()} >= {"config.json", "metrics.jsonl", "weights.safetensors", "checkpoints"}
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["4", "6"]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    for line in lines:
        assert 0 < line["train_loss"] < 10
        assert 0 < line["val_loss"] < 10
        assert 0 < line["loss"] < 10
    assert lines[1]["train_loss"] < lines[0]["train_loss"]


def test_the_configuration_reads_back_as_the_same_recipe(whole):
    config = RunFolder.open(whole).config
    recipe = from_dict(shakespeare.Shakespeare, config["recipe"])
    assert json.loads(json.dumps(RunFolder.open(whole).config, default=str)) == config
    assert recipe == read_recipe(shakespeare.PRESETS, ["--resume", "--out", str(whole), "--no-resume"], prog="recipe")
    assert recipe.model.vocab_size == len(config["characters"])
    assert recipe.model.attention_dropout == 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has lost its manifest")
def test_a_run_from_before_presets_were_renamed_and_had_a_precision_resumes(copy):
    config = json.loads((copy / "config.json").read_text())
    assert config["recipe"]["preset"] == "tiny"
    config["recipe"]["preset"] = "seed"
    assert config["recipe"].pop("precision") == "float32"
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "manifest.json").unlink()
    model, _ = load_trained(copy)
    assert model.config.d_model == 8
    shakespeare.main(["--resume", "--out", str(copy), "--steps", "9"])
    assert steps_of(copy) == [3, 6, 9]


@pytest.mark.first(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_and_resumed_is_bit_for_bit_the_uninterrupted_run(whole, text_file, tmp_path, monkeypatch, number, code):
    out, handler = tmp_path / "stopped", signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(shakespeare.EvaluationTable, "print", lambda *_, **__: os.kill(os.getpid(), number))
        with pytest.raises(StoppedError, match=rf"^stopped at step 3, saved; continue with --resume --out {out}$") as stop:
            shakespeare.main(flags(data=text_file, out=out, save_every=6))
    assert stop.value.exit_code == code
    assert signal.getsignal(number) is handler
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["0", "3"]
    if number == signal.SIGTERM:
        shakespeare.main(["--resume", "--out", str(out)])
        assert final(out) == final(whole)
        assert (out / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
        assert steps_of(out) == [3, 6]


@pytest.mark.slow
def test_a_run_that_was_stopped_in_its_last_step_is_finished_by_resume(whole, copy):
    run = RunFolder(copy)
    run.forget_after(5)
    write_weights(run, run.weights, jax.tree.map(jnp.zeros_like, load_trained(copy)[0]))  # of an earlier step
    shakespeare.main(["--resume", "--out", str(copy)])
    assert (copy / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    assert steps_of(copy) == [3, 6]
    with pytest.raises(InputError, match=r"is at step 6 already"):
        shakespeare.main(["--resume", "--out", str(copy)])


@pytest.mark.slow
def test_a_command_that_is_printed_can_be_given(text_file, tmp_path, monkeypatch):
    """It has no flag that was changed, which the run remembers, and the folder's name is two words like a flag."""
    monkeypatch.chdir(tmp_path)
    shakespeare.main([*flags(data=text_file, steps=3), "--out=-a run"])
    with monkeypatch.context() as patch:
        patch.setattr(shakespeare.EvaluationTable, "print", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(StoppedError) as stop:
            shakespeare.main(["--resume", "--out=-a run", "--steps", "9"])
    shakespeare.main(shlex.split(str(stop.value).split("continue with ")[1]))
    assert steps_of(tmp_path / "-a run") == [3, 6, 9]


@pytest.mark.slow
def test_resuming_an_older_checkpoint_takes_its_steps_again(whole, copy):
    shutil.rmtree(copy / "checkpoints/6")
    (copy / "weights.safetensors").unlink()
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: line 3 is damaged, incomplete or not of this run, and left out$"):
        shakespeare.main(["--resume", "--out", str(copy), "--evaluate-every", "3"])
    assert final(copy) == final(whole)
    assert steps_of(copy) == [3, 6]
    assert (copy / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()


def test_metrics_beyond_the_checkpoint_are_dropped(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    for step in (3, 6, 9):
        run.log({"step": step})
    run.forget_after(6)
    assert steps_of(run.path) == [3, 6]
    run.log({"step": 9})
    assert steps_of(run.path) == [3, 6, 9]


def test_metrics_that_cannot_be_written(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    (run.path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"run/metrics\.jsonl cannot be written: Is a directory$"):
        run.log({"step": 1})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume"], r"^--resume needs the run folder; give it with --out$"),
        (["--resume", "--out", "nowhere"], r"^nowhere is not there; give a folder that is$"),
        (["--resume", "--out", "{run}", "--batch", "3"], r"^--batch is not as in .*, which is resumed; leave it out, or start"),
        (["--resume", "--out={run}", "--model.d-ff", "9"], r"^--model is not as in"),
        (["--resume", "--out", "{run}", "--seed", "1"], r"^--seed is not as in"),
        (["--resume", "--out", "{run}", "--precision", "bf16"], r"^--precision is not as in"),
        (["--resume", "--out", "{run}", "--btach", "3"], r"^unknown flag --btach; did you mean --batch\?$"),
        (["--resume", "--out", "{run}"], r"is at step 6 already; give --steps a larger number to go on$"),
        (["--resume", "--out", "{run}", "--steps", "5"], r"is at step 6 already; give --steps a larger number to go on$"),
    ],
)
def test_resume_is_refused(whole, arguments, said):
    before = files(whole)
    with pytest.raises(InputError, match=said) as caught:
        shakespeare.main([argument.format(run=whole) for argument in arguments])
    assert "\n" not in str(caught.value)
    assert files(whole) == before


def test_a_run_is_never_overwritten(whole, text_file):
    before = files(whole)
    with pytest.raises(InputError, match=r"already holds a run; continue it with --resume, or name another folder with --out$"):
        shakespeare.main(flags(data=text_file, out=whole))
    assert files(whole) == before


@pytest.mark.filterwarnings("ignore:.*has lost its manifest")
def test_resuming_with_another_text_is_refused(copy, text_file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text().replace("c", "#"))
    config = json.loads((copy / "config.json").read_text())
    config["recipe"]["data"] = str(other)
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"--data is not what .* began with; give the same texts$"):
        shakespeare.main(["--resume", "--out", str(copy), "--steps", "9"])


@pytest.mark.slow
def test_a_text_may_lie_elsewhere_when_a_run_is_resumed(copy, whole, text_file, tmp_path):
    moved = shutil.copy(text_file, tmp_path / "moved.txt")
    config = json.loads((copy / "config.json").read_text())
    config["recipe"]["data"] = str(tmp_path / "gone.txt")
    RunFolder(copy).write_config(config)
    with pytest.raises(InputError, match=r"gone\.txt is neither a file nor a corpus"):
        shakespeare.main(["--resume", "4", "--out", str(copy)])
    with pytest.warns(UserWarning, match="step 6 is set aside"):
        shakespeare.main(["--resume", "4", "--out", str(copy), "--data", str(moved)])
    assert RunFolder(copy).config["recipe"]["data"] == str(moved), "the next one finds it"
    assert final(copy) == final(whole)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"recipe": 1}', '{"recipe": {"zzz": 1}}', '{"recipe": {"seed": -1}}', "\xff"]
)
def test_a_damaged_configuration_is_one_line(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError) as caught:
        shakespeare.main(["--resume", "--out", str(tmp_path)])
    assert "\n" not in str(caught.value)
    assert "config.json" in str(caught.value)


def test_a_folder_that_cannot_be_made(tmp_path, text_file):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/run cannot be written: Not a directory; name another folder with --out$"):
        RunFolder.create(tmp_path / "file/run", {})


@pytest.mark.parametrize("inside", ["checkpoints/400", "evaluated", "checkpoints/inner/most"])
def test_a_run_inside_another_is_refused(copy, text_file, tmp_path, monkeypatch, inside):
    """The outer one would take it for a checkpoint of its own, and set it aside."""
    said = rf"{inside} lies in {copy}, which is a run; name a folder outside of it with --out$"
    before = files(copy)
    (tmp_path / "link").symlink_to(copy)
    for out in (copy, tmp_path / "link"):
        with pytest.raises(InputError, match=said):
            shakespeare.main(flags(data=text_file, out=out / inside))
    monkeypatch.chdir(copy)
    with pytest.raises(InputError, match=f"^runs lies in {copy}, which is a run"):
        shakespeare.main(flags(data=text_file))
    (copy / "config.json").unlink()
    with pytest.raises(InputError, match=said):
        shakespeare.main(flags(data=text_file, out=copy / inside))
    assert files(copy) == {name: held for name, held in before.items() if name != "config.json"}
    assert not (copy / inside).exists()


def test_free_folder(tmp_path):
    assert free_folder(tmp_path, "x").name == "x-0"
    (tmp_path / "x-0").mkdir()
    (tmp_path / "x-1").touch()
    assert free_folder(tmp_path, "x").name == "x-2"


@pytest.mark.slow
def test_a_learning_rate_far_too_high_stops_and_goes_on_with_a_lower_one(text_file, tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(NonFiniteError) as caught:
        shakespeare.main([*flags(data=text_file, out=out, evaluate_every=6), "--optimizer.learning-rate", "1e30"])
    said = str(caught.value)
    assert re.fullmatch(
        r"the loss or the gradient of steps 2 to 4 is not finite, and none of them was applied; step 4: loss (nan|inf), "
        r"gradient norm [\w.]+ (nan|inf), .*; its batch: inputs int32\[2, 8\] from \d+ to \d+, targets int32\[2, 8\] from "
        rf"\d+ to \d+; go on with --resume 0 --out {out} and a lower --optimizer.learning-rate",
        said,
    )
    assert re.findall(r"is not finite: skipped, (\d) of", capsys.readouterr().out)[-1] == "3"  # a dispatch may have several
    assert not (out / "weights.safetensors").exists()
    assert RunFolder.open(out).metrics == []
    with pytest.warns(UserWarning, match=r"^the learning rate is 0.001 from here on, and was 1e\+30: the run is no longer the"):
        shakespeare.main(["--resume", "0", "--out", str(out), "--optimizer.learning-rate", "0.001"])
    assert steps_of(out) == [6]
    assert RunFolder.open(out).config["recipe"]["optimizer"]["learning_rate"] == 0.001


def remove_checkpoints(run: Path) -> None:
    """To look at each of them takes a second."""
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()


def listed(folder: Path, capsys) -> tuple[int | None, list[str]]:
    capsys.readouterr()
    return runs.main([str(folder)]), capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_the_runs_of_a_folder_are_listed_with_their_checkpoints(copy, capsys):
    code, (name, older, newer) = listed(copy.parent, capsys)
    assert code == 0
    assert name == f"{copy}: files whole"
    losses = [f"{line['val_loss']:.4f}" for line in RunFolder.open(copy).metrics]
    assert re.fullmatch(rf"  step +4  loss +{losses[0]}  +0\.\d MB  whole", older)
    assert re.fullmatch(rf"  step +6  loss +{losses[1]}  +0\.\d MB  whole", newer)
    shutil.rmtree(copy / "checkpoints/6/state/d")
    code, lines = listed(copy, capsys)
    assert code == 1
    assert "damaged: " in lines[2]
    remove_checkpoints(copy)
    (copy / "weights.safetensors").write_bytes(b"")
    assert "weights.safetensors was changed since it was written" in listed(copy, capsys)[1][0]
    (copy / "config.json").write_text("{}")
    assert "config.json was changed since it was written" in listed(copy, capsys)[1][0]
    (copy / "manifest.json").write_text("{}")
    code, lines = listed(copy, capsys)
    assert (code, len(lines)) == (1, 1)
    assert "manifest.json is damaged" in lines[0]


@pytest.mark.slow
def test_a_checkpoint_that_is_a_link_to_nothing_is_listed(copy, capsys):
    (copy / "checkpoints/7").symlink_to("gone")
    code, (_, *lines) = listed(copy, capsys)
    assert code == 1
    assert [line.split()[:2] for line in lines] == [["step", "4"], ["step", "6"], ["step", "7"]]
    assert "  damaged: " in lines[2]


@pytest.mark.slow
def test_an_older_copy_that_is_laid_over_a_run_is_told(whole, copy, capsys):
    shakespeare.main(["--resume", "--out", str(copy), "--steps", "12"])
    assert listed(copy, capsys)[0] == 0
    for name in ("config.json", "manifest.json", "metrics.jsonl", "weights.safetensors"):
        shutil.copy(whole / name, copy / name)
    said = (
        f"{copy}/metrics.jsonl ends at step 6, and there is a checkpoint of step 12: lines are lost, or an older copy was laid"
    )
    code, (line, *_) = listed(copy, capsys)
    assert (code, line) == (1, f"{copy}: damaged: {said} over the run")
    with pytest.warns(UserWarning, match=re.escape(said)):
        shakespeare.main(["--resume", "--out", str(copy), "--steps", "14"])


def test_dollars_in_names_and_tokens_are_no_formula(tmp_path):
    run = RunFolder.create(tmp_path / "$x_$", {})
    run.log({"step": 1, "loss": 2.0})
    plot_losses(run)
    plot_attention(run, np.ones((1, 1, 1, 1)), ["$_$"], ["$^$"])
    write(draw_alignment(np.ones((1, 1)), ["$_$"], ["$^$"]), run.path / "alignment.png")
    assert {"loss.png", "attention.png", "alignment.png"} <= {path.name for path in run.path.iterdir()}


def test_a_name_that_no_terminal_prints_is_refused(refusal, tmp_path):
    said = refusal(shakespeare.main, ["--out", str(tmp_path / "a\x1b[2J")])
    assert said.endswith("a\\x1b[2J' has characters that no terminal prints; give another name")


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(InputError, match=r"holds no runs; give a folder that holds some, or a run$"):
        runs.main([str(tmp_path)])


@pytest.mark.parametrize("content", ["[]", "{"])
def test_a_run_whose_configuration_is_none_is_listed_as_damaged(content, copy, capsys):
    remove_checkpoints(copy)
    (copy / "config.json").write_text(content)
    (copy / "manifest.json").unlink()
    code, (line, *_) = listed(copy, capsys)
    assert code == 1
    assert line.startswith(f"{copy}: damaged: {copy}/config.json ")


def test_a_run_without_a_folder_of_checkpoints_is_listed_as_damaged(copy, capsys):
    shutil.rmtree(copy / "checkpoints")
    remedy = "put it back, or start a new run with --out"
    assert listed(copy, capsys) == (1, [f"{copy}: damaged: {copy}/checkpoints is missing; {remedy}"])
    (copy / "checkpoints").touch()
    assert listed(copy, capsys) == (1, [f"{copy}: damaged: {copy}/checkpoints is not a folder; {remedy}"])


LOST = {
    "nothing": ([], "holds no checkpoint any more; put it back"),
    "set aside": (
        ["4.later", "6.damaged"],
        "holds no checkpoint but 4.later, 6.damaged, set aside; rename one that is whole to its step",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("aside", "lost"), LOST.values(), ids=LOST)
def test_a_run_that_has_lost_every_checkpoint_is_told_in_every_way(whole, copy, text_file, capsys, aside, lost):
    remove_checkpoints(copy)
    for name in aside:
        shutil.copytree(whole / "checkpoints" / name[0], copy / "checkpoints" / name)
    said = f"{copy}/checkpoints {lost}, or start a new run with --out"
    assert listed(copy, capsys) == (1, [f"{copy}: damaged: {said}"])
    (copy / "weights.safetensors").unlink()
    for arguments in (flags(data=text_file, out=copy), ["--resume", "--out", str(copy), "--steps", "9"]):
        with pytest.raises(CheckpointError, match=f"^{re.escape(said)}$"):
            shakespeare.main(arguments)
    with pytest.raises(CheckpointError, match=f"^{re.escape(said)}$"):
        load_trained(copy)
    shutil.copytree(whole / "checkpoints/4", copy / "checkpoints/4")
    shakespeare.main(["--resume", "--out", str(copy)])
    assert final(copy) == final(whole)


def test_a_saved_model_is_no_run(text_file, tmp_path, capsys):
    out = tmp_path / "mine"
    jf.save(jf.excite(jf.abstract(tiny_config()), seed=0), out)
    with pytest.raises(InputError, match=r"mine holds a saved model and no run; name another folder with --out$"):
        shakespeare.main(flags(data=text_file, out=out))
    with pytest.raises(CheckpointError, match=r"config\.json describes no run; start one without --resume in another --out$"):
        shakespeare.main(["--resume", "--out", str(out)])
    assert listed(out, capsys) == (0, [f"{out}: files whole"])
    (out / "weights.safetensors").unlink()
    code, (line,) = listed(out, capsys)
    assert code == 1
    assert line.endswith("weights.safetensors is missing, and manifest.json names it; put it back, or save the model again")


@pytest.mark.slow
def test_resume_takes_the_step_that_is_named_or_none(whole, copy, monkeypatch):
    with pytest.raises(CheckpointError, match=r"checkpoints holds no checkpoint of step 5; it holds 4, 6$"):
        shakespeare.main(["--resume", "5", "--out", str(copy), "--steps", "9"])
    with pytest.raises(InputError, match=r"^checkpoint = 5 says where --resume goes on; give --resume too$"):
        shakespeare.main(["--checkpoint", "5", "--out", str(copy.parent / "new")])
    with pytest.raises(InputError, match=r"^--resume 6 and --checkpoint 4 are two steps; give one of them$"):
        shakespeare.main(["--resume=6", "--checkpoint", "4", "--out", str(copy)])
    with pytest.raises(InputError, match=r"is at step 4 already; give --steps a larger number to go on$"):
        shakespeare.main(["--resume", "4", "--out", str(copy), "--steps", "3"])
    assert (copy / "checkpoints/6").exists()
    trained = []
    with monkeypatch.context() as patch:
        patch.setattr(shakespeare, "fit", lambda state, *_: trained.append(load_trained(copy)[0]) or state)
        with pytest.warns(UserWarning, match="step 6 is set aside: the run goes on from step 4$"):
            shakespeare.main(["--resume", "4", "--out", str(copy)])
    assert digest(trained[0]) != digest(load_trained(whole)[0])
    (copy / "weights.safetensors").unlink()
    shakespeare.main(["--resume", "4", "--out", str(copy)])
    assert final(copy) == final(whole)
    assert steps_of(copy) == [3, 6]
    shutil.rmtree(copy / "checkpoints/6/state/d")
    with pytest.raises(CheckpointError, match=r"holds no whole checkpoint of step 6: "):
        shakespeare.main(["--resume", "6", "--out", str(copy), "--steps", "9"])
    gc.collect()  # what orbax leaves behind speaks now, and in no other test


OTHERS = {
    "a text": ["thesis.tex", "notes.unfinished"],
    "a configuration": ["config.json", "tokenizer.json"],
    "a manifest": ["manifest.json"],
    "unfinished": ["notes.unfinished"],
}


@pytest.mark.parametrize("names", OTHERS.values(), ids=OTHERS)
def test_files_that_are_no_runs_stay_as_they_are(names, tmp_path):
    for name in names:
        (tmp_path / name).write_text('{"database": "mine"}')
    with pytest.raises(InputError, match=r"holds other files; name an empty or a new folder with --out$"):
        RunFolder.create(tmp_path, {})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, '{"database": "mine"}')


@pytest.mark.slow
def test_weights_that_were_removed_are_written_again(copy, whole):
    (copy / "weights.safetensors").unlink()
    shakespeare.main(["--resume", "--out", str(copy)])
    assert (copy / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_resumed_elsewhere_is_told(copy, monkeypatch):
    before = prepare.environment()
    monkeypatch.setattr(prepare, "environment", lambda: before | {"jax": "0.1", "cores": "96"})
    with pytest.warns(
        UserWarning, match=r"was begun elsewhere \(jax '.+' -> '0\.1', cores '\d+' -> '96'\): from here on it is close"
    ):
        shakespeare.main(["--resume", "--out", str(copy), "--steps", "7"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*metrics.jsonl is cut")  # the manifest is that of a run that wrote some
@pytest.mark.parametrize(
    "left", [["manifest.json"], pytest.param(["config.json", "manifest.json", "checkpoints"], marks=pytest.mark.slow)]
)
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(whole, text_file, tmp_path, left):
    """Both ways: as a new one, and resumed."""
    for arguments in (flags(data=text_file, save_every=2), ["--resume", "--steps", "6"]):
        out = tmp_path / str(len(arguments))
        out.mkdir()
        for name in left:
            if name == "checkpoints":
                (out / "checkpoints/0.orbax-checkpoint-tmp").mkdir(parents=True)
            else:
                shutil.copy(whole / name, out / name)
        (out / "config.json.0123abcd.unfinished").touch()
        if "config.json" in left or arguments[0] != "--resume":
            shakespeare.main([*arguments, "--out", str(out)])
            assert final(out) == final(whole)
            assert not [*out.rglob("*.unfinished"), *out.rglob("*-tmp")]


class Failing(io.StringIO):
    """A standard output that fails from some moment on."""

    error = 0

    def write(self, text: str) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(text)


STOPPED = "stopped at step 3, saved; continue with --resume --out "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(errno.EPIPE, 141, STOPPED), (errno.ENOSPC, 2, f"standard output: No space left on device; {STOPPED}")],
)
def test_where_standard_output_fails_the_run_is_saved_first(text_file, tmp_path, monkeypatch, refusal, error, code, said):
    output = Failing()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(shakespeare.EvaluationTable, "print", lambda *_, **__: setattr(output, "error", error))
    out = tmp_path / "run"
    arguments = flags(data=text_file, out=out, save_every=6, sample=1)
    assert refusal(shakespeare.main, arguments, code) == f"{said}{out}"
    assert kept_states(out / "checkpoints") == [0, 3]
    assert steps_of(out) == [3]


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_a_run_that_is_not_begun_says_what_begins_it(text_file, tmp_path, capsys, monkeypatch, has_checkpoints):
    out, arguments = tmp_path / "run", flags(data=text_file, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(shakespeare, "print_headline", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shakespeare.main(arguments)
    if has_checkpoints:
        (out / "checkpoints").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/config.json").write_text('{"model_type": "gpt2"}')
    said = "not begun: it has no checkpoint yet; the same command, or --resume, begins it"
    assert listed(out, capsys) == listed(tmp_path, capsys) == (0, [f"{out}: {said}"])
    for refused in (
        lambda: shakespeare.main(["--resume", "500", "--out", str(out)]),
        lambda: info.main([str(out)]),
        lambda: jf.load(out),
    ):
        with pytest.raises(CheckpointError, match=f"^{out} is {said}$"):
            refused()


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [False, True])
def test_stray_files_keep_no_run_from_beginning(whole, text_file, tmp_path, capsys, resumes):
    out, strays = tmp_path / "run", [".DS_Store", "checkpoints/.nfs0001", "checkpoints/notes/7"]
    for name in strays:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).touch()
    RunFolder(out).write_config(json.loads((whole / "config.json").read_text()))
    assert listed(out, capsys) == (0, [f"{out}: {NOT_BEGUN}"])
    shakespeare.main(["--resume", "--out", str(out)] if resumes else flags(data=text_file, out=out))
    assert final(out) == final(whole)
    assert all((out / name).exists() for name in strays)


def test_a_run_that_was_killed_before_its_settings_is_begun_by_the_same_command(text_file, tmp_path, capsys):
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.lock").write_text("process 1 on vm")
    said = "not begun: it has no config.json yet; the same command begins it"
    assert listed(out, capsys) == (0, [f"{out}: {said}"])
    with pytest.raises(CheckpointError, match=f"^{out} is {said}$"):
        shakespeare.main(["--resume", "--out", str(out)])
    shakespeare.main(flags(data=text_file, out=out, steps=1))
    assert kept_states(out / "checkpoints") == [0, 1]


def test_a_run_that_has_lost_its_settings_is_told_in_every_way(copy, text_file, capsys):
    (copy / "config.json").unlink()
    lost = f"{copy} has lost its config.json, which its manifest.json names; put it back, or name another folder"
    for arguments in (flags(data=text_file, out=copy), ["--resume", "--out", str(copy)]):
        with pytest.raises(CheckpointError, match=f"^{lost}$"):
            shakespeare.main(arguments)
    assert listed(copy.parent, capsys) == (1, [f"{copy}: damaged: {lost}"])


def test_lines_of_metrics_that_are_left_out_are_counted(copy, capsys):
    metrics = copy / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step": 3', '"step": 4'))
    for damaged, said in (("line 1 is", "1 line"), ("lines 1, 3 are", "2 lines")):
        with pytest.warns(UserWarning, match=f"{damaged} damaged"):
            code, (first, *_) = listed(copy, capsys)
        assert (code, first) == (0, f"{copy}: files whole, {said} of metrics left out")
        metrics.write_text(metrics.read_text() + "{\n")


@pytest.mark.parametrize(
    ("main", "flag", "symbols"),
    [
        (shakespeare.main, "--model.vocab-size", 36),
        (shakespeare.main, "--model.vocab_size", 36),
        (reverse.main, "--model.vocab-size", 39),
        (reverse.main, "--model.source-vocab-size", 39),
    ],
)
def test_a_vocabulary_of_another_size_than_the_text_has_is_refused(text_file, tmp_path, main, flag, symbols):
    data = ["--data", str(text_file), "--model.context", "8"] if main is shakespeare.main else []
    said = rf"^{flag.replace('_', '-')} 10 is not the number of symbols, which is {symbols} here; leave it out$"
    with pytest.raises(InputError, match=said):
        main([*data, "--out", str(tmp_path / "run"), f"{flag}=10", "--steps", "1"])
    check_vocabulary([flag, str(symbols)], symbols, flag)
