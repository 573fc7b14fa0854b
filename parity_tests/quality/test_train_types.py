"""Twenty steps of AdamW of transformers' own models, by torch, and of ours from the same folder: equal losses and weights."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import jaxformer as jf
from jaxformer.convert.rules import tensors_to_torch
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import LOSS, PARAMETER
from jaxformer.training.losses import cross_entropy
from jaxformer.training.step import train_step
from jaxformer.training.torch_run import from_torch_training
from parity_tests.zoo.model_types import ids, in_float64, make_case

pytestmark = [pytest.mark.optimizers, pytest.mark.slow]

STEPS, RATE, CLIP, LENGTH = 20, 1e-2, 0.5, 11


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    text = ids(3, LENGTH + 1, step)
    return text[:, :-1], text[:, 1:]


def torch_loss(model, step: int) -> torch.Tensor:
    inputs, targets = (torch.from_numpy(it).long() for it in batch(step))
    source = {"decoder_input_ids": inputs} if model.config.is_encoder_decoder else {}
    return F.cross_entropy(model(inputs, use_cache=False, **source).logits.flatten(0, 1), targets.flatten())


def jax_loss(model, both, key):
    inputs, targets = both
    logits = model(inputs, inputs) if isinstance(model, jf.EncoderDecoder) else model(inputs)
    return cross_entropy(logits, targets)


@pytest.mark.first(1)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["gemma2", "t5"])
def test_twenty_steps(name, tmp_path):
    made = make_case(name, tmp_path / "theirs")
    model, family = in_float64(made), made.kind.family_of(made.jax.config)
    torch_optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), made.jax)
    optimizer, state = from_torch_training(model, torch_optimizer, like, family, clip_norm=CLIP)
    step = jax.jit(partial(train_step, key=None, loss=jax_loss, optimizer=optimizer))
    for number in range(STEPS):
        with torch_float64():
            wanted = torch_loss(model, number)
            torch_optimizer.zero_grad()
            wanted.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        torch_optimizer.step()
        state, found = step(state, batch(number))
        np.testing.assert_allclose(float(found), wanted.item(), rtol=LOSS)
    held = tensors_to_torch(state.model, family)
    for name, tensor in model.named_parameters():
        reference = tensor.detach().numpy()
        assert np.abs(held[name] - reference).max() <= PARAMETER * np.sqrt(np.mean(reference**2)), name
