"""Schema of a report, and skill: texts for programs and agents."""

import dataclasses
import json
import re
import sys
from copy import deepcopy
from importlib import resources
from textwrap import dedent
from typing import Any

import jsonschema
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.cli.agents import BEGIN, END, schema_of, with_section
from jaxformer.cli.commands import COMMANDS
from jaxformer.cli.main import dispatch
from jaxformer.convert.versions.examine import report_of
from jaxformer.errors import InputError
from jaxformer.parity.logprobs.report import LogprobReport
from jaxformer.parity.report.data import Module
from jaxformer.parity.report.report import Report
from jaxformer.parity.report.schema import schema
from tests.reports import REPORTS

VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("kind", ["report", "logprobs", "doctor"])
def test_the_schema_is_one(kind, capsys):
    jsonschema.Draft202012Validator.check_schema(schema_of(kind))
    dispatch(["parity", "schema", "--of", kind])
    assert json.loads(capsys.readouterr().out) == schema_of(kind)


SIDES = np.zeros((1, 3, 4)), np.log([[[0.1, 0.2, 0.3, 0.4]] * 3])
OTHERS = {
    "equal": lambda _: jf.compare_logprobs(SIDES[1], SIDES[1], np.array([[0, 1, 2]])),
    "different": lambda _: jf.compare_logprobs(*SIDES, np.array([[0, 1, 2]])),
    "numbers alone": lambda _: jf.compare_logprobs(SIDES[0], SIDES[1][:, 1:, 0], np.array([[0, 1, 2]])),
    "failed": lambda _: jf.compare_logprobs(np.nan * SIDES[0], SIDES[1], np.array([[0, 1, 2]])),
    "a sound folder": lambda path: folder(path),
    "a folder": lambda path: folder(path, rms_norm_eps=1, vocab_size=2**15, torch_dtype="float33"),
}


def folder(path, **settings):
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **settings}))
    return report_of(path)


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_report_fits_its_schema(name, tmp_path):
    report = OTHERS[name](tmp_path)
    validator = jsonschema.Draft202012Validator(schema_of("doctor" if "folder" in name else "logprobs"))
    written = json.loads(report.to_json())
    validator.validate(written)
    assert written["verdict"] == report.verdict
    for change in ({"unknown": 1}, {"schema": 0}, {"verdict": None}, {"status": "good"}):
        assert not validator.is_valid(written | change), change
    assert not VALIDATOR.is_valid(written)
    if "folder" not in name:
        assert str(LogprobReport.from_json(report.to_json())) == str(report)


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_fits_the_schema(name):
    report = REPORTS[name]()
    written = json.loads(report.to_json())
    VALIDATOR.validate(written)
    assert Report.from_json(report.to_json()).verdict == written["verdict"]


@pytest.mark.parametrize("change", [{"tolerance": "small"}, {"stages": {}}, {"unknown": 1}, {"schema": 0}, {"verdict": None}])
def test_what_is_no_report_does_not_fit(change):
    written = json.loads(REPORTS["different"]().to_json())
    assert VALIDATOR.is_valid(written)
    assert not VALIDATOR.is_valid(deepcopy(written) | change)


def test_fields_have_the_descriptions_of_their_classes():
    module = schema()["$defs"]["Module"]["properties"]
    assert {*module} == {field.name for field in dataclasses.fields(Module)}
    assert module["cause"]["description"] == "Cause of the divergence in words; '' if unknown."


def test_the_schema_is_printed(capsys):
    dispatch(["parity", "schema"])
    assert json.loads(capsys.readouterr().out) == schema()
    with pytest.raises(InputError, match="unknown flag --out"):
        dispatch(["parity", "schema", "--out"])


def test_the_skill_names_commands_and_fields_that_exist(capsys):
    dispatch(["skill"])
    text = capsys.readouterr().out
    assert text.startswith("---\nname: jaxformer-port\ndescription: ")
    assert len(text) < 4000
    for command in re.findall(r"jaxformer (parity \w+|\w+)", text.replace("jaxformer as", "").partition("# Port")[2]):
        assert command in COMMANDS or command.split()[0] not in {name.split()[0] for name in COMMANDS}, command
    named = {*re.findall(r"`(\w+)`", text)}
    assert {"cause", "causes", "source", "certainty", "looks"} <= named
    fields = {*schema()["$defs"]["Module"]["properties"], *schema()["$defs"]["Cause"]["properties"]}
    assert {"cause", "causes", "source", "certainty", "looks"} <= fields


MODELS = """
import types
import numpy as np
import torch


class TheirModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 4)

    def forward(self, ids):
        return types.SimpleNamespace(logits=self.embed(ids).square())


def my_model(params, ids):
    return params[ids] ** 2

"""
PARAMS = "params = torch_model()[0].embed.weight.detach().numpy()\n"


@pytest.mark.torch
def test_the_skills_own_lines_run(tmp_path, monkeypatch):
    skill = resources.files("jaxformer.cli").joinpath("skill.md").read_text("utf-8").replace("50257", "50")
    port, test = (dedent(block) for block in re.findall(r"```python\n(.*?)```", skill, re.S))
    (tmp_path / "port.py").write_text(MODELS + port + PARAMS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "port", raising=False)
    names: dict[str, Any] = {}
    exec(test, names)
    names["test_the_port_is_equal"]()
    inputs = re.search(r"`(def inputs.*?)`", skill)
    assert inputs is not None
    exec(inputs[1], names)
    assert [array.shape[-1] for array in names["inputs"]()] == [32, 32]
    monkeypatch.setattr(sys.modules["port"], "my_model", lambda params, ids: params[ids])
    with pytest.raises(AssertionError, match=r"^DIFFERENT: "):
        names["test_the_port_is_equal"]()


def test_a_section_of_agents_md_is_added_once_and_the_rest_stays(tmp_path, capsys):
    path = tmp_path / "AGENTS.md"
    path.write_text("# Ours\n\nRun the tests.\n", "utf-8")
    for _ in range(2):
        dispatch(["skill", "--agents", str(path), "--out", str(tmp_path / "new" / "SKILL.md")])
    text = path.read_text("utf-8")
    assert text.startswith("# Ours\n\nRun the tests.\n\n" + BEGIN)
    assert text.count(BEGIN) == text.count(END) == 1
    assert "name: jaxformer-port" not in text
    assert (tmp_path / "new" / "SKILL.md").read_text("utf-8").startswith("---\nname:")
    assert with_section(f"a\n\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n\n{BEGIN}\nnew\n{END}\nb\n"


@pytest.mark.parametrize("flag", ["--out", "--agents"])
def test_a_place_that_cannot_be_written_is_told(flag, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be"):
        dispatch(["skill", flag, str(tmp_path / "file" / "SKILL.md")])


def test_what_a_user_wrote_is_not_lost(tmp_path):
    half = tmp_path / "AGENTS.md"
    half.write_text(f"# Mine\n{BEGIN}\nold\n# Later\n", "utf-8")
    with pytest.raises(InputError, match="once each"):
        dispatch(["skill", "--agents", str(half)])
    assert "# Later" in half.read_text("utf-8")
    other = tmp_path / "SKILL.md"
    other.write_text("another skill", "utf-8")
    with pytest.raises(InputError, match="holds something else"):
        dispatch(["skill", "--out", str(other)])
    assert other.read_text("utf-8") == "another skill"
    windows = tmp_path / "windows.md"
    windows.write_bytes(b"# Ours\r\n\r\nRun.\r\n")
    dispatch(["skill", "--agents", str(windows)])
    assert windows.read_bytes().startswith(b"# Ours\r\n\r\nRun.")
