"""Train the smallest transformer on two sentences, then let it answer both questions: `awesome <EOS>`.

python -m train.qa
python -m train.qa --seeds 50 --epochs 40
python -m train.qa --help
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.cli.flags import parse
from jaxformer.config.presets import QA
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.models import GPT, abstract
from jaxformer.parallel.mesh import on_mesh, traced_for
from jaxformer.parallel.placement import on_host, put_batch
from jaxformer.pytree import n_bytes
from jaxformer.recipes.settings import QuestionAnswering
from jaxformer.runtime.compilation_cache import use_cache
from jaxformer.runtime.jit import jit
from jaxformer.runtime.memory import check_fits
from jaxformer.training.losses import cross_entropy
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.size import free_on_device, memories
from jaxformer.training.step import train_state, train_step

OPTIMIZER = OptimizerConfig(name="adam", learning_rate=0.1)
WORDS = ("what", "is", "statquest", "awesome", "<EOS>")
QUESTIONS = ("what is statquest <EOS>", "statquest is what <EOS>")
ANSWER = "awesome <EOS>"


def ids(text: str) -> np.ndarray:
    """Encode words as int32 ids."""
    return np.array([WORDS.index(word) for word in text.split()], np.int32)


INPUTS = np.stack([ids(f"{question} awesome") for question in QUESTIONS])
TARGETS = np.stack([np.append(row[1:], ids("<EOS>")) for row in INPUTS])


def train(seed, epochs: int):
    """Train one model; return its answers to both questions (ids `2 2`) and its last loss, as a pure function of the seed."""

    def loss(model, batch, key):
        inputs, targets = batch
        return cross_entropy(model(inputs), targets)

    optimizer = make_optimizer(OPTIMIZER, ScheduleConfig())
    state = train_state(GPT(QA, rngs=jax.random.key(seed)), optimizer)

    def step(state, sentence):
        batch = jnp.asarray(INPUTS)[sentence][None], jnp.asarray(TARGETS)[sentence][None]
        return train_step(state, batch, None, loss=loss, optimizer=optimizer)

    state, losses = jax.lax.scan(step, state, jnp.arange(2 * epochs) % 2)
    return answer(state.model), losses[-2:].mean()  # of the last epoch: two sentences


def answer(model):
    """Return the two likeliest words after each question, the first one fed back in."""
    questions = jnp.stack([jnp.asarray(ids(question)) for question in QUESTIONS])
    first = model(questions)[:, -1].argmax(-1)[:, None].astype(jnp.int32)
    second = model(jnp.concatenate([questions, first], axis=1))[:, -1].argmax(-1)[:, None].astype(jnp.int32)
    return jnp.concatenate([first, second], axis=1)


def train_all(seeds, epochs: int):
    """Map `train` over seeds; on a mesh, every device trains its own part of them."""
    train_each = jax.vmap(lambda seed: train(seed, epochs))
    if traced_for() is None:
        return train_each(seeds)
    data = PartitionSpec("data")
    return jax.shard_map(train_each, in_specs=data, out_specs=data, check_vma=False)(seeds)


def main(arguments: list[str]) -> None:
    """Train, answer both questions, and count the seeds with two right answers."""
    recipe = parse(QuestionAnswering, arguments, prog="jaxformer train qa")
    use_cache(recipe.cache)
    trained = 4 * n_bytes(abstract(QA))  # weights, gradients and two moments
    needed = recipe.seeds * (trained + 4 * len(QUESTIONS) * recipe.epochs)  # one loss per step
    with on_mesh(recipe.layout) as mesh:
        needed //= memories(mesh)
        check_fits(f"training {recipe.seeds:,} models", needed, free_on_device(), "take fewer --seeds or --epochs")
        seeds = np.arange(recipe.seed, recipe.seed + recipe.seeds, dtype=np.uint32)
        answers, losses = map(on_host, jit(train_all, static_argnums=1)(put_batch(seeds), recipe.epochs))
    right = 0
    for seed, answer, loss in zip(seeds, answers, losses, strict=True):
        words = [" ".join(WORDS[i] for i in row) for row in answer]
        right += words == [ANSWER, ANSWER]
        if recipe.seeds == 1:
            print(f"seed {seed} · {recipe.epochs} epochs · loss {loss:.4f}")
            for question, reply in zip(QUESTIONS, words, strict=True):
                print(f"{question:26} -> {reply}")
    print(f"{right} of {recipe.seeds} models answer both questions with {ANSWER!r}")


if __name__ == "__main__":
    from jaxformer.cli.main import main as command

    command("train", "qa")
