"""A model may be called without jit: from its second call on, nothing is traced and nothing compiled."""

from collections.abc import Callable, Iterator

import jax
import jax.monitoring
import numpy as np
import pytest

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.models import Model, build
from jaxformer.nn import empty_cache
from parity_tests.support.helpers import usually
from tests.tiny import quick_key

SIZES = {"vocab_size": 7, "context": 5, "d_model": 4, "n_layers": 2, "n_heads": 2, "d_ff": 6, "residual_dropout": 0.1}
IDS = np.array([[1, 2, 3]], np.int32)
CONFIGS = {
    "gpt": GPTConfig(**SIZES),
    "gpt, rematerialised": GPTConfig(**SIZES, remat=True),
    "encoder": EncoderConfig(**SIZES),
    "seq2seq": EncoderDecoderConfig(**SIZES),
}
CALLS: dict[str, tuple[str, Callable[..., object]]] = {
    "gpt": ("gpt", lambda model: model(IDS)),
    "rematerialised": ("gpt, rematerialised", lambda model: model(IDS)),
    "dropout": ("gpt", lambda model: model(IDS, key=quick_key(1))),
    "gradient": ("gpt", jax.grad(lambda model: model(IDS).sum())),
    "cache": ("gpt", lambda model: model.extend(IDS, empty_cache(model, 1, 5))),
    "maps": ("gpt", lambda model: model.attention_weights(IDS)),
    "hidden states": ("gpt", lambda model: model.hidden_states(IDS)),
    "encoder": ("encoder", lambda model: model(IDS)),
    "encode and decode": ("seq2seq", lambda model: model(IDS, IDS[:, 1:])),
    "remember": ("seq2seq", lambda model: model.decode(IDS[:, 1:], model.remember(model.encode(IDS)))),
}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: build(config, rngs=quick_key(0)) for name, config in CONFIGS.items()}


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """What JAX traces, lowers and compiles."""
    events: list[str] = []

    def note(event: str, seconds: float, **_: object) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.jit(lambda x: x + 1)(1)
    assert any("compile" in event for event in events)
    yield events
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.slow
@pytest.mark.parametrize("name", usually(CALLS, "rematerialised", "gradient", "cache", "encoder", "remember"))
def test_the_second_call_compiles_nothing(name, models, compiled):
    kind, call = CALLS[name]
    call(models[kind])
    compiled.clear()
    call(models[kind])
    assert not compiled
