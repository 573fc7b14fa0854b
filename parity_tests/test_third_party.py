"""Models that others wrote, against Flax models with the same excited weights: equal in every check."""

import jax
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from jaxformer.config import BlockConfig
from jaxformer.convert.families import FAMILIES
from jaxformer.convert.rules import Family, to_torch
from jaxformer.models import Encoder
from jaxformer.nn.masks import causal_mask, combine, padding_mask
from jaxformer.nn.norms import make_norm
from jaxformer.nn.stack import Stack
from jaxformer.parity.comparison import STAGES, compare
from jaxformer.parity.inputs import excite, hostile_tokens
from jaxformer.parity.report import Report
from parity_tests.helpers import B, D, F, N, S, T, V, block_config, encoder_config, noise


class StackOfStates(nnx.Module):
    """`torch.nn.TransformerEncoder`'s port: blocks, and a norm behind them."""

    def __init__(self, config: BlockConfig):
        self.stack = Stack(config)
        self.norm = make_norm("layer", config)

    def __call__(self, x, mask=None):
        return self.norm(self.stack(x, mask))


class TwoStacksOfStates(nnx.Module):
    """`torch.nn.Transformer`'s port."""

    def __init__(self, config: BlockConfig, decoder: BlockConfig):
        self.encoder = Stack(config)
        self.encoder_norm = make_norm("layer", config)
        self.decoder = Stack(decoder, cross=True)
        self.decoder_norm = make_norm("layer", config)

    def __call__(self, source, target, source_mask, target_mask):
        memory = self.encoder_norm(self.encoder(source, source_mask))
        return self.decoder_norm(self.decoder(target, target_mask, memory, source_mask))


def filled(theirs: torch.nn.Module, ours: nnx.Module, rules: Family) -> torch.nn.Module:
    """torch's model with our weights."""
    weights = {name: torch.from_numpy(array) for name, array in to_torch(ours, rules).items()}
    theirs.load_state_dict(weights, strict=True)
    return theirs.eval()


def valid(length: int, seed: int) -> np.ndarray:
    return hostile_tokens(V, B, length, seed)[1]


def check(report: Report) -> None:
    assert report.status == "equal", str(report)
    assert [stage.name for stage in report.stages] == list(STAGES)


settings = pytest.mark.parametrize("position", ["pre", "post"])
activations = pytest.mark.parametrize("activation", ["relu", "gelu"])


@settings
@activations
def test_torch_encoder(position, activation):
    config = block_config(n_layers=2, norm_position=position, activation=activation, projections="fused", layers="rolled")
    rules = FAMILIES["torch_encoder"]
    layer = torch.nn.TransformerEncoderLayer(D, N, F, 0.0, activation, batch_first=True, norm_first=position == "pre")
    theirs = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(D), enable_nested_tensor=False)
    ours = excite(StackOfStates(config), seed=1)
    report = compare(
        filled(theirs, ours, rules),
        ours,
        (noise(B, T, D), valid(T, 2)),
        rules=rules,
        call_torch=lambda model, x, valid: model(x, src_key_padding_mask=~valid),
        call_jax=lambda model, x, valid: model(x, padding_mask(valid)),
    )
    check(report)


@settings
@activations
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch tells whoever builds one with norm_first
def test_torch_transformer(position, activation):
    config = block_config(n_layers=2, norm_position=position, activation=activation, layers="rolled")
    decoder = block_config(n_layers=3, norm_position=position, activation=activation, projections="fused", layers="rolled")
    rules = FAMILIES["torch_transformer"]
    theirs = torch.nn.Transformer(D, N, 2, 3, F, 0.0, activation, batch_first=True, norm_first=position == "pre")
    ours = excite(TwoStacksOfStates(config, decoder), seed=1)

    def call_torch(model, source, target, source_valid, target_valid):
        masked = {"src_key_padding_mask": ~source_valid, "memory_key_padding_mask": ~source_valid}
        later = ~torch.ones(T, T, dtype=torch.bool).tril()
        return model(source, target, tgt_mask=later, tgt_key_padding_mask=~target_valid, **masked)

    def call_jax(model, source, target, source_valid, target_valid):
        return model(source, target, padding_mask(source_valid), combine(causal_mask(T), padding_mask(target_valid)))

    report = compare(
        filled(theirs, ours, rules),
        ours,
        (noise(B, S, D), noise(B, T, D, seed=1), valid(S, 2), valid(T, 3)),
        rules=rules,
        call_torch=call_torch,
        call_jax=call_jax,
    )
    check(report)


def bert(**changes) -> tuple[torch.nn.Module, nnx.Module]:
    """transformers' and ours."""
    sizes = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": N, "intermediate_size": F}
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=V, max_position_embeddings=11, **sizes, **changes))
    post = {"norm_position": "post", "norm_epsilon": 1e-12, "embedding_norm": True}
    ours = excite(Encoder(encoder_config(n_layers=2, token_types=2, pooler=True, **post)), seed=1)
    return filled(theirs, ours, FAMILIES["bert"]), ours


def compare_bert(theirs: torch.nn.Module, ours: nnx.Module, checks: tuple[str, ...] = STAGES) -> Report:
    """The states of all tokens, and what the pooler makes of them."""
    ids, real = hostile_tokens(V, B, 11, seed=3)
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
    report = compare_bert(*bert(pad_token_id=None))
    check(report)
    pairs = {module.jax: module.torch for module in report.modules}
    assert pairs["stack.blocks.1.feed_forward.up"] == "encoder.layer.1.intermediate.dense"
    assert pairs["pooler"] == "pooler.dense"


def test_berts_padding_token_learns_nothing():
    """torch drops the gradient of `padding_idx`, BERT's default; here that token also stands inside of the text."""
    report = compare_bert(*bert(), checks=("weights", "gradients"))
    assert report.verdict.startswith("DIFFERENT: gradients: embeddings.word_embeddings.weight: ")
