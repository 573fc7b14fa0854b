"""What lies between a model's layers, and what its layers look at, against transformers' `output_hidden_states` and
`output_attentions`, at positions of one's own; an encoder-decoder against its twin and its own layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import torch_ref.models as torch_models
from jaxformer.convert.families.bert_kin.bert import BERT
from jaxformer.convert.families.gpt2 import GPT2
from jaxformer.convert.rules import to_jax
from jaxformer.evaluation.ladder import adversarial_inputs, load_torch
from jaxformer.models import EncoderDecoder, abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import B, D, F, K, L, N, V, bias_per_head, encoder_config, gpt_config, seq2seq_config

T = 11
IDS = np.random.default_rng(0).integers(0, V, (B, T), np.int32)
PLACES = np.random.default_rng(1).permuted(np.tile(np.arange(T, dtype=np.int32), (B, 1)), axis=1)


def gpt2():
    sizes = {"vocab_size": V, "n_positions": T, "n_embd": D, "n_layer": L, "n_head": N, "n_inner": F}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    theirs = excite(transformers.GPT2LMHeadModel(config).eval(), seed=1).double()
    like = abstract(gpt_config(projections="fused", tied=True, activation="gelu_tanh", layers="rolled"))
    return (
        theirs.transformer,
        to_jax(dict(theirs.named_parameters()), to_float64(excite(like, seed=2)), GPT2),
        torch_models.GPT(like.config),
    )


def bert():
    sizes = {"vocab_size": V, "max_position_embeddings": T, "hidden_size": D, "num_hidden_layers": L}
    config = transformers.BertConfig(**sizes, num_attention_heads=N, intermediate_size=F, attn_implementation="eager")
    theirs = excite(transformers.BertModel(config).eval(), seed=1).double()
    changes = {"norm_position": "post", "norm_epsilon": 1e-12, "embedding_norm": True, "token_types": 2, "pooler": True}
    like = abstract(encoder_config(**changes))
    return (
        theirs,
        to_jax(dict(theirs.named_parameters()), to_float64(excite(like, seed=2)), BERT),
        torch_models.Encoder(like.config),
    )


@pytest.fixture(scope="module", params=[gpt2, bert], ids=["gpt2", "bert"])
def found(request):
    """transformers' hidden states and attention weights, ours, and the twin's."""
    with jax.enable_x64(True), torch.no_grad():
        theirs, model, twin = request.param()
        ids, places = torch.from_numpy(IDS).long(), torch.from_numpy(PLACES).long()
        said = theirs(input_ids=ids, position_ids=places, output_hidden_states=True, output_attentions=True)
        twin = load_torch(twin.double(), model).eval()

        @jax.jit
        def ours(model, ids, positions):
            weights = model.attention_weights(ids, positions=positions)
            return {"hidden_states": model.hidden_states(ids, positions=positions), "attentions": weights}

        states = twin.hidden_states(ids, positions=places)
        twins = {"hidden_states": states, "attentions": twin.attention_weights(ids, positions=places)}
        return said, ours(model, IDS, PLACES), twins


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("what", ["hidden_states", "attentions"])
def test_equal_to_transformers(found, what):
    said, ours, twins = found
    reference = torch.stack(getattr(said, what))
    check_float64("jax", ours[what], reference)
    check_float64("torch", twins[what], reference)


@pytest.mark.usefixtures("float64")
def test_an_encoder_decoder_gives_those_of_both_stacks():
    config = seq2seq_config(n_kv_heads=K, position_offset=2)
    model = to_float64(excite(abstract(config), seed=6))
    twin = load_torch(torch_models.EncoderDecoder(config).double(), model).eval()
    source, valid, target, _ = adversarial_inputs(config, B, T, seed=7)
    t = target.shape[1]
    biases = {"source_bias": (1, T, T), "target_bias": (B, t, t), "memory_bias": (1, t, T)}
    given = {"source_mask": valid[:, None, None]} | {name: bias_per_head(*shape) for name, shape in biases.items()}
    ours = jax.jit(EncoderDecoder.hidden_states)(model, source, target, **jax.tree.map(jnp.asarray, given))
    given = {name: torch.from_numpy(array) for name, array in given.items()}
    with torch.no_grad():
        theirs = twin.hidden_states(torch.from_numpy(source), torch.from_numpy(target), **given)
        logits = twin(torch.from_numpy(source), torch.from_numpy(target), **given)
        memory = twin.encode(torch.from_numpy(source), mask=given["source_mask"], bias=given["source_bias"])
        layer = twin.encoder[1](theirs.encoder[1], given["source_mask"], bias=given["source_bias"])
    assert (len(theirs.encoder), len(theirs.decoder)) == (config.n_layers + 1, config.decoder.n_layers + 1)
    check_float64("the source's", ours.encoder, theirs.encoder)
    check_float64("the target's", ours.decoder, theirs.decoder)
    check_float64("the memory", ours.encoder[-1], memory)
    check_float64("the second layer", ours.encoder[2], layer)
    check_float64("the logits", twin.head(theirs.decoder[-1], twin.embed.token), logits)
