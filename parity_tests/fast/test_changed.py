"""Changed configurations are judged right: equal, refused, no model of transformers, or wrong where a key is read wrongly."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.changed import NAMES, change, judge, run
from jaxformer.convert.model_type import ACTIVATIONS, Field
from jaxformer.convert.registry import MODEL_TYPES

RELU = {"activation_function": "relu"}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [(RELU, "equal"), ({"activation_function": "relu6"}, "refused"), ({"n_embd": 13}, "no model")],
)
def test_verdicts(changes, verdict, tmp_path):
    assert judge("gpt2, untied", changes, tmp_path / "it").verdict == verdict


def test_a_key_that_is_read_wrongly_is_noticed(monkeypatch, tmp_path):
    kind = MODEL_TYPES["gpt2"]
    gelu = Field("activation", "gelu_new", ACTIVATIONS | {"relu": "gelu"})
    monkeypatch.setitem(MODEL_TYPES, "gpt2", replace(kind, keys={**kind.keys, "activation_function": gelu}))
    assert judge("gpt2, untied", RELU, tmp_path / "it").verdict == "wrong"


def test_every_case_has_keys_to_change():
    for name in NAMES:
        assert 1 <= len(change(name, np.random.default_rng(0))) <= 2


@pytest.mark.slow
def test_none_of_some_is_wrong():
    found = run(40, seed=7)
    assert found["equal"] > 10
    assert found["wrong"] == 0
