"""A function in a process of its own."""

import ctypes
import os
import pickle
import signal
import time
from functools import partial

import pytest

from jaxformer.errors import InputError
from jaxformer.runtime.crashes import CRASHED, Child, Outcome, note, twice


def outcome(f, *given, seconds=30.0, **environment):
    return Child(pickle.dumps(partial(f, *given)), environment).outcome(seconds)


def refuse():
    raise InputError("a = 1; give 2")


def crash():
    ctypes.string_at(0)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def crash_compiled():
    """Crashes where programs are compiled."""
    note("layers.0.norm")
    return os.environ[CRASHED] if CRASHED in os.environ else crash()


def crash_always():
    note("layers.0.norm")
    crash()


def test_a_value_comes_back():
    assert outcome(sum, [1, 2]) == Outcome(3)


def test_an_error_comes_back_as_it_was_raised():
    found = outcome(refuse)
    assert found.error == "InputError: a = 1; give 2"
    assert not found.crashed
    assert isinstance(found.raised, InputError)


@pytest.mark.parametrize(
    ("f", "given", "said"),
    [
        (crash, (), "SIGSEGV"),
        (os.abort, (), "SIGABRT"),
        (kill_itself, (), "SIGKILL, as the system does where memory is short"),
        (os._exit, (3,), "an exit with code 3"),
        (os._exit, (0,), "an exit with code 0"),
        (time.sleep, (9,), "a time limit of 1 s"),
    ],
)
def test_the_end_of_the_process_is_told(f, given, said):
    found = outcome(f, *given, seconds=1.0 if f is time.sleep else 30.0)
    assert found.crashed
    assert found.error == said


def begin_a_child_and_be_killed(note):
    """The child says its number in the note, and waits."""
    Child(pickle.dumps(partial(say_and_wait, note)))._outcome(None)


def say_and_wait(note):
    with open(note, "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def test_a_child_ends_with_its_parent(tmp_path):
    assert outcome(begin_a_child_and_be_killed, tmp_path / "note").error.startswith("SIGKILL")
    child, end = int((tmp_path / "note").read_text()), time.monotonic() + 20
    while os.path.exists(f"/proc/{child}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}")


def run(f):
    return twice(lambda environment: outcome(f, **environment))


def test_what_crashes_compiled_runs_once_more():
    found, crash = run(crash_compiled)
    assert found.value == "the JAX program crashed the process (SIGSEGV) while running layers.0.norm"
    assert crash == ""


def test_a_second_crash_is_told_with_its_module():
    found, crash = run(crash_always)
    assert found.crashed
    assert crash.startswith(
        "the JAX program crashed the process (SIGSEGV) while running layers.0.norm; `jaxformer doctor` lists"
    )
