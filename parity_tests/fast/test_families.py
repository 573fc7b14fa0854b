"""States of models that others wrote: they load as torch gives them, come back bit for bit, and torch takes ours strictly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxformer.convert.host import same_bits
from jaxformer.convert.registry import FAMILIES, within
from jaxformer.convert.rules import gradients_to_torch, to_jax, to_torch
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import GPT, abstract
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.masks import padding_mask
from jaxformer.nn.positions import sinusoid, sinusoid_blocks
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64, check_gradients
from jaxformer.parity.probe import excite, probe
from parity_tests.support.helpers import (
    B,
    D,
    F,
    N,
    S,
    T,
    V,
    block_config,
    encoder_config,
    gpt_config,
    noise,
    seq2seq_config,
    usually,
)
from parity_tests.zoo.others import Annotated, Book, Chat, SmallGPT, Translator
from parity_tests.zoo.ports import StackOfStates, TwoStacksOfStates

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # torch tells whoever builds one with norm_first

GPT_SIZES = {"n_positions": 11, "n_embd": D, "n_layer": 2, "n_head": N, "n_inner": F, "bos_token_id": 0, "eos_token_id": 1}
BERT_SIZES = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": N, "intermediate_size": F}
SEQ2SEQ_SIZES = {"vocab_size": V, "d_model": D, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
SEQ2SEQ_SIZES |= {f"{stack}_attention_heads": N for stack in ("encoder", "decoder")}
SEQ2SEQ_SIZES |= {f"{stack}_ffn_dim": F for stack in ("encoder", "decoder")}
SEQ2SEQ_SIZES |= {"max_position_embeddings": 17, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
POST = {"n_layers": 1, "norm_position": "post", "tied": True, "head_bias": True, "padding_idx": 1}
SOURCES = 19
"""Source ids of the Annotated Transformer."""


def small_gpt(**changes) -> GPT:
    return abstract(gpt_config(**{"n_layers": 2, "projections": "fused", "layers": "rolled", **changes}))


def bart(cls: str, config: str, **changes) -> torch.nn.Module:
    """transformers' BART or Marian."""
    return getattr(transformers, cls)(getattr(transformers, config)(**SEQ2SEQ_SIZES, decoder_start_token_id=2, **changes))


def torch_attention(**changes) -> torch.nn.Module:
    return torch.nn.MultiheadAttention(D, N, batch_first=True, **changes)


def torch_encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(D, N, F, 0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(D))


def annotated_config(**changes):
    sizes = {"n_layers": 1, "norm": "std", "norm_epsilon": 1e-6, "activation": "relu", "positions": "sinusoid"}
    return seq2seq_config(**sizes, embedding_scale=True, head_bias=True, **changes)


def translator_config(**changes):
    sizes = {"n_layers": 1, "source_vocab_size": SOURCES, "activation": "relu", "positions": "none", "head_bias": True}
    return seq2seq_config(**sizes, **changes)


NO_BIASES = {"norm_bias": False, "qkv_bias": False, "output_bias": False, "feed_forward_bias": False}
CHAT = {"norm": "rms", "norm_affine": False, "embedding_norm": True, "positions": "none", "activation": "relu_squared"}
CHAT |= {"rotary": "half", "rotary_reversed": True, "qk_norm": True, "qk_norm_affine": False, "qk_norm_after_rotary": True}
CHAT |= {name: off for name, off in NO_BIASES.items() if name != "norm_bias"} | {"logits_softcap": 15.0}
CHAT |= {"norm_epsilon": float(np.finfo(np.float64).eps)}
"""nanochat in float64: torch's norm has the smallest step of the type as its epsilon."""
BESIDE = {"source_embed.token.": "source.", "embed.token.": "target.", "head.": "head."}
TRANSLATOR = within(FAMILIES["torch_transformer"], "transformer.", BESIDE)
KNOWN = {**FAMILIES, "translator": TRANSLATOR}
MODELS = {
    "gpt2": (
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, **GPT_SIZES)),
        lambda: small_gpt(activation="gelu_tanh", tied=True),
    ),
    "gpt2 with a head of its own": (
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, tie_word_embeddings=False, **GPT_SIZES)),
        lambda: small_gpt(activation="gelu_tanh"),
    ),
    "nanogpt": (SmallGPT, lambda: small_gpt(tied=True)),
    "nanogpt without biases": (
        lambda: SmallGPT(bias=False),
        lambda: small_gpt(tied=True, **NO_BIASES),
    ),
    "mingpt": (lambda: SmallGPT(tied=False, activation="tanh"), lambda: small_gpt(activation="gelu_tanh")),
    "nanochat": (Chat, lambda: small_gpt(**CHAT, n_kv_heads=2)),
    "nanochat whose heads have keys of their own": (
        lambda: Chat(kv_heads=N),
        lambda: small_gpt(**CHAT, projections="separate"),
    ),
    "raschka": (Book, lambda: small_gpt(activation="gelu_tanh", qkv_bias=False)),
    "raschka with biases": (lambda: Book(qkv_bias=True), lambda: small_gpt(activation="gelu_tanh", projections="separate")),
    "bert": (
        lambda: transformers.BertModel(transformers.BertConfig(vocab_size=V, max_position_embeddings=11, **BERT_SIZES)),
        lambda: abstract(
            encoder_config(
                n_layers=2, token_types=2, pooler=True, norm_position="post", embedding_norm=True, projections="fused"
            )
        ),
    ),
    "bart": (
        lambda: bart("BartForConditionalGeneration", "BartConfig"),
        lambda: abstract(seq2seq_config(embedding_norm=True, position_offset=2, projections="fused", **POST)),
    ),
    "marian": (
        lambda: bart("MarianMTModel", "MarianConfig", activation_function="swish", scale_embedding=True),
        lambda: abstract(seq2seq_config(positions="sinusoid_blocks", activation="silu", embedding_scale=True, **POST)),
    ),
    "marian of two vocabularies": (
        lambda: bart(
            "MarianMTModel", "MarianConfig", share_encoder_decoder_embeddings=False, decoder_vocab_size=V, scale_embedding=True
        ),
        lambda: abstract(seq2seq_config(positions="sinusoid_blocks", embedding_scale=True, source_vocab_size=V, **POST)),
    ),
    "annotated": (lambda: Annotated(SOURCES), lambda: abstract(annotated_config(source_vocab_size=SOURCES))),
    "torch_attention": (torch_attention, lambda: MultiHeadAttention(block_config(projections="fused"))),
    "torch_attention without biases": (
        lambda: torch_attention(bias=False),
        lambda: MultiHeadAttention(block_config(qkv_bias=False, output_bias=False)),
    ),
    "torch_attention_widths": (
        lambda: torch_attention(kdim=F, vdim=V),
        lambda: MultiHeadAttention(block_config(), cross=True, kdim=F, vdim=V),
    ),
    "torch_encoder": (torch_encoder, lambda: StackOfStates(block_config(n_layers=2))),
    "torch_transformer": (
        lambda: torch.nn.Transformer(D, N, 2, 2, F, batch_first=True),
        lambda: TwoStacksOfStates(block_config(n_layers=2), block_config(n_layers=2)),
    ),
    "translator": (
        lambda: Translator(SOURCES),
        lambda: abstract(translator_config(norm_position="post", stack_norm=True)),
    ),
    "translator with pre-norm": (lambda: Translator(SOURCES, norm_first=True), lambda: abstract(translator_config())),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_state_loads_unfiltered_and_ours_strictly(name):
    make_torch, make_jax = MODELS[name]
    family, theirs, ours = KNOWN[name.split()[0]], make_torch(), excite(make_jax(), seed=1)
    load_torch(theirs, ours, family)
    back = to_jax(theirs.state_dict(), jax.eval_shape(lambda: ours), family)
    assert all(same_bits(*map(np.asarray, both)) for both in zip(jax.tree.leaves(back), jax.tree.leaves(ours), strict=True))
    state = to_torch(back, family, like=theirs.state_dict())
    assert {name: array.tobytes() for name, array in state.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in theirs.state_dict().items()
    }


def check_family(name: str, inputs: tuple[np.ndarray, ...], call_torch, call_jax) -> str:
    """The output and all gradients, in float64; returns what a comparison says of the weights."""
    make_torch, make_jax = MODELS[name]
    family, ours = KNOWN[name.split()[0]], excite(make_jax(), seed=1)
    theirs = load_torch(make_torch(), ours, family).eval()
    says = compare(theirs, ours, inputs, rules=family, checks=("weights",), tier="A")
    theirs = with_exact_tables(theirs.double())
    reference = call_torch(theirs, *map(torch.from_numpy, inputs))
    cotangent = noise(*reference.shape).astype(np.float64)
    (reference * torch.from_numpy(cotangent)).sum().backward()
    with jax.enable_x64(True):

        def loss(model):
            output = call_jax(model, *map(jnp.asarray, inputs))
            return (output * cotangent).sum(), output

        gradients, output = jax.jit(jax.grad(loss, has_aux=True))(to_float64(ours))
        check_float64("output", output, reference)
        found = gradients_to_torch(gradients, family, dict(theirs.named_parameters()))
    wanted = {name: it.grad for name, it in theirs.named_parameters() if it.grad is not None}
    assert set(found) - set(wanted) <= {"final_logits_bias"}
    check_gradients({name: found[name] for name in wanted}, wanted)
    return says.stages[0].says


def with_exact_tables(model: torch.nn.Module) -> torch.nn.Module:
    """Tables of positions that torch rounds to float32, in float64."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(".pe"):
            tensor.copy_(torch.from_numpy(sinusoid(*tensor.shape[-2:])))
        elif not tensor.requires_grad and name.endswith("embed_positions.weight"):
            tensor.copy_(torch.from_numpy(sinusoid_blocks(*tensor.shape)))
    return model


@pytest.mark.parametrize("name", usually(["nanogpt without biases", "mingpt"], "mingpt"))
def test_small_gpts(name):
    says = check_family(name, probe(V, B, T, 3)[:1], lambda model, ids: model(ids), lambda model, ids: model(ids))
    assert "ignored: transformer.h.0.attn.bias, transformer.h.1.attn.bias (the causal mask)" in says


def sequences(sources: int = V) -> tuple[np.ndarray, ...]:
    """Source and target ids, and which source ids are no padding: every row has some."""
    source, valid = probe(sources, B, S, 2)
    return source, probe(V, B, T, 3)[0], valid | ~valid.any(-1, keepdims=True)


def call_seq2seq(model, source, target, valid):
    return model(source, target, source_mask=padding_mask(valid))


OF_BOOKS = ["nanochat", "nanochat whose heads have keys of their own", "raschka", "raschka with biases"]


@pytest.mark.slow
@pytest.mark.parametrize("name", usually(OF_BOOKS, "nanochat", "raschka"))
def test_gpts_to_learn_by(name):
    says = check_family(name, probe(V, B, T, 3)[:1], lambda model, ids: model(ids), lambda model, ids: model(ids))
    assert ("trf_blocks.0.att.mask, trf_blocks.1.att.mask (the causal mask)" in says) == name.startswith("raschka")


@pytest.mark.slow
@pytest.mark.parametrize("name", usually(["bart", "marian", "marian of two vocabularies"], "bart"))
def test_bart_and_marian(name):
    def call_torch(model, source, target, valid):
        return model(source.long(), valid.long(), decoder_input_ids=target.long(), use_cache=False).logits

    says = check_family(name, sequences(), call_torch, call_seq2seq)
    assert ("decoder.embed_positions.weight (sinusoids, frozen)" in says) == (name != "bart")


@pytest.mark.slow
def test_annotated():
    says = check_family("annotated", sequences(SOURCES), lambda model, *inputs: model(*inputs), call_seq2seq)
    assert "ignored: src_embed.1.pe, tgt_embed.1.pe (sinusoids, which the model computes)" in says


@pytest.mark.slow
@pytest.mark.parametrize("name", usually(["translator", "translator with pre-norm"], "translator"))
def test_torchs_transformer_inside_of_a_model(name):
    check_family(name, sequences(SOURCES), lambda model, *inputs: model(*inputs), call_seq2seq)
