"""Find interpreters of other releases of Python on this machine."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def python_of(release: str, named: Sequence[str] = ()) -> Path | None:
    """Find the interpreter of a release: one in `named` (as '3.13=/usr/bin/python3.13'), this one, pyenv's newest, or the one
    on PATH; None if there is none."""
    for each in named:
        for_release, _, path = each.partition("=")
        if for_release == release:
            return Path(path)
    if release == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    of_pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [each for each in of_pyenv.glob(f"{release}.*/bin/python") if re.fullmatch(r"\d+\.\d+\.\d+", each.parts[-3])]
    if found:
        return max(found, key=lambda each: int(each.parts[-3].rpartition(".")[2]))
    on_path = shutil.which(f"python{release}")
    return Path(on_path) if on_path else None
