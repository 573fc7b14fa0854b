"""Sequence to sequence on pairs that need no data: a line of keys is written backwards, with its case and digits turned."""

from jaxformer.flags import run
from jaxformer.recipes.reverse import main

if __name__ == "__main__":
    run(main)
