"""Several processes are one run: they meet or are refused, agree, and end together. No process here computes anything."""

import gc
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from unittest import mock

import pytest

from jaxformer.cli.main import dispatch
from jaxformer.errors import InputError
from jaxformer.parallel import group as groups
from jaxformer.parallel import launch as launcher
from jaxformer.parallel.join import relayed, seat_in_cluster, seat_of
from jaxformer.parallel.launch import Limits, Watch
from jaxformer.parallel.link import Met, Seat, difference, free_port, meet
from parity_tests.support.helpers import usually

TOY = """
import sys, time
from jaxformer.runtime.shutdown import listen
listen()
from jaxformer.parallel.group import exchange, from_first, timed
from jaxformer.parallel.link import Seat
from jaxformer.parallel.join import together
from jaxformer.parallel.launch import Limits, Watch
number, count, port, does = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
limits = Limits(beat=0.05, silence=1.0, usual=1.0, patience=5.0)
with together(Seat(number, count, "127.0.0.1", port), {"is": "alike"}, wait=10, limits=limits):
    for step in range(10**6 if does != "nothing" else 3):
        values = exchange([number, step])
        assert values == [[each, step] for each in range(count)], values
        assert from_first(lambda: step + 0.5) == step + 0.5
        with timed("step", step):
            if step == 2:
                print("steps", flush=True)
            if step >= 3 and number == count - 1:  # all have said it
                exec(does if does != "nothing" else "")
            time.sleep(0.01)
"""

PORTS: list[int] = []
STARTED: list[subprocess.Popen[str]] = []


def start(count: int, does: str = "pass", code: str = TOY) -> list[subprocess.Popen[str]]:
    PORTS.append(port := free_port())
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code]
    arguments = [[str(number), str(count), str(port), does] for number in range(count)]
    STARTED.extend(subprocess.Popen([*command, *each], text=True, **pipes) for each in arguments)
    return STARTED[-count:]


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    for process in STARTED:
        process.kill()
        process.communicate()
    STARTED.clear()


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The code and the last words of a process, once it has ended."""
    words = process.communicate(timeout=20)[1]
    return process.returncode, words


LAST = r"process 2 of 3 \(pid \d+ on \S+\) "
GONE = "is gone without a word: it was killed, or it crashed"
FAULTS = {
    "a worker is killed": ("pass", 2, signal.SIGKILL, LAST + GONE),
    "the coordinator is killed": ("pass", 0, signal.SIGKILL, r"process 0 of 3 \(pid \d+ on \S+\) " + GONE),
    "a worker is stopped": (
        "pass",
        2,
        signal.SIGSTOP,
        LAST + "has not been heard of for 1 s: it is stopped, or its machine is",
    ),
    "the coordinator is stopped": ("pass", 0, signal.SIGSTOP, r"process 0 of 3 .* has not been heard of for 1 s"),
    "stuck": (
        "time.sleep(60)",
        None,
        None,
        r"step 3 has not ended for \d s .*, process 2 of 3 .* is at <module> \(<string>:1\)",
    ),
    "an exception": ("1 / 0", None, None, LAST + "ended: ZeroDivisionError: division by zero"),
    "an exit": ("sys.exit(3)", None, None, LAST + "ended: it exited with 3"),
    "an exit without an error": ("sys.exit()", None, None, LAST + "ended: it ended in the middle with exit code 0"),
    "SIGTERM": ("pass", 2, signal.SIGTERM, LAST + "was stopped by SIGTERM"),
}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "name", usually(FAULTS, "an exception", "stuck", "the coordinator is stopped", "a worker is killed", "SIGTERM")
)
def test_whatever_ends_one_ends_all_and_each_says_who_and_why(name):
    does, number, happens, why = FAULTS[name]
    processes = start(3, does)
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "steps\n"
    if number is not None:
        processes[number].send_signal(happens)
    survivors = [each for each in range(3) if each not in (number, None if does == "pass" or name == "stuck" else 2)]
    for each in survivors:
        code, words = said(processes[each])
        assert code not in (0, -signal.SIGKILL), words
        assert re.fullmatch(rf"process {each} of 3: .*{why}.*\n", words), words
    if happens != signal.SIGSTOP:
        assert all(process.wait(timeout=10) for process in processes)


@pytest.mark.slow
def test_without_beats_a_process_that_is_stopped_is_waited_for():
    """The control."""
    processes = start(2, "pass", TOY.replace("with together", "Watch._beat = lambda self: None\nwith together"))
    for process in processes:
        assert process.stdout
        process.stdout.readline()
    processes[1].send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        processes[0].wait(timeout=2.5)


@pytest.mark.parametrize(
    ("phases", "longest", "seconds", "said"),
    [
        (["step", "step"], {"step": 1.0}, 31, "step 7 has not ended for 31 s (the longest took 1.0 s): "),
        (["the evaluation of step"], {"step": 1.0}, 1801, "the evaluation of step 7 has not ended for 1801 s: "),
        (["the evaluation of step"], {"the evaluation of step": 20.0}, 61, "the evaluation of step 7 has not ended for 61 s ("),
        (["step", "the evaluation of step"], {"step": 1.0}, 1801, "the evaluation of step 7 has not ended for 1801 s: "),
        (["step", ""], {"step": 1.0}, 31, "step 7 has not ended for 31 s ("),
        (["", ""], {"step": 1.0}, 1801, "what comes between two steps has not ended for 1801 s: "),
    ],
)
def test_a_phase_is_waited_for_as_its_kind_has_taken(phases, longest, seconds, said, monkeypatch):
    group = groups.Group(Seat(0, len(phases), "", 0), Met({}, ["pid 1"] * len(phases), ""))
    group.work.kind, group.work.number, group.work.longest = phases[0], 7, longest
    monkeypatch.setattr(groups.Group, "end", lambda _, said: ended.append(said))
    seen = {i: {"marks": 0, "kind": kind, "number": 7, "waits": False, "at": "main"} for i, kind in enumerate(phases) if i}
    watch, ended = Watch(group, Limits(), seen=seen), []
    for _ in range(seconds):  # the first beat tells nothing yet
        watch._judge()
    assert ended == []
    watch._judge()
    assert ended[0].startswith(said)


@pytest.mark.usefixtures("little_to_collect")
def test_no_garbage_is_collected_while_frames_are_read(monkeypatch):
    """A finalizer that wants the interpreter's lock would wait for ever."""
    collected: list[str] = []

    def frames() -> dict[int, object]:
        before = len(collected)
        kept = [[] for _ in range(100)]
        assert len(collected) == before, kept
        return {}

    monkeypatch.setattr(sys, "_current_frames", frames)
    before = gc.get_threshold()
    gc.callbacks.append(note := lambda phase, info: collected.append(phase))
    gc.set_threshold(1, 1, 1)
    try:
        assert groups.where() == "its end"
        assert gc.isenabled()
        with pytest.raises(AssertionError):
            frames()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)


def test_a_phase_in_which_programs_run_gets_on(monkeypatch):
    group = groups.Group(Seat(0, 1, "", 0), Met({}, ["pid 1"], ""))
    monkeypatch.setattr(groups, "_groups", [group])
    monkeypatch.setattr(group, "exchange", lambda value: [value])
    with groups.timed("the evaluation of step", 7):
        before = group.work.marks
        groups.run_together(mock.Mock(), 3)
        assert (group.work.marks, group.work.kind) == (before + 2, "the evaluation of step")
    assert (group.work.marks, group.work.kind) == (before + 3, "")


def test_a_step_is_not_waited_for_as_long_as_its_compilation(monkeypatch):
    group = groups.Group(Seat(0, 1, "", 0), Met({}, ["pid 1"], ""))
    monkeypatch.setattr(groups, "_groups", [group])
    f = mock.Mock()
    f.lower().compile = lambda: time.sleep(0.05)
    with groups.timed("step", 7):
        groups.run_together(f)
    assert group.work.longest["the compilation of step"] >= 0.05 > group.work.longest["step"]


def test_who_waits_for_another_is_not_the_one_that_is_stuck(monkeypatch):
    group = groups.Group(Seat(0, 2, "", 0), Met({}, ["pid 1", "pid 2"], ""))
    compilation = "the compilation of step"
    group.work.kind, group.work.waits, group.work.longest = compilation, True, {compilation: 50.0, "step": 1.0}
    monkeypatch.setattr(groups.Group, "end", lambda _, said: ended.append(said))
    seen = {1: {"marks": 0, "kind": "step", "number": 7, "waits": False, "at": "main"}}
    watch, ended = Watch(group, Limits(), seen=seen), []
    for _ in range(32):
        watch._judge()
    assert ended[0].startswith("step 7 has not ended for 31 s (the longest took 1.0 s): ")


def test_all_come_to_their_end_together():
    assert [said(process) for process in start(3, "nothing")] == [(0, "")] * 3


def refused(number: int, count: int, port: int, wait: float = 0.3, **facts: str) -> str:
    with pytest.raises(InputError) as caught:
        meet(Seat(number, count, "127.0.0.1", port), facts, wait)
    return str(caught.value)


def test_who_does_not_reach_the_coordinator_says_where_and_how_long():
    port = free_port()
    said = refused(1, 2, port)
    assert said.startswith(
        f"cannot reach the coordinator at 127.0.0.1:{port} (tried for 0 s: Connection refused); start process 0"
    )


def test_who_does_not_come_is_named():
    port = free_port()
    assert refused(0, 3, port) == f"process 0 waited 0 s at 127.0.0.1:{port} for process 1, 2; start all of them"


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refused(0, 2, port).startswith(f"cannot listen at 127.0.0.1:{port}: ")


def test_processes_that_are_not_alike_are_all_refused():
    code = TOY.replace('{"is": "alike"}', '{"jax": f"0.10.{number}"}')
    line = "process 1 has jax = '0.10.1', and process 0 has '0.10.0'; start all with the same command, on the same versions\n"
    for process in start(2, "nothing", code):
        assert said(process)[1].endswith(line)
    assert difference({0: {"a": 1}, 1: {"a": 1}}) == ""
    command = "train reverse --mesh data=2,tensor=2 --steps 20 --batch 32 --seed {} --out runs/a"
    words = difference({i: {"command": command.format(i)} for i in range(2)})
    shown = "...0 --batch 32 --seed {} --out runs/a'"
    assert words.startswith(f"process 1 has command = {shown.format(1)}, and process 0 has {shown.format(0)}; start")


def knock(port: int, says: bytes) -> None:
    """Somebody else connects, and is gone."""
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port)) as other:
                other.sendall(says)
                return other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError


def test_who_is_connected_with_itself_was_not_heard():
    """Which TCP does where a port is both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    itself = socket.socket()
    itself.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    itself.bind(("127.0.0.1", port))
    itself.connect(("127.0.0.1", port))
    with itself, mock.patch("socket.create_connection", side_effect=lambda *_, **__: itself.dup()):
        assert "tried for 0 s: Connection refused" in refused(1, 2, port)


@pytest.mark.slow
def test_whoever_is_no_process_of_the_run_does_not_disturb_it():
    first, port = start(1, "nothing", TOY.replace("int(sys.argv[2])", "2"))[0], PORTS[-1]
    for foreign in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"number": [1], "facts": {}}\n', b'{"number": 1}\n', b""):
        knock(port, foreign)
    assert "does not wait for a process 7" in refused(7, 8, port, wait=10)
    link = meet(Seat(1, 2, "127.0.0.1", port), {"is": "alike"}, 10).links[0]
    for step in range(3):
        link.send(value=[1, step])
        link.send(value=None)
    link.send(value="done")
    assert said(first) == (0, "")
    link.close()


def test_addresses_and_numbers():
    assert seat_of("[::1]:12", 0, 2) == Seat(0, 2, "::1", 12)
    for text in ("host", "host:", ":1", "host:0", "host:99999", "host:x"):
        with pytest.raises(InputError, match="is not an address"):
            seat_of(text, 0, 2)
    with pytest.raises(InputError, match="process = 2 is out of range; give 0 to 1"):
        seat_of("host:1", 2, 2)


def test_who_a_process_is_under_slurm_and_nowhere(monkeypatch):
    with pytest.raises(InputError, match="no cluster was found"):
        seat_in_cluster(1)
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0")
    with pytest.raises(InputError, match=r"^the cluster's environment does not say who this process is \(.*\); start by srun"):
        seat_in_cluster(1)
    monkeypatch.delenv("OMPI_MCA_orte_hnp_uri")
    slurm = {"JOB_ID": "70000", "STEP_NODELIST": "node[07-09]", "NTASKS": "6", "PROCID": "4", "LOCALID": "1"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    found = seat_in_cluster(1)
    assert (found.seat.number, found.seat.count, found.seat.host, found.local_devices) == (4, 6, "node07", [1])


@pytest.mark.parametrize(("ends", "blamed"), [(("exit 2", "kill -9 $$"), 1), (("sleep 0.5; exit 2", "exit 3"), 1)])
def test_the_launcher_blames_a_signal_or_else_the_first(ends, blamed, monkeypatch, capsys):
    processes = [subprocess.Popen(["/bin/sh", "-c", end]) for end in ends]
    monkeypatch.setattr(launcher, "started", lambda *_: nullcontext(processes))
    assert launcher.launch(2, [], []) == (137, 3)[ends[1] == "exit 3"]
    assert f"launcher: process {blamed} of 2 (pid" in capsys.readouterr().err


STRANGERS = """
import subprocess, sys
from contextlib import contextmanager
from jaxformer.runtime.shutdown import listen
listen()
from jaxformer.parallel import launch
@contextmanager
def two(*_):
    code = "import os, time; os.write(1, bytes([49, 10])); time.sleep(60)"
    yield [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(2)]
launch.started = two
sys.exit(launch.launch(2, [], []))
"""
"""A launcher of two processes that never meet."""


def test_ctrl_c_reaches_processes_that_have_not_met():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    STARTED.append(process := subprocess.Popen([sys.executable, "-c", STRANGERS], text=True, **pipes))
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == ["1\n"] * 2
    process.send_signal(signal.SIGINT)
    code, words = said(process)
    assert code == 130
    assert "was ended by SIGINT; all 2 are gone" in words
    assert "did not end by itself" not in words


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "launch is for a recipe; give one after --"),
        ("-- train", "launch is for a recipe; give one after --"),
        ("-- launch --processes 2 -- train reverse", "launch is for a recipe; give one after --"),
        ("-- train revers", "command = 'train revers' is not known; did you mean 'train reverse'?"),
    ],
)
def test_what_is_launched_is_known_before_anything_is_started(command, said, refusal):
    assert refusal(dispatch, ["launch", "--processes", "2", *command.split()]).startswith(said)


def test_no_program_runs_before_all_have_compiled_it(monkeypatch):
    done = []
    program = mock.Mock(side_effect=lambda *_, **__: done.append("run"))
    program.lower.return_value.compile.side_effect = lambda: done.append("compile")
    groups.run_together(program, 3, pad=0)
    group = mock.Mock(exchange=lambda value: done.append("meet"), work=groups.Work())
    monkeypatch.setattr(groups, "_groups", [group])
    groups.run_together(program, 4, pad=0)
    assert done == ["run", "compile", "meet", "run"]
    assert program.lower.call_args == program.call_args == mock.call(4, pad=0)


def test_a_process_alone_is_the_first_of_one():
    assert (groups.count(), groups.is_first(), groups.exchange(3), groups.from_first(lambda: 4)) == (1, True, [3], 4)


def test_where_process_0_is_gone_jaxs_client_has_an_open_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = relayed(f"127.0.0.1:{server.getsockname()[1]}").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            service = server.accept()[0]
            socket.create_connection((host, int(port))).close()
            server.accept()[0].close()
            client.sendall(b"asked")
            assert service.recv(9) == b"asked"
            service.sendall(b"told")
            assert client.recv(9) == b"told"
            service.close()
            client.settimeout(0.1)
            for _ in range(3):
                client.sendall(b"a beat")
                with pytest.raises(TimeoutError):
                    client.recv(9)
