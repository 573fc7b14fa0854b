"""Memory that is freed and taken again is not cleared anew."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
from jaxformer.runtime.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def take(size=2**24):
    place = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(place, 1, size)
    libc.free(place)

take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
def test_freed_memory_is_kept():
    assert page_faults("kept") < 100 < page_faults("given back")


HELD = """
import ctypes, sys
from pathlib import Path
from jaxformer.runtime.memory import give_back_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
places = [libc.malloc(ctypes.c_size_t(2**16)) for _ in range(1000)]
for place in places:
    ctypes.memset(place, 1, 2**16)
for place in places[:-1]:
    libc.free(place)  # the last one keeps the heap from shrinking by itself
if sys.argv[1] == "given back":
    give_back_freed_memory()
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc")
def test_what_the_compiler_freed_is_given_back():
    held, given_back = (
        int(subprocess.run([sys.executable, "-c", HELD, how], capture_output=True, text=True, check=True).stdout)
        for how in ("held", "given back")
    )
    assert held - given_back > 5e7
