"""Sequence to sequence on pairs that need no data: a line of keys is written backwards, with its case and digits changed."""

from jaxformer.cli.main import main

if __name__ == "__main__":
    main("train", "reverse")
