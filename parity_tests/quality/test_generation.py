"""Users' own functions that write tokens: the same ones, or where they part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.decoding import generate
from jaxformer.errors import InputError
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.decoding import Written, compare_generation, compare_written
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import B, V, gpt_config
from torch_ref.decoding.generate import generate as torch_generate
from torch_ref.models import GPT as TORCH_GPT

T = 6
PROMPT = np.random.default_rng(0).integers(0, V, (B, 3), np.int32)


def torch_writes(model):
    """Ids and the logits they were chosen by, without a cache."""
    ids, logits = torch.from_numpy(PROMPT).long(), []
    for _ in range(T):
        logits.append(model(ids)[:, -1])
        ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)], 1)
    return ids[:, -T:], torch.stack(logits, 1)


forward = jax.jit(lambda model, ids: model(ids))


def jax_writes(model, spoil=lambda step, logits: logits):
    """The same; what is not yet written is 0, which nothing before it sees."""
    start, logits = PROMPT.shape[1], []
    ids = np.pad(PROMPT, ((0, 0), (0, T)))
    for step in range(T):
        logits.append(spoil(step, forward(model, ids)[:, start + step - 1]))
        ids[:, start + step] = logits[-1].argmax(-1)
    return ids[:, start:], jnp.stack(logits, 1)


@pytest.fixture(scope="module")
def sides():
    config = gpt_config(n_layers=1, layers="rolled")
    model = excite(abstract(config), seed=9)
    return load_torch(TORCH_GPT(config), model), model


def test_the_same_tokens(sides):
    widths = []

    def writes(model):
        widths.append(model.embed.token.table.dtype)
        return jax_writes(model)

    stage = compare_generation(*sides, torch_writes, writes)
    assert (stage.status, stage.says) == ("equal", f"{B} rows of {T} tokens, all the same")
    assert widths == [jnp.float64]


def test_ids_alone_by_the_librarys_own(sides):
    stage = compare_generation(
        *sides,
        lambda model: torch_generate(model, torch.from_numpy(PROMPT), T),
        lambda model: generate(model, PROMPT, T),
    )
    assert stage.status == "equal"


def test_where_they_part(sides):
    wanted, _ = torch_writes(sides[0].eval())
    other = int(wanted[0, 2] + 1) % V

    def spoil(step, logits):
        return logits.at[0, other].set(99.0) if step == 2 else logits

    stage = compare_generation(*sides, torch_writes, lambda model: jax_writes(model, spoil))
    assert stage.status == "different"
    assert stage.says.startswith(f"row 0, step 2: torch wrote {wanted[0, 2]}, jax {other}, the two likeliest ")


def test_the_weights_are_torchs(sides):
    twin, model = sides
    other = excite(model, seed=2)
    assert compare_generation(twin, other, torch_writes, jax_writes).status == "equal"
    assert not np.array_equal(to_torch(other, TWIN)["head.weight"], to_torch(model, TWIN)["head.weight"])


def parting(margin):
    """Two rows of three steps; the second one parts at step 1, where the two likeliest are `margin` apart."""
    logits = np.tile(np.array([0.0, 1.0, 3.0, 5.0]), (2, 3, 1))
    logits[1, 1, 2] = 5.0 - margin
    theirs, ours = Written(np.full((2, 3), 3), logits), Written(np.full((2, 3), 3), logits)
    ours.ids[1, 1:] = 2
    return theirs, ours


def test_logits_tell_how_near_to_a_tie_the_two_part():
    stage = compare_written(*parting(7e-6))
    assert (stage.status, stage.says) == ("different", "row 1, step 1: torch wrote 3, jax 2, the two likeliest 7.0e-06 apart")


def test_without_logits_the_ids_alone_tell():
    theirs, ours = parting(7e-6)
    stage = compare_written(theirs._replace(logits=None), ours)
    assert (stage.status, stage.says) == ("different", "row 1, step 1: torch wrote 3, jax 2")


def test_texts_of_other_lengths():
    stage = compare_written(Written(np.zeros((2, 3), int), None), Written(np.zeros((2, 4), int), None))
    assert stage.says == "torch wrote ids [2, 3], jax [2, 4]"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.zeros((2, 3)), r"jax_generate gave float64\[2, 3\]; give integer ids"),
        ((np.zeros((2, 3), int), np.zeros((2, 4, 5))), r"gave logits \[2, 4, 5\] for ids \[2, 3\]"),
    ],
)
def test_answers_that_are_none(sides, given, says):
    with pytest.raises(InputError, match=says):
        compare_generation(*sides, torch_writes, lambda model: given)
