"""The gate: every bug of `mutants.MUTANTS` must turn the comparison red.

    jaxformer parity mutants

prints which check noticed which bug. Everything runs op by op: compiled operations are shared between mutants, and no
compiled function outlives the code it was made from.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxformer.config import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConversionError, ParityError
from jaxformer.models import build
from jaxformer.nn.tree import map_named
from jaxformer.parity.calls import call_jax, call_torch, hostile_inputs
from jaxformer.parity.checks import CHECKS, Subject, load_torch
from jaxformer.parity.injections import Mutant
from jaxformer.parity.inputs import excite
from jaxformer.parity.mutants import MUTANTS
from jaxformer.parity.mutants.decoding import BEAM_WIDTH
from jaxformer.parity.reference import Reference, run_torch
from jaxformer.parity.searching import Search, check_search, jax_search, torch_search
from jaxformer.parity.training import check_course
from jaxformer.parity.twin_training import Training, compare_twins
from jaxformer.settings import BeamConfig, OptimizerConfig, SamplingConfig, ScheduleConfig

BATCH, LENGTH = 5, 66

PLAIN: dict[str, Any] = {"vocab_size": 23, "context": 71, "d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 36}
"""Sizes differ pairwise, and from batch and length."""

CONFIGS: dict[str, ModelConfig] = {
    "plain": GPTConfig(**PLAIN, head_bias=True),
    "shifted": GPTConfig(**PLAIN, head_bias=True),
    "fused": GPTConfig(**PLAIN, projections="fused", norm="std", norm_position="post", activation="relu"),
    "rich": GPTConfig(
        **PLAIN, n_kv_heads=2, norm="rms", activation="silu", gated=True, positions="sinusoid", embedding_scale=True, tied=True
    ),
    "seq2seq": EncoderDecoderConfig(
        **PLAIN, n_decoder_layers=2, embedding_norm=True, position_offset=2, embedding_scale=True, tied=True, head_bias=True
    ),
    "separate": EncoderDecoderConfig(
        **PLAIN, n_decoder_layers=2, source_vocab_size=PLAIN["vocab_size"], norm_position="post", positions="sinusoid"
    ),
    "encoder": EncoderConfig(**PLAIN, norm_position="post", embedding_norm=True, token_types=2, pooler=True),
}
"""What the mutants are tried on; in 'shifted', the hidden states have a mean of 50."""

SMALL = GPTConfig(vocab_size=11, context=7, d_model=6, n_layers=1, n_heads=2, d_ff=10)
TRAININGS = {
    "sgd": Training(
        model=replace(SMALL, residual_dropout=0.2),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=0.1),
        smoothing=0.1,
        spread="others",
        steps=2,
    ),
    "adam": Training(
        model=SMALL,
        optimizer=OptimizerConfig(name="adam", learning_rate=0.01),
        smoothing=0.1,
        spread="others_but_padding",
        ignore_index=0,
        steps=2,
    ),
    "adamw": Training(
        model=SMALL,
        optimizer=OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1),
        schedule=ScheduleConfig(name="cosine", warmup=3, last=9),
        steps=2,
    ),
    "noam": Training(
        model=EncoderDecoderConfig(
            vocab_size=11, context=7, d_model=6, n_layers=1, n_decoder_layers=2, n_heads=2, d_ff=10, embedding_dropout=0.2
        ),
        optimizer=OptimizerConfig(name="adam", learning_rate=1.0, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=3, d_model=6),
        steps=2,
    ),
}
"""The same for the bugs of losses and optimizers."""

WRITER = EncoderDecoderConfig(
    vocab_size=7, context=17, d_model=12, n_layers=2, n_decoder_layers=3, n_heads=3, d_ff=20, norm_position="post"
)
SEARCHES = {
    "greedy": Search(
        model=WRITER, seed=114, n_tokens=13, start=0, eos=1, sampling=SamplingConfig(temperature=0.0, repetition_penalty=1.3)
    ),
    "beam": Search(
        model=WRITER,
        seed=114,
        n_tokens=13,
        start=0,
        eos=1,
        beam=BeamConfig(
            width=BEAM_WIDTH,
            n_best=2,
            length_penalty=2.0,
            early_stopping=False,
            no_repeat_ngram=2,
            suppressed=(5,),
            forced=((1, 4), (5, 2)),
        ),
    ),
}
"""The same for the bugs of decoding; these weights end some targets early, and others not."""

CASES = (*CONFIGS, *TRAININGS, *SEARCHES)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    killed_by: str | None
    """The first check that noticed; None for a survivor."""
    reached: bool
    """Whether the mutation took part in the run."""

    @property
    def killed(self) -> bool:
        """A bug that never ran was not noticed, whatever else went wrong."""
        return self.killed_by is not None and self.reached


@functools.cache
def reference(case: str) -> Reference:
    """torch's answers for a case: excited weights, hostile tokens."""
    import torch_ref.models

    config = CONFIGS[case]
    model = excite(build(config), seed=1)
    if case == "shifted":
        model = map_named(lambda name, leaf: leaf + 50 if name == "embed.token.table" else leaf, model)
    inputs = hostile_inputs(config, BATCH, LENGTH, seed=2)
    return run_torch(load_torch(torch_ref.models.build(config), model).eval(), inputs, call_torch)


def subject(case: str) -> Subject:
    """The JAX side of a case, without a bug."""
    whole = TRAININGS | SEARCHES
    config = whole[case].model if case in whole else CONFIGS[case]
    return Subject(jax.eval_shape(lambda: build(config)), call_jax)


@functools.cache
def reference_search(case: str) -> Hypotheses:
    """What torch finds in a decoding case."""
    return torch_search(SEARCHES[case])


Checks = dict[str, Callable[[Subject], Any]]


def checks(case: str) -> Checks:
    """Every check of a case by name, with torch's answers at hand."""
    if case in TRAININGS:
        return {"training, float64": lambda _: check_course(compare_twins(TRAININGS[case]))}
    if case in SEARCHES:
        return {"tokens, float64": lambda _: check_search(jax_search(SEARCHES[case]), reference_search(case))}
    return {name: functools.partial(check, reference(case)) for name, check in CHECKS.items()}


def first_red(checks: Checks, found: Subject) -> str | None:
    """The first check that fails."""
    for name, check in checks.items():
        try:
            check(found)
        except (ConversionError, ParityError):
            return name
    return None


def try_mutant(mutant: Mutant) -> Outcome:
    """Run the comparison with the bug in the JAX side."""
    expected, reached = checks(mutant.case), []
    with jax.disable_jit(), mutant.inject(subject(mutant.case), lambda: reached.append(True)) as mutated:
        killed_by = first_red(expected, mutated)
    return Outcome(mutant, killed_by, bool(reached))


def verdict(outcomes: Iterable[Outcome]) -> str:
    """'N/N mutants killed', and who survived."""
    outcomes = list(outcomes)
    survivors = [outcome.mutant.name for outcome in outcomes if not outcome.killed]
    line = f"{len(outcomes) - len(survivors)}/{len(outcomes)} mutants killed"
    return line + (f"; survivors: {', '.join(survivors)}" if survivors else "")


def main() -> int:
    """Print the table; 0 where every mutant is killed and no unmutated case is red."""
    outcomes = [try_mutant(mutant) for mutant in MUTANTS]
    width = max(len(mutant.name) for mutant in MUTANTS)
    for outcome in outcomes:
        fate = "survived" if outcome.reached else "never ran"
        print(f"{outcome.mutant.name:{width}}  {outcome.mutant.case:8}{outcome.killed_by if outcome.killed else fate}")
    with jax.disable_jit():
        red = {case: failed for case in CASES if (failed := first_red(checks(case), subject(case)))}
    for case, failed in red.items():
        print(f"without a bug, case {case} fails: {failed}")
    print(verdict(outcomes))
    return int(bool(red) or not all(outcome.killed for outcome in outcomes))
