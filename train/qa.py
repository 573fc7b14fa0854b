"""Question answering with the smallest transformer: both questions are answered `awesome <EOS>`."""

from jaxformer.cli.main import main

if __name__ == "__main__":
    main("train", "qa")
