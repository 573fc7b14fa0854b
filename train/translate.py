"""Translation: trains a tokenizer and an encoder-decoder on sentence pairs, and measures BLEU."""

from jaxformer.flags import run
from jaxformer.recipes.translate import main

if __name__ == "__main__":
    run(main)
