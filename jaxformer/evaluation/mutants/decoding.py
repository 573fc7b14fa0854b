"""Mutants of beam search, of greedy decoding, and of their cache."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxformer.decoding import beam, choose, sampling
from jaxformer.decoding.sampling import Rules
from jaxformer.evaluation.cases import BEAM_WIDTH
from jaxformer.evaluation.inject import Injection, Mutant, patch
from jaxformer.models import GPT
from jaxformer.nn.cache import KVCache


def ended_as_they_are(original: Callable[..., Array]) -> Callable[..., Array]:
    """Score ended sequences by their log-probability, without a length penalty.

    They are recognized by their number: ended sequences are ranked among 2 W, running ones among W.
    """
    return lambda sums, length, penalty: (
        sums if sums.ndim == 2 and sums.shape[1] > BEAM_WIDTH else original(sums, length, penalty)
    )


def numbers_with(**changed: Any) -> Injection:
    """Run beam search with numbers that differ from its configuration."""
    return patch(beam, BeamNumbers=lambda original: lambda *given: original(*given)._replace(**changed))


def constrained(change: Callable[[Array, Rules], tuple[Array, Rules]]) -> Injection:
    """Apply the rules for the next token at change(place, rules)."""

    def replacement(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda values, read, tokens, place, rules, ngram: original(values, read, tokens, *change(place, rules), ngram)

    return patch(beam, constrain=replacement)


def caches_stay(original: Callable[..., KVCache]) -> Callable[..., KVCache]:
    """Leave the cache's rows in place when their sequences are reordered."""
    return lambda self, rows: self if len(rows) == min(self.shapes)[1] else original(self, rows)


def one_ahead(original: Callable[..., KVCache]) -> Callable[..., KVCache]:
    """Leave a place of the cache free after the first tokens."""

    def ahead(self: KVCache, layers: Any, n: int) -> KVCache:
        held = original(self, layers, n)
        return replace(held, length=held.length + jnp.where(self.length == 0, 1, 0))

    return ahead


MUTANTS = [
    Mutant(name, injection, "beam")
    for name, injection in {
        "beam: ended sequences without the length penalty": patch(beam, score=ended_as_they_are),
        "beam: no length penalty at all": numbers_with(length_penalty=np.float64(0.0)),
        "beam: the end is no part of the length": patch(beam, score=lambda f: lambda s, n, p: f(s, jnp.maximum(n - 1, 1), p)),
        "beam: caches not rearranged": patch(KVCache, take=caches_stay),
        "beam: runs one token longer may not repeat": patch(
            sampling, repeats=lambda f: lambda text, n, v, size: f(text, n, v, size + 1)
        ),
        "beam: suppressed tokens are chosen": constrained(
            lambda place, rules: (place, rules._replace(suppressed=jnp.zeros_like(rules.suppressed)))
        ),
        "beam: forced tokens come one later": constrained(lambda place, rules: (jnp.maximum(place - 1, 0), rules)),
        "beam: judged at the length of now where it may still get better": numbers_with(at_greatest=np.False_),
        "beam: stops early unasked": numbers_with(at_once=np.True_),
    }.items()
] + [
    Mutant("greedy: the cache leaves a place free", patch(KVCache, advance=one_ahead), "greedy"),
    Mutant(
        "greedy: repetition penalty forgotten",
        patch(sampling, penalise=lambda f: lambda logits, seen, penalty: f(logits, jnp.zeros_like(seen), penalty)),
        "greedy",
    ),
    Mutant(
        "greedy: a row goes on after its end",
        patch(choose, make_rules=lambda f: lambda *given: (made := f(*given))._replace(ends=np.zeros_like(made.ends))),
        "greedy",
    ),
    *(
        Mutant(name, patch(sampling, **{function: replacement}), "timestamps")
        for name, (function, replacement) in {
            "timestamps: times may go back": (
                "with_timestamps",
                lambda f: lambda values, tokens, place, rules: f(values, jnp.minimum(tokens, rules.begin), place, rules),
            ),
            "timestamps: no bound for the first": (
                "with_timestamps",
                lambda f: lambda values, tokens, place, rules: f(values, tokens, place, rules._replace(latest=np.int32(18))),
            ),
            "timestamps: chosen where the likeliest token is one": (
                "prefer_timestamps",
                lambda f: lambda values, begin: values,
            ),
        }.items()
    ),
    *(
        Mutant(name, injection, "prompts")
        for name, injection in {
            "prompts: judged at the greatest length unasked": numbers_with(at_greatest=np.True_),
            "prompts: runs of the prompt may repeat": patch(
                beam, constrain=lambda f: lambda values, read, *given: f(values, jnp.full_like(read, -1), *given)
            ),
            "prompts: an end before its time": constrained(
                lambda place, rules: (place, rules._replace(min_tokens=np.int32(0)))
            ),
            "prompts: one end of two": patch(beam, make_rules=lambda f: lambda beam, eos, *given: f(beam, eos[0], *given)),
            "prompts: padding has positions": patch(
                GPT, last_hidden_state=lambda f: lambda self, *given, positions, **named: f(self, *given, **named)
            ),
        }.items()
    ),
]
