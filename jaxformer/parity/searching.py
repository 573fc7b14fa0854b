"""Targets found on both sides by the same weights: greedily, and by beam search with its scores."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxformer.config import EncoderDecoderConfig
from jaxformer.decoding import Hypotheses, translate, translate_beam
from jaxformer.decoding.sampling import GREEDY
from jaxformer.errors import ParityError
from jaxformer.models import EncoderDecoder, build
from jaxformer.parity.checks import load_torch
from jaxformer.parity.inputs import excite, probe, widen
from jaxformer.parity.measure import check_float64
from jaxformer.settings import BeamConfig, SamplingConfig


@dataclass(frozen=True, kw_only=True)
class Search:
    """All that both sides share."""

    model: EncoderDecoderConfig
    seed: int
    """Of the excited weights."""
    n_tokens: int
    start: int
    eos: int
    sampling: SamplingConfig = GREEDY
    beam: BeamConfig | None = None
    """None: token after token."""

    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids `B S` and which of them are real; no row is nothing but padding."""
        ids, valid = probe(self.model.source_ids, 5, self.model.source.context - 6, seed=5)
        return ids[:-1], valid[:-1]

    def weights(self) -> EncoderDecoder:
        """The float32 weights of both sides."""
        return excite(build(self.model), self.seed)


def jax_search(search: Search) -> Hypotheses:
    """What JAX finds, in float64; a greedy target has the score 0."""
    with jax.enable_x64(True):
        model, (source, valid) = widen(search.weights()), search.sources()
        given: dict[str, Any] = {"start": search.start, "eos": search.eos, "valid": valid}
        if search.beam is not None:
            return translate_beam(model, source, search.n_tokens, search.beam, **given)
        tokens = translate(model, source, search.n_tokens, sampling=search.sampling, **given)
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))


def torch_search(search: Search) -> Hypotheses:
    """What torch finds, in float64."""
    import torch

    import torch_ref.models
    from torch_ref.decoding.translation import translate, translate_beam

    twin = load_torch(torch_ref.models.build(search.model), search.weights()).double().eval()
    source, valid = map(torch.from_numpy, search.sources())
    given: dict[str, Any] = {"start": search.start, "eos": search.eos, "valid": valid}
    if search.beam is None:
        tokens = translate(twin, source, search.n_tokens, sampling=search.sampling, **given).numpy()
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))
    shape = len(source), search.beam.n_best
    tokens, scores = np.full((*shape, search.n_tokens), search.eos), np.full(shape, -np.inf)
    for row, found in enumerate(translate_beam(twin, source, search.n_tokens, search.beam, **given)):
        for place, (sequence, score) in enumerate(zip(*found, strict=True)):
            tokens[row, place, : len(sequence)], scores[row, place] = sequence, score
    return Hypotheses(tokens, scores)


def check_search(ours: Hypotheses, reference: Hypotheses) -> None:
    """Identical tokens, and scores within tier A's line."""
    different = np.argwhere((ours.tokens != reference.tokens).any(-1))
    if different.size:
        row, place = different[0]
        found, wanted = ours.tokens[row, place].tolist(), reference.tokens[row, place].tolist()
        raise ParityError(f"target {row}, hypothesis {place}: {found} against {wanted}")
    check_float64("scores", ours.scores, reference.scores)
