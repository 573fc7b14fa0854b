"""Schema of a report, and skill: texts for programs and agents."""

import dataclasses
import json
import re
from copy import deepcopy

import jsonschema
import pytest

from jaxformer.cli.agents import BEGIN, END, with_section
from jaxformer.cli.commands import COMMANDS
from jaxformer.cli.main import dispatch
from jaxformer.errors import InputError
from jaxformer.parity.report.data import Module
from jaxformer.parity.report.report import Report
from jaxformer.parity.report.schema import schema
from tests.reports import REPORTS

VALIDATOR = jsonschema.Draft202012Validator(schema())


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()


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
