"""The exercises: planted bugs are found, the right ports solve them, and what a learner does wrong is one line."""

import subprocess
import sys

import pytest

from jaxformer.cli.exercise import main
from jaxformer.exercises import judge
from jaxformer.exercises.catalogue import EXERCISES, LEVELS
from jaxformer.exercises.folder import begin
from jaxformer.exercises.hints import cause_of

pytestmark = [pytest.mark.foreign, pytest.mark.optimizers]
UNNAMED = 12, 14, 18, 24
"""Exercises of which the comparison names the place, and not the cause."""
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
    assert report.status == "different"
    assert (report.diverging[0].jax if report.diverging else None) == exercise.module, report
    assert bool(cause_of(report)) == (number not in UNNAMED), report
    mended(root, number)
    assert not judge.differs(exercise, folder)
    assert judge.compared(exercise, folder).status == "equal"


def test_one_from_begin_to_end(root, capsys):
    def said(*arguments):
        code = main([*map(str, arguments), "--no-cache"])
        return code, capsys.readouterr().out

    assert said(3)[0] == 0
    code, out = said(3, "--check")
    assert code == 1
    assert "checks differ" in out
    assert "leaky_relu" not in out  # a check tells no cause
    hints = [said(3, "--hint")[1] for _ in range(4)]
    assert "hint 1 of 4: the check 'forward'" in hints[0]
    assert "the first module that differs is out (exercises/03/port.py:" in hints[1]
    assert "torch uses mix as it is" in hints[2]
    assert "leaky_relu" not in hints[2]
    assert "jax applies leaky_relu to it" in hints[3]
    assert "+    x = x + jax.nn.leaky_relu(" in said(3, "--solution")[1]
    mended(root, 3)
    code, out = said(3, "--check")
    assert code == 0
    assert "SOLVED: the default slope of an activation · 4 of 4 hints" in out
    assert "   3  solved  sound" in said()[1]


TAMPERED = "import jaxformer.parity.compare as c, types\nreal = c.compare\n"
TAMPERED += "import jaxformer.exercises.judge as j\n"
EQUAL = "types.SimpleNamespace(status='equal', verdict='EQUAL', exit_code=0, diverging=[], stages=[])"
TAMPERED += f"c.compare = lambda *a, **k: {EQUAL}\n"
TAMPERED += "j.differs = lambda *a: ''\n"


def test_a_changed_check_and_a_changed_original_solve_nothing(root, capsys):
    folder = begin(root, 12, EXERCISES[11])  # whose bug is of gradients alone
    (folder / "original.py").write_text("raise SystemExit(0)")
    code = "import sys; from jaxformer.cli.exercise import main; sys.exit(main(['12', '--check', '--no-cache']))"
    port = folder / "port.py"
    port.write_text(port.read_text() + TAMPERED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root.parent)
    assert done.returncode == 1, done.stderr
    assert "NOT SOLVED: the comparison says equal, but a process without torch computes other numbers: gradients" in done.stdout
    assert not (folder / "progress.json").exists()


BROKEN = {
    "port.py:9: ZeroDivisionError: division by zero; mend it": lambda text: text.replace(
        "import jax\n", "import jax\n1 / 0\n", 1
    ),
    "SyntaxError: ": lambda text: text + "\ndef broken(:\n",
    "AttributeError: ": lambda text: text.replace("def call(", "def other("),
    "SystemExit: 0; mend it": lambda text: text + "\nraise SystemExit(0)\n",
    "No module named 'torch'": lambda text: text + "\nimport torch\n",
}


@pytest.mark.first(1)
@pytest.mark.parametrize("words", BROKEN)
def test_a_port_that_does_not_run_is_one_line(root, refusal, words):
    folder = begin(root, 12, EXERCISES[11])
    text = BROKEN[words]((folder / "port.py").read_text())
    (folder / "port.py").write_text(text)
    said = refusal(main, ["12", "--check", "--no-cache"])
    assert words.replace("port.py:9", f"port.py:{text.splitlines().index('1 / 0') + 1}" if "1 / 0" in text else "") in said
    assert "12/port.py" in said


def test_bad_input_is_one_line(root, refusal, monkeypatch):
    assert refusal(main, ["25"]) == "exercise = 25 is not there; give one of 1 to 24 (jaxformer exercise lists them)"
    assert refusal(main, ["x"]).startswith("number = 'x' is not") or "x" in refusal(main, ["x"])
    assert "give one of them" in refusal(main, ["1", "--check", "--hint"])
    assert "give its number" in refusal(main, ["--check"])
    assert "exercises/01/port.py is not there" in refusal(main, ["1", "--check"])
    folder = begin(root, 1, EXERCISES[0])
    (folder / "port.py").write_text("mine")
    assert "exercises/01 is there already, and may hold your work" in refusal(main, ["1"])
    assert (folder / "port.py").read_text() == "mine"
    monkeypatch.setattr("jaxformer.cli.exercise.find_spec", lambda name: None)
    assert refusal(main, ["1", "--check"]).endswith("pip install 'jaxformer[torch]'")
