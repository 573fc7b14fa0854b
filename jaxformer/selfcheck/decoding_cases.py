"""Tokens found on both sides by the same weights: greedily, and by beam search with its scores."""

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
class Search:
    """All that both sides share."""

    model: EncoderDecoderConfig | GPTConfig
    seed: int
    """Of the excited weights."""
    n_tokens: int
    start: int | None = None
    """An encoder-decoder's first token."""
    eos: int | tuple[int, ...]
    pad: int
    """What stands behind an end."""
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
        """Where a sequence begins and ends, for either side's functions."""
        return {"eos": self.eos} if self.start is None else {"start": self.start, "eos": self.eos}

    def weights(self) -> Model:
        """The float32 weights of both sides."""
        return excite(abstract(self.model), self.seed)


def jax_search(search: Search) -> Hypotheses:
    """What JAX finds, in float64; a greedy sequence has the score 0."""
    choose, choose_beam = (generate, generate_beam) if search.start is None else (translate, translate_beam)
    with jax.enable_x64(True):
        model, (source, valid) = to_float64(search.weights()), search.sources()
        given: dict[str, Any] = {**search.ends(), "pad": search.pad, "valid": valid}
        if search.beam is not None:
            return choose_beam(model, source, search.n_tokens, search.beam, **given)
        tokens = choose(model, source, search.n_tokens, search.sampling, **given)
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))


def torch_search(search: Search) -> Hypotheses:
    """What torch finds, in float64."""
    import torch

    import torch_ref.models
    from torch_ref.decoding.generate import generate, generate_beam
    from torch_ref.decoding.translation import translate, translate_beam

    choose, choose_beam = (generate, generate_beam) if search.start is None else (translate, translate_beam)
    twin = load_torch(torch_ref.models.build(search.model), search.weights()).double().eval()
    source, valid = map(torch.from_numpy, search.sources())
    given: dict[str, Any] = {**search.ends(), "valid": valid}
    if search.beam is None:
        tokens = choose(twin, source, search.n_tokens, search.sampling, pad=search.pad, **given).numpy()
        return Hypotheses(tokens[:, None], np.zeros((len(tokens), 1)))
    found = choose_beam(twin, source, search.n_tokens, search.beam, **given)
    return hypotheses(found, search.beam.n_best, search.n_tokens, search.pad)


def hypotheses(found: list[list[Any]], n_best: int, n_tokens: int, pad: int) -> Hypotheses:
    """torch's sequences and scores, one list a row, as arrays."""
    tokens, scores = np.full((len(found), n_best, n_tokens), pad), np.full((len(found), n_best), -np.inf)
    for row, sequences in enumerate(found):
        for place, (sequence, score) in enumerate(sequences):
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
