"""The commands: what they print when used well, and one line with exit code 2 when not."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import termios
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.numpy

import jaxformer.recipes.qa as qa
import jaxformer.recipes.shakespeare as shakespeare
from jaxformer import __version__
from jaxformer.cli.commands import COMMANDS
from jaxformer.cli.flags import flag_names, run
from jaxformer.cli.generate import Generate
from jaxformer.cli.main import dispatch
from jaxformer.io.checksums import sealed
from tests.tiny import flags, quick_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(text_file, tmp_path_factory) -> Path:
    """A run folder."""
    out = tmp_path_factory.mktemp("runs") / "trained"
    with quick_recipe():
        shakespeare.main(flags(data=text_file, out=out, steps=2, evaluate_every=2, save_every=2))
    return out


@pytest.fixture
def say(trained, capsys):
    """What `jaxformer generate` prints."""

    def said(*arguments: str) -> str:
        capsys.readouterr()
        dispatch(["generate", str(trained), "--tokens", "12", *arguments])
        return capsys.readouterr().out

    return said


@pytest.mark.slow
def test_the_same_seed_says_the_same(say):
    first = say("--prompt", "The cat", "--seed", "1")
    assert first == say("--prompt", "The cat", "--seed", "1")
    assert first != say("--prompt", "The cat", "--seed", "2")
    assert first.startswith("The cat")
    assert len(first) == len("The cat") + 12 + 1


def test_temperature_zero_needs_no_seed(say):
    assert say("--temperature", "0", "--seed", "1") == say("--temperature", "0", "--seed", "2") == say("--top-k", "1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", "naïve"], "prompt: character 'ï' (position 2) is not in this model's vocabulary of 36 characters"),
        (["--prompt", ""], "prompt is empty; give at least one character"),
        (["--tokens", "0"], "tokens = 0 is out of range; give an integer from 1 to 2147483647"),
        (["--tokens", "many"], "--tokens = 'many' is not a whole number; give one"),
        (["--tokens", "1.5"], "--tokens = '1.5' is not a whole number; give one"),
        (["--temperature", "-1"], "temperature = -1 is out of range; give a number in [0, inf)"),
        (["--temperature", "nan"], "temperature = nan is not a finite number"),
        (["--top-k", "-1"], "top_k = -1 is out of range"),
        (["--top-p", "0"], "top_p = 0 is out of range"),
        (["--top-p", "1.5"], "top_p = 1.5 is out of range; give a number in (0, 1]"),
        (["--seed", "-1"], "seed = -1 is out of range"),
        (["--temprature", "1"], "unknown flag --temprature; did you mean --temperature?"),
        (["--zzz"], "unknown flag --zzz; see jaxformer generate --help"),
    ],
)
def test_generate_refuses(trained, refusal, arguments, said):
    assert refusal(dispatch, ["generate", str(trained), *arguments]).startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["genrate"], "command = 'genrate' is not known; did you mean 'generate'?"),
        (["trian"], "command = 'trian' is not known; did you mean 'train'?"),
        (["comprae"], "command = 'comprae' is not known; did you mean 'parity compare'?"),
        (["shakespeare"], "command = 'shakespeare' is not known; did you mean 'train shakespeare'?"),
        (["train", "revers"], "command = 'train revers' is not known; did you mean 'train reverse'?"),
        (["train", "compare"], "command = 'train compare' is not known; see jaxformer train --help"),
        (["train", "--steps", "2"], "command = 'train --steps' is not known; see jaxformer train --help"),
        (["zzz"], "command = 'zzz' is not known; see jaxformer --help"),
    ],
)
def test_unknown_commands_get_the_nearest_one(refusal, arguments, said):
    assert refusal(dispatch, arguments) == said


@pytest.mark.parametrize(("arguments", "heading"), [([], "usage: jaxformer COMMAND"), (["parity"], "usage: jaxformer parity")])
def test_help_is_a_command_too(arguments, heading, capsys):
    assert dispatch(["help", *arguments]) == 0
    said = capsys.readouterr().out
    dispatch([*arguments, "--help"])
    assert said == capsys.readouterr().out
    assert said.startswith(heading)


def test_generate_refuses_what_is_not_a_run(refusal, tmp_path):
    wanted = "PATH The run folder, or a folder that transformers wrote, with its tokenizer.json. (required)"
    assert refusal(dispatch, ["generate"]) == f"Missing from jaxformer generate: {wanted}"
    (tmp_path / "run.md").touch()
    told = f"{tmp_path}/run.md is a file; give the folder that it is in"
    assert refusal(dispatch, ["info", f"{tmp_path}/run.md"]) == refusal(dispatch, ["report", f"{tmp_path}/run.md"]) == told
    assert refusal(dispatch, ["generate", str(tmp_path)]) == f"{tmp_path} is not a run folder: it has no config.json"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("generate -x", "-x is read as a flag, and is none; write ./-x where it is a path"),
        ("generate --tokens 3 -x", "-x is read as a flag, and is none; write ./-x where it is a path"),
        ("runs -x", "-x is read as a flag, and is none; write ./-x where it is a path"),
        ("runs ./-x", "-x holds no runs; give a folder that holds some, or a run"),
        ("doctor --frob", "unknown flag --frob; see jaxformer doctor --help"),
        ("report --ouut x", "unknown flag --ouut; did you mean --out?"),
        ("generate here --prompt --frob", "--prompt has no value; give one, as --prompt=VALUE where it begins with -"),
        ("generate here 'The end'", "unexpected argument 'The end'; did you mean --prompt 'The end'?"),
        ("generate here The --prompt A", "unexpected argument 'The'; see jaxformer generate --help"),
        ("families llama", "unexpected argument 'llama'; see jaxformer families --help"),
        ("generate -- -x --tokens 3", "--tokens stands after --, where nothing is a flag; put it before --"),
        ("generate here --prompt -x", "--prompt has no value; give one, as --prompt=VALUE where it begins with -"),
    ],
)
def test_a_word_that_begins_with_a_dash(refusal, arguments, said):
    assert refusal(dispatch, shlex.split(arguments)) == said


@pytest.mark.filterwarnings("ignore:.* has lost its manifest")
def test_spoiled_run_folders_are_refused(trained, refusal, tmp_path):
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    weights = safetensors.numpy.load_file(copy / "weights.safetensors")
    weights.pop("norm.bias")
    (copy / "manifest.json").write_text(json.dumps(sealed({"files": {}})))
    safetensors.numpy.save_file(weights, copy / "weights.safetensors")
    assert "1 missing, first norm.bias" in refusal(dispatch, ["generate", str(copy)])
    (copy / "weights.safetensors").unlink()
    assert refusal(dispatch, ["generate", str(copy)]).endswith("has no weights.safetensors yet; finish the run with --resume")
    good = json.loads((copy / "config.json").read_text())
    for spoiled in ({}, good | {"characters": 5}, good | {"characters": good["characters"][1:]}, good | {"recipe": 1}):
        (copy / "config.json").write_text(json.dumps(spoiled))
        assert "config.json does not describe a trained model" in refusal(dispatch, ["generate", str(copy)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model.n-heads", "3"], "n_heads = 3 does not divide d_model = 32; choose one of 1, 2, 4, 8, 16, 32"),
        (["--model.n-haeds", "3"], "unknown flag --model.n-haeds; did you mean --model.n-heads?"),
        (["--preset", "tny"], "--preset = 'tny' is not known; did you mean 'tiny'?"),
        (["--optimizer.learning-rate", "nan"], "learning_rate = nan is not a finite number; give one in (0, inf)"),
        (["--steps", "0"], "steps = 0 is out of range; give an integer from 1 to 2147483647"),
        (["--steps", "x"], "--steps = 'x' is not a whole number; give one"),
        (["--steps", ""], "--steps = '' is not a whole number; give one"),
        (["--optimizer.learning-rate", "x"], "--optimizer.learning-rate = 'x' is not a number; give one"),
        (["--out", ""], "--out: it is empty; give a path"),
        (["--data", ""], "data: '' is neither a file nor a corpus; give a file, or one of tinyshakespeare"),
        (["--data", "tinyshakespear"], "data: tinyshakespear is neither a file nor a corpus; did you mean tinyshakespeare?"),
        (["--resume"], "--resume needs the run folder; give it with --out"),
    ],
)
def test_shakespeare_refuses(refusal, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = refusal(shakespeare.main, arguments)
    assert answer.startswith(said)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_run_folder_in_use_is_refused(refusal, trained, text_file):
    said = refusal(shakespeare.main, flags(data=text_file, out=trained))
    assert said == f"{trained} already holds a run; continue it with --resume, or name another folder with --out"


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0"], ["--seed", "-1"], ["--epochs", "0"], ["--epochs", "1000001"], ["--seed", "2147483648"]]
)
def test_qa_refuses(refusal, arguments):
    assert refusal(qa.main, arguments).startswith(f"{arguments[0].removeprefix('--')} = {arguments[1]} is out of range")


@pytest.mark.parametrize(
    ("main", "arguments", "default"),
    [
        (shakespeare.main, [], shakespeare.PRESETS["tiny"]),
        (qa.main, [], qa.QuestionAnswering()),
        (dispatch, ["generate"], Generate),
    ],
)
def test_help_explains_every_flag(main, arguments, default, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr("sys.argv", ["command", *arguments, "--help"])
    with pytest.raises(SystemExit) as stop:
        run(main)
    text = capsys.readouterr().out
    assert stop.value.code == 0
    lines = [line.strip("│ ") for line in text.splitlines()]
    for name in flag_names(default):
        if name == "--folder":
            continue
        start = next(i for i, line in enumerate(lines) if re.match(rf"{re.escape(name)}\b", line))
        end = next((i for i, line in enumerate(lines) if i > start and line.startswith("--")), len(lines))
        words = " ".join(lines[start:end]).split("(default")[0].split()[1:]
        assert sum(word[:1].isalpha() and not word.isupper() for word in words) >= 2, (name, words)


@pytest.fixture
def printed(capsys, monkeypatch):
    """printed(arguments): what a command prints that ends with code 0."""

    def run_and_read(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["jaxformer", *arguments])
        with pytest.raises(SystemExit) as stop:
            run(dispatch)
        assert stop.value.code == 0
        return capsys.readouterr().out

    return run_and_read


def test_help_lists_every_command_with_an_example(printed):
    text = printed()
    assert text == printed("--help") == printed("-h")
    assert text.startswith("usage: jaxformer COMMAND ...\n")
    assert max(map(len, text.splitlines())) <= 92
    for name, command in COMMANDS.items():
        assert f"  {name} " in text
        assert f"{command.summary}\n      jaxformer {name} {command.example}".rstrip() + "\n" in text


@pytest.mark.parametrize("group", ["train", "parity"])
def test_a_group_alone_lists_its_commands(printed, group):
    text = printed(group)
    assert text == printed(group, "--help")
    shown = [name for name in COMMANDS if f"  {name} " in text]
    assert shown == [name for name in COMMANDS if name.startswith(f"{group} ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_flags_that_their_commands_have(printed, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    text = printed(*name.split(), "--help")
    assert text.startswith(f"usage: jaxformer {name} [-h]")
    usage = re.sub(r"\[.*?\]", "", text.splitlines()[0])
    positional = usage.count(" PATH") + usage.count("_MODEL")
    words = shlex.split(COMMANDS[name].example)
    for flag in (word for word in words if word.startswith("--")):
        assert re.search(rf"{flag}\b", text), flag
    assert len(list(itertools.takewhile(lambda word: not word.startswith("--"), words))) >= positional


def test_version(printed):
    assert printed("--version") == f"jaxformer {__version__}\n"


def broken(_: list[str]) -> None:
    raise AssertionError("a bug")


@pytest.mark.parametrize(("main", "says"), [(dispatch, "command = 'genrate' is not known"), (broken, "AssertionError: a bug")])
def test_a_traceback_ends_with_code_2(monkeypatch, capsys, main, says):
    """Of what is refused with -v, and of a bug of ours: 1 would mean that two models differ."""
    monkeypatch.setattr("sys.argv", ["jaxformer", *["-v"] * (main is dispatch), "genrate"])
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert says in said


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141)])
def test_interrupted_from_outside(monkeypatch, error, code):
    def main(_: list[str]) -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["jaxformer"])
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == code


def outcome(*command: str) -> tuple[int, str, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_console_script():
    script = str(Path(sys.executable).with_name("jaxformer"))
    assert outcome(script, "--version") == (0, f"jaxformer {__version__}\n", "")
    assert outcome(script, "genrate") == (2, "", "command = 'genrate' is not known; did you mean 'generate'?\n")
    code, _, error = outcome(script, "-v", "genrate")
    assert code == 2
    assert "Traceback" in error


@pytest.mark.parametrize(
    ("words", "found"),
    [("runs --help >&-", (0, "", "")), ("genrate 2>/dev/full", (2, "", "")), ("genrate 2>&- >&- <&-", (2, "", ""))],
)
def test_standard_streams_that_are_closed_or_full(words, found):
    assert outcome("/bin/sh", "-c", f"{Path(sys.executable).with_name('jaxformer')} {words}") == found


@pytest.mark.parametrize(
    ("words", "begins"),
    [("info . --batch x", "--batch = 'x' is not a"), ("convert a b", "Missing from jaxfo"), ("runs --help", "usage: ")],
)
def test_in_a_narrow_terminal(words, begins):
    """A refusal is plain there too, and help has an end."""
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (24, 1))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": ""}  # given, since readline sets COLUMNS after Python's back
    command = [sys.executable, "-m", "jaxformer", *words.split()]
    done = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    killing = threading.Timer(60, done.kill)
    killing.start()
    said = b""
    with suppress(OSError):  # the end, on Linux
        while part := os.read(ours, 4096):
            said += part
    killing.cancel()
    os.close(ours)
    assert done.wait() == (0 if begins == "usage: " else 2)
    lines = re.sub(r"\x1b\[\d*m", "", said.decode()).splitlines()
    assert lines[0].startswith(begins)
    assert len(lines) == 1 or begins == "usage: "


@pytest.mark.parametrize(
    ("variable", "value", "command", "why"),
    [
        ("JAX_PLATFORMS", "abacus", ["runs", "RUN"], "'abacus' is not in the list of known backends"),
        ("JAX_ENABLE_X64", "maybe", ["train", "qa"], "invalid truth value 'maybe'"),
        ("XLA_FLAGS", "--xla_none=1", ["parity", "compare", "os:getcwd", "os:getcwd"], "Unknown flag in XLA_FLAGS"),
    ],
)
def test_an_environment_in_which_jax_does_not_start(trained, monkeypatch, variable, value, command, why):
    """No run is damaged then, no model differs from another, and no bug is ours."""
    monkeypatch.setenv(variable, value)
    words = [str(trained) if word == "RUN" else word for word in command]
    code, said, error = outcome(sys.executable, "-m", "jaxformer", *words)
    assert (code, said, error.count("\n")) == (2, "", 1), error
    assert f"{variable}={value}: " in error
    assert why in error
    assert error.endswith("; change or unset it\n")


@pytest.mark.slow
def test_a_picture_needs_no_settings_of_its_user(text_file, tmp_path, monkeypatch):
    """As of a Jupyter shell, whose backend is not there, and of one who writes with LaTeX elsewhere."""
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path / "matplotlibrc"))
    arguments = flags(data=text_file, out=tmp_path / "run", steps=1)
    code, said, error = outcome(sys.executable, "-m", "jaxformer", "train", "shakespeare", *arguments)
    assert (code, "loss.png" in said, "Traceback" in error) == (0, True, False), error


def test_a_warning_that_the_user_makes_an_error(refusal):
    said = refusal(lambda _: warnings.warn("a line is damaged", stacklevel=2), [])
    assert said == "a line is damaged (a warning, which PYTHONWARNINGS or -W makes an error)"


def test_a_setting_of_jax_that_an_error_names(monkeypatch, refusal):
    def main(_: list[str]) -> None:
        raise ValueError("float32 and int32 are not promoted with jax_numpy_dtype_promotion=strict")

    monkeypatch.setenv("JAX_NUMPY_DTYPE_PROMOTION", "strict")
    assert refusal(main, []).startswith("jax does not work with JAX_NUMPY_DTYPE_PROMOTION=strict: float32 and int32")


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_a_setting_of_jax_that_asks_for_an_error(kind, monkeypatch, refusal):
    """It is no bug of ours, and no traceback."""

    def main(_: list[str]) -> None:
        raise FloatingPointError(f"invalid value ({kind}) encountered in scan")

    monkeypatch.setenv(name := f"JAX_DEBUG_{kind.upper()}S", "1")
    said = f"{name}=1 stops JAX at the first {kind}: invalid value ({kind}) encountered in scan; unset it: "
    assert refusal(main, []) == said + "a run skips such steps by itself, and says where they come from"


def test_qa_answers(capsys):
    qa.main([])
    assert capsys.readouterr().out.count("-> awesome <EOS>\n") == 2


@pytest.mark.slow
def test_qa_answers_from_every_seed(capsys):
    qa.main(["--seeds", "50"])
    assert capsys.readouterr().out.startswith("50 of 50 models answer both questions")


AGAIN = """
from jaxformer.cli.flags import run
def main(_):
    for which in "aaba":
        exec(f"import warnings; warnings.warn('line {which} is damaged')", {})
run(main)
"""


def test_a_warning_is_printed_once():
    """Though each comes from a module of its own."""
    said = "warning: line a is damaged\nwarning: line b is damaged\n"
    assert outcome(sys.executable, "-c", AGAIN) == (0, "", said)


def test_what_a_model_wrote_moves_no_cursor(say, monkeypatch):
    monkeypatch.setattr("jaxformer.cli.generate.written", lambda *_: "tab\t, ä and\nline, \x1b[2J\r\x9b")
    assert say() == "tab\t, ä and\nline, \\x1b[2J\\r\\x9b\n"
