"""The number of cores is what a container allows, and XLA starts no more threads."""

import os
import subprocess
import sys

import pytest

from jaxformer.runtime import cores

FILES = {
    "half a core": ({"cpu.max": "50000 100000"}, 1),
    "two and a half": ({"cpu.max": "250000 100000"}, 3),
    "more than there are": ({"cpu.max": "900000 100000"}, 8),
    "none": ({"cpu.max": "max 100000"}, 8),
    "version 1": ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    "version 1, none": ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    "damaged": ({"cpu.max": "??"}, 8),
    "no groups": ({}, 8),
}


@pytest.fixture
def eight(monkeypatch, tmp_path):
    """A machine of eight cores, whose control groups are in `tmp_path`."""
    monkeypatch.setenv(cores.VARIABLE, "")
    monkeypatch.setattr(cores, "bound", lambda: 8)
    monkeypatch.setattr(cores, "GROUPS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", FILES)
def test_the_quota_of_a_container_counts(eight, case):
    files, wanted = FILES[case]
    for name, text in files.items():
        (eight / name).parent.mkdir(exist_ok=True)
        (eight / name).write_text(text)
    assert cores.cores() == wanted
    cores.limit_threads()
    assert os.environ[cores.VARIABLE] == (str(wanted) if wanted < 8 else "")


@pytest.mark.parametrize(("given", "wanted"), [("3", 3), ("0", 8), ("many", 8), ("", 8)])
def test_the_variable_goes_before(eight, monkeypatch, given, wanted):
    monkeypatch.setenv(cores.VARIABLE, given)
    assert cores.cores() == wanted


@pytest.mark.slow
def test_xla_starts_as_many_threads_as_the_variable_says():
    program = "import jax, os; jax.block_until_ready(jax.numpy.arange(2) + 1); print(len(os.listdir('/proc/self/task')))"

    def threads(number):
        environment = {**os.environ, "NPROC": number, "XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "1"}
        return int(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout)

    assert threads("33") - threads("1") >= 32
