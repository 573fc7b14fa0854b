"""A report as text, in the terminal, as JSON and as Markdown: the same facts, and nothing lost on the way."""

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jaxformer.errors import InputError
from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.brief import brief
from jaxformer.parity.report.data import Cause, Module, Stage, Target
from jaxformer.parity.report.report import Report
from jaxformer.parity.report.text import show
from tests.reports import EPSILON, REPORTS, backward, different, equal, failed, infinite, trained


@pytest.mark.parametrize("name", REPORTS)
def test_json_brings_everything_back(name):
    text = REPORTS[name]().to_json()
    again = Report.from_json(text)
    assert again.to_json() == text
    assert str(again) == str(REPORTS[name]())
    if name != "infinite":  # NaN is not itself
        assert again == REPORTS[name]()


def test_a_report_of_before_is_read():
    """Three of its fields had other names."""
    report, text = different(), different().to_json()
    for name, earlier in (("diverging", "guilty"), ("not_covered", "unnoticed"), ("tolerance", "line")):
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{earlier}"')
    assert Report.from_json(text) == report


def test_json_is_strict():
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    values = json.loads(infinite().to_json(), parse_constant=refuse)
    assert values["modules"][0]["propagated"] == {"relative": "inf", "peak": "nan", "rounding": 0.0, "rounding_peak": 0.0}
    assert values["steps"][0] == {"number": 3, "loss": "nan", "loss_error": "inf", "parameter_error": "-inf"}
    again = Report.from_json(json.dumps(values)).modules[0].propagated
    assert again.relative == math.inf
    assert math.isnan(again.peak)
    assert values["verdict"] == infinite().verdict


def test_json_takes_whole_numbers_for_figures():
    assert Report.from_json('{"tier": "A", "tolerance": 0}') == Report("A", 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the text is not a report: it is not JSON; give what to_json wrote"),
        ("[" * 100_000, "the text is not a report: it is not JSON; give what to_json wrote"),
        ("[1, 2]", "report = [1, 2] is not an object; give what to_json wrote"),
        ("{}", "report has no tier; give what to_json wrote"),
        ('{"tier": "A", "tolerance": "much"}', 'report.tolerance = "much" is not a number; give what to_json wrote'),
        ('{"tier": "A", "tolerance": true}', "report.tolerance = true is not a number; give what to_json wrote"),
        ('{"tier": "A", "tolerance": 1, "colour": 2}', 'report has a field "colour" that is not known'),
        ('{"tier": "A", "tolerance": 1, "stages": {}}', "report.stages = {} is not a list"),
        ('{"tier": "A", "tolerance": 1, "environment": {"jax": 1}}', "report.environment.jax = 1 is not a text"),
        ('{"tier": "A", "tolerance": 1, "steps": [{"number": 1.5}]}', "report.steps[0] has no loss"),
        (
            '{"tier": "A", "tolerance": 1, "stages": [{"name": "x", "status": "good", "says": ""}]}',
            "report.stages[0].status = \"good\" is not 'equal' or 'different' or 'failed'",
        ),
        (
            f'{{"tier": {list(range(99))}, "tolerance": 1}}',
            "report.tier = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11... is not",
        ),
    ],
)
def test_json_of_something_else(text, said):
    with pytest.raises(InputError) as refused:
        Report.from_json(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_text_has_diverging_modules_below_their_check():
    lines = str(different()).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["weights", "forward", "local"]
    assert lines[3] == f"  stack.blocks.1.attention_norm   {EPSILON}"
    assert lines[4] == "  stack.blocks.10.attention   input of stack.blocks.10.attention.out: relL2 3.0e-01, tolerance 1e-13"
    assert lines[-4] == "taps not compared: rope"
    assert lines[-2] == "not covered by this run: stack.*.attention.key.bias"
    assert lines[-1] == f"DIFFERENT: stack.blocks.1.attention_norm: {EPSILON}, and 1 more"


def of_every_layer(cause: str, name: str = "layers.{}.norm") -> Report:
    """A bug in each of 52 layers, and one in another module."""
    wrong = Error(1e-3, 2e-3)
    rows = [Module(name.format(i), f"h.{i}.ln", wrong, wrong, "output", True, cause.format(i)) for i in range(52)]
    rows.append(Module("head", "head", wrong, wrong, "output", diverging=True))
    return Report("A", 1e-13, [Stage("local", "different", "53 of 53 modules diverge")], rows)


LAYERS = {
    "a cause": ("torch epsilon 1e-05; jax epsilon 1e-06 (residual {}e-17)", "layers.{}.norm", "layers.*.norm"),
    "no cause": ("", "layers.{}.norm", "layers.*.norm"),
    "Linen's names": ("jax adds 0.5 times x", "decoder.layers_{}", "decoder.layers_*"),
    "a layer called twice, and others": ("jax adds 0.5 times x", "layers.{}.act (call 1)", "layers.*.act"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_one_bug_in_every_layer_is_told_once(case):
    cause, name, stars = LAYERS[case]
    report, said = of_every_layer(cause, name), f"{stars} (52 calls, first {name.format(0)})"
    assert [line.split("   ")[0] for line in str(report).splitlines()[1:-1]] == [f"  {said}", "  head"]
    assert shown(report, terminal=True, width=200).count("layers") == 2 + report.verdict.count("layers")
    assert f"| `{said}` | output | " in report.to_markdown()
    assert report.to_html().count('<article class="reason">') == 2
    assert len(json.loads(report.to_json())["modules"]) == 53


def test_other_causes_and_other_modules_are_told_apart():
    report = of_every_layer("of layer {} (residual 1e-16)", "norm{}")
    assert len(str(report).splitlines()) == 1 + 53 + 1
    report = of_every_layer("jax looks up ids +{} from torch's")
    assert len(str(report).splitlines()) == 1 + 53 + 1


def test_text_has_what_is_without_a_pair():
    lines = str(different()).splitlines()
    assert lines[-3] == "not compared by themselves: torch drop, drop (call 1)"  # rope is among the taps
    assert lines[-3] in shown(different(), terminal=True, width=200)
    many = replace(equal(), jax_only=[f"layers.{i}.drop" for i in range(52)])
    assert "not compared by themselves: jax layers.*.drop" in str(many).splitlines()


def test_text_names_modules_that_are_wrong_backwards_only():
    says = "stack.blocks.2.attention.query{}gradient: max/rms 3.1e-03, tolerance 1e-12"
    lines = str(backward()).splitlines()
    assert lines[1].startswith("activation gradients")
    assert lines[2] == "  " + says.format("   ")
    assert lines[-1] == "DIFFERENT: " + says.format(": ")


def test_diverging_modules_are_told_of_without_their_check():
    report = replace(backward(), stages=[Stage("gradients", "different", "wte")])
    assert "stack.blocks.2.attention.query   gradient" in str(report)


def test_a_module_may_be_wrong_both_ways():
    report = different()
    both = replace(report.diverging[0], local_gradient=Error(1e-3, 2e-3))
    assert [found.where for found in report.findings(both)] == ["output", "gradient"]
    right = replace(both, local_gradient=Error(1e-14, 1e-13))
    assert [found.where for found in report.findings(right)] == ["output"]
    lost = replace(both, local_gradient=Error(math.nan, math.nan), local=Error(0.0, 0.0))
    assert [found.where for found in report.findings(lost)] == ["gradient"]


@pytest.mark.parametrize(
    ("report", "verdict", "code"),
    [
        (equal(), "EQUAL: weights, forward, local, gradients, float32 (tier A)", 0),
        (trained(), "DIFFERENT: train: step 17: loss off by 4.4e-09", 1),
        (failed(), "COULD NOT COMPARE: forward: RuntimeError: no kernel", 2),
        (Report("A", 1e-13), "COULD NOT COMPARE: nothing was checked", 2),
    ],
)
def test_the_verdict_is_the_last_line(report, verdict, code):
    assert str(report).splitlines()[-1] == verdict
    assert shown(report, terminal=True).splitlines()[-1] == verdict
    assert report.exit_code == code


def shown(report: Report, *, terminal: bool, width: int = 100) -> str:
    """What stands in the terminal, or in a pipe; a terminal's colours are left out."""
    file = io.StringIO()
    show(report, Console(file=file, force_terminal=terminal, width=width, color_system="standard", _environ={}))
    text = file.getvalue()
    assert ("\x1b[" in text) == terminal
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def test_in_a_pipe_it_is_the_plain_text():
    assert shown(infinite(), terminal=False, width=20) == f"{infinite()}\n"


def test_in_a_terminal_the_diverging_are_a_table():
    lines = shown(different(), terminal=True, width=160).splitlines()
    header = next(i for i, line in enumerate(lines) if line.split() == ["module", "where", "local", "tolerance", "cause"])
    assert "taps not compared: rope" in lines
    first, second = lines[header + 1 : header + 3]
    assert re.split(r" {2,}", first.strip()) == ["stack.blocks.1.attention_norm", "output", "relL2 1.7e-04", "1e-13", EPSILON]
    assert re.split(r" {2,}", second.strip()) == [
        *("stack.blocks.10.attention", "input of out"),
        *("relL2 3.0e-01", "1e-13", "no known formula explains it"),
    ]
    assert lines[-1].startswith("DIFFERENT: ")
    assert "max/rms 3.1e-03" in shown(backward(), terminal=True)


@pytest.mark.parametrize("width", [50, 80, 110])
def test_a_narrow_terminal_loses_nothing(width):
    wide = shown(different(), terminal=True, width=300)
    narrow = shown(different(), terminal=True, width=width)
    assert sorted("".join(narrow.split())) == sorted("".join(wide.split()))


def test_markdown_has_all_of_it():
    text = replace(different(), steps=trained().steps).to_markdown()
    assert text.startswith("# DIFFERENT: stack.blocks.1.attention_norm: torch epsilon 1e-05; jax epsilon 1e-06")
    titles = re.findall(r"^## (.*)", text, re.M)
    assert titles == [
        *("Checks", "Diverging modules", "All modules", "Training", "Taps not compared", "Not covered by this run"),
        *("JAX calls not compared by themselves", "torch calls not compared by themselves", "Environment"),
    ]
    assert f"| `stack.blocks.1.attention_norm` | output | relL2 1.7e-04 | 1e-13 | {EPSILON} |" in text
    assert (
        "| **diverging** | `stack.blocks.1.attention_norm` | `torch.stack.blocks.1.attention_norm` | 3.3e-07 | 1.7e-04 |"
        in text
    )
    assert re.findall(r"^\| (first|worst|last) \| (\d+) ", text, re.M) == [("first", "0"), ("worst", "17"), ("last", "39")]


@pytest.mark.parametrize("name", REPORTS)
def test_markdown_tables_have_rows_of_one_width(name):
    for block in re.findall(r"(?:^\|.*\n)+", REPORTS[name]().to_markdown(), re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_markdown_escapes_what_means_something():
    text = infinite().to_markdown()
    assert text.startswith("# DIFFERENT: \\<script\\>alert(1)\\</script\\>|x")
    assert "`<script>alert(1)</script>\\|x`" in text
    assert "`` `a\\|b` ``" in text
    assert "\\</title\\>\\<b\\>" in text
    assert "inf" in text


def test_markdown_has_gradients_where_there_are_some():
    assert "| propagated | local | gradient | local gradient |" in backward().to_markdown()
    assert "gradient |" not in equal().to_markdown()


@pytest.mark.parametrize("hinted", [True, False])
def test_a_difference_that_float32_may_explain_is_said_to_be_one(hinted):
    off = Error(2e-8, 2e-8)
    local = Module("norm", "norm", off, off, "output", diverging=True, float32=hinted)
    report = Report("A", 1e-13, [Stage("local", "different", "1 of 1 modules diverges")], [local])
    assert ("(float32's size: does a side hold a constant in float32" in report.verdict) == hinted


@pytest.mark.parametrize(("target", "place"), [("input of g.gate", "input of gate: "), ("`x * y` (a.py:1)", "")])
def test_a_cause_of_one_array_is_told_with_its_place(target, place):
    off, words = Error(0.3, 0.4), "jax has torch's entries along axis 2 from the last to the first"
    causes = [Cause("order", "order.along_an_axis", [Target(target)], {}, None, 0.0, "exact", words)]
    module = Module("g", "g", off, off, "input of g.gate", diverging=True, cause=words, causes=causes)
    report = Report("A", 1e-13, [Stage("local", "different", "1 of 1 modules diverges")], [module])
    assert report.verdict == f"DIFFERENT: g: {place}{words}"


@pytest.mark.parametrize(("unseen", "words"), [(True, "inputs, but for a mask of the port, its"), (False, "inputs, its")])
def test_a_mask_that_is_not_compared_is_told_of_on_the_page(unseen, words):
    off, says = Error(0.3, 0.4), "jax does not apply it"
    cause = Cause("masks", "masks.given", [Target("input 1")], {"unseen": unseen}, None, 0.0, "exact", says)
    module = Module("g", "g", off, off, "output", diverging=True, cause=says, causes=[cause])
    page = Report("A", 1e-13, [Stage("local", "different", "1 of 1 modules diverges")], [module]).to_html()
    assert f"Given torch's own {words} output differs" in page.replace("&#39;", "'").replace("&#x27;", "'")


def test_the_error_by_position_is_said_where_some_are_equal():
    off = Error(0.3, 0.4)
    rows = [
        Module("norm", "norm", off, off, "output", True, positions=positions)
        for positions in ([0.1, 0.2], [0.0, 0.0, 0.1, 0.4])
    ]
    text = str(Report("A", 1e-13, [Stage("local", "different", "two")], rows))
    assert "error by position: norm: equal at 0-1 of 4, first off at 2 (1.0e-01), most at 3 (4.0e-01)" in text
    assert "error by position" not in str(Report("A", 1e-13, [Stage("local", "different", "one")], rows[:1]))


def test_a_long_report_is_cut_where_no_terminal_reads_it():
    report, buffer = replace(different(), not_covered=[f"layers.{i}.bias" for i in range(900)]), io.StringIO()
    show(report, Console(file=buffer))
    shown = buffer.getvalue().rstrip("\n")
    assert len(str(report)) > 4 * len(shown)
    assert len(shown) <= 4000
    *_, note, verdict = shown.split("\n")
    assert verdict == report.verdict
    path = Path(note.rpartition(" ")[2])
    assert path.read_text("utf-8") == f"{report}\n"
    path.unlink()
    assert brief(str(different())) == str(different())
    many = brief("\n".join(["many lines"] * 900 + ["v" * 5000]))
    assert len(many) <= 4000
    assert many.endswith("vvv...")
    Path(re.findall(r"characters: (\S+)", many)[0]).unlink()
