"""Choose tokens one after the other: a loop that knows no model, only step(tokens, cache) -> logits, cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.settings import SamplingConfig
from jaxformer.decoding.prepare import NEVER
from jaxformer.decoding.sampling import GREEDY, Ends, Number, Rules, constrain, make_rules, next_tokens, numbers
from jaxformer.errors import InputError, type_of
from jaxformer.validation.arrays import check_drawn_from

Step = Callable[[Int[Array, " B"], Any], tuple[Float[Array, "B V"], Any]]
"""Function step(tokens, cache) -> logits of the next token, and the cache with these tokens added."""


class Choice(NamedTuple):
    """Traced settings that decide between tokens."""

    key: PRNGKeyArray
    numbers: tuple[Number, ...]
    """Numbers of a SamplingConfig."""
    rules: Rules


def make_choice(
    sampling: SamplingConfig | None,
    key: PRNGKeyArray | None,
    eos: Ends,
    pad: int | None,
    *,
    vocab_size: int,
    n_tokens: int,
    size: int,
) -> tuple[Choice, int]:
    """Return the settings that decide between tokens, and the length of the runs that may not repeat.

    Without `sampling`, a key draws by plain probability, and no key takes the likeliest token. InputError if a key is missing.
    """
    if sampling is None:
        sampling = GREEDY if key is None else SamplingConfig()
    if not isinstance(sampling, SamplingConfig):
        raise InputError(f"sampling is {type_of(sampling)}; give a SamplingConfig, and a key by its name, key=...")
    check_drawn_from("key", key)
    if key is None and sampling.temperature:
        raise InputError(f"temperature = {sampling.temperature} draws at random; give a key, or temperature 0")
    rules = make_rules(sampling, eos, pad, vocab_size, n_tokens, size)
    return Choice(jax.random.key(0) if key is None else key, numbers(sampling), rules), sampling.no_repeat_ngram


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Progress:
    """State that the loop carries from token to token."""

    history: Array
    """B H: tokens read before the first choice, right-aligned; -1 where a row has fewer."""
    tokens: Array
    """B X: chosen tokens; the padding token after a row's end."""
    length: Array
    """Number of tokens chosen, a scalar."""
    logits: Array
    """B V: logits of the next token."""
    seen: Array
    """B V: True for tokens that a row has had."""
    ended: Array
    """B: True if a row has ended."""
    broken: Array
    """Token at which the logits were first NaN, a scalar."""
    stuck: Array
    """Token at which the rules first left none, a scalar."""
    cache: Any
    """Cache of the step."""


def begin(logits: Float[Array, "B V"], cache: Any, history: Int[Array, "B H"], size: int, rules: Rules) -> Progress:
    """Return the state before the first of at most `size` tokens."""
    batch = logits.shape[0]
    rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
    seen = jnp.zeros(logits.shape, bool).at[rows, history].max(history >= 0)
    tokens, ended = jnp.full((batch, size), rules.pad), jnp.zeros(batch, bool)
    return Progress(history, tokens, jnp.int32(0), logits, seen, ended, jnp.int32(NEVER), jnp.int32(NEVER), cache)


def advance(step: Step, progress: Progress, end: Int[Array, ""], choice: Choice, ngram: int) -> Progress:
    """Choose tokens until there are `end` of them, or every row has ended."""
    rules = choice.rules

    def one(now: Progress) -> Progress:
        allowed = constrain(now.logits, now.history, now.tokens, now.length, rules, ngram)
        chosen = next_tokens(allowed, now.seen, jax.random.fold_in(choice.key, now.length), *choice.numbers)
        chosen = jnp.where(now.ended, rules.pad, chosen)
        logits, cache = step(chosen, now.cache)
        return Progress(
            now.history,
            jax.lax.dynamic_update_slice_in_dim(now.tokens, chosen[:, None], now.length, axis=1),
            now.length + 1,
            logits,
            now.seen.at[jnp.arange(chosen.shape[0], dtype=jnp.int32), chosen].set(True),
            now.ended | jnp.asarray(rules.ends)[chosen],
            first(now.broken, now.length, jnp.isnan(now.logits).any(-1) & ~now.ended),
            first(now.stuck, now.length, jnp.isneginf(allowed).all(-1) & ~now.ended),
            cache,
        )

    return jax.lax.while_loop(lambda now: (now.length < end) & ~now.ended.all(), one, progress)


def first(before: Int[Array, ""], place: Int[Array, ""], happened: Bool[Array, " B"]) -> Int[Array, ""]:
    """Return the smaller of `before` and `place` if it happened to any row, else `before`."""
    return jnp.where(happened.any(), jnp.minimum(before, place), before)
