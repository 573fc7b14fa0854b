"""Mutants: bugs that people make when they port a transformer. Each is put into the jax side, and has to be noticed.

A file holds its mutants in `MUTANTS`; every file in this folder is discovered.
"""

import pkgutil
from importlib import import_module

from jaxformer.evaluation.inject import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant for file in pkgutil.iter_modules(__path__) for mutant in import_module(f"{__name__}.{file.name}").MUTANTS
)
"""Mutants of all files."""
