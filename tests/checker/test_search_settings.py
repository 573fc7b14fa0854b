"""Settings of generation_config.json: whatever could change a text is read, or named in one line; the rest is silent."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from jaxformer.checkpoints.texts import read_ids
from jaxformer.cli.generate import Generate
from jaxformer.cli.translate import Translate

GPT, PAIRS = {"model_type": "gpt2"}, {"model_type": "marian", "is_encoder_decoder": True}
GPT_2 = {"_from_model_config": True, "bos_token_id": 50256, "eos_token_id": 50256, "transformers_version": "4.26.0.dev0"}
LLAMA_3 = {"bos_token_id": 128000, "eos_token_id": [128001, 128009], "do_sample": True, "temperature": 0.6, "top_p": 0.9}
LLAMA_3 |= {"max_length": 4096, "transformers_version": "4.40.0"}
T5 = {"_from_model_config": True, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
MARIAN = {"bad_words_ids": [[58100]], "bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0}
MARIAN |= {"forced_eos_token_id": 0, "max_length": 512, "num_beams": 4, "pad_token_id": 58100, "renormalize_logits": True}
DEFAULTS = {"do_sample": False, "min_length": 0, "num_beams": 1, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
DEFAULTS |= {"repetition_penalty": 1.0, "length_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "output_scores": False}
DEFAULTS |= {"diversity_penalty": 0.0, "num_return_sequences": 1, "typical_p": 1.0, "use_cache": True}
GREEDY, DRAWN, SEARCHED = Generate(folder=Path(), temperature=0.0), Generate(folder=Path()), Translate(folder=Path())


def told(folder, config, settings, chosen=None) -> str:
    """What is said of a folder, after its name."""
    (folder / "config.json").write_text(json.dumps(config))
    if settings is not None:
        (folder / "generation_config.json").write_text(json.dumps(settings))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_ids(folder, chosen or {})
    return "; ".join(str(it.message).removeprefix(f"{folder}: ") for it in caught)


def of_generation(listed: str) -> str:
    return listed and f"{listed} of its generation_config.json: not read here, so texts may differ"


@pytest.mark.parametrize(
    ("config", "settings", "chosen", "listed"),
    [
        (GPT, GPT_2, DRAWN.chosen, ""),
        (GPT, DEFAULTS, DRAWN.chosen, ""),
        (PAIRS, T5, {}, ""),
        (GPT, LLAMA_3, DRAWN.chosen, "temperature = 0.6, top_p = 0.9"),
        (GPT, LLAMA_3, replace(DRAWN, top_p=0.5).chosen, "temperature = 0.6"),
        (GPT, LLAMA_3, GREEDY.chosen, ""),
        (PAIRS, LLAMA_3, {}, "eos_token_id = [128001, 128009], do_sample = True, temperature = 0.6, top_p = 0.9"),
        (PAIRS, MARIAN, {}, "num_beams = 4, renormalize_logits = True"),
        (PAIRS, MARIAN, replace(SEARCHED, beam=4).chosen, "renormalize_logits = True"),
        (PAIRS, {"num_beams": 5, "length_penalty": 0.0}, SEARCHED.chosen, "length_penalty = 0.0"),
        (PAIRS, {"num_beams": 5, "early_stopping": "never"}, SEARCHED.chosen, "early_stopping = 'never'"),
        (PAIRS, {"num_beams": 5, "early_stopping": True}, SEARCHED.chosen, ""),
    ],
)
def test_settings_of_real_models(config, settings, chosen, listed, tmp_path):
    assert told(tmp_path, config, settings, chosen) == of_generation(listed)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("repetition_penalty", 5.0, "5.0"),
        ("bad_words_ids", [[4], [408, 50]], "[[408, 50]]"),
        ("forced_eos_token_id", [1, 2], "[1, 2]"),
        ("stop_strings", ["."], "['.']"),
        ("penalty_alpha", 0.6, "0.6"),
        ("min_length", 5, "5"),
        ("what_comes_next_year", 1, "1"),
    ],
)
def test_a_setting_that_changes_a_text_is_named(name, value, shown, tmp_path):
    assert told(tmp_path, GPT, {name: value}, GREEDY.chosen) == of_generation(f"{name} = {shown}")


def test_a_bad_word_that_is_an_end_is_none(tmp_path):
    """As in transformers: a text would have no end."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "bad_words_ids": [[3], [4], [5, 6]]}))
    with pytest.warns(UserWarning, match=r"bad_words_ids = \[\[5, 6\]\] of"):
        assert read_ids(tmp_path).rules["suppressed"] == (4,)


def test_without_the_file_those_of_config_json_count(tmp_path):
    said = told(tmp_path, {**PAIRS, "num_beams": 6, "d_model": 512}, None)
    assert said == "num_beams = 6 of its config.json: not read here, so texts may differ"


def test_beside_the_file_those_of_config_json_count_no_more(tmp_path):
    """As in transformers; ids do, which older files lack."""
    (tmp_path / "config.json").write_text(json.dumps({**PAIRS, "forced_bos_token_id": 7, "pad_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"no_repeat_ngram_size": None}))
    found = read_ids(tmp_path)
    assert (found.rules["forced"], found.pad) == ((), 5)
