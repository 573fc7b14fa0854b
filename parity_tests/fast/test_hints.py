"""Errors of torch's and JAX's that say what happened, and not what to do."""

import jax
import jax.numpy as jnp
import pytest
import torch

from jaxformer.errors import ParityError
from jaxformer.parity.trace.reference import saying

TABLE = torch.ones(5, 3)
TOLERANCES = {
    "a table": (
        lambda: torch.nn.functional.embedding(torch.tensor([5]), TABLE),
        "give smaller ids (on the command line --vocab), or shorter inputs (--length)",
    ),
    "a loop": (
        lambda: jax.grad(lambda x: jax.lax.while_loop(lambda x: x < 2, lambda x: x * 2, x))(jnp.ones(())),
        "with static start/stop; or leave out the checks of gradients",
    ),
    "another": (lambda: TABLE @ TABLE, "shapes cannot be multiplied (5x3 and 5x3)"),
}


@pytest.mark.parametrize("case", TOLERANCES)
def test_what_to_do_is_said_at_the_end(case):
    fails, said = TOLERANCES[case]
    with pytest.raises(ParityError) as refused, saying("here"):
        fails()
    assert str(refused.value).startswith("here: ")
    assert str(refused.value).endswith(said)
