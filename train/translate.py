"""Translation: trains a tokenizer and an encoder-decoder on sentence pairs, and measures BLEU."""

from jaxformer.cli.main import main

if __name__ == "__main__":
    main("train", "translate")
