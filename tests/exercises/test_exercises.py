"""The exercises: planted bugs are found, the right ports solve them, and what a learner does wrong is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.cli.exercise import main
from jaxformer.exercises import judge
from jaxformer.exercises.catalogue import EXERCISES, LEVELS
from jaxformer.exercises.folder import Progress, begin, keep_report, kept_report, record
from jaxformer.exercises.hints import LEVELS as HINTS
from jaxformer.exercises.hints import cause_of, hint

pytestmark = [pytest.mark.foreign, pytest.mark.optimizers]
ROOT = str(Path(judge.__file__).parents[2])
CAUSES = (
    "torch activation gelu; jax activation relu",
    "jax does not add the bias",
    "jax has negative_slope 0.01 for 0.2 there",
    "torch adds input (the residual); jax does not",
    "jax activates the second of the two (gate)",
    "jax lets every query see one key more ahead",
    "jax tiles them",
    "by columns: reshaped to (6, ...) and transposed",
    "torch uses decoder.norm2; jax uses decoder.norm1 in its place",
    "torch reshapes queries and keys and values as (heads, width)",
    "jax divides by all 24 targets, torch by the 18 that are not 0",
    "",
    "jax betas 0.9 and 0.999",
    "jax as if the values of steps are written one slot early",
    "jax uses the mean of all positions of",
    "jax has a window of 5 keys for 4",
    "tanh(q @ k.mT * SCALE / CAP)` (original.py:29); jax leaves it out",
    "jax rotates 8",
    "jax multiplies the scores by 0.353553391 = 1/sqrt(8) more",
    "torch applies the mask of `~seen` (original.py:25); jax does not apply it",
    "jax uses `scale[..., None] * outputs`",
    "jax pads as 'SAME' does",
    "jax ends each window where the next one begins",
    "3 times; jax runs it 4 times",
)
"""What the comparison says of each exercise: the words that tell what to mend. '' where it names the place alone."""
PLANTED = [pytest.param(number, id=f"{number}-{each.model}") for number, each in enumerate(EXERCISES, 1)]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "exercises"


def mended(root, number):
    (root / f"{number:02d}/port.py").write_text(EXERCISES[number - 1].solution)


def test_each_bug_is_planted_once():
    assert len(EXERCISES) == 24
    assert [each.level for each in EXERCISES] == sorted(each.level for each in EXERCISES)
    assert {each.level for each in EXERCISES} == {*LEVELS}
    assert len({(each.model, each.wrong) for each in EXERCISES}) == 24
    for each in EXERCISES:
        assert each.solution.count(each.right) == 1, each.kind
        compile(each.port, "port.py", "exec")
        assert bool(each.field) == (each.level == 4)


@pytest.mark.slow
@pytest.mark.parametrize("number", PLANTED)
def test_the_bug_is_found_and_the_right_port_solves_it(root, number):
    exercise = EXERCISES[number - 1]
    folder = begin(root, number, exercise)
    assert judge.differs(exercise, folder)
    report = judge.compared(exercise, folder)
    assert report.status == "different", report.verdict + report.traceback[-900:]
    assert (report.diverging[0].jax if report.diverging else None) == exercise.module, report
    assert CAUSES[number - 1] in cause_of(report), report
    assert bool(cause_of(report)) == bool(CAUSES[number - 1]), report
    mended(root, number)
    assert not judge.differs(exercise, folder)
    assert judge.compared(exercise, folder).status == "equal"


@pytest.fixture
def said(root, capsys):
    """said(3, "--check"): the exit code, and what the command prints."""

    def run(*arguments):
        code = main([*map(str, arguments), "--no-cache"])
        return code, capsys.readouterr().out

    return run


@pytest.mark.slow
def test_a_gradient_from_begin_to_end(root, said):
    assert said(12)[0] == 0
    code, out = said(12, "--check")
    assert code == 1
    assert "DIFFERENT: 2 of 6 checks differ" in out  # and no cause
    mended(root, 12)
    record(root / "12", Progress(hints=3))
    code, out = said(12, "--check")
    assert code == 0
    assert "SOLVED: a gradient that does not pass straight through · 3 of 4 hints" in out
    assert "  12  solved  codes" in said()[1]


@pytest.mark.slow
def test_hints_tell_more_and_more_of_one_comparison(root, said, monkeypatch):
    folder = begin(root, 3, EXERCISES[2])
    report = judge.compared(EXERCISES[2], folder)
    hints = [hint(report, level) for level in range(1, len(HINTS) + 1)]
    assert hints[0] == "hint 1 of 4: the check 'forward' is the first that differs; equal: weights"
    assert "the first module that differs is out (exercises/03/port.py:" in hints[1]
    assert hints[1].endswith("; all up to mix is equal: look there, and at the code between the two")
    assert "torch computes `torch.nn.functional.leaky_relu(self.mix(x), 0.2)`" in hints[2]
    assert "0.01" not in hints[2]
    assert "jax has negative_slope 0.01 for 0.2 there" in hints[3]
    keep_report(folder, report)
    with monkeypatch.context() as patch:
        patch.setattr(judge, "compared", pytest.fail)  # the port is as it was
        assert [said(3, "--hint", "--folder", root) for _ in hints] == [(0, f"{each}\n") for each in hints]
    assert "+    x = x + jax.nn.leaky_relu(" in said(3, "--solution")[1]
    mended(root, 3)
    assert kept_report(folder) is None, "the port is another"
    assert "4 of 4 hints" in said(3, "--hint")[1]


TAMPERED = """
from jaxformer.exercises import judge
from jaxformer.parity.report.data import ReportData

ReportData.status = property(lambda report: "equal")
judge.differs = lambda *given: ""
"""


@pytest.mark.slow
def test_a_changed_check_and_a_changed_original_solve_nothing(root):
    folder = begin(root, 12, EXERCISES[11])  # whose bug is of gradients alone
    (folder / "original.py").write_text("raise SystemExit(0)")
    code = "import sys; from jaxformer.cli.exercise import main; sys.exit(main(['12', '--check', '--no-cache']))"
    port = folder / "port.py"
    port.write_text(port.read_text() + TAMPERED)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root.parent, env=os.environ | {"PYTHONPATH": ROOT}
    )
    assert done.returncode == 1, done.stderr
    assert "NOT SOLVED: the comparison says equal, but a process without torch computes other numbers: gradients" in done.stdout
    assert not (folder / "progress.json").exists()


BROKEN = {
    "port.py:4: ZeroDivisionError: division by zero; mend it": lambda text: text.replace(
        "import jax\n", "import jax\n1 / 0\n", 1
    ),
    "SyntaxError: ": lambda text: text + "\ndef broken(:\n",
    "AttributeError: ": lambda text: text.replace("def call(", "def other("),
    "SystemExit: 0; mend it": lambda text: text + "\nraise SystemExit(0)\n",
    "torch is imported, and a port has to compute without it": lambda text: text + "\nimport torch\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", BROKEN, ids=lambda words: words.split(":")[0])
def test_a_port_that_does_not_run_is_one_line(root, refusal, words):
    folder = begin(root, 12, EXERCISES[11])
    (folder / "port.py").write_text(BROKEN[words]((folder / "port.py").read_text()))
    said = refusal(main, ["12", "--check", "--no-cache"])
    assert words in said
    assert "12/port.py" in said


def test_bad_input_is_one_line(root, refusal, monkeypatch):
    for number in ("25", "0"):
        said = refusal(main, [number])
        assert said == f"exercise = {number} is not there; give one of 1 to 24 (jaxformer exercise lists them)"
    assert "'x' is not a whole number" in refusal(main, ["x"])
    assert "give one of them" in refusal(main, ["1", "--check", "--hint"])
    assert "give its number" in refusal(main, ["--check"])
    assert "exercises/01/port.py is not there" in refusal(main, ["1", "--check"])
    folder = begin(root, 1, EXERCISES[0])
    (folder / "port.py").write_text("mine")
    assert "exercises/01 is there already, and may hold your work" in refusal(main, ["1"])
    assert (folder / "port.py").read_text() == "mine"
    monkeypatch.setattr("jaxformer.cli.exercise.find_spec", lambda name: None)
    assert refusal(main, ["1", "--check"]).endswith("pip install 'jaxformer[torch]'")
