"""`jaxformer report`: the page of a run, whole and in a real browser, and one line where there is none."""

import base64
import json
import re
import shutil
from dataclasses import replace
from html import unescape

import pytest

from jaxformer.cli.main import dispatch
from jaxformer.errors import CheckpointError
from jaxformer.plots.run_page import page
from jaxformer.plots.run_report import RunReport, Sample, fact, read_report
from jaxformer.runs.lock import only_writer
from tests.browser import asked, started

SECTIONS = ["curves", "samples", "attention", "settings", "environment", "certificate"]
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def reported(copying) -> RunReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("jaxformer.plots.reading.translate")  # attention is drawn of what the samples hold already
        return read_report(copying)


def test_the_report_of_a_run_is_its_files(reported):
    assert reported.state == "evaluated at step 4 of at most 4"
    assert reported.curves["val_loss"] == {2: 1.25, 4: 0.625}
    assert (reported.settings["task"], reported.settings["model.d_model"]) == ("copy", "8")
    assert "model.rotary" not in reported.settings, "its default"
    assert len(reported.samples) == 3
    assert all(sample.wanted == sample.text for sample in reported.samples), "the task is to copy"
    assert [title.split()[0] for title in reported.attention] == ["encoder", "decoder", "cross"]
    assert all(png.startswith(b"\x89PNG") for png in reported.attention.values())
    assert reported.remarks == []


def test_the_page_has_every_part_and_asks_for_nothing(reported):
    text = page(reported)
    assert re.findall(r'<section id="(\w+)"', text) == SECTIONS
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert [base64.b64decode(each) for each in pictures] == [*reported.attention.values()]
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert [unescape(found) for found in re.findall(r"<dt>wanted \((.*?)\)", text)] == [
        f"right up to symbol {right(sample)} of {len(sample.text)}" for sample in reported.samples
    ]


def right(sample: Sample) -> int:
    places = zip(sample.written, sample.wanted or "", strict=False)
    return next(
        (place for place, (one, other) in enumerate(places) if one != other), min(len(sample.written), len(sample.text))
    )


def test_a_curve_has_round_numbers_that_are_whole(reported):
    text = page(replace(reported, curves={"loss": {100: 2.0, 700: 1.5, 2000: 1.0}, "last_spike": {700: 650, 2000: 784}}))
    marks = re.findall(r'class="tick" x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d,]+)<', text)
    assert [label for _, label in marks] == ["500", "1,000", "1,500", "2,000"]
    assert float(marks[-1][0]) + 3.6 * len("2,000") <= 720
    assert "last spike over steps" not in text
    assert fact("spikes", 1).startswith("spikes 1 (steps between two evaluations with a loss far above its running mean")


def test_text_is_escaped(reported):
    hostile = replace(reported, name=SCRIPT, samples=[Sample(SCRIPT, SCRIPT, SCRIPT)], settings={SCRIPT: SCRIPT})
    assert SCRIPT not in page(hostile)
    assert "(exact)" in page(hostile)


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.slow)])
def test_a_browser_shows_the_page(width, copying, tmp_path, capsys):
    dispatch(["report", str(copying), "--out", str(tmp_path / "run.html")])
    assert capsys.readouterr().out == f"copying: evaluated at step 4 of at most 4 · page {tmp_path}/run.html\n"
    with started(tmp_path / "profile") as chrome:
        chrome.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        )
        chrome.get(address := (tmp_path / "run.html").as_uri())
        assert chrome.title == "copying: evaluated at step 4 of at most 4"
        wide, seen = chrome.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= seen, "nothing is wider than the window"
        pictures = chrome.execute_script("return [...document.images].map(each => each.complete && each.naturalWidth > 100)")
        assert pictures == [True] * 3
        light = "return getComputedStyle(document.body).backgroundColor"
        before = chrome.execute_script(light)
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        assert chrome.execute_script(light) != before
        assert chrome.get_log("browser") == []
        assert asked(chrome) == {address}


@pytest.mark.slow
def test_a_text_is_continued(writing):
    (sample,) = read_report(writing, "abba").samples
    assert sample.text == "abba"
    assert set(sample.written) <= set(" abco")


def test_a_run_that_is_being_written(writing, tmp_path):
    run = shutil.copytree(writing, tmp_path / "run")
    (run / "weights.safetensors").unlink()
    with only_writer(run):
        report = read_report(run)
        for command in ("generate", "info"):
            with pytest.raises(CheckpointError, match=r"still being written by process .*; wait for its end$"):
                dispatch([command, str(run)])
    assert "; still being written by process " in report.state
    assert report.remarks == ["The run has no weights yet: neither samples nor attention are shown."]
    assert report.samples == []
    assert '<section id="curves"' in page(report)


def test_without_matplotlib_the_rest_is_shown(copying, no_matplotlib):
    report = read_report(copying)
    assert report.remarks == ["Attention is drawn by matplotlib: pip install 'jaxformer[viz]'."]
    assert report.attention == {}
    assert len(report.samples) == 3
    assert report.remarks[0].split("'")[1] in page(report)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, " is not there; give a folder that is"),
        ({"model": {}}, "/config.json does not describe a run of this version: 'recipe'"),
        ({"recipe": {"task": "copy", "model": {"width": 3}}}, "/config.json does not describe a run of this version: "),
        ({"class": "GPT"}, " holds a saved model, and no run; `jaxformer info` shows it"),
        ({"model_type": "gpt2"}, " is a folder of transformers, and no run; `jaxformer info` shows it"),
    ],
    ids=["nowhere", "older", "older model", "saved", "transformers"],
)
def test_what_is_no_run_is_one_line(config, said, tmp_path, refusal):
    if config is not None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert f"{tmp_path}/run{said}" in refusal(dispatch, ["report", str(tmp_path / "run"), "--out", str(tmp_path / "x.html")])
    assert not (tmp_path / "x.html").exists()


def test_a_page_that_cannot_be_written(writing, tmp_path, refusal):
    said = refusal(dispatch, ["report", str(writing), "--out", str(tmp_path / "none/x.html")])
    assert said == f"{tmp_path}/none/x.html cannot be written: No such file or directory; name another file with --out"
