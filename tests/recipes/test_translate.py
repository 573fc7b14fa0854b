"""Translation: the recipe trains, averages, resumes and measures; its run translates whatever is given, one line for one."""

import io
import json
import random
import shutil
import sys

import jax
import numpy as np
import pytest

from jaxformer.checkpoints.translator import Translator, load_translator
from jaxformer.cli import runs
from jaxformer.cli.main import dispatch
from jaxformer.convert.safetensors import load_weights
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.models import abstract
from jaxformer.pytree import count_parameters
from jaxformer.recipes import translate
from jaxformer.runs.averaging import average_weights
from jaxformer.runs.checkpoint import digest
from jaxformer.runs.folder import RunFolder
from tests.tiny import GERMAN

SMALL = {
    "--preset": "smoke",
    "--steps": 6,
    "--batch": 400,
    "--evaluate-every": 2,
    "--save-every": 2,
    "--shapes": 1,
    "--averaged": 2,
    "--show": 1,
    "--longest": 20,
    "--model.vocab-size": 300,
    "--model.context": 24,
    "--model.d-model": 8,
    "--model.n-heads": 2,
    "--model.d-ff": 12,
    "--model.layers": "rolled",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of two columns: nouns and verbs, word for word."""
    draw = random.Random(0)
    rows = [draw.choices(list(GERMAN.items()), k=draw.randint(2, 4)) for _ in range(90)]
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join("\t".join(" ".join(words) for words in zip(*row, strict=True)) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(autouse=True)
def _quick_keys():
    with jax.default_prng_impl("rbg"):
        yield


def flags(data, **changes):
    values = SMALL | {"--data": data} | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [part for name, value in values.items() for part in (name, str(value))]


@pytest.fixture(scope="module")
def said_and_folder(data, tmp_path_factory):
    """What a run prints, and its folder."""
    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch, jax.default_prng_impl("rbg"):
        patch.setattr(sys, "stdout", said := io.StringIO())
        translate.main(flags(data, out=path))
    return said.getvalue().splitlines(), path


@pytest.fixture(scope="module")
def folder(said_and_folder):
    return said_and_folder[1]


def test_what_a_run_leaves(folder):
    files = {path.name for path in folder.iterdir()}
    kept = {"checkpoints", "config.json", "evaluated", "loss.png", "manifest.json", "metrics.jsonl", "tokenizer.json"}
    assert files == kept | {"translations.tsv", "weights.safetensors"}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert line["perplexity"] == pytest.approx(np.exp(line["val_loss"]))
        assert 0 <= line["accuracy"] <= 1
    assert lines[-1]["val_loss"] < lines[0]["val_loss"]


def test_what_a_run_says(said_and_folder):
    said, folder = said_and_folder
    assert said[0].startswith("translate · encoder-decoder 1+1, d_model 8, 2 heads, vocabulary 300 · ")
    assert " · 81 pairs, " in said[0]
    scores = [line for line in said if line.startswith("BLEU ")]
    assert [line.split(" · ")[0].split(" ", 2)[2] for line in scores] == ["greedy", "beam 5"]
    assert all("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in line for line in scores)
    assert said[-1].startswith(f"next: jaxformer translate {folder} ")


def test_every_test_pair_is_written_down(folder, data):
    rows = [line.split("\t") for line in (folder / "translations.tsv").read_text("utf-8").splitlines()]
    assert rows[0] == ["source", "reference", "greedy", "beam 5"]
    assert [row[:2] for row in rows[1:]] == [line.split("\t") for line in data.read_text("utf-8").splitlines()[-9:]]


def test_the_weights_are_the_best_by_validation_loss(folder, data):
    recipe = translate.read_recipe(translate.PRESETS, ["--resume", "--out", str(folder)], prog="")
    translator = load_translator(folder)
    _, held_out = translate.make_buckets(recipe, translator.tokenizer, translate.read_splits([str(data)]))

    def loss(model):
        return translate.measure(model, held_out)["val_loss"]

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    mean = average_weights(RunFolder(folder), translator.model, recipe.averaged)
    assert loss(translator.model) == min(loss(mean), *(line["val_loss"] for line in lines))


@pytest.mark.slow
def test_resumed_equals_uninterrupted(folder, data, tmp_path):
    translate.main(flags(data, out=tmp_path / "run", steps=3))
    translate.main(["--resume", "--out", str(tmp_path / "run"), "--steps", "6"])
    model = load_translator(folder).model
    for one, other in (
        (folder / name, tmp_path / "run" / name)
        for name in ("weights.safetensors", "evaluated/4.safetensors", "evaluated/6.safetensors")
    ):
        assert digest(load_weights(one, model)) == digest(load_weights(other, model))


@pytest.mark.slow
def test_a_run_that_stopped_after_its_last_step_is_finished(folder, tmp_path, refusal):
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    again = ["--resume", "--out", str(run)]
    assert "is at step 6 already" in refusal(translate.main, again)
    for name in ("translations.tsv", "weights.safetensors"):
        (run / name).unlink()
    translate.main(again)
    for name in ("translations.tsv", "weights.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_parts_are_one_batch(folder, data, tmp_path):
    translate.main(flags(data, out=tmp_path / "run", parts=2))
    losses = [
        json.loads((path / "metrics.jsonl").read_text().splitlines()[0])["val_loss"] for path in (folder, tmp_path / "run")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("preset", translate.PRESETS.values(), ids=translate.PRESETS)
def test_every_preset_describes_a_model(preset):
    model = abstract(preset.model)
    assert count_parameters(model) == {"smoke": 715_776, "small": 6_002_688, "base": 52_330_496}[preset.preset]
    assert preset.schedule.name == "noam" or preset.schedule.last == preset.steps


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"longest": 25}, "longest = 25 is more than model.context = 24; give at most that"),
        ({"parts": 0}, "parts = 0 is out of range"),
        ({"smoothing": 1}, "smoothing = 1 is out of range"),
        ({"batch": 5}, "a pair takes "),
        ({"longest": 2}, "no pair has at most 2 tokens a side"),
        ({"model.vocab_size": 100}, "vocab_size = 100 is out of range; give an integer from 259"),
        ({"tokenizer": "nowhere.json"}, "nowhere.json cannot be read"),
        ({"validation": "nowhere"}, "data: nowhere is neither a file nor a corpus"),
    ],
)
def test_refusals(data, tmp_path, refusal, changes, said):
    assert said in refusal(translate.main, flags(data, out=tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:.*has lost its manifest")
def test_other_data_are_refused(folder, data, tmp_path, refusal):
    other = tmp_path / "other.tsv"
    other.write_text("".join(line + "\n" for line in data.read_text("utf-8").splitlines()[::-1]), "utf-8")
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["data"] = [str(other)]
    (run / "config.json").write_text(json.dumps(config))
    (run / "manifest.json").unlink()
    said = refusal(translate.main, ["--resume", "--out", str(run), "--steps", "8"])
    assert said == f"--data is not what {run} began with; give the same texts"


@pytest.fixture
def say(folder, capsys, monkeypatch):
    """What `jaxformer translate` prints, line by line."""

    def said(*arguments, stdin=None):
        capsys.readouterr()
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        dispatch(["translate", str(folder), "--beam", "2", *arguments])
        return capsys.readouterr().out.removesuffix("\n").split("\n")

    return said


TEXTS = ["Hund", "Katze singt", "", "Haus läuft Baum Mann"]


def test_texts_files_and_standard_input_say_the_same(say, tmp_path):
    (tmp_path / "texts").write_text("\n".join(TEXTS) + "\n", "utf-8")
    given = say(*[text for text in TEXTS if text])
    assert say("--file", str(tmp_path / "texts")) == say(stdin="\n".join(TEXTS).encode()) == [*given[:2], "", given[2]]


@pytest.mark.slow
def test_each_source_is_translated_as_if_alone(say):
    together = say(*TEXTS[:2], TEXTS[3])
    assert together == [line for text in TEXTS if text for line in say(text)]


@pytest.mark.slow
def test_the_best_come_first(say):
    rows = [line.split("\t") for line in say("Katze singt", "Hund", "--n-best", "2")]
    assert len(rows) == 4
    assert float(rows[0][0]) >= float(rows[1][0])
    assert float(rows[2][0]) >= float(rows[3][0])
    assert [rows[0][1], rows[2][1]] == say("Katze singt", "Hund")


@pytest.mark.slow
def test_attention_is_drawn(say, tmp_path):
    say("Katze singt", "--attention", str(tmp_path / "map.png"))
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_an_alignment_is_attention_over_the_source(folder):
    weights, source, target = load_translator(folder).alignment("Katze singt", "cat sings")
    assert weights.shape == (len(target), len(source))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert "".join(source[:-1]) == "Katze singt"
    assert "".join(target[:-1]) == "cat sings"


@pytest.mark.slow
def test_too_long_is_cut_with_one_warning(say):
    long = "Katze " * 30
    with pytest.warns(UserWarning, match="sources of more than 23 tokens are cut there") as warned:
        said = say(long, "Hund", long + "Hund")
    assert len({str(warning.message) for warning in warned}) == 1
    assert said[0] == said[2]
    assert said[1] == say("Hund")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Katze " * 30, "--too-long", "refuse"], "'Katze Katze Katze Katze Katze Katze Katz'... has "),
        (["a", "--file", "b"], "both texts and --file are given; give one of them"),
        (["--file", "nowhere"], "nowhere cannot be read: No such file or directory"),
        (["a", "b", "--attention", "x.png"], "--attention draws one source, and 2 are given; give one text"),
        (["a", "--attention", "x.odd"], "x.odd cannot be written; name a .png or .svg file in a folder that exists"),
        (["a", "--attention", "nowhere/x.png"], "nowhere/x.png cannot be written; name a .png or .svg file"),
        (["a", "--beam", "0"], "beam = 0 is out of range"),
        (["a", "--beam", "2", "--n-best", "3"], "n_best = 3 is more than width = 2"),
        (["a", "--beam", "301"], "width = 301 of the beam is more than the vocabulary of 300"),
    ],
)
def test_refused_translations(folder, refusal, arguments, said):
    assert said in refusal(dispatch, ["translate", str(folder), *arguments])


def test_standard_input_that_is_not_utf8(folder, refusal, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hund\nK\xe4tze\n")))
    said = refusal(dispatch, ["translate", str(folder)])
    assert said == "standard input, line 2, is not UTF-8: byte 0xe4 at offset 1; convert it first"


@pytest.mark.slow
def test_standard_input_that_is_closed(folder, refusal, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed; give texts, or --file" in refusal(dispatch, ["translate", str(folder)])
    dispatch(["translate", str(folder), "Hund"])


@pytest.mark.slow
def test_the_tokenizer_of_another_run(folder, tmp_path, refusal):
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    Tokenizer.train_bpe(["ein anderer Text"], 300).save(run / "tokenizer.json")
    said = refusal(dispatch, ["translate", str(run), "Hund"])
    wrong = "is not the tokenizer that this run was trained with: its sha256 differs"
    assert said == f"{run}/tokenizer.json {wrong}; put it back, or remove it: --resume makes it again"
    assert "damaged" in runs.judged(run)[0]
    (run / "tokenizer.json").unlink()
    said = refusal(dispatch, ["translate", str(run), "Hund"])
    assert said == f"{run}/tokenizer.json is missing; put it back, or --resume makes it again"
    translate.main(["--resume", "--out", str(run)])
    for name in ("tokenizer.json", "weights.safetensors", "translations.tsv"):
        assert (run / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_a_tokenizer_may_lie_elsewhere_when_a_run_goes_on(folder, data, tmp_path, refusal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, run = tmp_path / "given.json", tmp_path / "run"
    shutil.copy(folder / "tokenizer.json", given)
    Tokenizer.train_bpe(["ein anderer Text"], 300).save(tmp_path / "other.json")
    translate.main(flags(data, out="run", steps=2, tokenizer="given.json"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    resumed = ["--resume", "--out", "../run", "--steps"]
    (run / "tokenizer.json").unlink()
    translate.main([*resumed, "4"])
    assert (run / "tokenizer.json").read_bytes() == given.read_bytes()
    (run / "tokenizer.json").unlink()
    given.rename("moved.json")
    said = refusal(translate.main, [*resumed, "6"])
    assert said == f"{given} is not there; give a copy of the tokenizer that ../run began with: --tokenizer FILE"
    other = ["--tokenizer", str(tmp_path / "other.json")]
    wrong = f"--tokenizer is not what ../run began with: the sha256 of {other[1]} differs; give a copy of that one"
    assert refusal(translate.main, [*resumed, "6", *other]) == wrong
    translate.main([*resumed, "6", "--tokenizer", "moved.json"])
    assert (run / "weights.safetensors").read_bytes() == (folder / "weights.safetensors").read_bytes()
    assert refusal(translate.main, [*resumed, "8", *other]) == wrong, "though the run has its own"
    assert RunFolder.open(run).config["recipe"]["tokenizer"] == str(tmp_path / "elsewhere/moved.json")


def test_a_tokenizer_of_another_size(folder):
    model = load_translator(folder).model
    with pytest.raises(InputError, match=r"the tokenizer has 259 tokens, the model 300: it is not the one"):
        Translator(model, Tokenizer.train_bpe(["a"], 259))


def test_a_run_that_translates_does_not_generate(folder, refusal):
    said = refusal(dispatch, ["generate", str(folder)])
    assert said == f"{folder} holds a model that translates; use jaxformer translate"
