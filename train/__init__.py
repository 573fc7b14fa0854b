"""Scripts of the recipes: presets, model and training of each. `python -m train.NAME` is `jaxformer train NAME`."""

import sys

from jaxformer.cli.main import catch_interrupt

if sys.argv[0] == "-m":  # Python starts a script of this package; whoever imports one keeps Ctrl-C
    catch_interrupt()  # before the script imports jax, which takes a second
