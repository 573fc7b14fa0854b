"""What a run left behind, ready to use."""

from pathlib import Path

import jax

from jaxformer.config import GPTConfig
from jaxformer.convert.safetensors_io import load_weights
from jaxformer.data.tokenizers import CharacterTokenizer
from jaxformer.errors import CheckpointError, ConfigError
from jaxformer.models.gpt import GPT
from jaxformer.training.runs import RunFolder


def load_trained(path: Path) -> tuple[GPT, CharacterTokenizer]:
    """The model of a run folder with its trained weights, and its tokenizer."""
    run = RunFolder.open(path)
    config = run.config
    try:
        model = GPTConfig(**config["recipe"]["model"])
        characters = config["characters"]
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}/config.json does not describe a GPT on characters: {error}") from None
    if not isinstance(characters, str) or len(set(characters)) != model.vocab_size:
        wanted = f"{model.vocab_size} distinct characters"
        raise CheckpointError(f"{path}/config.json does not describe a GPT on characters: it does not name {wanted}")
    if not run.weights.exists():
        raise CheckpointError(f"{path} has no {run.weights.name} yet; finish the run with --resume")
    return load_weights(run.weights, jax.eval_shape(lambda: GPT(model))), CharacterTokenizer(characters)
