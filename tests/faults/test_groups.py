"""A recipe in two processes. The short form stops one that was started by a launcher; the long ones are marked slow."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from jaxformer.parallel.link import free_port
from tests.faults import groups
from tests.faults.kills import left

REVERSE = (
    *("--batch=4", "--evaluate-every=100000", "--save-every=50", "--model.d-model=8", "--model.n-heads=2", "--model.d-ff=16"),
    *("--model.n-layers=1", "--mesh=data=2"),
)
ALONE = [sys.executable, "-W", "always", "-m", "jaxformer", "train", "shakespeare"]
LAUNCH = [sys.executable, "-m", "jaxformer", "launch", "--processes=2", "--devices=1", "--"]


def run(*command: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    return subprocess.Popen([*LAUNCH, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


CHOOSING = """
import sys
import jax
from jaxformer.parallel.group import from_first
from jaxformer.parallel.join import Found, joined, seat_of
from jaxformer.parallel.launch import Limits
found = Found(seat_of("127.0.0.1:{port}", int(sys.argv[1]), 2))
with joined(found, {{}}, devices=1, wait=60, limits=Limits()):
    print(from_first(jax.default_backend), jax.device_count(), file=sys.stderr)
"""


@pytest.mark.slow
def test_who_chooses_for_all_opens_devices_that_the_others_have_opened():
    code = CHOOSING.format(port=free_port())
    both = [subprocess.Popen([sys.executable, "-c", code, number], text=True, stderr=subprocess.PIPE) for number in "01"]
    try:
        said = [process.communicate(timeout=60)[1] for process in both]
    finally:
        for process in both:
            process.kill()
    assert ["cpu 2" in words for words in said] == [True, True], said


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path):
    """None of them opens its devices while another waits to be told something by it."""
    process = run("train", "reverse", f"--out={tmp_path / 'run'}", "--steps=2", *REVERSE)
    said = process.communicate(timeout=110)[1]
    assert process.returncode == 0, said
    assert (tmp_path / "run/weights.safetensors").is_file()


@pytest.mark.slow
def test_a_launcher_that_is_stopped_stops_all_behind_one_step_saved_once(tmp_path):
    process = run("train", "reverse", f"--out={tmp_path / 'run'}", "--steps=1000000", *REVERSE)
    groups.begun(process, tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    assert printed.count("reverse · encoder-decoder") == 1
    assert "Gloo" not in printed + said
    told = re.findall(
        r"^process (\d) of 2: (?:process \d of 2 \(.*\) ended: )?stopped at step (\d+), saved", said, re.MULTILINE
    )
    assert len(told) == 2, said
    assert told[0][1] == told[1][1] in {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
    assert re.search(r"^launcher: process \d of 2 \(pid \d+\) ended with 143; all 2 are gone$", said, re.MULTILINE)
    assert json.loads((tmp_path / "run/config.json").read_text())["environment"]["processes"] == "2"
    assert not (tmp_path / "run/run.lock").exists()


@pytest.mark.slow
def test_processes_that_have_other_data_are_all_refused(tmp_path):
    """Process 1 finds another text under the same name."""
    other = tmp_path / "sitecustomize.py"
    other.write_text(
        "import sys\nif '--process=1' in sys.orig_argv:\n    from jaxformer.data import corpora\n    import jaxformer.recipes."
        "shakespeare as recipe\n    recipe.read_corpus = lambda *given: corpora.read_corpus(*given) * 2\n"
    )
    process = groups.start(tmp_path / "run", "--steps=20", path=tmp_path)
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 2
    line = "process 1 has recipe and data = "
    assert [words for words in said.splitlines() if line in words], said


@pytest.mark.slow
@pytest.mark.parametrize("name", groups.FAULTS)
def test_a_death_of_one(name, tmp_path):
    assert groups.deaths_of([name], tmp_path) == []


def begun_in_two(out):
    """A run of two processes."""
    groups.start(out, "--steps=20", "--batch=8").communicate()


def begun_alone(out, steps=20):
    """The same on one device."""
    (text := out.parent / "text.txt").write_text(groups.TEXT)
    subprocess.run([*ALONE, "--data", str(text), *groups.FLAGS, "--batch=8", f"--steps={steps}", f"--out={out}"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "mesh", "said"),
    [
        pytest.param(begun_in_two, "None", "data=2 and goes on on data=1", id="two processes to one"),
        pytest.param(begun_alone, "data=2,fsdp=4", "data=1 and goes on on data=2,fsdp=4", id="one device to eight"),
    ],
)
def test_a_run_goes_on_elsewhere(begin, mesh, said, tmp_path):
    """And says that it is close to the same, which it is."""
    runs = [tmp_path / name / "run" for name in ("moved", "stays")]
    for out in runs:
        out.parent.mkdir()
    begin(runs[0])
    on_eight = os.environ | {"JAX_NUM_CPU_DEVICES": "8"}
    moved = [*ALONE, "--resume", f"--out={runs[0]}", "--steps=40", f"--mesh={mesh}"]
    done = subprocess.run(moved, capture_output=True, text=True, check=True, env=on_eight)
    assert f"step 20 was written on mesh {said}: close, not bit-identical" in done.stderr
    begun_alone(runs[1], steps=40)
    (_, _, [*_, (_, loss)], _), (_, _, [*_, (_, wanted)], _) = (left(out, 40) for out in runs)
    assert loss == pytest.approx(wanted, rel=1e-5)
