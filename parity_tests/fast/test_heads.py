"""Heads of encoders in transformers' folders and models: which one a folder has, other heads on the same encoder."""

import json
import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

import jaxformer as jf
from jaxformer.checkpoints.describe import certify
from jaxformer.checkpoints.written import convert
from jaxformer.errors import CheckpointError, ConfigError, ConversionError
from jaxformer.pytree import named_leaves
from parity_tests.zoo.model_types import BERT, IDS, LABELS

LABELLED = {"head": "sequence_classification", "labels": ("no", "yes")}


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Writes a model of a class of transformers into a folder."""

    def saved(cls, **changes):
        kind = getattr(transformers, cls)
        model = jf.excite(kind(kind.config_class(**BERT | changes)), seed=3)
        folder = tmp_path_factory.mktemp("heads") / "it"
        model.save_pretrained(folder)
        return model, folder

    return saved


def described(folder, **changes):
    """Change config.json; a key that is None is taken out."""
    path = folder / "config.json"
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def test_a_model_in_memory_needs_only_the_types_name(save):
    theirs, folder = save("RobertaForSequenceClassification", **IDS | LABELS)
    ours = jf.load(folder)
    assert ours.config.labels == ("LOC", "PER", "O")
    again = jf.from_torch(theirs, jf.abstract(ours.config), "roberta")
    jax.tree.map(np.testing.assert_array_equal, again, ours)
    state = jf.to_torch(ours, "roberta", like=theirs.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())
    with pytest.raises(ConversionError, match="classifier"):
        jf.from_torch(theirs, jf.abstract(replace(ours.config, head="token_classification", pooler=False)), "roberta")


def test_without_architectures_the_tensors_say_the_head(save):
    for cls, head in (("BertForQuestionAnswering", "question_answering"), ("BertForMaskedLM", "masked_lm")):
        folder = save(cls)[1]
        described(folder, architectures=None)
        assert jf.load(folder).config.head == head


def test_a_head_of_two_tasks_is_not_guessed(save):
    _, folder = save("BertForSequenceClassification")
    for classes in (None, ["BertForMultipleChoice"]):
        described(folder, architectures=classes)
        with pytest.warns(UserWarning, match=r"classifier.bias, classifier.weight of a head for classification are not loaded"):
            assert jf.load(folder).config.head == "none"


@pytest.mark.slow
def test_bert_before_any_task_has_a_head_and_a_pooler(save, tmp_path):
    theirs, folder = save("BertForPreTraining")
    with pytest.warns(UserWarning, match="cls.seq_relationship.bias, .* of a head for next sentences are not loaded"):
        ours = jf.load(folder)
    assert ours.config.head == "masked_lm"
    ids = np.array([[3, 5, 7, 9]])
    with torch.no_grad():
        wanted = theirs.eval().bert(torch.from_numpy(ids)).pooler_output
    np.testing.assert_allclose(ours.pool(ours.encode(ids)), wanted, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = convert(folder, tmp_path / "out", "hf")
    assert "not in it: 2 of the source, of a head for next sentences" in found.said
    assert "LOST" not in found.said


@pytest.mark.slow
def test_a_head_that_is_not_loaded_spoils_no_certificate(save, tmp_path):
    _, folder = save("BertForPreTraining")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = convert(folder, tmp_path / "out", "hf")
    report = certify(found.theirs, found.model, found.files, tmp_path / "parity.json")
    assert report.verdict.startswith("EQUAL"), report.verdict


def test_the_pooler_of_an_older_roberta_is_not_read(save):
    _, folder = save("RobertaForSequenceClassification", **IDS)
    path = folder / "model.safetensors"
    state = safetensors.numpy.load_file(path)
    more = {f"roberta.pooler.dense.{name}": np.ones(shape, np.float32) for name, shape in (("weight", (12, 12)), ("bias", 12))}
    safetensors.numpy.save_file(state | more, path, {"format": "pt"})
    np.testing.assert_array_equal(jf.load(folder).pooler.kernel.T, state["classifier.dense.weight"])


@pytest.mark.slow
def test_a_new_head_keeps_the_encoder(save, tmp_path):
    base = jf.load(save("BertModel")[1])
    config = replace(base.config, **LABELLED)
    tuned = jf.with_head(base, config, rngs=jax.random.key(0))
    drawn = named_leaves(tuned)
    assert {name for name, leaf in named_leaves(base).items() if drawn[name] is not leaf} == set()
    assert {*drawn} - {*named_leaves(base)} == {"head.output.kernel", "head.output.bias"}
    assert tuned(np.array([[3, 4, 5]])).shape == (1, 2)
    jf.save(tuned, tmp_path / "tuned", like="hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned")
    assert theirs.config.id2label == {0: "no", 1: "yes"}
    jax.tree.map(np.testing.assert_array_equal, jf.load(tmp_path / "tuned"), tuned)
    with pytest.raises(ConfigError, match="n_heads = 1 is 3 in the encoder"):
        jf.with_head(base, replace(config, n_heads=1), rngs=jax.random.key(0))


def test_a_head_that_transformers_has_not_is_refused(save, tmp_path):
    base = jf.load(save("BertModel")[1])
    without = jf.with_head(base, replace(base.config, **LABELLED, pooler=False), rngs=jax.random.key(0))
    with pytest.raises(ConversionError, match="has no place for pooler = False"):
        jf.save(without, tmp_path / "it", like="hf")


def test_a_head_that_is_not_tied_is_refused(save):
    _, folder = save("BertForMaskedLM", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="tie_word_embeddings = False is not supported"):
        jf.load(folder)
