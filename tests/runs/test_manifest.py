"""Nothing of a run folder is used in silence after it was changed; a kill at any instant leaves a folder that goes on."""

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxformer as jf
import jaxformer.recipes.shakespeare as shakespeare
from jaxformer.convert.safetensors import load_weights
from jaxformer.errors import CheckpointError, InputError, JaxformerError, ParityError
from jaxformer.io.checksums import checksum, sealed
from jaxformer.runs import manifest
from jaxformer.runs.averaging import keep_weights, kept_steps
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RUN, RunFolder
from jaxformer.runs.manifest import Manifest
from jaxformer.runs.metrics import checked_line
from tests.tiny import flags, quick_recipe, tiny_config

pytestmark = pytest.mark.usefixtures("little_to_collect")
FLIPS = 30
UNREAD = {"loss.png"}
"""Files that no run reads."""


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_recipe():
        yield


@pytest.fixture(scope="module")
def whole(text_file, tmp_path_factory) -> Path:
    """A run of six steps, with two evaluated weights as the recipe of translation keeps them."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    with quick_recipe():
        shakespeare.main(flags(data=text_file, out=out))
    run, model = RunFolder.open(out), jf.load(out)
    for step in (3, 6):
        keep_weights(run, step, model, newest=2)
    return out


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """The same run, to spoil."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def flip(path: Path, place: int) -> None:
    """One bit, counted from the start of the file."""
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def used(folder: Path) -> tuple:
    """All that a resumed run and a loaded model take from a folder but the train state, whose checkpoints have a digest."""
    run, model = RunFolder.open(folder), jf.load(folder)
    run.check_kept()
    kept = [load_weights(path, model) for path in sorted(run.evaluated.glob("*.safetensors"))]
    return run.config, run.metrics, digest(model), digest(kept)


def resume(folder: Path, steps: int) -> None:
    shakespeare.main(["--resume", "--out", str(folder), "--steps", str(steps)])


def silent_flips(whole: Path, copy: Path) -> list[str]:
    """Files of which a flipped bit neither is refused nor warned of."""
    names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())
    names = [name for name in names if name not in UNREAD and not name.startswith("checkpoints")]
    draw, silent = random.Random(0), []
    for i in range(FLIPS):
        name = names[i % len(names)]
        flip(copy / name, draw.randrange(8 * (copy / name).stat().st_size))
        try:
            used(copy)
        except (JaxformerError, UserWarning):
            pass
        else:
            silent.append(name)
        shutil.copy(whole / name, copy / name)
    return silent


def test_no_flipped_bit_is_silent(whole, copy):
    assert silent_flips(whole, copy) == []
    assert used(copy) == used(whole)


def unchecked(path: Path, run: str, least: int) -> list:
    """Lines of metrics as they are."""
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def test_without_the_manifest_and_the_checks_they_are(whole, copy, monkeypatch):
    """The control: of the same flips many pass."""
    monkeypatch.setattr(Manifest, "check", lambda *_: None)
    monkeypatch.setattr("jaxformer.runs.folder.read_lines", unchecked)
    assert len(silent_flips(whole, copy)) > FLIPS // 3


def test_an_edited_configuration_is_refused_by_all_who_read_it(copy, refusal):
    from jaxformer.cli.main import dispatch

    config = copy / "config.json"
    config.write_text(config.read_text().replace('"learning_rate": 0.001', '"learning_rate": 0.002'))
    wanted = f"{config} was changed since it was written ("
    for arguments in (["train", "shakespeare", "--resume", "--out", str(copy)], ["generate", str(copy)], ["info", str(copy)]):
        said = refusal(dispatch, arguments)
        assert said.startswith(wanted), said
        assert said.endswith("; put it back, or start a new run with --out")
    with pytest.raises(CheckpointError, match="was changed since it was written"):
        jf.load(copy)


@pytest.mark.slow
def test_evaluated_weights_that_were_changed_are_refused_and_a_run_goes_on_without_them(copy):
    lost = copy / "evaluated/3.safetensors"
    flip(lost, 8 * lost.stat().st_size - 1)
    without = "--resume goes on without it, and --resume with an earlier step writes it again"
    with pytest.raises(CheckpointError, match=rf"3\.safetensors was changed .*; put it back, or remove it: {without}$"):
        resume(copy, 9)
    lost.unlink()
    with pytest.raises(CheckpointError, match=rf"3\.safetensors is missing, and .* names it; put it back, or {without}$"):
        RunFolder(copy).check_kept()
    with pytest.warns(UserWarning, match=r"3\.safetensors is missing: the mean and the best are taken without it"):
        resume(copy, 9)
    RunFolder(copy).check_kept()
    assert kept_steps(RunFolder(copy)) == [6]


@pytest.mark.slow
def test_changed_weights_are_written_again_once_they_are_removed(whole, copy):
    weights = copy / "weights.safetensors"
    flip(weights, 8 * weights.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=r"was changed .*; put it back, or remove it: --resume writes it again$"):
        jf.load(copy)
    weights.unlink()
    resume(copy, 6)
    assert weights.read_bytes() == (whole / "weights.safetensors").read_bytes()


def test_a_file_of_another_size_is_not_read(copy, monkeypatch):
    monkeypatch.setattr(manifest, "checksum", lambda path: pytest.fail(f"{path} was read"))
    os.truncate(copy / "weights.safetensors", 2**40)
    with pytest.raises(CheckpointError, match=rf"was changed since it was written \({2**40} bytes, not \d+\); put it back"):
        RunFolder(copy).manifest.check("weights.safetensors")


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "metrics.jsonl"])
def test_a_file_that_is_far_too_large_is_not_read(name, tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    run.log({"step": 1})
    os.truncate(run.path / name, 2**40)
    with pytest.raises(CheckpointError, match=rf"^{run.path / name} .*(has 1,099,511,627,776 bytes|{2**40} bytes, not \d+)"):
        print(run.config, run.metrics)


def test_a_manifest_that_may_not_be_read_is_no_damage(copy, monkeypatch):
    def forbidden(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(manifest, "read_small", forbidden)
    wanted = rf"^{copy}/manifest\.json cannot be read by user {os.geteuid()}: Permission denied; let this user read it$"
    with pytest.raises(CheckpointError, match=wanted):
        jf.load(copy)


def test_the_manifest_itself(copy):
    path = copy / "manifest.json"
    for spoiled in (path.read_text().replace('"size": ', '"size": 1', 1), "", "{", "[]", '{"files": 1}', '{"sha256": 1}'):
        path.write_text(spoiled)
        with pytest.raises(CheckpointError, match=r"^\S+/manifest\.json is damaged \(.+\); put it back, or remove it: then no"):
            jf.load(copy)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "it holds [], not an object"),
        ([7], "it holds [7], not an object"),
        (None, "it holds None, not an object"),
        ({}, "its files are None, not an object"),
        ({"files": None}, "its files are None, not an object"),
        ({"files": [1]}, "its files are [1], not an object"),
        *(
            ({"files": {name: versions}}, f"its entry {name!r} is {versions!r}, not a list of sizes and sha256s")
            for name, versions in [
                ("config.json", 7),
                ("config.json", []),
                ("config.json", [7]),
                ("config.json", [{}]),
                ("config.json", [{"size": "1"}]),
                ("config.json", [{"size": 1, "sha256": None}]),
                ("metrics.jsonl", None),
                ("\0", [None]),
            ]
        ),
    ],
)
def test_a_manifest_of_other_types(copy, values, why):
    path = copy / "manifest.json"
    path.write_text(json.dumps(sealed(values) if isinstance(values, dict) else values))
    with pytest.raises(CheckpointError) as caught:
        used(copy)
    assert str(caught.value) == f"{path} is damaged ({why}); put it back, or remove it: then no file is checked"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has lost its manifest")
def test_a_run_from_before_manifests_goes_on_and_gets_one(whole, copy):
    (copy / "manifest.json").unlink()
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    (copy / "metrics.jsonl").write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "crc32"}) + "\n" for line in lines)
    )
    assert used(copy) == used(whole)
    assert not (copy / "manifest.json").exists()
    resume(copy, 7)
    assert set(RunFolder.open(copy).manifest.entries) == {
        "config.json",
        "metrics.jsonl",
        "weights.safetensors",
        "evaluated/3.safetensors",
        "evaluated/6.safetensors",
    }
    assert silent_flips(copy, Path(shutil.copytree(copy, copy.parent / "again"))) == []


class Killed(BaseException):
    """Ends the process, as far as the folder is concerned: nothing is cleaned up after it."""


def test_killed_at_every_instant_of_a_save(tmp_path, monkeypatch):
    """Before each renaming, of the file and of the manifest, while weights are replaced, first written and removed."""
    model = jf.excite(jf.abstract(tiny_config()), seed=0)
    run = RunFolder.create(tmp_path / "run", {})
    for step in (1, 2):
        keep_weights(run, step, model, newest=2)
    rename, instants = os.replace, 0
    for instant in range(9):
        copy, calls = Path(shutil.copytree(run.path, tmp_path / str(instant))), []

        def killed(*names, calls=calls, instant=instant):
            calls.append(names)
            if len(calls) > instant:
                raise Killed
            rename(*names)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", killed)
            patch.setattr("jaxformer.io.atomic.remove", lambda path: None)
            try:
                keep_weights(RunFolder(copy), 2, model, newest=2)
                keep_weights(RunFolder(copy), 3, model, newest=2)
            except Killed:
                instants += 1
        RunFolder(copy).check_kept()
        for step in (2, 3):
            keep_weights(RunFolder(copy), step, model, newest=2)
        RunFolder(copy).check_kept()
        assert {*RunFolder(copy).manifest.entries} == {"config.json", "evaluated/2.safetensors", "evaluated/3.safetensors"}
        assert all(len(versions) == 1 for versions in RunFolder(copy).manifest.entries.values())
    assert instants == 7  # manifest, file, manifest, twice; and the manifest before a removal


def test_either_version_is_accepted_while_a_file_is_replaced(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    with run.manifest.renewed(run.weights) as unfinished:
        unfinished.write_text("old")
    with run.manifest.renewed(run.weights) as unfinished:
        unfinished.write_text("new")
        run.manifest.check(run.weights.name)
    run.manifest.check(run.weights.name)
    run.weights.write_text("old")
    with pytest.raises(CheckpointError, match=r"weights\.safetensors was changed"):
        run.manifest.check(run.weights.name)


def test_a_reader_beside_the_run_looks_again(tmp_path, monkeypatch):
    """The run replaces the file after its entry was read."""
    run = RunFolder.create(tmp_path / "run", {})

    def write(text: str) -> None:
        with run.manifest.renewed(run.weights) as unfinished:
            unfinished.write_text(text)

    def replaced_first(path: Path):
        monkeypatch.setattr(manifest, "checksum", checksum)
        write("new")
        return checksum(path)

    write("old")
    monkeypatch.setattr(manifest, "checksum", replaced_first)
    run.manifest.check(run.weights.name)
    assert run.weights.read_text() == "new"


def test_a_damaged_line_of_metrics_costs_no_other(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    for step in (3, 6, 9):
        run.log({"step": step, "val_loss": 1 / step})
    path, wanted = run.path / "metrics.jsonl", run.metrics
    data = path.read_bytes()
    second = range(8 * (data.index(b"\n") + 1), 8 * (data.index(b"\n", data.index(b"\n") + 1) + 1))
    for place in second[::7]:
        flip(path, place)
        said = r"/metrics\.jsonl: (line 2 is|lines 2, 3 are) damaged, incomplete or not of this run, and left out$"
        with pytest.warns(UserWarning, match=said):
            found = run.metrics
        assert found[0] == wanted[0]
        assert found in ([wanted[0], wanted[2]], wanted[:1])  # where the end of the line is gone, the next one is too
        path.write_bytes(data)
    assert run.metrics == wanted


def test_a_line_of_metrics_is_of_its_run(tmp_path):
    runs = [RunFolder.create(tmp_path / name, {RUN: name}) for name in ("one", "other")]
    for run in runs:
        run.log({"step": 3, "val_loss": 1 / 3})
    (runs[0].path / "metrics.jsonl").write_bytes((runs[1].path / "metrics.jsonl").read_bytes())
    with pytest.warns(
        UserWarning, match=r"one/metrics\.jsonl: line 1 is damaged, incomplete or not of this run, and left out$"
    ):
        assert runs[0].metrics == []


def test_a_line_that_comes_again_is_left_out(tmp_path):
    run = RunFolder.create(tmp_path / "run", {RUN: "one"})
    for step in (3, 6):
        run.log({"step": step})
    path = tmp_path / "run/metrics.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + first + second)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: line 2 is damaged, incomplete or not of this run, and left out$"):
        assert [line["step"] for line in run.metrics] == [3, 6]


def test_lines_from_before_they_named_their_run_are_read(tmp_path):
    run = RunFolder.create(tmp_path / "run", {RUN: "one"})
    (run.path / "metrics.jsonl").write_text("".join(checked_line("", {"step": step}) for step in (3, 6)))
    assert [line["step"] for line in run.metrics] == [3, 6]
    run.forget_after(3)
    run.log({"step": 5})
    assert [line["step"] for line in run.metrics] == [3, 5]


def test_a_lost_manifest_is_told(tmp_path):
    run = RunFolder.create(tmp_path / "run", {RUN: "one"})
    (run.path / "manifest.json").unlink()
    with pytest.warns(UserWarning, match=r"run has lost its manifest\.json: its files are taken as they are, unchecked$"):
        assert run.config == {RUN: "one"}


def test_a_manifest_that_a_live_run_loses_does_not_come_back_in_part(tmp_path):
    run = RunFolder.create(tmp_path / "run", {RUN: "one"})
    (run.path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json was removed while the run was written; go on with --resume, "):
        run.log({"step": 1})
    assert not (run.path / "manifest.json").exists()
    run.begin_manifest()
    run.log({"step": 2})
    assert run.config == {RUN: "one"}
    assert [line["step"] for line in run.metrics] == [1, 2]


def test_lines_of_metrics_that_are_missing_at_the_end_are_told(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    for step in (3, 6, 9):
        run.log({"step": step})
    path, whole = run.path / "metrics.jsonl", run.metrics
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in (2, 0):
        path.write_bytes(b"".join(lines[:kept]))
        sizes = f"it has {len(b''.join(lines[:kept]))} bytes, and was written with {len(b''.join(lines))}"
        said = rf"/metrics\.jsonl is cut: {sizes}: the steps in the rest"
        with pytest.warns(UserWarning, match=said):
            assert run.metrics == whole[:kept]
    path.unlink()
    with pytest.warns(UserWarning, match="is cut: it has 0 bytes"):
        run.forget_after(6)
    run.log({"step": 6})
    path.write_bytes(path.read_bytes() + lines[2])  # as by a process that is killed before it enters the line
    assert run.metrics == [{"step": 6}, {"step": 9}]
    run.forget_after(6)
    assert run.metrics == [{"step": 6}]


def test_metrics_without_checks_are_read(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    lines = ['{"step": 1, "loss": 2.5}', '{"step": 2, "lo', "[1]", "7", '{"step": "3"}', '{"step": 3, "loss": 2.0}']
    (run.path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    with pytest.warns(UserWarning, match="lines 2, 3, 4, 5 are damaged"):
        assert run.metrics == [{"step": 1, "loss": 2.5}, {"step": 3, "loss": 2.0}]


def test_files_have_the_permissions_of_their_neighbours(whole):
    modes = {path.name: path.stat().st_mode & 0o777 for path in whole.iterdir() if path.is_file()}
    assert len({*modes.values()}) == 1, modes


def test_data_are_named_so_that_they_are_found_from_everywhere(whole, text_file, monkeypatch):
    monkeypatch.chdir(text_file.parent)
    recipe = shakespeare.read_recipe(shakespeare.PRESETS, ["--data", text_file.name], prog="")
    assert recipe.data == str(text_file) == RunFolder.open(whole).config["recipe"]["data"]
    again = ["--resume", "--out", str(whole), "--data", text_file.name]
    assert shakespeare.read_recipe(shakespeare.PRESETS, again, prog="").data == str(text_file)


def test_a_learning_rate_that_float32_does_not_have():
    with pytest.raises(InputError, match=r"learning_rate = 1e-46 may be 0 in float32; give a number of at least 1\.2e-38$"):
        shakespeare.read_recipe(shakespeare.PRESETS, ["--optimizer.learning-rate", "1e-46"], prog="")


def test_a_last_line_of_metrics_that_lacks_its_end_alone_is_whole(tmp_path):
    run = RunFolder.create(tmp_path / "run", {RUN: "one"})
    for step in (3, 6):
        run.log({"step": step})
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert run.metrics == [{"step": 3}, {"step": 6}]
    run.forget_after(6)
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [("[" * 10**5, "it is nested too deeply"), (f'{{"a": {"1" * 5000}}}', "it holds a number of too many digits")],
)
def test_json_that_python_does_not_read_is_told_in_our_words(tmp_path, text, why):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"/config\.json is no JSON: {why}$"):
        jf.load(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    (run.path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is a folder, where a file belongs; move it away$"):
        print(run.metrics)


def test_an_error_is_one_line_in_which_nothing_moves_the_cursor():
    assert str(CheckpointError("a\x1b[2J\nb")) == "a\\x1b[2J\\nb"
    assert str(ParityError("a report\nof lines")) == "a report\nof lines"
