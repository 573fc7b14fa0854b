"""What any model refuses on both sides, in one line: ids, masks, positions, memories and caches that do not fit together."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models
import torch_ref.nn.cache
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.errors import InputError
from jaxformer.models import abstract
from jaxformer.nn.cache import empty_cache
from jaxformer.parity.probe import excite

V, CONTEXT = 11, 8
SIZES = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16, "vocab_size": V, "context": CONTEXT}
GPT = GPTConfig(**SIZES)
ENCODER = EncoderConfig(**SIZES, token_types=3)
PLAIN_ENCODER = replace(ENCODER, token_types=0)
SEQUENCES = EncoderDecoderConfig(**SIZES, source_vocab_size=13, n_decoder_layers=3)
SIDES: dict[str, tuple[Callable, Callable, Callable]] = {
    "jax": (lambda config: excite(abstract(config), seed=0), jnp.asarray, empty_cache),
    "torch": (torch_ref.models.build, torch.from_numpy, torch_ref.nn.cache.empty_cache),
}
sides = pytest.mark.parametrize(("of", "array", "empty"), SIDES.values(), ids=SIDES)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.int32)


def seen(*shape: int, dtype: type = bool) -> np.ndarray:
    return np.ones(shape, dtype)


def ids_up_to(largest: int) -> np.ndarray:
    return np.array([[0, 1, 2, 0], [0, 1, largest, 0]], np.int32)


REFUSED = {
    "a source longer than the table": (SEQUENCES, (ones(2, 9), ones(2, 4)), {}, "source: length 9; give between 1 and 8,"),
    "a target longer than the table": (SEQUENCES, (ones(2, 4), ones(2, 9)), {}, "target: length 9; give between 1 and 8,"),
    "a source longer than its own table": (
        replace(SEQUENCES, source_context=5),
        (ones(2, 6), ones(2, 4)),
        {},
        "source: length 6; give between 1 and 5,",
    ),
    "a source id": (SEQUENCES, (ids_up_to(13), ones(2, 4)), {}, "source[1, 2] = 13 is out of range; give ids from 0 to 12"),
    "a target id": (SEQUENCES, (ids_up_to(12), ids_up_to(11)), {}, "target[1, 2] = 11 is out of range; give ids from 0 to 10"),
    "a negative source id": (SEQUENCES, (ids_up_to(-1), ones(2, 4)), {}, "source[1, 2] = -1 is out of range;"),
    "a source of floats": (SEQUENCES, (ones(2, 4).astype(np.float32), ones(2, 4)), {}, "source: type "),
    "a target of rank 1": (SEQUENCES, (ones(2, 4), ones(4)), {}, "target: shape (4,); give ids of shape (batch, length)"),
    "more targets than sources": (
        SEQUENCES,
        (ones(2, 4), ones(3, 4)),
        {},
        "target has 3 rows and its memory 2; give one source to each target",
    ),
    "one source for all": (SEQUENCES, (ones(1, 4), ones(3, 4)), {}, "target has 3 rows and its memory 1;"),
    "an encoder's id": (ENCODER, (ids_up_to(11),), {}, "tokens[1, 2] = 11 is out of range; give ids from 0 to 10"),
    "an encoder's length": (ENCODER, (ones(2, 9),), {}, "tokens: length 9; give between 1 and 8,"),
    "a token type": (ENCODER, (ones(2, 4),), {"token_types": ids_up_to(3)}, "token_types[1, 2] = 3 is out of range;"),
    "token types of another length": (
        ENCODER,
        (ones(2, 4),),
        {"token_types": ones(2, 1)},
        "token_types have shape (2, 1), tokens (2, 4); give a type to each token",
    ),
    "token types for one row": (ENCODER, (ones(2, 4),), {"token_types": ones(1, 4)}, "token_types have shape (1, 4), tokens"),
    "positions of another length": (
        GPT,
        (ones(2, 4),),
        {"positions": ones(2, 3)},
        "positions: shape (2, 3); give (2, 4), or (1, 4) for all rows",
    ),
    "positions of rank 1": (ENCODER, (ones(2, 4),), {"positions": ones(4)}, "positions: shape (4,); give (2, 4)"),
    "positions out of range": (
        ENCODER,
        (ones(2, 4),),
        {"positions": np.array([[0, 1, 2, 8]], np.int32)},
        "positions[0, 3] = 8 is out of range; give 0 to 7",
    ),
    "positions that are no integers": (GPT, (ones(2, 4),), {"positions": seen(1, 4)}, "positions: type "),
    "token types without a table": (
        PLAIN_ENCODER,
        (ones(2, 4),),
        {"token_types": ones(2, 4)},
        "this encoder has no token types; build it with token_types = 2, or give none",
    ),
}


def said(call: Callable[[], object]) -> str:
    """The one line that refuses a call."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.first(20)
@pytest.mark.parametrize("name", REFUSED)
@sides
def test_every_model_refuses(of, array, empty, name, untyped):
    config, tokens, rest, wanted = REFUSED[name]
    built, keywords = of(config), {keyword: array(value) for keyword, value in rest.items()}
    assert said(lambda: built(*map(array, tokens), **keywords)).startswith(wanted)


MASKED = {
    "gpt": (GPT, (ones(2, 4),), "mask", "mask", (2, 2, 4, 4)),
    "encoder": (ENCODER, (ones(2, 4),), "mask", "mask", (2, 2, 4, 4)),
    "source": (SEQUENCES, (ones(2, 5), ones(2, 4)), "source_mask", "source mask", (2, 2, 5, 5)),
    "target": (SEQUENCES, (ones(2, 5), ones(2, 4)), "target_mask", "target mask", (2, 2, 4, 4)),
}
NO_MASKS = {
    "rank 2": (2, 4),
    "rank 3": (2, 4, 4),
    "rank 5": (1, 2, 2, 4, 4),
    "another batch": (3, 1, 1, 4),
    "as many heads as tokens": (2, 4, 1, 4),
    "heads and batch exchanged": (1, 3, 1, 4),
    "fewer keys": (2, 1, 1, 3),
    "more keys": (2, 1, 1, 9),
    "fewer queries": (2, 1, 3, 4),
    "more queries": (2, 1, 9, 4),
    "keys where queries are": (2, 1, 6, 1),
    "no keys": (2, 1, 1, 0),
}
NO_BOOLEANS = {"numbers to add": np.float32, "ones and zeros": np.int32, "bytes": np.uint8}


@pytest.mark.parametrize("model", MASKED)
@sides
def test_masks_of_another_shape(of, array, empty, model):
    config, tokens, keyword, name, wanted = MASKED[model]
    built, tokens = of(config), tuple(map(array, tokens))
    for shape in NO_MASKS.values():
        message = said(lambda shape=shape: built(*tokens, **{keyword: array(seen(*shape))}))
        assert message.startswith(
            f"{name} has shape {shape}; give {wanted} (batch, heads, queries, keys), or 1 for any of them"
        )


@pytest.mark.parametrize("model", MASKED)
@pytest.mark.parametrize("dtype", NO_BOOLEANS.values(), ids=NO_BOOLEANS)
@sides
def test_masks_that_are_no_booleans(of, array, empty, dtype, model, untyped):
    """Our own types refuse these too while tests run, so that the JAX models are called as users call them: unchecked."""
    config, tokens, keyword, name, wanted = MASKED[model]
    built, mask = of(config), array(seen(*wanted, dtype=dtype))
    message = said(lambda: built(*map(array, tokens), **{keyword: mask}))
    assert message.startswith(f"{name} is of type ")
    assert "; give booleans, True = may attend: `mask == " in message


@sides
def test_a_mask_that_fits_the_source_alone_is_refused_for_the_memory(of, array, empty):
    """One query's row is read by both stacks, a matrix `S S` by the encoder alone."""
    built = of(SEQUENCES)
    message = said(lambda: built(array(ones(2, 5)), array(ones(2, 4)), source_mask=array(seen(2, 1, 5, 5))))
    assert message.startswith("source mask has shape (2, 1, 5, 5); give (2, 2, 1, 5)")


@sides
def test_a_memory_of_another_width(of, array, empty, untyped):
    built, target = of(SEQUENCES), array(ones(2, 4))
    memory = built.encode(array(ones(2, 5)))
    width = memory.shape[-1]
    assert said(lambda: built.decode(target, memory[..., 1:])) == (
        f"memory: shape (2, 5, {width - 1}); give what encode returns, (batch, length, {width})"
    )
    assert said(lambda: built.decode(target, None)).startswith("memory: shape (); give what encode returns")


def test_lists(untyped):
    built, ids = excite(abstract(SEQUENCES), seed=0), [[1, 2], [3, 4]]
    assert np.array_equal(built(ids, ids), built(np.array(ids), np.array(ids)))
    assert (
        said(lambda: built([[1, 2], [3]], ids)) == "rows of ids have different lengths; pad them to one, and mask the padding"
    )
    assert said(lambda: built(ids, ids, source_mask=[[[[True, True]]]])) == (
        "source mask is a list; give an array of booleans, True = may attend"
    )


@sides
def test_no_pooler(of, array, empty):
    built = of(ENCODER)
    assert said(lambda: built.pool(built(array(ones(2, 4))))) == "this encoder has no pooler; build it with pooler = True"


@sides
def test_a_cache_of_another_depth(of, array, empty):
    """JAX would write the third layer over the second one without a word."""
    built, source = of(SEQUENCES), array(ones(2, 4))
    memory = built.encode(source)
    message = said(lambda: built.extend(source, empty(replace(SEQUENCES, n_decoder_layers=2), 2, CONTEXT), memory))
    assert message == "the cache is made for 2 layers, the stack has 3; make it from the stack's configuration"
    assert built.extend(source, empty(SEQUENCES, 2, CONTEXT), memory)[1].length == 4


def narrowed(model):
    """The model in bfloat16."""
    if isinstance(model, torch.nn.Module):
        return model.bfloat16()
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)


@pytest.mark.parametrize("config", [GPT, SEQUENCES], ids=["gpt", "encoder-decoder"])
@sides
def test_a_cache_has_the_models_type(of, array, empty, config):
    layers = empty(narrowed(of(config)), 2, CONTEXT).layers
    stores = [store for layer in layers for store in (layer.keys, layer.values)]
    assert {str(store.dtype).removeprefix("torch.") for store in stores} == {"bfloat16"}


@sides
def test_a_cache_of_what_has_no_configuration(of, array, empty, untyped):
    stack = of(GPT).stack
    assert said(lambda: empty(stack, 2, CONTEXT)) == (
        "a Stack has no configuration to make a cache by; give a model, or a configuration"
    )


@sides
def test_a_cache_of_another_type(of, array, empty):
    """What it holds would be narrowed, or widened, without a word."""
    built, tokens = narrowed(of(GPT)), array(ones(2, 4))
    kind = "torch." if isinstance(built, torch.nn.Module) else ""
    assert said(lambda: built.extend(tokens, empty(GPT, 2, CONTEXT))) == (
        f"the cache is of type {kind}float32, the keys and values of type {kind}bfloat16; "
        "make it with empty_cache(model, ...), or with dtype = bfloat16"
    )
    assert built.extend(tokens, empty(built, 2, CONTEXT))[1].length == 4


@sides
def test_a_cache_of_another_batch(of, array, empty):
    built, tokens = of(GPT), array(ones(2, 4))
    message = said(lambda: built.extend(tokens, empty(GPT, 3, CONTEXT)))
    assert message == "the cache holds 3 sequences, 2 are given; make it for as many"


@sides
def test_more_targets_than_the_cache_takes(of, array, empty):
    built, source = of(SEQUENCES), array(ones(2, 4))
    message = said(lambda: built.extend(source, empty(SEQUENCES.decoder, 2, 3), built.encode(source)))
    assert message == "the cache holds 0 tokens and 4 more exceed its 3"


@sides
def test_more_tokens_than_the_context_takes(of, array, empty):
    built, tokens = of(GPT), array(ones(2, CONTEXT))
    _, cache = built.extend(tokens, empty(GPT, 2, 2 * CONTEXT))
    message = said(lambda: built.extend(tokens[:, :1], cache))
    assert message == f"the cache holds {CONTEXT} tokens and 1 more exceed the model's context of {CONTEXT}"
