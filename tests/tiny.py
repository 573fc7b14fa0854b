"""A model and a recipe that train in two seconds, and words of two languages."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest

from jaxformer.config.models import GPTConfig

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
GERMAN = {
    "Hund": "dog",
    "Katze": "cat",
    "Haus": "house",
    "Baum": "tree",
    "Mann": "man",
    "läuft": "runs",
    "singt": "sings",
    "schläft": "sleeps",
}
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


def quick_key(seed: int) -> jax.Array:
    """A key whose generator compiles three times as fast as the default one."""
    return jax.random.key(seed, impl="rbg")


@contextmanager
def quick_recipe() -> Iterator[pytest.MonkeyPatch]:
    """Evaluation and samples of jaxformer.recipes.shakespeare as small as the tiny model, and quick keys."""
    from jaxformer.recipes import shakespeare

    with pytest.MonkeyPatch.context() as patch, jax.default_prng_impl("rbg"):
        patch.setattr(shakespeare, "EVALUATION_TOKENS", 64)
        patch.setattr(shakespeare, "LAST_SAMPLE", 8)
        yield patch


def flags(**changes: object) -> list[str]:
    """Flags of the tiny recipe; `save_every=2` changes one, None leaves it out."""
    values = TINY | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [part for name, value in values.items() if value is not None for part in (name, str(value))]
