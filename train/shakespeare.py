"""A GPT on characters: trains on a text, reports losses over whole splits, and writes in its style."""

from jaxformer.cli.main import main

if __name__ == "__main__":
    main("train", "shakespeare")
