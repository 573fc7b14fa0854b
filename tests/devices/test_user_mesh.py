"""A user's own program on a mesh of four simulated devices beside one device: the axis and the mistake are named."""

import json
import os
import subprocess
import sys

import pytest

import jaxformer

SAYS = {
    "in_specs": "along axis 'a' of the mesh, in_specs has P('b', 'a') for array 0, not P('a', 'b') (",
    "out_specs": "along axis 'a' of the mesh, out_specs has P('b', 'a') for array 0, not P('a', 'b') (",
    "no sum": "along axis 'a' of the mesh, the port leaves out the sum (",
    "checked": "along axis 'a' of the mesh, the port takes a mean, or divides by the size, where a sum is wanted (",
    "explicit": "along axis 'a' of the mesh, the port takes a mean, or divides by the size, where a sum is wanted (",
    "around": "along axis 'a' of the mesh, the port takes a mean, or divides by the size, where a sum is wanted (",
}


@pytest.fixture(scope="module")
def verdicts():
    root = os.path.dirname(os.path.dirname(jaxformer.__file__))
    command = [sys.executable, "-W", "ignore", "-m", "tests.user_mesh"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_program_that_is_right_is_equal(verdicts):
    assert verdicts["right"].startswith("EQUAL")


@pytest.mark.parametrize("name", SAYS)
def test_the_axis_and_the_mistake_are_named(name, verdicts):
    assert SAYS[name] in verdicts[name].replace("tests/", "")


def test_no_axis_is_blamed_for_what_is_wrong_elsewhere(verdicts):
    assert verdicts["wrong elsewhere"].startswith("DIFFERENT")
    assert "axis" not in verdicts["wrong elsewhere"]
