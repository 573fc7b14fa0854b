"""`jaxformer convert`, `info`, `generate` and `translate` on folders of transformers': what it loads, and what it writes."""

import json
import shutil
import sys
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import pytest
import tokenizers
import torch
import transformers

import jaxformer as jf
from jaxformer.checkpoints import describe
from jaxformer.checkpoints.describe import certify, original
from jaxformer.checkpoints.opened import open_path
from jaxformer.checkpoints.texts import read_ids, read_tokenizer
from jaxformer.checkpoints.written import round_trip
from jaxformer.cli.generate import Generate, write_text
from jaxformer.cli.main import dispatch
from jaxformer.convert.safetensors import save_weights
from jaxformer.errors import CheckpointError, InputError, MissingPackageError, shown
from jaxformer.runs.folder import RunFolder

TEXTS = ["Ein Mann fährt Fahrrad.", "A man rides a bike.", "Zwei Hunde laufen."]
CHARACTERS = "\n abcdefgh"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer of transformers', without a template around texts."""
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    jf.Tokenizer.train_bpe(TEXTS, 270).save(path)
    described = json.loads(path.read_text()) | {"post_processor": None}
    path.write_text(json.dumps(described))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="<pad>", eos_token="</s>")


@pytest.fixture(scope="module")
def gpt2(words, tmp_path_factory):
    """A folder as transformers writes it."""
    sizes = {"n_positions": 64, "n_embd": 12, "n_layer": 2, "n_head": 3}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(words) + 3, **sizes, **ids))
    folder = tmp_path_factory.mktemp("gpt2") / "theirs"
    jf.excite(model, seed=3).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bart(words, tmp_path_factory):
    sizes = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 64, "vocab_size": len(words)}
    sizes |= {f"{stack}_attention_heads": 3 for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_ffn_dim": 20 for stack in ("encoder", "decoder")}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
    model = jf.excite(transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **ids)), seed=4)
    model.generation_config.no_repeat_ngram_size = 2
    folder = tmp_path_factory.mktemp("bart") / "theirs"
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def run(capsys, *arguments) -> tuple[int | None, list[str]]:
    """The exit code, and the lines on stdout."""
    code = dispatch([str(it) for it in arguments])
    return code, capsys.readouterr().out.splitlines()


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_comes_back_bit_for_bit_with_a_certificate(gpt2, tmp_path, capsys):
    code, lines = run(capsys, "convert", gpt2, tmp_path / "it", "--to", "hf", "--verify")
    assert code == 0
    assert any(
        line.split() == ["transformer.h.{layer}.mlp.c_fc.bias", "[48]", "float32", "layers", "0", "to", "1"] for line in lines
    )
    assert "round trip: 28 tensors, read again bit for bit; 28 are the source's, name and bits" in lines
    assert lines[-1].startswith("verdict: EQUAL: weights, forward, gradients, float32 (tier B); written into")
    written, wanted = bytes_of(tmp_path / "it"), bytes_of(gpt2)
    found = json.loads(written.pop("parity.json"))
    assert {name: json.loads(it) if name == "config.json" else it for name, it in written.items()} == {
        name: json.loads(it) if name == "config.json" else it for name, it in wanted.items()
    }
    assert found["torch"]["model.safetensors"] == found["jax"]["model.safetensors"]
    assert {*found["torch"]} == {"config.json", "model.safetensors"} < {*found["jax"]} == {*written}
    assert {"jaxformer", "transformers", "torch", "jax", "numpy"} <= {*found["versions"]}
    assert [check["status"] for check in found["checks"]] == ["equal"] * 4

    _, lines = run(capsys, "info", tmp_path / "it", "--tensors")
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert shown["family"] == "gpt2, of transformers"
    assert shown["certificate"].endswith(f"beside transformers {transformers.__version__}; its files are unchanged")
    damages = {"config.json": (b"gelu_new", b"relu"), "model.safetensors": (written["model.safetensors"][-4:], b"four")}
    for name, (old, new) in damages.items():
        (tmp_path / "it" / name).write_bytes(written[name].replace(old, new))
        _, lines = run(capsys, "info", tmp_path / "it")
        said = lines[-1].removeprefix("certificate").strip()
        assert said.startswith(f"NO LONGER VALID: {name} changed since it was written; it said EQUAL: ")
        assert "unchanged" not in said
        (tmp_path / "it" / name).write_bytes(written[name])
    (tmp_path / "it/tokenizer.json").write_bytes(written["tokenizer.json"] + b" ")
    _, lines = run(capsys, "info", tmp_path / "it")
    assert lines[-1].endswith(f" {transformers.__version__}; still valid for the weights; changed since: tokenizer.json")
    for text in ("{}", json.dumps(found | {"verdict": "DIFFERENT"})):
        (tmp_path / "it/parity.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"parity.json is damaged, or not a certificate"):
            dispatch(["info", str(tmp_path / "it")])


@pytest.mark.slow
def test_a_certificate_tells_a_difference(gpt2, tmp_path):
    shutil.copytree(gpt2, tmp_path / "it")
    found = open_path(tmp_path / "it")
    found.model.stack.blocks.attention_norm.scale[...] *= 1.01
    report = certify(found.checkpoint, found.model, [tmp_path / "it/model.safetensors"], tmp_path / "it/parity.json")
    assert report.exit_code == 1
    assert json.loads((tmp_path / "it/parity.json").read_text())["verdict"].startswith("DIFFERENT")


def test_without_transformers(gpt2, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match=r"^--verify compares .* and transformers is not installed; pip install"):
        run(capsys, "convert", gpt2, tmp_path / "it", "--to", "hf", "--verify")
    assert not [*tmp_path.iterdir()]


def test_ours_and_torchs(gpt2, tmp_path, capsys):
    run(capsys, "convert", gpt2, tmp_path / "ours", "--to", "jax", "--dtype", "bfloat16")
    _, lines = run(capsys, "info", tmp_path / "ours")
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert shown["family"] == "a saved model, GPT"
    assert shown["types"] == "bfloat16"
    assert (tmp_path / "ours/tokenizer.json").read_bytes() == (gpt2 / "tokenizer.json").read_bytes()
    run(capsys, "convert", gpt2, tmp_path / "state.pt", "--to", "torch")
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())
    shutil.copy(gpt2 / "config.json", tmp_path / "config.json")
    run(capsys, "convert", tmp_path / "state.pt", tmp_path / "again", "--to", "hf", "--family", "gpt2")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (gpt2 / "model.safetensors").read_bytes()


RENAMED = "{} of the source are written under other names; back again: bitwise equal"


def test_tensors_under_other_names_are_not_told_as_lost(gpt2, tmp_path, capsys):
    _, lines = run(capsys, "convert", gpt2, tmp_path / "ours", "--to", "jax")
    assert lines[-1] == f"round trip: 28 tensors, read again bit for bit; {RENAMED.format(28)}"
    state = transformers.GPT2LMHeadModel.from_pretrained(gpt2).state_dict()  # with the head, which is tied
    state |= {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).bool() for layer in (0, 1)}
    (tmp_path / "old").mkdir()
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "old/pytorch_model.bin")
    shutil.copy(gpt2 / "config.json", tmp_path / "old")
    _, lines = run(capsys, "convert", tmp_path / "old", tmp_path / "new", "--to", "hf")
    left = "transformer.h.0.attn.bias, transformer.h.1.attn.bias"
    unneeded = f"2 of the source are left out, as the model computes or ignores them: {left}"
    assert lines[-1] == f"round trip: 28 tensors, read again bit for bit; {RENAMED.format(29)}; {unneeded}"


@pytest.mark.filterwarnings("ignore:.* of a head for next sentences are not loaded")
def test_lost_tensors_are_named(gpt2, tmp_path, capsys):
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 20}
    transformers.BertForPreTraining(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    _, lines = run(capsys, "convert", tmp_path / "bert", tmp_path / "it", "--to", "jax")
    said = "; not in it: 2 of the source, of a head for next sentences: cls.seq_relationship.bias, "
    assert f"{RENAMED.format(28)}{said}" in lines[-1]
    found = open_path(gpt2)
    table = found.model.embed.position.table
    table[...] = table.at[0, 0].multiply(-1)
    said = round_trip(found, {}, found.model, None)
    assert said.endswith(f"; {RENAMED.format(27)}; LOST: 1 of the source: transformer.wpe.weight")


@pytest.mark.parametrize("arguments", [("state.txt", "--to", "torch"), ("", "--to", "hf")], ids=["no ending", "there"])
def test_what_is_refused_before_anything_is_written(arguments, gpt2, tmp_path, capsys):
    with pytest.raises(InputError):
        run(capsys, "convert", gpt2, tmp_path / arguments[0], *arguments[1:])
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_verified_is_not_written(gpt2, tmp_path, capsys):
    with pytest.raises(InputError, match="--verify compares with transformers' own model"):
        run(capsys, "convert", gpt2 / "model.safetensors", tmp_path / "it", "--to", "jax", "--family", "gpt2", "--verify")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_folder_of_ours_is_verified_by_the_one_that_is_written(gpt2, tmp_path, capsys, monkeypatch):
    jf.save(jf.load(gpt2), tmp_path / "ours")
    with pytest.raises(InputError, match=r"ours is not a folder of transformers'; give --to hf, which writes one$"):
        run(capsys, "convert", tmp_path / "ours", tmp_path / "torch.pt", "--to", "torch", "--verify")
    code, lines = run(capsys, "convert", tmp_path / "ours", tmp_path / "theirs", "--to", "hf", "--verify")
    assert (code, lines[-1].split(":")[:2]) == (0, ["verdict", " EQUAL"])
    assert json.loads((tmp_path / "theirs/parity.json").read_text())["model_type"] == "gpt2"
    monkeypatch.setattr(describe, "original", lambda *given: jf.excite(original(*given), seed=5))
    code, lines = run(capsys, "convert", tmp_path / "ours", tmp_path / "other", "--to", "hf", "--verify")
    assert (code, lines[-1].split(":")[:2]) == (1, ["verdict", " DIFFERENT"])


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "to"), [pytest.param("bfloat16", "hf", marks=pytest.mark.slow), ("float16", "jax")])
def test_half_precision_is_verified(dtype, to, bart, tmp_path, capsys):
    code, lines = run(capsys, "convert", bart, tmp_path / "it", "--to", to, "--dtype", dtype, "--verify")
    assert code == 0
    assert json.loads((tmp_path / "it/parity.json").read_text())["dtype"] == dtype
    code, lines = run(capsys, "convert", tmp_path / "it", tmp_path / "again", "--to", "hf", *["--verify"] * (to == "hf"))
    assert code == 0, lines


@pytest.mark.slow
def test_a_prompt_is_read_and_told_as_transformers_does(gpt2, tmp_path, capsys):
    """Special tokens are tokens, and a space before the first word that is written stays."""
    shutil.copytree(gpt2, tmp_path / "it")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "▁a": 3, "▁b": 4}, "<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    words.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Metaspace(prepend_scheme="always")])
    words.add_special_tokens(["<pad>", "<s>", "</s>"])
    words.save(str(tmp_path / "it/tokenizer.json"))
    kept = open_path(tmp_path / "it")
    tokenizer = read_tokenizer(kept)
    assert tokenizer.encode("<s>a b").tolist() == [1, 3, 4]
    bias = jnp.zeros(kept.model.config.vocab_size).at[4].set(1e6)
    config = replace(kept.model.config, head_bias=True)
    model = jf.excite(jf.abstract(config), seed=0)
    model.head.bias[...] = bias
    assert write_text(Generate(folder=tmp_path, prompt="a", tokens=2, temperature=0.0), replace(kept, model=model)) == "a b b"


def test_settings_that_are_not_read_are_told(bart, tmp_path):
    shutil.copytree(bart, tmp_path / "it")
    path = tmp_path / "it/generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"begin_suppress_tokens": [5]}))
    with pytest.warns(UserWarning, match=r"begin_suppress_tokens = \[5] of its generation_config.json: not read here"):
        read_ids(tmp_path / "it")
    path.write_text(json.dumps({"suppress_tokens": 5}))
    with pytest.raises(CheckpointError, match="holds a list where a number is wanted, or the reverse"):
        read_ids(tmp_path / "it")


@pytest.mark.slow
def test_a_gpt_writes_what_transformers_writes(gpt2, words, capsys):
    ids = words(TEXTS[0], return_tensors="pt")
    wanted = transformers.GPT2LMHeadModel.from_pretrained(gpt2).generate(
        **{name: ids[name] for name in ("input_ids", "attention_mask")}, max_new_tokens=20, do_sample=False
    )[0, ids["input_ids"].shape[1] :]
    _, lines = run(capsys, "generate", gpt2, "--prompt", TEXTS[0], "--tokens", 20, "--temperature", 0)
    ends = torch.nonzero((wanted == 2) | (wanted >= len(words)))
    written = words.backend_tokenizer.decode(wanted[: ends[0] if len(ends) else None].tolist())
    assert "\n".join(lines) == TEXTS[0] + shown(written)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_a_translator_writes_what_transformers_writes(bart, words, beams, capsys):
    model = transformers.BartForConditionalGeneration.from_pretrained(bart)
    ids = words(TEXTS[1], return_tensors="pt")["input_ids"]
    wanted = model.generate(ids, max_new_tokens=64, num_beams=beams, do_sample=False, early_stopping=True)[0, 1:]
    _, lines = run(capsys, "translate", bart, TEXTS[1], "--beam", beams)
    stop = (wanted == 2).nonzero()[0]
    assert lines == [shown(" ".join(words.decode(wanted[:stop], skip_special_tokens=True).split("\n")))]


@pytest.mark.slow
def test_spaces_around_a_target_are_kept_as_transformers_keeps_them(bart, words, tmp_path, capsys):
    model = transformers.BartForConditionalGeneration.from_pretrained(bart)
    space, line = (words.backend_tokenizer.token_to_id(it) for it in ("Ġ", "Ċ"))
    model.final_logits_bias[0, space], model.final_logits_bias[0, line] = 2000, 1000
    model.save_pretrained(tmp_path / "it")
    words.save_pretrained(tmp_path / "it")
    ids = words(TEXTS[1], return_tensors="pt")["input_ids"]
    found = model.generate(ids, max_new_tokens=64, do_sample=False, num_beams=1)[0]
    wanted = words.decode(found, skip_special_tokens=True)
    assert wanted.startswith("  ")
    assert "\n" in wanted.strip(" ")
    dispatch(["generate", str(tmp_path / "it"), "--prompt", TEXTS[1]])
    assert capsys.readouterr().out == f"{shown(wanted)}\n"


@pytest.mark.slow
def test_a_run_is_written_for_transformers_and_writes_the_same_characters(tmp_path, capsys):
    sizes = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 20}
    config = jf.GPTConfig(vocab_size=len(CHARACTERS), context=256, tied=True, **sizes)
    ours = RunFolder.create(tmp_path / "run", {"recipe": {"model": asdict(config)}, "characters": CHARACTERS})
    save_weights(ours.weights, jf.excite(jf.abstract(config), seed=2))
    run(capsys, "convert", tmp_path / "run", tmp_path / "hf", "--to", "hf")
    text = "a bad hag"
    _, lines = run(capsys, "generate", tmp_path / "run", "--prompt", text, "--tokens", 200, "--temperature", 0)
    _, again = run(capsys, "generate", tmp_path / "hf", "--prompt", text, "--tokens", 200, "--temperature", 0)
    described = json.loads((tmp_path / "hf/config.json").read_text())
    assert described["bos_token_id"] is described["eos_token_id"] is None  # not transformers' 50256, which is no character
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    ids = words(text, return_tensors="pt", return_token_type_ids=False)
    wanted = words.decode(model.generate(**ids, max_new_tokens=200, do_sample=False, pad_token_id=0)[0])
    assert lines == again == wanted.splitlines()
    assert len(wanted) == len(text) + 200
    assert len({*wanted}) > 3


def test_what_does_not_write(gpt2, bart, tmp_path, capsys):
    with pytest.raises(InputError, match="needs a text to begin with; give it with --prompt"):
        dispatch(["generate", str(gpt2)])
    with pytest.raises(InputError, match="writes the likeliest target, and reads no --tokens, --top-k; leave them out"):
        dispatch(["generate", str(bart), "--prompt", "x", "--tokens", "5", "--top-k", "3"])
    with pytest.raises(InputError, match="holds a model that does not translate texts; use jaxformer generate"):
        dispatch(["translate", str(gpt2), "x"])
    with pytest.raises(InputError, match=r"--first 'fra_Latn' is no token of"):
        dispatch(["translate", str(bart), "x", "--first", "fra_Latn"])
    shutil.copytree(gpt2, tmp_path / "it")
    (tmp_path / "it/tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer.json: its texts cannot be read"):
        dispatch(["generate", str(tmp_path / "it"), "--prompt", "x"])
    jf.Tokenizer.train_bpe(TEXTS, 300).save(tmp_path / "it/tokenizer.json")
    with pytest.raises(InputError, match="it is another model's"):
        dispatch(["generate", str(tmp_path / "it"), "--prompt", "x"])
    encoder = jf.Encoder(
        jf.EncoderConfig(vocab_size=5, context=4, d_model=4, n_layers=1, n_heads=1, d_ff=4), rngs=jax.random.key(0)
    )
    jf.save(encoder, tmp_path / "encoder")
    with pytest.raises(InputError, match="holds an encoder, which writes no text"):
        dispatch(["generate", str(tmp_path / "encoder"), "--prompt", "x"])


def test_settings_outlive_a_folder_of_ours(gpt2, tmp_path, capsys):
    base = transformers.GPT2Model(transformers.GPT2Config(n_embd=4, n_layer=1, n_head=2, vocab_size=9, use_cache=False))
    base.save_pretrained(tmp_path / "base")
    for source in (gpt2, tmp_path / "base"):
        ours, back = tmp_path / f"{source.name} ours", tmp_path / f"{source.name} back"
        run(capsys, "convert", source, ours, "--to", "jax")
        run(capsys, "convert", ours, back, "--to", "hf")
        found, wanted = bytes_of(back), bytes_of(source)
        assert json.loads(found.pop("config.json")) == json.loads(wanted.pop("config.json"))
        assert found == wanted
    assert read_ids(tmp_path / "theirs ours") == read_ids(gpt2)
    shorter = replace(jf.load(gpt2).config, context=16)
    model = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), jf.abstract(shorter))
    jf.save(model, tmp_path / "short", source=gpt2)
    run(capsys, "convert", tmp_path / "short", tmp_path / "short back", "--to", "hf")
    told = json.loads((tmp_path / "short back/config.json").read_text())
    assert (told["n_positions"], told["eos_token_id"], told["use_cache"]) == (16, 2, True)
