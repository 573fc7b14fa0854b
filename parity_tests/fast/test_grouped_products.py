"""Products of experts, as transformers computes them where nothing else is asked for, in float64."""

import numpy as np
import pytest
import torch
import transformers

from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.reference import run_torch
from parity_tests.support.helpers import noise

OFFSETS = torch.tensor([3, 3, 8, 12], dtype=torch.int32)
SHAPES = {
    "rows": ((12, 8), (4, 8, 16)),
    "columns": ((4, 8, 16), (16, 12)),
    "sums": ((8, 12), (12, 16)),
    "all": ((4, 3, 8), (4, 8, 16)),
}


@pytest.mark.parametrize("form", SHAPES)
def test_what_torch_gives_in_float32(form):
    a, b = (torch.from_numpy(noise(*shape, seed=n)).float() for n, shape in enumerate(SHAPES[form]))
    offsets = None if form == "all" else OFFSETS
    expected = torch.nn.functional.grouped_mm(a, b, offs=offsets)
    with torch_float64():
        found = torch.nn.functional.grouped_mm(a.double(), b.double(), offs=offsets)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_experts_one_by_one_and_in_groups_are_equal_and_so_are_their_gradients():
    sizes = {"hidden_size": 8, "intermediate_size": 12, "moe_intermediate_size": 4, "shared_expert_intermediate_size": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 11}
    found = []
    for how in (None, "eager"):
        config = transformers.Qwen2MoeConfig(
            **sizes, **heads, num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1, experts_implementation=how
        )
        model = excite(transformers.Qwen2MoeForCausalLM(config).eval(), seed=1)
        found.append(run_torch(model, (np.array([[1, 5, 3, 7]]),), lambda model, ids: model(ids).logits, tier="A"))
    groups, one_by_one = found
    np.testing.assert_allclose(groups.output, one_by_one.output, rtol=0, atol=1e-12)
    for name, gradient in one_by_one.gradients.items():
        np.testing.assert_allclose(groups.gradients[name], gradient, rtol=0, atol=1e-11)
