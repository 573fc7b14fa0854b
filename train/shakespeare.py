"""A GPT on characters: trains on a text, reports losses over whole splits, and writes in its style."""

from jaxformer.flags import run
from jaxformer.recipes.shakespeare import main

if __name__ == "__main__":
    run(main)
