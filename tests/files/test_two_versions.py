"""`jaxformer doctor FOLDER`: every finding is there, is gone where its cause is mended, and a sound folder has none."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy

from jaxformer.cli import doctor
from jaxformer.convert.model_type import Field
from jaxformer.convert.registry import MODEL_TYPES
from jaxformer.convert.versions.examine import examine
from jaxformer.convert.versions.tables import FORCED_ENDS

MEASURED = json.loads((Path(__file__).parent / "two_versions.json").read_text("utf-8"))
"""Settings of small models -> whether transformers 4.57.6 and 5.24.0 compute other logits, or one of them refuses them."""
LLAMA = MEASURED["base"]["llama"]
T5 = MEASURED["base"]["t5"] | {"architectures": ["T5ForConditionalGeneration"]}
ROUTER = "model.layers.0.block_sparse_moe.gate.weight"
BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def write(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray] | None = None, **files: Any) -> Path:
    """A folder; each of `files` is the contents of the JSON file of this name, and None leaves it out."""
    folder.mkdir(parents=True)
    for name, value in {"config": config, **files}.items():
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    if tensors:
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def weights(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Tensors of `LLAMA`; None takes one out."""
    layer = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "mlp.up_proj": (40, 32)}
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in layer.items()}
    draw = np.random.default_rng(0)
    state = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    state |= {name: draw.standard_normal((48, 32), np.float32) for name in (TABLE, HEAD)}
    state |= {name.replace("__", "."): it for name, it in changes.items() if it is not None}
    gone = [name.replace("__", ".") for name, it in changes.items() if it is None]
    return {name: it for name, it in state.items() if name not in gone}


def found(folder: Path, *levels: str) -> list[str]:
    return [it.line for it in examine(folder) if it.level in (levels or ("differs", "wrong", "note"))]


@pytest.mark.parametrize("name", MEASURED["base"])
def test_settings_that_were_measured(name, tmp_path):
    """The verdict is the one that both versions gave by computing."""
    cases = [(changes, differs) for kind, changes, differs in MEASURED["cases"] if kind == name]
    assert {differs for _, differs in cases} == {True, False}
    for i, (changes, differs) in enumerate(cases):
        said = found(write(tmp_path / str(i), MEASURED["base"][name] | changes), "differs")
        assert bool(said) == differs, (changes, said)


class Case(NamedTuple):
    """What is wrong with a folder, the line about it, and what mends it."""

    broken: dict[str, Any]
    line: str
    mended: dict[str, Any]
    base: dict[str, Any] = LLAMA


def config(**changes: Any) -> dict[str, Any]:
    return {"config": changes}


VOCABULARY = {
    "model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(48)}},
    "added_tokens": [{"id": 2, "content": "</s>"}],
}
COPY = {"_from_model_config": True, "eos_token_id": 2}
CASES = {
    "a base that 5 wrote": Case(
        config(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
        "differs config.json: rope_parameters.rope_theta with no rope_theta beside it: transformers 4 uses 10000.0, 5 uses "
        "500000.0; write the same into rope_theta",
        config(rope_parameters={"rope_type": "default", "rope_theta": 5e5}, rope_theta=5e5),
    ),
    "a part of a head": Case(
        config(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "differs config.json: rope_parameters.rotary_pct with no rotary_pct beside it: transformers 4 uses 0.25, 5 uses 0.5",
        config(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, rotary_pct=0.5),
        MEASURED["base"]["gpt_neox"],
    ),
    "a scaling that is not read": Case(
        config(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default"}),
        "note    config.json: rope_parameters = {",
        config(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 2.0}),
    ),
    "inside of text_config": Case(
        config(text_config={"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        "differs config.json: text_config.rope_parameters.rope_theta with no rope_theta",
        config(text_config={"model_type": "llama", "rope_theta": 5e5}),
        {"model_type": "llava"},
    ),
    "pruned heads": Case(
        config(pruned_heads={"0": [1]}), 'differs config.json: pruned_heads = {"0": [1]}: ', config(pruned_heads={})
    ),
    "a whole number for a float": Case(
        config(rms_norm_eps=1),
        "differs config.json: rms_norm_eps = 1: transformers 4 takes it, or leaves it to torch, 5 refuses what is no float; "
        "write it with a point, as 1.0",
        config(rms_norm_eps=1.0),
    ),
    "settings beside their copy": Case(
        config(no_repeat_ngram_size=3) | {"generation_config": COPY},
        "differs config.json: no_repeat_ngram_size = 3: transformers 4 generates with 3, 5 generates with 0",
        config(no_repeat_ngram_size=3) | {"generation_config": COPY | {"no_repeat_ngram_size": 3}},
    ),
    "a head that only 4 ties": Case(
        config(tie_word_embeddings=True) | {"tensors": weights()},
        "differs config.json: tie_word_embeddings = true: transformers 4 replaces the head of the files by the embeddings, 5",
        config(tie_word_embeddings=True) | {"tensors": weights(lm_head__weight=weights()[TABLE])},
    ),
    "a head that is not there": Case(
        {"tensors": weights(lm_head__weight=None)},
        "wrong   config.json: tie_word_embeddings = false: each of transformers 4 and 5 draws the head at random",
        config(tie_word_embeddings=True) | {"tensors": weights(lm_head__weight=None)},
    ),
    "logits that only 4 scales": Case(
        config(tie_word_embeddings=True, scale_decoder_outputs=False),
        "differs config.json: tie_word_embeddings = true: transformers 4 multiplies logits by d_model^-0.5, 5 does not scale",
        config(tie_word_embeddings=False, scale_decoder_outputs=False),
        T5,
    ),
    "rounded weights": Case(
        config(dtype="bfloat16") | {"tensors": weights()},
        'differs config.json: dtype = "bfloat16": transformers 4 loads in float32 unless told, 5 loads in bfloat16 and rounds',
        {"tensors": weights()},
    ),
    "half precision": Case(
        config(dtype="float16") | {"tensors": {name: it.astype(np.float16) for name, it in weights().items()}},
        'note    config.json: dtype = "float16": transformers 4 loads in float32 unless told, 5 loads in float16; give',
        {"tensors": weights()},
    ),
    "another vocabulary": Case(
        config(vocab_size=50) | {"tensors": weights()},
        "wrong   config.json: vocab_size = 50, by which model.embed_tokens.weight would be [50, 32] and is [48, 32]",
        {"tensors": weights()},
    ),
    "another width of heads": Case(
        config(head_dim=6) | {"tensors": weights()},
        "wrong   config.json: num_attention_heads = 4, by which model.layers.0.self_attn.q_proj.weight would be [24, 32]",
        config(head_dim=None) | {"tensors": weights()},
    ),
    "too few layers": Case(
        config(num_hidden_layers=1) | {"tensors": weights()},
        "wrong   config.json: num_hidden_layers gives 1 layers of model.layers, and the files have 2: each of "
        "transformers 4 and 5 leaves layers",
        {"tensors": weights()},
    ),
    "a shard that is missing": Case(
        {"model.safetensors.index": {"weight_map": {TABLE: "model-00001-of-00001.safetensors"}}},
        "wrong   weights: files are incomplete or damaged; ",
        {},
    ),
    "an id that no token has": Case(
        config(eos_token_id=[2, 48]), "note    config.json: eos_token_id = [2, 48]: each of", config(eos_token_id=[2, 47])
    ),
    "padding that no token has": Case(
        config(pad_token_id=48), "wrong   config.json: pad_token_id = 48: each of transformers 4 and 5 refuses it", config()
    ),
    "an end that is none": Case(
        {"tokenizer": VOCABULARY, "tokenizer_config": {"eos_token": "t7"}},
        "note    tokenizer_config.json: eos_token has the id 7: each of transformers 4 and 5 ends a text at [2]; add 7 to",
        {"tokenizer": VOCABULARY, "tokenizer_config": {"eos_token": "t7"}, "special_tokens_map": {"eos_token": "</s>"}},
    ),
    "a larger tokenizer": Case(
        config(vocab_size=40) | {"tokenizer": VOCABULARY},
        "wrong   tokenizer.json: model.vocab has 48 tokens, vocab_size = 40",
        {"tokenizer": VOCABULARY},
    ),
    "a class of 5": Case(
        {"tokenizer_config": {"tokenizer_class": "TokenizersBackend"}},
        'differs tokenizer_config.json: tokenizer_class = "TokenizersBackend": transformers 4 knows no such class',
        {"tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast"}},
    ),
    "a list of more tokens": Case(
        {"tokenizer_config": {"extra_special_tokens": ["<a>"]}},
        "differs tokenizer_config.json: extra_special_tokens = ",
        {"tokenizer_config": {"additional_special_tokens": ["<a>"]}},
    ),
    "cleaned texts": Case(
        {"tokenizer": VOCABULARY, "tokenizer_config": {"clean_up_tokenization_spaces": True}},
        "differs tokenizer_config.json: clean_up_tokenization_spaces = true",
        {"tokenizer": VOCABULARY, "tokenizer_config": {"clean_up_tokenization_spaces": False}},
    ),
    "a forced end": Case(
        {},
        "differs config.json: forced_eos_token_id is missing: transformers 4 ends every text with 2, 5 forces no end",
        config(forced_eos_token_id=2),
        {key: value for key, value in MEASURED["base"]["bart"].items() if key != "forced_eos_token_id"},
    ),
    "a type that jaxformer has not": Case(
        config(model_type="xglm"), 'note    config.json: model_type = "xglm"; its own keys are not examined', {}
    ),
    "a model type that is not known": Case(
        config(model_type="lama"),
        'wrong   config.json: model_type = "lama": each of transformers 4 and 5 refuses it; is it llama?',
        config(model_type="lama", auto_map={"AutoModel": "code.Model"}),
    ),
    "a model type of 5": Case(
        config(model_type="gemma4_text"),
        'differs config.json: model_type = "gemma4_text": transformers 4 refuses it, 5 reads it',
        {},
    ),
    "an activation that is not known": Case(
        config(hidden_act="silly"),
        'wrong   config.json: hidden_act = "silly": each of transformers 4 and 5 refuses it',
        config(hidden_act="mish"),
    ),
    "an activation of 5": Case(
        config(hidden_act="hardswish"),
        'differs config.json: hidden_act = "hardswish": transformers 4 refuses it, 5 reads it',
        {},
    ),
    "an activation inside of words": Case(
        config(feed_forward_proj="gated-silly"),
        'wrong   config.json: feed_forward_proj = "gated-silly": each of',
        config(feed_forward_proj="gated-silu"),
        T5,
    ),
    "numbers of no type": Case(
        config(dtype="float33"),
        'wrong   config.json: dtype = "float33": each of transformers 4 and 5 refuses it; is it float32?',
        {},
    ),
    "numbers of no type in the older key": Case(
        config(torch_dtype="float33"),
        'differs config.json: torch_dtype = "float33": transformers 4 refuses it before 4.56,',
        config(torch_dtype="torch.float32"),
    ),
    "heads that do not divide": Case(
        config(num_attention_heads=5) | {"tensors": weights()},
        "wrong   config.json: num_attention_heads = 5, by which model.layers.0.self_attn.q_proj.weight would be [40, 32]",
        {"tensors": weights()},
    ),
    "another number of experts": Case(
        config(num_local_experts=8) | {"tensors": {ROUTER: np.zeros((4, 32), np.float32)}},
        f"wrong   config.json: num_local_experts = 8, by which {ROUTER} would be [8, 32] and is [4, 32]",
        {"tensors": {ROUTER: np.zeros((4, 32), np.float32)}},
        LLAMA | {"model_type": "mixtral", "num_local_experts": 4},
    ),
    "other buckets": Case(
        config(relative_attention_num_buckets=16) | {"tensors": {BIAS: np.zeros((32, T5["num_heads"]), np.float32)}},
        f"wrong   config.json: relative_attention_num_buckets = 16, by which {BIAS} would be [16, ",
        config(relative_attention_num_buckets=32) | {"tensors": {BIAS: np.zeros((32, T5["num_heads"]), np.float32)}},
        T5 | {"num_layers": 1, "num_decoder_layers": 1},
    ),
    "windows of some layers of a Mistral": Case(
        config(layer_types=["full_attention", "sliding_attention"]),
        'differs config.json: layer_types = ["full_attention", "sliding_attention"]: transformers 4 does not read it before',
        config(layer_types=["sliding_attention"] * 2),
        MEASURED["base"]["mistral"] | {"sliding_window": 8},
    ),
    "windows of some layers of a Qwen 2 MoE": Case(
        config(use_sliding_window=True),
        "differs config.json: use_sliding_window = true: transformers 4 has the window in every layer, 5 in",
        config(use_sliding_window=True, layer_types=["sliding_attention"] * 2),
        LLAMA | {"model_type": "qwen2_moe", "sliding_window": 8, "max_window_layers": 2},
    ),
    "a key that is not known": Case(
        config(rotary_style="x"), 'note    config.json: model_type = "llama"; jaxformer does not load it: ', {}
    ),
}


def build(folder: Path, case: Case, parts: dict[str, Any]) -> Path:
    return write(folder, **{**parts, "config": case.base | parts.get("config", {})})


@pytest.mark.parametrize("name", CASES)
def test_a_finding_and_its_remedy(name, tmp_path):
    case = CASES[name]
    broken, mended = found(build(tmp_path / "a", case, case.broken)), found(build(tmp_path / "b", case, case.mended))
    assert [line for line in broken if line.startswith(case.line)], broken
    start = case.line[: case.line.index(" ", 20)]
    assert [line for line in mended if line.startswith(start)] == []


NEWER = ("gemma4_text", "glm4_moe_lite", "minicpm3", "nanochat", "nomic_bert", "youtu")
FINDINGS_OF_DEFAULTS = {name: ["differs config.json"] for name in (*NEWER, "persimmon")}
"""Of types that transformers 4 does not know, and of Persimmon, whose base it has otherwise."""


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_default_settings_have_no_finding(name, tmp_path):
    """Those of jaxformer's table, which are transformers'."""
    keys = {key: it.default for key, it in MODEL_TYPES[name].keys.items() if isinstance(it, Field) and it.default is not None}
    ends = {"forced_eos_token_id": FORCED_ENDS[name]} if name in FORCED_ENDS else {}
    lines = found(write(tmp_path / "it", {"model_type": name} | keys | ends), "differs", "wrong")
    assert [line.partition(":")[0] for line in lines] == FINDINGS_OF_DEFAULTS.get(name, [])


@pytest.mark.torch
@pytest.mark.parametrize("name", MODEL_TYPES)
def test_what_transformers_5_writes(name, tmp_path):
    """mT5's logits are scaled by 4 where 5 writes that the head is tied, and the base of OLMo 3, Cohere and Persimmon is
    another to 4, which does not read rope_parameters; default tokens of Arcee and StarCoder2 are beyond their
    default vocabularies."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    CONFIG_MAPPING[name]().save_pretrained(tmp_path / "it")
    ends = {"forced_eos_token_id": FORCED_ENDS[name]} if name in FORCED_ENDS else {}
    path = tmp_path / "it/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ends))
    lines = found(tmp_path / "it", "differs", "wrong")
    wrong = {"mt5": ["differs config.json"], "olmo3": ["differs config.json"] * 2, "cohere": ["differs config.json"]}
    wrong |= FINDINGS_OF_DEFAULTS | {"gemma4_text": ["differs config.json"] * 2}  # per_layer_config too
    assert [line.partition(":")[0] for line in lines] == wrong.get(name, [])


def test_the_command(tmp_path, capsys):
    theta = {"rope_type": "default", "rope_theta": 100.0}
    folder = write(tmp_path / "it", LLAMA | {"rope_parameters": theta})
    assert doctor.main([str(folder), "--json", str(tmp_path / "it.json")]) == 1
    report, line, verdict = capsys.readouterr().out.splitlines()
    assert report == f"report {tmp_path / 'it.json'}"
    assert line.startswith("differs config.json: rope_parameters.rope_theta with no rope_theta beside it")
    assert verdict == "DIFFERENT: 1 read differently by transformers 4 and 5, 0 wrong in both"
    saved = json.loads((tmp_path / "it.json").read_text())
    assert (saved["status"], saved["verdict"]) == ("different", verdict)
    assert [(it["level"], it["key"]) for it in saved["findings"]] == [("differs", "rope_parameters.rope_theta")]
    assert doctor.main([str(write(tmp_path / "same", LLAMA))]) == 0
    assert capsys.readouterr().out.startswith("EQUAL: ")


REFUSED = {
    "": "it is empty; give a path",
    "missing": "missing is not there; give a folder with a config.json",
    "empty": "empty has no config.json; give a folder that transformers wrote",
    "broken": "broken/config.json cannot be read: Expecting",
    "list": "list/config.json holds no object: [1]; it should begin with a brace",
    "run": "run/config.json has no model_type; give a folder that transformers wrote",
    "broken/config.json": "config.json is a file; give the folder that it is in",
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_folder_of_transformers(name, tmp_path, refusal):
    (tmp_path / "empty").mkdir()
    for kind, text in {"broken": "{", "list": "[1]", "run": '{"recipe": "qa"}'}.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(text)
    assert REFUSED[name] in refusal(doctor.main, [str(tmp_path / name) if name else ""])


def test_flags_that_belong_apart(tmp_path, refusal):
    assert "--json is of the findings about a folder" in refusal(doctor.main, ["--json", "x.json"])
    assert "--measure is of the machine" in refusal(doctor.main, [str(tmp_path), "--measure"])


def test_a_damaged_header(tmp_path):
    folder = write(tmp_path / "it", LLAMA, weights())
    (folder / "model.safetensors").write_bytes(b"\xff" * 40)
    assert found(folder, "wrong")[0].startswith("wrong   weights: files are incomplete or damaged; ")


JUNK = (None, True, 0, -1, 1e9, "x", [], [1], {}, {"a": 1}, {"rope_type": ["x"]}, {"full_attention": 3}, {"vocab": [1, ["a"]]})


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_values_of_any_kind_end_in_no_traceback(junk, tmp_path):
    files = ("generation_config", "tokenizer", "tokenizer_config", "special_tokens_map")
    keys = ("eos_token_id", "_from_model_config", "num_beams", "model", "added_tokens", "eos_token", "extra_special_tokens")
    names = [*LLAMA, "rope_parameters", "rope_scaling", "rope_theta", "layer_types", "text_config", "pruned_heads"]
    for i, name in enumerate(name for name in names if name != "model_type"):
        folder = write(tmp_path / str(i), LLAMA | {name: junk}, weights(), **{it: dict.fromkeys(keys, junk) for it in files})
        assert all("\n" not in line for line in found(folder))


def test_it_loads_neither_jax_nor_torch(tmp_path):
    folder = write(tmp_path / "it", LLAMA, weights())
    code = f"import sys; from jaxformer.cli import doctor; doctor.main([{str(folder)!r}])"
    code += "; print({'jax', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
