"""Cases that mutants are tried on: models, trainings and decodings without a bug."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.config.settings import BeamConfig, OptimizerConfig, SamplingConfig, ScheduleConfig
from jaxformer.decoding import Hypotheses, generate, generate_beam, translate, translate_beam
from jaxformer.decoding.sampling import GREEDY
from jaxformer.errors import ParityError
from jaxformer.evaluation.configs import CONFIGS
from jaxformer.evaluation.ladder import TrainingCase, load_torch
from jaxformer.models import Model, abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite, probe


@dataclass(frozen=True, kw_only=True)
class DecodingCase:
    """Decoding case: everything that both sides share."""

    model: EncoderDecoderConfig | GPTConfig
    seed: int
    """Seed of the excited weights."""
    n_tokens: int
    start: int | tuple[int, ...] | None = None
    """First token, or tokens, of an encoder-decoder's target; None for a GPT."""
    eos: int | tuple[int, ...]
    pad: int
    """Token that follows an end token."""
    sampling: SamplingConfig = GREEDY
    beam: BeamConfig | None = None
    """Beam search; None: token by token."""

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ids `B S` (prompts or sources) and a mask of the real tokens; no row is all padding."""
        model = self.model
        if isinstance(model, GPTConfig):
            ids, valid = probe(model.vocab_size, 5, model.context - self.n_tokens, seed=5)
        else:
            ids, valid = probe(model.source_ids, 5, model.source.context - 6, seed=5)
        return ids[:-1], valid[:-1]

    def ends(self) -> dict[str, Any]:
        """Return the start and end tokens, as keywords of both sides' functions."""
        return {"eos": self.eos} if self.start is None else {"start": self.start, "eos": self.eos}

    def weights(self) -> Model:
        """Return the float32 weights of both sides."""
        return excite(abstract(self.model), self.seed)


def decode_jax(case: DecodingCase) -> Hypotheses:
    """Decode in jax in float64: tokens and scores. A greedy sequence has the score 0."""
    choose, choose_beam = (generate, generate_beam) if case.start is None else (translate, translate_beam)
    with jax.enable_x64(True):
        model, (source, valid) = to_float64(case.weights()), case.sources()
        given: dict[str, Any] = {**case.ends(), "pad": case.pad, "valid": valid}
        if case.beam is not None:
            return choose_beam(model, source, case.n_tokens, case.beam, **given)
        tokens = choose(model, source, case.n_tokens, case.sampling, **given)
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))


def decode_torch(case: DecodingCase) -> Hypotheses:
    """Decode in torch in float64: tokens and scores."""
    import torch

    import torch_ref.models
    from torch_ref.decoding.generate import generate, generate_beam
    from torch_ref.decoding.translation import translate, translate_beam

    choose, choose_beam = (generate, generate_beam) if case.start is None else (translate, translate_beam)
    twin = load_torch(torch_ref.models.build(case.model), case.weights()).double().eval()
    source, valid = map(torch.from_numpy, case.sources())
    given: dict[str, Any] = {**case.ends(), "valid": valid}
    if case.beam is None:
        tokens = choose(twin, source, case.n_tokens, case.sampling, pad=case.pad, **given).numpy()
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))
    found = choose_beam(twin, source, case.n_tokens, case.beam, **given)
    return hypotheses(found, case.beam.n_best, case.n_tokens, case.pad)


def hypotheses(found: list[list[Any]], n_best: int, n_tokens: int, pad: int) -> Hypotheses:
    """Convert torch's sequences and scores, a list per row, to arrays."""
    tokens, scores = np.full((len(found), n_best, n_tokens), pad), np.full((len(found), n_best), -np.inf)
    for row, sequences in enumerate(found):
        for place, (sequence, score) in enumerate(sequences):
            tokens[row, place, : len(sequence)], scores[row, place] = sequence, score
    return Hypotheses(tokens, scores)


def check_decoding(found: Hypotheses, recorded: Hypotheses) -> None:
    """Raise ParityError unless tokens are identical and scores agree within tier A's tolerance."""
    different = np.argwhere((found.tokens != recorded.tokens).any(-1))
    if different.size:
        row, place = different[0]
        tokens, wanted = found.tokens[row, place].tolist(), recorded.tokens[row, place].tolist()
        raise ParityError(f"target {row}, hypothesis {place}: {tokens} in jax, {wanted} in torch")
    check_float64("scores", found.scores, recorded.scores)


BATCH, LENGTH = 5, 66
"""Batch size and sequence length of a model's inputs."""

SMALL = GPTConfig(vocab_size=11, context=7, d_model=6, n_layers=1, n_heads=2, d_ff=10)
TRAININGS = {
    "sgd": TrainingCase(
        model=replace(SMALL, residual_dropout=0.2),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=0.1),
        smoothing=0.1,
        spread="others",
        steps=2,
    ),
    "sure": TrainingCase(
        model=replace(SMALL, head_bias=True), optimizer=OptimizerConfig(name="sgd", learning_rate=0.01), sure=14.0, steps=2
    ),
    "adam": TrainingCase(
        model=SMALL,
        optimizer=OptimizerConfig(name="adam", learning_rate=0.1),
        smoothing=0.1,
        spread="others_but_padding",
        ignore_index=0,
        steps=2,
    ),
    "adamw": TrainingCase(
        model=SMALL,
        optimizer=OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1),
        schedule=ScheduleConfig(name="cosine", warmup=3, last=9),
        steps=2,
    ),
    "routers": TrainingCase(
        model=replace(SMALL, n_layers=2, n_experts=4, experts_per_token=2, balance_loss=0.1, router_z_loss=0.05),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
        steps=2,
    ),
    "noam": TrainingCase(
        model=EncoderDecoderConfig(
            vocab_size=11, context=7, d_model=6, n_layers=1, n_decoder_layers=2, n_heads=2, d_ff=10, embedding_dropout=0.2
        ),
        optimizer=OptimizerConfig(name="adam", learning_rate=1.0, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=3, d_model=6),
        steps=2,
    ),
}
"""Trainings that mutants of losses and optimizers are tried on."""
TIERS = {"sure": "B", "adam": "AB"}
"""Tiers of a training whose bug shows only in float32, or A and B; a sure model's loss has few digits even in float64."""

BEAM_WIDTH = 3
WRITER = EncoderDecoderConfig(
    vocab_size=7, context=17, d_model=12, n_layers=2, n_decoder_layers=3, n_heads=3, d_ff=20, norm_position="post"
)
DECODINGS = {
    "greedy": DecodingCase(
        model=WRITER,
        seed=114,
        n_tokens=13,
        start=0,
        eos=1,
        pad=6,
        sampling=SamplingConfig(temperature=0.0, repetition_penalty=1.3),
    ),
    "beam": DecodingCase(
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
    "timestamps": DecodingCase(
        model=replace(WRITER, vocab_size=19),
        seed=7,
        n_tokens=13,
        start=(0, 3),
        eos=1,
        pad=1,
        beam=BeamConfig(width=BEAM_WIDTH, n_best=2, suppressed=(2,), not_first=(14,), timestamps=9, latest_first_timestamp=2),
    ),
    "prompts": DecodingCase(
        model=GPTConfig(vocab_size=9, context=16, d_model=12, n_layers=1, n_heads=3, d_ff=20),
        seed=9,
        n_tokens=9,
        eos=(1, 3),
        pad=8,
        beam=BeamConfig(width=BEAM_WIDTH, n_best=2, length_penalty=1.7, min_tokens=3, no_repeat_ngram=2, forced=((-1, 1),)),
    ),
}
"""Decodings that mutants of decoding are tried on; these weights end some sequences early, and others not."""

CASES = (*CONFIGS, *TRAININGS, *DECODINGS)
