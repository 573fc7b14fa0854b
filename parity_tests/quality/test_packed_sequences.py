"""Models of packed sequences: torch does not check what is packed, so changes of its code are checked before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose.calls import safe
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

B, T, IN, HIDDEN = 3, 5, 4, 6
X, LENGTHS = noise(B, T, IN, seed=1), np.array([5, 2, 4])


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.read = torch.nn.LSTM(IN, HIDDEN, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.read(packed)[0], batch_first=True, total_length=T)[0]


def ours(params, x, lengths, forget):
    def step(state, x):
        h, c = state
        gates = x @ params["read.weight_ih_l0"].T + h @ params["read.weight_hh_l0"].T
        i, f, g, o = jnp.split(gates + params["read.bias_ih_l0"] + params["read.bias_hh_l0"], 4, -1)
        c = jax.nn.sigmoid(f + forget) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((B, HIDDEN), x.dtype)
    out = jax.lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))[1].swapaxes(0, 1)
    return jnp.where((jnp.arange(T) < lengths[:, None])[..., None], out, 0)


@pytest.mark.parametrize("forget", [0.0, 1.0])
def test_a_packed_lstm_is_compared(forget):
    theirs = excite(Theirs().eval(), seed=2)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(
        theirs,
        params,
        (X, LENGTHS),
        call_torch=lambda model, x, lengths: model(x, lengths.long()),
        call_jax=lambda params, x, lengths: ours(params, x, lengths, forget),
        checks=("forward", "local"),
        tier="A",
    )
    assert report.exit_code == bool(forget), str(report)


@pytest.mark.parametrize(
    ("rows", "sizes", "layers", "said"),
    [(4, [3, 2], 1, "are no sizes"), (5, [2, 3], 1, "are no sizes"), (5, [3, 2], 2, "are no states"), (5, [3, 2], 1, "")],
)
def test_what_torch_does_not_check(rows, sizes, layers, said):
    lstm = torch.nn.LSTM(IN, HIDDEN)
    weights = [*lstm.parameters()]
    state = torch.zeros(layers, sizes[0], HIDDEN)
    given = torch.zeros(rows, IN), torch.tensor(sizes), (state, state), weights, True, 1, 0.0, False, False
    if not said:
        safe(torch.lstm)(*given)
        return
    with pytest.raises(ValueError, match=said):
        safe(torch.lstm)(*given)
