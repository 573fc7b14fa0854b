"""The benchmark: all sides do the same work, times are taken in turn, and results are kept and shown. No speed is asserted."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

from jaxformer.bench import commands, generate_torch, limits, measure
from jaxformer.bench.commands import Outputs, bench
from jaxformer.bench.first_text import SIDES as FIRST_TEXTS
from jaxformer.bench.items import (
    COLD,
    ITEMS,
    JAXFORMER,
    PEERS,
    SIDES,
    Item,
    chosen_items,
    chosen_peers,
    key_of,
    lacking,
    make_side,
)
from jaxformer.bench.limits import Peak, cost_of
from jaxformer.bench.measure import Plan, check_same, measure_item
from jaxformer.bench.prepare import prepare
from jaxformer.bench.problems import load_problem
from jaxformer.bench.results import Result, SideResult, add_results, markdown, read_results, short_markdown, summary
from jaxformer.bench.runners import WorkerError
from jaxformer.cli.main import dispatch
from jaxformer.config.presets import preset
from jaxformer.errors import ParityError
from jaxformer.evaluation.sharded.predict import products
from jaxformer.models import abstract
from jaxformer.pytree import named_leaves
from tests.tiny import GERMAN

COMPILED = "torch-compile"
"""It runs a C++ compiler for seconds."""


@pytest.fixture(scope="module")
def data(tmp_path_factory, text_file) -> dict[str, str]:
    """Files in the place of the corpora, by the function that reads them."""
    pairs = tmp_path_factory.mktemp("data") / "pairs.tsv"
    pairs.write_text("".join(f"Ein {german} .\tA {english} .\n" for german, english in GERMAN.items()) * 6, "utf-8")
    return {"text": str(text_file), "sentences": str(pairs), "recipe": str(pairs)}


def prepared(item: Item, folder: Path, data: dict[str, str]) -> object:
    return prepare(item, folder, {"short": True, "data": data.get(item.build), "sentences": 2})


QUICK = ("generate beam",)
"""The others go the same ways; `jaxformer bench train` of the README has one beside the twin alone."""
WITH_SIDES = [
    pytest.param(item, marks=() if key_of(item) in QUICK else pytest.mark.slow, id=key_of(item))
    for item in ITEMS
    if item.group != "start"
]


@pytest.mark.parametrize("item", WITH_SIDES)
@pytest.mark.torch
def test_every_side_does_the_same_work(item, data, tmp_path, monkeypatch):
    """Also what is for a GPU, which works on the processor here."""
    monkeypatch.setitem(generate_torch.DEVICES, "gpu", "cpu")
    cost = cost_of(prepared(item, tmp_path, data))
    assert cost.flops > 0
    assert cost.bytes > 0
    assert cost.tokens > 0
    found = {}
    for peer in item.peers:
        if peer != COMPILED:
            side = make_side(item.group, peer, tmp_path, 2)
            found[peer] = side.check()
            side.warm_up()
            side.run()
            assert side.figures().get("loss", 1.0) > 0
            check_same(item, peer, found[peer], found[JAXFORMER])
    assert len(found) >= 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.torch
def test_the_compiled_side_too(data, tmp_path):
    item = next(item for item in ITEMS if key_of(item) == "train W2")
    prepared(item, tmp_path, data)
    side = make_side("train", COMPILED, tmp_path, 2)
    side.warm_up()
    side.run()


@pytest.mark.slow
@pytest.mark.torch
def test_the_first_text_is_the_same(data, tmp_path):
    item = next(item for item in ITEMS if item.build == "checkpoint")
    prepared(item, tmp_path, data)
    problem = load_problem(tmp_path)
    texts = {peer: FIRST_TEXTS[peer](tmp_path, problem) for peer in (JAXFORMER, "transformers")}
    assert texts[JAXFORMER] == texts["transformers"]
    assert len(set(texts[JAXFORMER])) > 2


@pytest.mark.slow
@pytest.mark.torch
def test_the_twin_makes_the_whole_run(data, tmp_path):
    from jaxformer.bench.twin_run import Run

    item = next(item for item in ITEMS if item.build == "recipe")
    problem = prepared(item, tmp_path, data)
    assert 0 < Run(tmp_path, problem, 1, data["recipe"]).whole() < 10


def test_costs_are_six_flops_a_weight_and_token(tmp_path, data):
    """And 12 L D T for attention: the formula of the field."""
    problem = prepared(next(item for item in ITEMS if key_of(item) == "train W2"), tmp_path, data)
    model, (rows, length) = problem.model, problem.batches[0][0].shape
    weights = model.n_layers * (4 * model.d_model**2 + 2 * model.d_model * model.d_ff) + model.vocab_size * model.d_model
    token = 6 * weights + 12 * model.n_layers * model.d_model * length
    assert cost_of(problem).flops == rows * length * token


LATENTS = replace(preset("deepseek_v3.tiny"), n_layers=3, query_latent=7, value_dim=5, shared_d_ff=9)
COUNTED = {"latents": LATENTS, "experts": replace(preset("qwen3_moe.tiny"), shared_d_ff=9, shared_gate=True)}


@pytest.mark.parametrize("name", COUNTED)
def test_weights_of_latents_and_experts_are_counted(name):
    """All but biases and norms, and of a token all but the experts that are not its own."""
    config = COUNTED[name]
    held = named_leaves(abstract(config)).items()
    counted = sum(math.prod(leaf.shape) for path, leaf in held if path.endswith((".kernel", ".table")))
    assert limits.parameters(config) == counted
    left = (config.n_experts - config.experts_per_token) * 3 * config.d_model * config.d_ff
    left *= config.n_layers - config.dense_layers
    assert limits.matrices(config) == counted - left - config.vocab_size * config.d_model


@pytest.mark.parametrize("name", COUNTED)
def test_operations_of_latents_and_experts_are_those_of_the_program(name):
    """With every expert for every token, the program has no others but those that sum the weights of a token's experts."""
    config = replace(COUNTED[name], experts_per_token=COUNTED[name].n_experts, groups_per_token=COUNTED[name].expert_groups)
    traced = jax.make_jaxpr(lambda model, tokens: model(tokens))(abstract(config), np.zeros((2, 11), np.int32))
    summed = 2 * 11 * (config.n_layers - config.dense_layers) * 2 * config.n_experts**2
    assert products(traced.jaxpr) - summed == limits.forward_flops(config, 2, 0, 11)


class Fake:
    """A side that says what it is told to, and notes when it runs."""

    log: ClassVar[list[str]] = []

    def __init__(self, peer: str, check: list[float], fails: str = ""):
        self.peer, self.checked, self.fails = peer, check, fails

    def check(self) -> list[float]:
        self.act("check")
        return self.checked

    def warm_up(self) -> None:
        self.act("warm up")

    def round(self) -> float:
        self.act("round")
        return {JAXFORMER: 1.0, "twin": 3.0}.get(self.peer, 2.0) * (1 + len(Fake.log))

    def finish(self) -> dict[str, float]:
        return {"loss": float("nan") if self.fails == "loss" else 1.0}

    def close(self) -> None:
        Fake.log.append(f"{self.peer} closed")

    def act(self, what: str) -> None:
        if what == self.fails:
            raise WorkerError("no room")
        if self.fails == "Ctrl-C" and Fake.log.count(f"{self.peer} round") == 2:
            raise KeyboardInterrupt
        Fake.log.append(f"{self.peer} {what}")


ITEM = next(item for item in ITEMS if key_of(item) == "train W2")._replace(repeats=10, peers=(JAXFORMER, "twin", "torch"))
PLAN = Plan(peers=(JAXFORMER, "twin", "torch"), rounds=3, options={}, validate=False)


@pytest.fixture
def faked(monkeypatch):
    """faked(twin=[2.0]): what sides answer to the check, and how they fail; the others do the same as jaxformer."""
    told: dict[str, dict] = {}
    Fake.log = []
    monkeypatch.setattr(measure, "InWorker", lambda item, peer, *_: Fake(peer, **{"check": [2.0], **told.get(peer, {})}))
    monkeypatch.setattr(measure, "ask_once", lambda *_, **__: {"flops": 1e9, "bytes": 1e6, "tokens": 96})
    monkeypatch.setattr(commands, "ask_once", lambda *_, **__: {"flops": 1e11, "bandwidth": 1e10})
    monkeypatch.setattr(limits, "load", lambda: 0.0)
    monkeypatch.setattr(limits, "pace", lambda: 1.0)
    return told


def measured() -> tuple[Result, bool]:
    result, stopped = measure_item(ITEM, PLAN, Peak(1e11, 1e10))
    assert result is not None
    return result, stopped


@pytest.mark.torch
def test_sides_are_warm_before_they_are_timed_in_turn(faked):
    result, stopped = measured()
    names = (JAXFORMER, "twin", "torch")
    assert Fake.log[:6] == [f"{name} {what}" for name in names for what in ("check", "warm up")]
    assert Fake.log[6:15] == [f"{name} round" for name in names] * 3
    assert sorted(Fake.log[15:]) == sorted(f"{name} closed" for name in names)
    assert not stopped
    assert list(result.sides) == list(names)
    assert result.best_peer == "torch"
    assert [len(side.seconds) for side in result.sides.values()] == [3, 3, 3]
    assert result.sides[JAXFORMER].seconds[0] == pytest.approx((1 + 7) / ITEM.repeats)


@pytest.mark.parametrize(
    ("paces", "kept", "noise"),
    [
        ([1.0, 1.0, 1.05, 1.0], [1, 2, 3], ""),  # before and after each round
        ([1.0, 1.0, 1.5, 1.0, 1.0, 1.0], [1, 4, 5], ""),
        ([1.0, 1.0, 1.5, 1.0, 1.3, 1.0, 1.2], [1, 4, 6], "varied by 30 %"),
    ],
)
def test_rounds_of_a_slow_machine_are_repeated_once_and_noise_is_told(faked, monkeypatch, capsys, tmp_path, paces, kept, noise):
    left = iter(paces)
    monkeypatch.setattr(limits, "pace", lambda: next(left))
    monkeypatch.setattr(Fake, "round", lambda self: self.act("round") or float(Fake.log.count(f"{self.peer} round")))
    path = tmp_path / "bench.json"
    bench([ITEM._replace(repeats=1)], PLAN, Outputs(json=path, chart=None))
    assert next(left, None) is None
    assert {tuple(side.seconds) for side in read_results(path)[0].sides.values()} == {tuple(kept)}
    shown = capsys.readouterr().out
    assert (noise in shown) if noise else ("varied" not in shown)


@pytest.mark.parametrize("where", ["check", "warm up", "round", "loss"])
@pytest.mark.torch
def test_a_side_that_fails_is_skipped_with_its_reason(faked, where):
    faked["twin"] = {"fails": where}
    result, _ = measured()
    assert list(result.sides) == [JAXFORMER, "torch"]
    assert result.skipped == {"twin": "its loss became NaN or infinite" if where == "loss" else "no room"}


def test_without_jaxformer_nothing_is_measured(faked):
    faked[JAXFORMER] = {"fails": "warm up"}
    with pytest.raises(WorkerError, match="no room"):
        measured()
    assert Fake.log[-1] == "jaxformer closed"


def test_a_side_that_is_not_installed_is_skipped(faked, monkeypatch):
    monkeypatch.setattr(measure, "lacking", lambda peer: "torch" if peer == "torch" else None)
    result, _ = measured()
    assert result.skipped == {"torch": "torch is not installed"}
    assert lacking(JAXFORMER) is None
    monkeypatch.setitem(PEERS, "twin", PEERS["twin"]._replace(needs=("no_such_package",)))
    assert lacking("twin") == "no_such_package"


@pytest.mark.parametrize(
    ("wanted", "found", "says"),
    [
        ([2.0], [2.001], "a loss of 2.001, jaxformer's is 2"),
        ([2.0], [float("nan")], "a loss of nan, jaxformer's is 2"),
        ([5, 6, 7], [5, 9, 7], "of 3 tokens, the one at place 1 differs"),
        ([5, 6, 7], [5, 6], "of 3 tokens, the one at place 2 differs"),
    ],
)
@pytest.mark.torch
def test_other_work_is_refused_before_anything_is_timed(faked, wanted, found, says):
    faked[JAXFORMER], faked["torch"] = {"check": wanted}, {"check": found}
    faked["twin"] = {"check": wanted}
    with pytest.raises(ParityError) as refusal:
        measured()
    assert str(refusal.value) == f"train W2: torch does other work than jaxformer: {says}; nothing was timed"
    assert not [line for line in Fake.log if line.endswith("round")]


@pytest.mark.torch
def test_float32_may_differ_in_its_last_digits(faked):
    faked["torch"] = {"check": [2.00001]}
    sides = measured()[0].sides
    assert sides["torch"].figures["apart"] == pytest.approx(5e-6, rel=1e-3)
    assert sides["twin"].figures["apart"] == 0


@pytest.mark.torch
def test_ctrl_c_shows_and_keeps_what_is_finished(faked, capsys, tmp_path):
    faked["torch"] = {"fails": "Ctrl-C"}
    path = tmp_path / "bench.json"
    with pytest.raises(KeyboardInterrupt):
        bench([ITEM, ITEM._replace(name="W1")], PLAN, Outputs(json=path, chart=None))
    (result,) = read_results(path)
    assert [len(side.seconds) for side in result.sides.values()] == [2, 2, 2]
    said = capsys.readouterr().out
    assert "train W2: GPT `cpu`" in said
    assert said.endswith("not measured: train W1\n")
    assert f"{JAXFORMER} closed" in Fake.log


@pytest.mark.parametrize(("before", "said"), [(0.2, False), (1.9, True)])
def test_a_loaded_machine_is_told(faked, monkeypatch, capsys, before, said):
    monkeypatch.setattr(limits, "load", lambda: before)
    monkeypatch.setattr(limits, "cores", lambda: 2)
    bench([ITEM], PLAN, Outputs(json=None, chart=None))
    told = capsys.readouterr().out
    assert ("the machine is loaded: 1.9 processes on 2 cores before the start" in told) == said
    assert "at the end" not in told


def example(name: str = "W2", group: str = "train", **seconds: list[float]) -> Result:
    seconds = seconds or {JAXFORMER: [0.010, 0.011, 0.012], "twin": [0.030, 0.033, 0.036], "torch": [0.020, 0.022, 0.030]}
    sides = {
        peer.replace("_", "-"): SideResult(times, {"memory": 5e8, "threads": 2, "apart": 3e-8})
        for peer, times in seconds.items()
    }
    described = {"processor": "a processor", "cores": 2, "jax": "0.10.2", "torch": "2.13.0"}
    return Result(group, name, f"the work {name}: its sizes", "step", 1e9, 1e6, Peak(1e12, 1e10), described, sides, {})


def test_the_ratio_is_that_to_the_best_peer():
    result = example()
    assert result.best_peer == "torch"
    assert result.ratio("torch") == pytest.approx(2.0)
    assert result.ratios("torch") == pytest.approx((2.0, 2.5))
    assert result.part(JAXFORMER) == pytest.approx(1e9 / 1e12 / 0.011)
    assert replace(result, bytes=1e8).part(JAXFORMER) == pytest.approx(1e8 / 1e10 / 0.011)
    assert summary([result]) == "train W2               2.00 x (2.00 to 2.50): 11 ms for 22 ms of torch"


def test_a_file_of_results_is_added_to(tmp_path):
    path = tmp_path / "bench.json"
    assert read_results(path) == []
    add_results(path, [example(), example("W3")])
    newer = example(jaxformer=[0.5], torch=[1.0])
    add_results(path, [newer])
    assert read_results(path) == [newer, example("W3")]


def test_results_as_markdown():
    cold = example("gpt2", "start", jaxformer=[2.0], jaxformer_cold=[8.0], transformers=[4.0])
    text = markdown([cold, example("W3"), example()])
    lines = text.splitlines()
    assert lines[0].startswith(
        "2 cores of a processor; jax 0.10.2, torch 2.13.0; float32 products of 1024 x 1024 at 1,000 GFLOP/s"
    )
    assert lines[2] == "| a training step | side | median | least to most | jaxformer is | apart | of the peak | memory |"
    assert lines[4] == "| the work W2: its sizes | jaxformer, 2 threads | 11 ms | 10 ms to 12 ms |  |  | 9 % | 0.50 GB |"
    assert lines[6] == "|  | torch, 2 threads | 22 ms | 20 ms to 30 ms | 2.00 x | 3e-08 | 5 % | 0.50 GB |"
    assert [line for line in lines if "W3" in line] == [lines[7]]


def test_results_of_a_gpu_are_a_part_of_their_own():
    on_gpu = replace(example("W3"), device="gpu", tokens=2200.0, peak=Peak(1e15, 3e12, "a card"))
    lines = markdown([on_gpu, example()]).splitlines()
    (place,) = (i for i, line in enumerate(lines) if line.startswith("a card; "))
    assert lines[place].endswith("bfloat16 products of 8192 x 8192 at 1,000,000 GFLOP/s, memory read at 3,000 GB/s.")
    assert "| tokens/s |" not in "".join(lines[:place])
    assert lines[place + 4].startswith("| the work W3: its sizes | jaxformer, 2 threads | 11 ms | 10 ms to 12 ms | 200,000 |")
    cold = example("gpt2", "start", jaxformer=[2.0], jaxformer_cold=[8.0], transformers=[4.0])
    assert short_markdown([cold, on_gpu, example()]).splitlines()[2:] == [
        "| a training step | the work W2 **2.0** |",
        "| from the start of the process | the work gpt2 **2.0** (first start 0.5) |",
        "| a card | a training step: the work W3 **2.0** |",
    ]


def test_results_as_a_chart(tmp_path):
    Outputs(json=None, chart=tmp_path / "bench.png").keep([example(), example("W3")])
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--items", "W7"], "items = 'W7' is not known; choose one of W1, W2, "),
        (["generate", "--items", "W1"], "items = 'W1' is not known; choose one of W3, W3-16, "),
        (["train", "--peers", "keras"], "peers = 'keras' is not known; choose one of jaxformer, "),
        (["train", "--peers", "jaxformer"], "peers = jaxformer leaves nothing to compare with; add one of twin, "),
        (["train", "--rounds", "0"], "rounds = 0 is out of range; give an integer from 1 to "),
        (["train", "--steps", "1"], "steps = 1 is out of range; give an integer from 2 to "),
        (["generate", "--sentences", "1"], "sentences = 1 is out of range; give an integer from 2 to "),
        (
            ["train", "--json", "no/bench.json"],
            "no/bench.json cannot be written: its folder does not exist; name one that does",
        ),
        (["train", "--json", "other.json"], "other.json does not hold results of jaxformer bench ("),
        (["start", "--chart", "bench.gif"], "chart = bench.gif is not a .png file; give it that ending"),
        (["train", "--device", "gpu", "--items", "W1"], "items = 'W1' is not known; choose one of gpt2, W3"),
        (["start", "--device", "gpu"], "device = gpu: bench start has no work for it; leave --device out"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(refusal, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_text(json.dumps([1]))
    monkeypatch.setattr(commands, "ask_once", lambda *_, **__: pytest.fail("measured"))
    assert refusal(dispatch, ["bench", *arguments]).startswith(said)


def test_without_matplotlib_a_chart_is_refused(refusal, monkeypatch):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    said = refusal(dispatch, ["bench", "train", "--chart", "bench.png"])
    assert said == "--chart needs matplotlib; pip install 'jaxformer[viz]'"


def test_items_and_peers_are_known_to_each_other():
    assert len({key_of(item) for item in ITEMS}) == len(ITEMS)
    for item in ITEMS:
        assert item.peers[0] == JAXFORMER
        assert set(item.peers) <= set(SIDES.get((item.group, item.device), item.peers)) <= set(PEERS)
        assert item in chosen_items(item.group, item.device, ())
    starts = chosen_items("start", "cpu", ())
    assert chosen_peers(starts, ("twin",)) == (JAXFORMER, "twin")
    assert COLD in chosen_peers(starts, ())
