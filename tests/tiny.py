"""A model and a recipe that train in two seconds."""

from jaxformer.config import GPTConfig

WORDS = (
    "the",
    "cat",
    "sat",
    "on a mat",
    "while",
    "rain",
    "fell",
    "over quiet",
    "hills;",
    "and birds",
    "sang",
    "of old",
    "kings!",
)
TINY = {
    "--batch": 2,
    "--steps": 6,
    "--evaluate-every": 3,
    "--save-every": 3,
    "--sample": 0,
    "--model.d-model": 8,
    "--model.n-heads": 2,
    "--model.n-layers": 1,
    "--model.d-ff": 16,
}


def tiny_config(**changes) -> GPTConfig:
    """A model of a few hundred parameters."""
    sizes = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16, "vocab_size": 11, "context": 8}
    return GPTConfig(**(sizes | changes))


def flags(**changes: object) -> list[str]:
    """Flags of the tiny recipe; `save_every=2` changes one, None leaves it out."""
    values = TINY | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [part for name, value in values.items() if value is not None for part in (name, str(value))]
