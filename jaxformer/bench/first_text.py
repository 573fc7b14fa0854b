"""Time to first text: `python -m jaxformer.bench.first_text PEER FOLDER` loads a model, writes, and prints the ids as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

from jaxformer.bench.items import COLD, JAXFORMER
from jaxformer.bench.problems import load_problem


def by_jaxformer(folder: Path, problem: Any) -> list[int]:
    """Load transformers' folder and generate with jaxformer, as a user's script would."""
    import jaxformer as jf

    return jf.generate(jf.load(folder), problem.prompts, problem.n_tokens).ravel().tolist()


def by_transformers(folder: Path, problem: Any) -> list[int]:
    """Load and generate with transformers."""
    from jaxformer.bench.generate_torch import Transformers

    return Transformers(folder, problem, 1).check()


SIDES = {JAXFORMER: by_jaxformer, COLD: by_jaxformer, "transformers": by_transformers}

if __name__ == "__main__":
    peer, place = sys.argv[1:]
    print(json.dumps(SIDES[peer](Path(place), load_problem(Path(place)))))
