"""Tokens decoded on both sides with the same weights: greedily, and by beam search with its scores."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.decoding import Hypotheses, generate, generate_beam, translate, translate_beam
from jaxformer.decoding.sampling import GREEDY
from jaxformer.errors import ParityError
from jaxformer.models import Model, abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe.inputs import probe
from jaxformer.parity.probe.parameters import excite
from jaxformer.selfcheck.ladder import load_torch


@dataclass(frozen=True, kw_only=True)
class DecodingCase:
    """All that both sides share."""

    model: EncoderDecoderConfig | GPTConfig
    seed: int
    """Of the excited weights."""
    n_tokens: int
    start: int | None = None
    """An encoder-decoder's first token."""
    eos: int | tuple[int, ...]
    pad: int
    """What follows an end."""
    sampling: SamplingConfig = GREEDY
    beam: BeamConfig | None = None
    """None: token after token."""

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids `B S`, prompts or sources, and which of them are real; no row is nothing but padding."""
        model = self.model
        if isinstance(model, GPTConfig):
            ids, valid = probe(model.vocab_size, 5, model.context - self.n_tokens, seed=5)
        else:
            ids, valid = probe(model.source_ids, 5, model.source.context - 6, seed=5)
        return ids[:-1], valid[:-1]

    def ends(self) -> dict[str, Any]:
        """Where a sequence begins and ends: keywords of both sides' functions."""
        return {"eos": self.eos} if self.start is None else {"start": self.start, "eos": self.eos}

    def weights(self) -> Model:
        """The float32 weights of both sides."""
        return excite(abstract(self.model), self.seed)


def decode_jax(case: DecodingCase) -> Hypotheses:
    """The tokens and scores of JAX, in float64; a greedy sequence has the score 0."""
    choose, choose_beam = (generate, generate_beam) if case.start is None else (translate, translate_beam)
    with jax.enable_x64(True):
        model, (source, valid) = to_float64(case.weights()), case.sources()
        given: dict[str, Any] = {**case.ends(), "pad": case.pad, "valid": valid}
        if case.beam is not None:
            return choose_beam(model, source, case.n_tokens, case.beam, **given)
        tokens = choose(model, source, case.n_tokens, case.sampling, **given)
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))


def decode_torch(case: DecodingCase) -> Hypotheses:
    """The tokens and scores of torch, in float64."""
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
    """torch's sequences and scores, one list a row, as arrays."""
    tokens, scores = np.full((len(found), n_best, n_tokens), pad), np.full((len(found), n_best), -np.inf)
    for row, sequences in enumerate(found):
        for place, (sequence, score) in enumerate(sequences):
            tokens[row, place, : len(sequence)], scores[row, place] = sequence, score
    return Hypotheses(tokens, scores)


def check_decoding(found: Hypotheses, recorded: Hypotheses) -> None:
    """Identical tokens, and scores within tier A's tolerance."""
    different = np.argwhere((found.tokens != recorded.tokens).any(-1))
    if different.size:
        row, place = different[0]
        tokens, wanted = found.tokens[row, place].tolist(), recorded.tokens[row, place].tolist()
        raise ParityError(f"target {row}, hypothesis {place}: {tokens} in jax, {wanted} in torch")
    check_float64("scores", found.scores, recorded.scores)
