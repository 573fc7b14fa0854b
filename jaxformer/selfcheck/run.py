"""The gate: every bug of `mutants.MUTANTS` must turn the comparison red.

    jaxformer parity mutants

prints which check noticed which bug, and the module and the cause that it named. Everything runs op by op: compiled operations
are shared between mutants, and no compiled function outlives the code it was made from.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from jaxformer.config.fixed_table import FixedTable
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.config.settings import BeamConfig, OptimizerConfig, SamplingConfig, ScheduleConfig
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConversionError, ParityError
from jaxformer.models import build
from jaxformer.nn.positions import sinusoid
from jaxformer.parity.compare import check, record_torch
from jaxformer.parity.probe.parameters import excite
from jaxformer.parity.record.reference import Reference, Tier
from jaxformer.parity.report.data import Module
from jaxformer.parity.run.candidate import Candidate
from jaxformer.parity.training.compare import check_training
from jaxformer.parity.training.step_comparison import EQUAL_GRADIENTS
from jaxformer.pytree import map_named
from jaxformer.selfcheck.call_models import adversarial_inputs, call_jax, call_torch
from jaxformer.selfcheck.decoding_cases import Search, check_search, jax_search, torch_search
from jaxformer.selfcheck.inject import Mutant
from jaxformer.selfcheck.ladder import load_torch
from jaxformer.selfcheck.mutants import MUTANTS
from jaxformer.selfcheck.mutants.decoding import BEAM_WIDTH
from jaxformer.selfcheck.outcome import Outcome, line, noticed, passed, verdict
from jaxformer.selfcheck.training_cases import Training, check_twins32, compare_twins

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
    "switched": GPTConfig(
        **PLAIN,
        norm_bias=False,
        activation="quick_gelu",
        padding_idx=0,
        positions=FixedTable(sinusoid(PLAIN["context"], PLAIN["d_model"]) ** 3),
        head_bias=True,
        logits_scale=PLAIN["d_model"] ** -0.5,
    ),
    "seq2seq": EncoderDecoderConfig(
        **PLAIN, n_decoder_layers=2, embedding_norm=True, position_offset=2, embedding_scale=True, tied=True, head_bias=True
    ),
    "separate": EncoderDecoderConfig(
        **PLAIN, n_decoder_layers=2, source_vocab_size=PLAIN["vocab_size"], norm_position="post", positions="sinusoid"
    ),
    "encoder": EncoderConfig(**PLAIN, norm_position="post", embedding_norm=True, token_types=2, pooler=True),
}
"""What the mutants are tried on; in 'shifted', the hidden states have a mean of 100."""

SMALL = GPTConfig(vocab_size=11, context=7, d_model=6, n_layers=1, n_heads=2, d_ff=10)
TRAININGS = {
    "sgd": Training(
        model=replace(SMALL, residual_dropout=0.2),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=0.1),
        smoothing=0.1,
        spread="others",
        steps=2,
    ),
    "sure": Training(
        model=replace(SMALL, head_bias=True), optimizer=OptimizerConfig(name="sgd", learning_rate=0.01), sure=14.0, steps=2
    ),
    "adam": Training(
        model=SMALL,
        optimizer=OptimizerConfig(name="adam", learning_rate=0.1),
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
TIERS = {"sure": "B", "adam": "AB"}
"""What judges those with a bug that float32 alone shows; of a sure model's loss even float64 has few digits."""

WRITER = EncoderDecoderConfig(
    vocab_size=7, context=17, d_model=12, n_layers=2, n_decoder_layers=3, n_heads=3, d_ff=20, norm_position="post"
)
SEARCHES = {
    "greedy": Search(
        model=WRITER,
        seed=114,
        n_tokens=13,
        start=0,
        eos=1,
        pad=6,
        sampling=SamplingConfig(temperature=0.0, repetition_penalty=1.3),
    ),
    "beam": Search(
        model=WRITER,
        seed=114,
        n_tokens=13,
        start=0,
        eos=1,
        pad=6,
        beam=BeamConfig(
            width=BEAM_WIDTH,
            n_best=2,
            length_penalty=2.0,
            early_stopping="never",
            no_repeat_ngram=2,
            suppressed=(5,),
            forced=((1, 4), (5, 2)),
        ),
    ),
    "prompts": Search(
        model=GPTConfig(vocab_size=9, context=16, d_model=12, n_layers=1, n_heads=3, d_ff=20),
        seed=9,
        n_tokens=9,
        eos=(1, 3),
        pad=8,
        beam=BeamConfig(width=BEAM_WIDTH, n_best=2, length_penalty=1.7, min_tokens=3, no_repeat_ngram=2, forced=((-1, 1),)),
    ),
}
"""The same for the bugs of decoding; these weights end some sequences early, and others not."""

CASES = (*CONFIGS, *TRAININGS, *SEARCHES)


@functools.cache
def reference(case: str) -> Reference:
    """torch's answers for a case: excited weights, adversarial tokens."""
    import torch_ref.models

    config = CONFIGS[case]
    model = excite(build(config), seed=1)
    if case == "shifted":
        model = map_named(lambda name, leaf: leaf + 100 if name == "embed.token.table" else leaf, model)
    inputs = adversarial_inputs(config, BATCH, LENGTH, seed=2)
    everything = tuple(name for names, _ in STEPS for name in names)
    return record_torch(load_torch(torch_ref.models.build(config), model), inputs, call_torch, checks=everything)


def candidate(case: str) -> Candidate:
    """The JAX side of a case, without a bug."""
    whole = TRAININGS | SEARCHES
    config = whole[case].model if case in whole else CONFIGS[case]
    return Candidate(jax.eval_shape(lambda: build(config)), call_jax)


@functools.cache
def reference_search(case: str) -> Hypotheses:
    """What torch finds in a decoding case."""
    return torch_search(SEARCHES[case])


Checks = dict[str, Callable[[Candidate], Any]]
Judged = tuple[str | None, list[Module], str]
"""What is red first, None for nothing; the modules that were compared; the cause that a whole run named."""

STEPS: tuple[tuple[tuple[str, ...], Tier], ...] = (
    (("weights", "forward", "local"), "A"),
    (("gradients", "activation gradients"), "A"),
    (("weights",), "B"),
)
"""How a model is compared: its values, then its gradients, then float32; the first step that is red is the last."""


def checks(case: str) -> Checks:
    """What compares a whole run, by tier and name, with torch's answers at hand."""
    if case in TRAININGS:
        tiers: Checks = {
            "A training, float64": lambda _: check_training(compare_twins(TRAININGS[case])),
            "B training, float32": lambda _: check_twins32(TRAININGS[case]),
        }
        return {name: run for name, run in tiers.items() if name[0] in TIERS.get(case, "A")}
    return {"A tokens, float64": lambda _: check_search(jax_search(SEARCHES[case]), reference_search(case))}


def comparison(case: str) -> Callable[[Candidate], Judged]:
    """What judges the JAX side of a case, with torch's answers at hand."""
    if case in CONFIGS:
        return functools.partial(judged_model, reference(case))
    return functools.partial(judged_run, checks(case))


def judged_model(theirs: Reference, ours: Candidate) -> Judged:
    """Step by step."""
    for names, tier in STEPS:
        report = check(theirs, ours.like, rules=ours.family, call_jax=ours.call, checks=names, tier=tier)
        if report.status != "equal":
            return noticed(report), report.modules, ""
    return None, [], ""


def judged_run(checks: Checks, ours: Candidate) -> Judged:
    """Training or decoding, which has no modules to name."""
    for name, run in checks.items():
        try:
            run(ours)
        except (ConversionError, ParityError) as error:
            return name, [], str(error).partition(f"{EQUAL_GRADIENTS}; ")[2]
    return None, [], ""


def try_mutant(mutant: Mutant) -> Outcome:
    """Run the comparison with the bug in the JAX side."""
    judge, reached = comparison(mutant.case), []
    with jax.disable_jit(), mutant.inject(candidate(mutant.case), lambda: reached.append(True)) as mutated:
        killed_by, modules, why = judge(mutated)
    return Outcome(mutant, killed_by, bool(reached), modules, why)


def red_without_a_bug(case: str) -> str | None:
    """What the comparison says against the JAX side as it is: nothing."""
    judge = comparison(case)
    with jax.disable_jit():
        return judge(candidate(case))[0]


def main() -> int:
    """Print the table; 0 where every mutant is killed and named as it should be, and no unmutated case is red."""
    outcomes = []
    for mutant in MUTANTS:
        outcomes.append(try_mutant(mutant))
        print(line(outcomes[-1]), flush=True)
    red = {case: failed for case in CASES if (failed := red_without_a_bug(case))}
    for case, failed in red.items():
        print(f"without a bug, case {case} fails: {failed}")
    print(verdict(outcomes))
    return int(bool(red) or not passed(outcomes))
