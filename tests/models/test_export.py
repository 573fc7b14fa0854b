"""Programs of StableHLO: run in a process that has neither jaxformer nor flax, they do what the models do."""

import subprocess
import sys
from pathlib import Path

import jax
import jaxtyping
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.errors import CheckpointError, JaxformerError
from tests.tiny import tiny_config

SIZES = {"vocab_size": 11, "context": 9, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16}
GPT = jf.excite(jf.abstract(tiny_config(n_kv_heads=1, tied=True)), seed=0)
ENCODER = jf.excite(jf.abstract(jf.EncoderConfig(**SIZES, token_types=2)), seed=1)
TRANSLATOR = jf.excite(jf.abstract(jf.EncoderDecoderConfig(**SIZES, source_context=7)), seed=2)
DRAWN = jf.SamplingConfig(top_p=0.9, suppressed=(3,))

TOKENS = np.random.default_rng(0).integers(0, 11, (3, 5)).astype(np.int32)
VALID = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1]], bool)
TYPES, SEED = TOKENS % 2, np.uint32(7)

PROGRAMS = {
    "gpt": (lambda path: jf.export(GPT, path), (TOKENS,)),
    "encoder": (lambda path: jf.export(ENCODER, path), (TOKENS, VALID, TYPES)),
    "translator": (lambda path: jf.export(TRANSLATOR, path), (TOKENS, VALID, TOKENS[:, :2])),
    "drawn": (lambda path: jf.export_generate(GPT, path, 3, DRAWN, eos=5), (TOKENS, VALID, SEED)),
    "translated": (lambda path: jf.export_generate(TRANSLATOR, path, 3, start=1, eos=2), (TOKENS, VALID)),
}
WANTED = {
    "gpt": lambda: GPT(TOKENS),
    "encoder": lambda: ENCODER(TOKENS, mask=jf.padding_mask(VALID), token_types=TYPES),
    "translator": lambda: TRANSLATOR(TOKENS, TOKENS[:, :2], source_mask=jf.padding_mask(VALID)),
    "drawn": lambda: jf.generate(GPT, TOKENS, 3, DRAWN, eos=5, valid=VALID, key=jax.random.key(7)),
    "translated": lambda: jf.translate(TRANSLATOR, TOKENS, 3, start=1, eos=2, valid=VALID),
}
ALONE = """
import pathlib, sys
sys.modules |= dict.fromkeys(("jaxformer", "flax", "optax"))
import numpy as np
from jax import export
for path in map(pathlib.Path, sys.argv[1:]):
    program = export.deserialize(path.read_bytes())
    given = np.load(path.with_suffix(".npz"))
    np.save(path.with_suffix(".npy"), program.call(*given.values()))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every program with its arguments, and what it gave in a process of its own."""
    folder = tmp_path_factory.mktemp("programs")
    jaxtyping.config.update("jaxtyping_disable", True)  # a length that is not known yet is no int
    try:
        for name, (write, arguments) in PROGRAMS.items():
            write(folder / f"{name}.jax")
            np.savez(folder / f"{name}.npz", *arguments)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    paths = [str(folder / f"{name}.jax") for name in PROGRAMS]
    subprocess.run([sys.executable, "-c", ALONE, *paths], check=True)
    return folder


@pytest.mark.first(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_jaxformer_it_is_the_same(folder, name, untyped):
    found, wanted = np.load(folder / f"{name}.npy"), np.asarray(WANTED[name]())
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_it_is_for_every_platform_and_size_and_holds_its_weights(folder):
    program = jax.export.deserialize((folder / "drawn.jax").read_bytes())
    assert program.platforms == ("cpu", "cuda", "tpu")
    assert [str(argument.shape) for argument in program.in_avals] == ["(b, - t_at_most_5 + 6)"] * 2 + ["()"]
    assert [str(argument.shape) for argument in program.out_avals] == ["(b, 3)"]
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(GPT))
    assert weights < (folder / "gpt.jax").stat().st_size < weights + 60_000  # since jax 0.11 it has the lines of more calls


@pytest.mark.parametrize(("name", "given"), [("gpt", (TOKENS,)), ("translated", (TOKENS, VALID))])
def test_a_text_that_is_too_long_is_refused_by_the_name_of_its_bound(folder, name, given):
    program = jax.export.deserialize((folder / f"{name}.jax").read_bytes())
    with pytest.raises(ValueError, match=r"^Input shapes do not match .* variable 't_at_most_\d'.* \(= 10\)"):
        program.call(*(np.tile(array, 2) for array in given))


@pytest.mark.slow
def test_nan_is_no_token(tmp_path, untyped):
    broken = jax.tree.map(lambda leaf: leaf * np.nan, GPT)
    jf.export_generate(broken, tmp_path / "broken", 2, platforms=["cpu"])
    program = jax.export.deserialize((tmp_path / "broken").read_bytes())
    assert np.array_equal(program.call(TOKENS[:1], VALID[:1]), [[-1, -1]])


def test_padding_alone_is_no_prompt(folder):
    program = jax.export.deserialize((folder / "drawn.jax").read_bytes())
    found = np.asarray(program.call(TOKENS, VALID & [[True], [False], [True]], SEED))
    assert (found == -1).all(1).tolist() == [False, True, False]


REFUSED = {
    "another platform": (
        lambda path: jf.export(GPT, path, platforms=("gpu",)),
        "platform = 'gpu' is not known; here it is 'cuda'",
    ),
    "no platform": (
        lambda path: jf.export(GPT, path, platforms=()),
        "platform = '' is not known; choose one of cpu, cuda, tpu",
    ),
    "platforms in one string": (
        lambda path: jf.export(GPT, path, platforms="cpu"),
        "platforms = 'cpu' is a str; give some of ('cpu', 'cuda', 'tpu')",
    ),
    "shapes alone": (
        lambda path: jf.export(jf.abstract(tiny_config()), path),
        "the model has shapes alone, and nothing to compute with; build it with rngs=nnx.Rngs(0), or fill it with "
        "jaxformer.from_torch",
    ),
    "no model": (lambda path: jf.export(3, path), "an int cannot be exported; give a GPT, an Encoder or an EncoderDecoder"),
    "sampling in a word": (
        lambda path: jf.export_generate(GPT, path, 3, "greedy"),
        "sampling = 'greedy' is a str; give a SamplingConfig",
    ),
    "an encoder that writes": (
        lambda path: jf.export_generate(ENCODER, path, 3),
        "an Encoder with start = None; give a GPT without, or an EncoderDecoder with one",
    ),
    "a translation without a start": (
        lambda path: jf.export_generate(TRANSLATOR, path, 3),
        "an EncoderDecoder with start = None; give a GPT without, or an EncoderDecoder with one",
    ),
    "more than the context": (
        lambda path: jf.export_generate(GPT, path, 8),
        "n_tokens = 8 is more than the 7 tokens that can be generated at once; ask for fewer",
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case):
    call, said = REFUSED[case]
    with pytest.raises(JaxformerError) as caught:
        call(tmp_path / "program")
    assert str(caught.value) == said
    assert not list(tmp_path.iterdir())


def test_no_file_is_written_over_and_none_where_none_can_be(tmp_path, untyped):
    held = tmp_path / "held"
    held.write_text("mine")
    with pytest.raises(JaxformerError, match=r"held exists already; remove it, or give another name$"):
        jf.export(GPT, held)
    assert held.read_text() == "mine"
    with pytest.raises(CheckpointError, match=r"there is none cannot be written: No such file or directory$"):
        jf.export(GPT, Path(tmp_path / "a" / "there is none"), platforms=["cpu"])
