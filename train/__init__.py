"""Scripts of the recipes: presets, model and training of each. `python -m train.NAME` is `jaxformer train NAME`."""

from jaxformer.cli.main import catch_interrupt

catch_interrupt()  # before a script imports jax, which takes a second
