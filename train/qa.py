"""Question answering with the smallest transformer: both questions are answered `awesome <EOS>`."""

from jaxformer.flags import run
from jaxformer.recipes.qa import main

if __name__ == "__main__":
    run(main)
