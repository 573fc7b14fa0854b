"""Models that others wrote, against Flax models with the same excited weights: equal in every check."""

import jax
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import Family, attention_rules
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.nn import attention
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.masks import causal_mask, combine, padding_mask
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import B, D, F, N, S, T, V, block_config, encoder_config, gpt_config, noise
from parity_tests.zoo.ports import StackOfStates, TwoStacksOfStates

pytestmark = pytest.mark.slow


def valid(length: int, seed: int) -> np.ndarray:
    return probe(V, B, length, seed)[1]


@pytest.fixture(autouse=True)
def _tapped(monkeypatch):
    """Our attention shows its scores, before they are masked, and its weights."""
    softmax = attention.masked_softmax
    monkeypatch.setattr(attention, "masked_softmax", lambda s, mask: tap("weights", softmax(tap("scores", s), mask)))


def check(report: Report) -> None:
    assert report.status == "equal", str(report)
    assert not [name for name in report.jax_only if "scores" in name or "weights" in name]
    assert {"scores", "weights"} <= {module.torch.rpartition(".")[2] for module in report.modules}
    assert [stage.name for stage in report.stages] == [*CHECK_NAMES, "float32"]


@pytest.mark.parametrize(
    ("position", "activation", "bias"), [pytest.param("pre", "gelu", True, marks=pytest.mark.slow), ("post", "relu", False)]
)
def test_torch_encoder(position, activation, bias):
    biases = dict.fromkeys(("norm_bias", "qkv_bias", "output_bias", "feed_forward_bias"), bias)
    kind = {"norm_position": position, "activation": activation, "projections": "fused", "layers": "rolled"}
    config = block_config(n_layers=2, **kind, **biases)
    rules = FAMILIES["torch_encoder"]
    layer = torch.nn.TransformerEncoderLayer(
        D, N, F, 0.0, activation, batch_first=True, norm_first=position == "pre", bias=bias
    )
    theirs = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(D, bias=bias), enable_nested_tensor=False)
    ours = excite(StackOfStates(config), seed=1)
    report = compare(
        load_torch(theirs, ours, rules).eval(),
        ours,
        (noise(B, T, D), valid(T, 2)),
        rules=rules,
        call_torch=lambda model, x, valid: model(x, src_key_padding_mask=~valid),
        call_jax=lambda model, x, valid: model(x, padding_mask(valid)),
    )
    check(report)


@pytest.mark.parametrize(("position", "activation"), [("pre", "relu"), pytest.param("post", "gelu", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch tells whoever builds one with norm_first
def test_torch_transformer(position, activation):
    config = block_config(n_layers=1, norm_position=position, activation=activation, layers="rolled")
    decoder = block_config(n_layers=2, norm_position=position, activation=activation, projections="fused", layers="rolled")
    rules = FAMILIES["torch_transformer"]
    theirs = torch.nn.Transformer(D, N, 1, 2, F, 0.0, activation, batch_first=True, norm_first=position == "pre")
    ours = excite(TwoStacksOfStates(config, decoder), seed=1)

    def call_torch(model, source, target, source_valid, target_valid):
        masked = {"src_key_padding_mask": ~source_valid, "memory_key_padding_mask": ~source_valid}
        later = ~torch.ones(T, T, dtype=torch.bool).tril()
        return model(source, target, tgt_mask=later, tgt_key_padding_mask=~target_valid, **masked)

    def call_jax(model, source, target, source_valid, target_valid):
        return model(source, target, padding_mask(source_valid), combine(causal_mask(T), padding_mask(target_valid)))

    report = compare(
        load_torch(theirs, ours, rules).eval(),
        ours,
        (noise(B, S, D), noise(B, T, D, seed=1), valid(S, 2), valid(T, 3)),
        rules=rules,
        call_torch=call_torch,
        call_jax=call_jax,
    )
    check(report)


def bert(padding_idx: int | None = None, **changes) -> tuple[torch.nn.Module, nnx.Module]:
    """transformers' and ours."""
    sizes = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": N, "intermediate_size": F}
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=V, max_position_embeddings=11, **sizes, **changes))
    post = {"norm_position": "post", "norm_epsilon": 1e-12, "embedding_norm": True, "padding_idx": padding_idx}
    ours = excite(abstract(encoder_config(n_layers=2, token_types=2, pooler=True, **post)), seed=1)
    return load_torch(theirs, ours, FAMILIES["bert"]).eval(), ours


def compare_bert(theirs: torch.nn.Module, ours: nnx.Module, checks: tuple[str, ...] = CHECK_NAMES) -> Report:
    """The states of all tokens, and what the pooler makes of them."""
    ids, real = probe(V, B, 11, seed=3)
    types = np.random.default_rng(4).integers(0, 2, ids.shape).astype(np.int32)

    def call_torch(model, ids, types, valid):
        found = model(ids.long(), attention_mask=valid.long(), token_type_ids=types.long())
        return torch.cat([found.last_hidden_state, found.pooler_output[:, None]], 1)

    def call_jax(model, ids, types, valid):
        states = model(ids, mask=padding_mask(valid), token_types=types)
        return jax.numpy.concatenate([states, model.pool(states)[:, None]], 1)

    inputs = ids, types, real
    return compare(theirs, ours, inputs, rules=FAMILIES["bert"], call_torch=call_torch, call_jax=call_jax, checks=checks)


def test_bert():
    report = compare_bert(*bert(padding_idx=0))
    check(report)
    pairs = {module.jax: module.torch for module in report.modules}
    assert pairs["stack.blocks.1.feed_forward.up"] == "encoder.layer.1.intermediate.dense"
    assert pairs["pooler"] == "pooler.dense"


def test_berts_padding_token_learns_nothing():
    """torch drops the gradient of `padding_idx`, BERT's default; here that token also stands inside of the text, and ours
    trains it."""
    report = compare_bert(*bert(), checks=("weights", "gradients"))
    says = {stage.name: stage.says for stage in report.stages}["gradients"]
    assert "jax trains row 0 of embeddings.word_embeddings.weight" in says


def test_gpt2():
    """Padding on the left leaves queries without a key: there transformers' default, torch's fused attention, gives 0 too."""
    sizes = {"n_positions": 11, "n_embd": D, "n_layer": 2, "n_head": N, "n_inner": F, "bos_token_id": 0, "eos_token_id": 1}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, **sizes)).eval()
    config = gpt_config(n_layers=2, projections="fused", activation="gelu_tanh", tied=True, layers="rolled")
    ours = excite(abstract(config), seed=1)
    load_torch(theirs, ours, FAMILIES["gpt2"])
    ids, real = probe(V, B, 11, seed=3)

    def call_torch(model, ids, valid):
        return model(ids.long(), attention_mask=valid.long()).logits

    def call_jax(model, ids, valid):
        return model(ids, mask=padding_mask(valid))

    check(compare(theirs, ours, (ids, real), rules=FAMILIES["gpt2"], call_torch=call_torch, call_jax=call_jax))


class Attention(nnx.Module):
    """Ours, alone."""

    def __init__(self):
        self.attention = MultiHeadAttention(block_config())

    def __call__(self, x, mask):
        return self.attention(x, mask=mask)


class TorchAttention(torch.nn.Module):
    """torch's, alone."""

    def __init__(self, need_weights: bool):
        super().__init__()
        self.self_attn = torch.nn.MultiheadAttention(D, N, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x, valid):
        return self.self_attn(x, x, x, key_padding_mask=~valid, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
def test_rows_of_nothing_but_padding(need_weights):
    """torch's attention gives them 0, as ours does, and NaN where it is asked for its weights, which is its default."""
    rules, real = Family("attention", {}, attention_rules("attention", "self_attn")), valid(T, 2)

    def judged(rows: slice) -> Report:
        return compare(
            load_torch(TorchAttention(need_weights), ours, rules).eval(),
            ours,
            (noise(B, T, D)[rows], real[rows]),
            rules=rules,
            call_jax=lambda model, x, valid: model(x, padding_mask(valid)),
            checks=("weights", "forward", "local"),
        )

    ours = excite(Attention(), seed=1)
    assert judged(slice(0, -1)).status == "equal"
    assert judged(slice(None)).status == ("different" if need_weights else "equal")
