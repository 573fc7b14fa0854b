"""Items of a measurement by name, their peers, and the class of each side, imported in the process that runs it.

Imports neither jax nor torch.
"""

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from jaxformer.bench.problems import Problem, load_problem
from jaxformer.errors import InputError
from jaxformer.validation.fields import check_choice


class Peer(NamedTuple):
    """One side of a comparison."""

    summary: str
    needs: tuple[str, ...] = ()
    """Packages that must be installed."""


JAXFORMER = "jaxformer"
COLD = "jaxformer-cold"
PEERS = {
    JAXFORMER: Peer("as its recipes and its decoding run; in `bench start` with a warm compilation cache"),
    COLD: Peer("the same with an empty compilation cache: the first start"),
    "twin": Peer("our PyTorch twin, eager, as it is", ("torch",)),
    "torch": Peer("PyTorch at its best, eager: scaled_dot_product_attention and a fused optimizer", ("torch",)),
    "torch-compile": Peer("the same after torch.compile", ("torch",)),
    "transformers": Peer("GPT2LMHeadModel of transformers, `generate` with its cache", ("torch", "transformers")),
    "flax-nnx": Peer("Flax the ordinary way: nnx layers, nnx.jit, nnx.Optimizer, a Python loop", ("flax",)),
}
"""Sides that can be compared. torch runs with one thread and with all; the faster count is measured."""


def lacking(name: str) -> str | None:
    """Return the first package that a peer needs and that is not installed, or None."""
    return next((package for package in PEERS[name].needs if importlib.util.find_spec(package) is None), None)


Group = Literal["train", "generate", "start"]
Device = Literal["cpu", "gpu"]


class Item(NamedTuple):
    """One piece of work."""

    group: Group
    name: str
    summary: str
    """Description, with sizes after a colon."""
    peers: tuple[str, ...]
    """Sides that can do the work; jaxformer is first."""
    unit: str
    """Unit of work that a time is reported for."""
    repeats: int
    """Number of units in one round."""
    build: str
    """Name of the function of `jaxformer.bench.prepare` that makes the problem."""
    settings: dict[str, Any]
    """Settings that this function is called with."""
    device: Device = "cpu"
    """Device that every side works on."""


GPTS = (JAXFORMER, "twin", "torch", "torch-compile", "flax-nnx")
PAIRS = (JAXFORMER, "twin", "torch")
WRITERS = (JAXFORMER, "torch", "transformers")
ON_GPU = (JAXFORMER, "torch", "torch-compile")

STEP, TEXTS = "training step", "text of 200 tokens"

ITEMS = (
    Item(
        "train",
        "W1",
        "GPT `tiny`: context 8, D 32, 2 layers, batch 32, dropout .1",
        GPTS,
        STEP,
        500,
        "text",
        {"preset": "tiny"},
    ),
    Item("train", "W2", "GPT `cpu`: context 64, D 128, 4 layers, batch 12", GPTS, STEP, 50, "text", {"preset": "cpu"}),
    Item(
        "train",
        "W3",
        "GPT `gpu`: context 256, D 384, 6 layers, batch 16, no dropout",
        GPTS,
        STEP,
        2,
        "text",
        {"preset": "gpu", "batch": 16, "dropout": False},
    ),
    Item(
        "train", "W4", "GPT-2 small: 256 tokens, D 768, 12 layers, batch 1, no dropout", GPTS, STEP, 3, "gpt2", {"tokens": 256}
    ),
    Item(
        "train",
        "W6-reverse",
        "`reverse --preset original`: 3+3 layers, D 32, batch 4",
        (*PAIRS, "torch-compile"),
        STEP,
        200,
        "pairs",
        {"preset": "original"},
    ),
    Item(
        "train",
        "W6-translate",
        "`translate --preset small`: 3+3 layers, D 256, 4,096 tokens of 10 shapes",
        PAIRS,
        STEP,
        32,
        "sentences",
        {"preset": "small"},
    ),
    Item("generate", "W3", "GPT `gpu`, batch 1", (*WRITERS, "twin"), TEXTS, 1, "prompts", {"preset": "gpt.gpu", "batch": 1}),
    Item("generate", "W3-16", "GPT `gpu`, batch 16", WRITERS, TEXTS, 1, "prompts", {"preset": "gpt.gpu", "batch": 16}),
    Item("generate", "gpt2", "GPT-2 small, batch 1", WRITERS, TEXTS, 1, "prompts", {"preset": "gpt2_small", "batch": 1}),
    Item("generate", "gpt2-16", "GPT-2 small, batch 16", WRITERS, TEXTS, 1, "prompts", {"preset": "gpt2_small", "batch": 16}),
    Item(
        "generate",
        "beam",
        "beam 5 of `translate small`: 32 tokens a sentence",
        (JAXFORMER, "twin"),
        "sentence",
        32,
        "sources",
        {"preset": "transformer.translation"},
    ),
    Item(
        "start",
        "gpt2",
        "first text of GPT-2 small: from a file to 20 tokens, from the start of the process to its end",
        (JAXFORMER, COLD, "transformers"),
        "process",
        1,
        "checkpoint",
        {"preset": "gpt2_small"},
    ),
    Item(
        "start",
        "translate",
        "`translate --preset smoke`: a whole run, with 8 sentences translated, from the start of the process to its end",
        (JAXFORMER, COLD, "twin"),
        "process",
        1,
        "recipe",
        {"preset": "smoke"},
    ),
    Item(
        "train",
        "gpt2",
        "GPT-2 small in bfloat16: 1,024 tokens, batch 16, no dropout",
        ON_GPU,
        STEP,
        20,
        "gpt2",
        {"tokens": 1024, "batch": 16, "precision": "bf16"},
        "gpu",
    ),
    Item(
        "train",
        "W3",
        "GPT `gpu` in bfloat16: context 256, D 384, 6 layers, batch 64, no dropout",
        ON_GPU,
        STEP,
        100,
        "text",
        {"preset": "gpu", "dropout": False, "precision": "bf16"},
        "gpu",
    ),
    Item("generate", "gpt2", "GPT-2 small, batch 1", WRITERS, TEXTS, 1, "prompts", {"preset": "gpt2_small", "batch": 1}, "gpu"),
    Item(
        "generate",
        "gpt2-16",
        "GPT-2 small, batch 16",
        WRITERS,
        TEXTS,
        1,
        "prompts",
        {"preset": "gpt2_small", "batch": 16},
        "gpu",
    ),
)


class Named(Protocol):
    """Item, or its result."""

    @property
    def group(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...


def key_of(item: Named) -> str:
    """Name of an item that is unique among all groups and devices."""
    return f"{item.group} {item.name}{' on gpu' if item.device == 'gpu' else ''}"


def find_item(key: str) -> Item:
    """Find the item with this key."""
    return next(item for item in ITEMS if key_of(item) == key)


def chosen_items(group: Group, device: Device, names: tuple[str, ...]) -> list[Item]:
    """Return the items of a group with these names, or all if none is given. ConfigError names the nearest one."""
    known = {item.name: item for item in ITEMS if (item.group, item.device) == (group, device)}
    for name in names:
        check_choice("items", name, known)
    return [known[name] for name in names or known]


def chosen_peers(items: list[Item], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the peers of these items with these names, or all if none is given. jaxformer is always among them."""
    known = list(dict.fromkeys(peer for item in items for peer in item.peers))
    for name in names:
        check_choice("peers", name, known)
    if names == (JAXFORMER,):
        raise InputError(f"peers = {JAXFORMER} leaves nothing to compare with; add one of {', '.join(known[1:])}")
    return tuple(name for name in known if name == JAXFORMER or not names or name in names)


class Side(Protocol):
    """One side of a comparison, with its model loaded."""

    def check(self) -> list[float] | list[int]:
        """Return values that must be equal on all sides before anything is timed: a loss, or the ids that are written."""
        ...

    def warm_up(self) -> None:
        """Do the work that comes only once, as compilation."""
        ...

    def run(self) -> None:
        """Run one round; the work is done when this returns."""
        ...

    def figures(self) -> dict[str, Any]:
        """Return further figures, after the last round."""
        ...


WRITING = {
    JAXFORMER: "generate_jax:Jaxformer",
    "twin": "generate_torch:Twin",
    "torch": "generate_torch:Best",
    "transformers": "generate_torch:Transformers",
}
SIDES: dict[tuple[str, str], dict[str, str]] = {
    ("train", "cpu"): {
        JAXFORMER: "train_jax:Jaxformer",
        "flax-nnx": "train_jax:FlaxNNX",
        "twin": "train_torch:Twin",
        "torch": "train_torch:Best",
        "torch-compile": "train_torch:Compiled",
    },
    ("train", "gpu"): {
        JAXFORMER: "train_jax:Jaxformer",
        "torch": "train_cuda:Best",
        "torch-compile": "train_cuda:Compiled",
    },
    ("generate", "cpu"): WRITING,
    ("generate", "gpu"): WRITING,
}
"""Group and device -> peer -> module of this package and class."""


def make_side(group: Group, peer: str, folder: Path, count: int) -> Side:
    """Build a side from the problem in the folder."""
    problem: Problem = load_problem(folder)
    module, name = SIDES[group, problem.device][peer].split(":")
    return getattr(import_module(f"jaxformer.bench.{module}"), name)(folder, problem, count)
