"""Bugs of beam search, of greedy decoding, and of the cache under them."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxformer.decoding import beam, sampling, translation
from jaxformer.nn.cache import KVCache
from jaxformer.parity.injections import Injection, Mutant, patch


def ended_as_they_are(original: Callable[..., Array]) -> Callable[..., Array]:
    """What ends counts its log-probability without the length. It is ranked among 2 W, what goes on among W."""
    return lambda sums, length, penalty: (
        sums if sums.ndim == 2 and sums.shape[1] > BEAM_WIDTH else original(sums, length, penalty)
    )


def rules_with(**rules: Any) -> Injection:
    """Other rules than those asked for."""
    return patch(translation, beam_numbers=lambda original: lambda *given: original(*given)._replace(**rules))


def constrained(change: Callable[[Array, beam.BeamNumbers], tuple[Array, beam.BeamNumbers]]) -> Injection:
    """What may come next, at change(length, rules)."""

    def replacement(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda chances, tokens, length, rules, ngram: original(chances, tokens, *change(length, rules), ngram)

    return patch(beam, constrain=replacement)


def caches_stay(original: Callable[..., KVCache]) -> Callable[..., KVCache]:
    """Rows of the cache are not rearranged with their sequences."""
    return lambda self, rows: self if len(rows) == self.keys.shape[1] else original(self, rows)


def one_ahead(original: Callable[..., KVCache]) -> Callable[..., KVCache]:
    """The cache leaves a place free behind the first tokens."""
    return lambda self, n: original(self, n + 1) if int(self.length) == 0 else original(self, n)


BEAM_WIDTH = 3

DECODING = [
    Mutant(name, injection, "beam")
    for name, injection in {
        "beam: ended sequences without the length penalty": patch(beam, score=ended_as_they_are),
        "beam: no length penalty at all": rules_with(length_penalty=np.float32(0.0)),
        "beam: the end is no part of the length": patch(beam, score=lambda f: lambda s, n, p: f(s, jnp.maximum(n - 1, 1), p)),
        "beam: caches not rearranged": patch(KVCache, take=caches_stay),
        "beam: runs one token longer may not repeat": patch(beam, repeats=lambda f: lambda t, n, v, size: f(t, n, v, size + 1)),
        "beam: suppressed tokens are chosen": constrained(
            lambda length, rules: (length, rules._replace(suppressed=jnp.zeros_like(rules.suppressed)))
        ),
        "beam: forced tokens come one later": constrained(lambda length, rules: (jnp.maximum(length - 1, 0), rules)),
        "beam: stops early unasked": rules_with(early_stopping=True),
    }.items()
] + [
    Mutant("greedy: the cache leaves a place free", patch(KVCache, advance=one_ahead), "greedy"),
    Mutant(
        "greedy: repetition penalty forgotten",
        patch(sampling, penalise=lambda f: lambda logits, seen, penalty: f(logits, jnp.zeros_like(seen), penalty)),
        "greedy",
    ),
    Mutant(
        "greedy: a row goes on behind its end",
        patch(
            translation,
            advance=lambda f: lambda step, progress, end, key, rules, eos: f(step, progress, end, key, rules, jnp.int32(-1)),
        ),
        "greedy",
    ),
]
