"""The guide: its code runs and makes its figures, its exercises refuse what is wrong, and its twins are in the library."""

import ast
import re
import runpy
from functools import partial
from itertools import pairwise

import jax
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.pytree import named_weights
from tests import guide
from tests.guide import GUIDE, PAGES, figures, refuse, spoiled

LARGEST = 60_000
"""Bytes of a figure that is committed."""
QUICK = ["positions"]
INCLUDED = re.compile(r"\{literalinclude\} (\S+)\n(?::language: python\n)?:pyobject: (\S+)")


@pytest.mark.torch
@pytest.mark.parametrize("page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES])
def test_a_page_runs_and_makes_its_figures(page, tmp_path):
    from matplotlib.image import imread

    guide.run(page, tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {*figures(page)}
    for name in figures(page):
        made, kept = imread(tmp_path / "figures" / name), imread(GUIDE / "figures" / name)
        assert made.shape == kept.shape, name
        assert np.abs(made - kept).mean() < 0.05, f"{name} is another picture; write it with `python -m tests.guide {page}`"


def test_every_page_has_a_figure_an_exercise_and_both_frameworks():
    assert len(PAGES) == 11
    for page, path in PAGES.items():
        text = path.read_text("utf-8")
        assert figures(page), page
        assert "## Exercise" in text, page
        assert "A solution" in text, page
        files = {file for file, _ in INCLUDED.findall(text)}
        sides = {file.split("/")[2] for file in files if file.startswith("../../")}
        assert sides == ({"torch_ref", "jaxformer"} if page not in ("read-me-first", "equality") else set()), page


def test_every_figure_is_shown_and_small():
    kept = {path.name: path.stat().st_size for path in (GUIDE / "figures").iterdir()}
    assert {*kept} == {name for page in PAGES for name in figures(page)}
    assert {name: size for name, size in kept.items() if size > LARGEST} == {}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_included_is_there(page):
    for file, name in INCLUDED.findall(PAGES[page].read_text("utf-8")):
        tree: ast.AST = ast.parse((GUIDE / file).read_text("utf-8"))
        for part in name.split("."):
            (tree,) = (node for node in ast.iter_child_nodes(tree) if getattr(node, "name", "") == part)


def test_the_index_names_every_page_once_in_its_order():
    text = (GUIDE / "index.md").read_text("utf-8")
    listed = text.rpartition("toctree}")[2].split("\n\n")[1].split("```")[0].split()
    assert sorted(listed) == sorted(PAGES)
    assert [re.search(rf"\]\({page}\.md\)", text) for page in listed].count(None) == 0
    numbers = [PAGES[page].read_text("utf-8").split(".")[0] for page in listed[1:]]
    assert numbers == [f"# {number}" for number in range(1, 11)]


def test_commands_are_those_of_the_tool():
    from jaxformer.cli.commands import find

    for path in GUIDE.glob("*.md"):
        for command in re.findall(r"`jaxformer ((?!-)[^`]+)`", path.read_text("utf-8")):
            find(command.split())


def test_an_exercise_that_accepts_anything_is_noticed():
    def check_double(double):
        double(2)

    with pytest.raises(AssertionError, match=r"^check_double accepts a function that is wrong or not written yet$"):
        refuse(check_double, spoiled(lambda x: 2 * x))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nprint(1)\n```\n```text\n2\n```\n", r"^2\nis not in\n1"),
        ("```python\nprint(1)\n```\n", "^page has no exercise$"),
        ("```python\n1 / 0\n```\n", "division by zero"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(text, said, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setitem(PAGES, "page", tmp_path / "page.md")
    with pytest.raises((AssertionError, ZeroDivisionError), match=said):
        guide.run("page", tmp_path)


SIZES = {"V": 7, "T": 6, "D": 8, "N": 2, "F": 12, "layers": 2}


def in_one_file(model: jf.GPT) -> dict:
    """The weights of a GPT of the library as docs/guide/gpt.py has them."""
    weights = named_weights(model)

    def norm(name: str, layer=...) -> dict:
        return {"gain": weights[f"{name}.scale"][layer], "bias": weights[f"{name}.bias"][layer]}

    def linear(name: str, layer: int, kernel: tuple, bias: tuple) -> dict:
        found = {"kernel": weights[f"{name}.kernel"][layer], "bias": weights[f"{name}.bias"][layer]}
        return {"kernel": found["kernel"].reshape(kernel), "bias": found["bias"].reshape(bias)}

    _, _, D, N, F, layers = SIZES.values()
    H, start = D // N, "stack.blocks."
    blocks = [
        {
            "attention_norm": norm(f"{start}attention_norm", layer),
            "attention": {
                name: linear(f"{start}attention.{name}", layer, (D, N, H), (N, H)) for name in ("query", "key", "value")
            }
            | {"out": linear(f"{start}attention.out", layer, (N, H, D), (D,))},
            "feed_forward_norm": norm(f"{start}feed_forward_norm", layer),
            "up": linear(f"{start}feed_forward.up", layer, (D, F), (F,)),
            "down": linear(f"{start}feed_forward.down", layer, (F, D), (D,)),
        }
        for layer in range(layers)
    ]
    ends = {"token": weights["embed.token.table"], "position": weights["embed.position.table"]}
    return ends | {"blocks": blocks, "norm": norm("norm"), "head": weights["head.kernel"]}


@pytest.mark.foreign
def test_the_gpt_in_one_file_is_that_of_the_library():
    """Logits and gradients, in float64, of weights of which none is 0 or 1."""
    file = runpy.run_path(str(GUIDE / "gpt.py"))
    assert len((GUIDE / "gpt.py").read_text("utf-8").splitlines()) <= 150
    config = jf.GPTConfig(
        vocab_size=SIZES["V"],
        context=SIZES["T"],
        d_model=SIZES["D"],
        n_layers=SIZES["layers"],
        n_heads=SIZES["N"],
        d_ff=SIZES["F"],
    )
    tokens = np.array([[1, 6, 2, 2, 0, 5], [3, 3, 4, 1, 6, 0]], np.int32)
    with jax.enable_x64(True):
        draw = np.random.default_rng(0)
        model = jax.tree.map(lambda leaf: jax.numpy.asarray(draw.normal(0.1, 0.4, leaf.shape)), jf.abstract(config))
        sent = jax.numpy.asarray(draw.normal(size=(*tokens.shape, SIZES["V"])))

        @partial(jax.jit, static_argnums=0)
        def both(function, weights) -> tuple:
            logits, back = jax.vjp(lambda weights: function(weights, tokens), weights)
            return logits, back(sent)[0]

        def library(model, tokens):
            return model(tokens)

        params = in_one_file(model)
        (ours, here), (theirs, there) = both(file["gpt"], params), both(library, model)
        check_float64("logits", np.asarray(ours), np.asarray(theirs))
        here, there = (  # in one: those of key biases are zero but for rounding
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(each)]) for each in (here, in_one_file(there))
        )
        check_float64("gradient", here, there, "gradient")
        wrong, _ = both(file["gpt"], params | {"blocks": params["blocks"][::-1]})
        with pytest.raises(AssertionError):
            check_float64("logits", np.asarray(wrong), np.asarray(theirs))


@pytest.mark.slow
@pytest.mark.foreign
def test_the_gpt_in_one_file_learns_and_writes(tmp_path, capsys):
    file = runpy.run_path(str(GUIDE / "gpt.py"))
    text = np.tile([0, 1, 2, 3, 4], 60)
    params = file["train"](text, file["Sizes"](V=5, T=8, D=16, N=2, F=32, layers=1), steps=200)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.1 < np.log(5)
    written = file["write"](params, [0], 40, context=8)
    assert np.mean([later == (before + 1) % 5 for before, later in pairwise(written)]) > 0.7, "drawn, so not all are right"
