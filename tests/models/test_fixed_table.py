"""A table that is given: part of a configuration, of no gradient, and of the files that a run leaves."""

import copy
import json
from dataclasses import asdict, replace

import jax
import numpy as np
import optax
import pytest
import torch

from jaxformer.cli.flags import parse
from jaxformer.config.configuration import FixedTable, from_dict, plain
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.errors import ConfigError
from jaxformer.models import abstract
from jaxformer.parity.probe import excite
from jaxformer.pytree import named_leaves
from tests.tiny import tiny_config

NUMBERS = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
CONFIG = tiny_config(n_layers=1, positions=FixedTable(NUMBERS))
IDS = np.array([[1, 2, 3]], np.int32)


def test_equal_numbers_make_equal_tables():
    same, other = FixedTable(NUMBERS.astype(np.float64).tolist()), FixedTable(NUMBERS + 1)
    assert FixedTable(NUMBERS) == same != other
    assert hash(same) == hash(FixedTable(NUMBERS))
    assert FixedTable(NUMBERS) != FixedTable(NUMBERS.reshape(8, 9))
    assert FixedTable(torch.nn.Parameter(torch.from_numpy(NUMBERS))) == same
    assert FixedTable(jax.numpy.asarray(NUMBERS)) == same


def test_nobody_can_write_to_it():
    numbers = NUMBERS.astype(np.float64)
    table = FixedTable(numbers)
    numbers[0, 0] = 5
    assert table == FixedTable(NUMBERS)
    with pytest.raises(ValueError, match="read-only"):
        table.array[0, 0] = 5


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (NUMBERS[0], r"a table has shape \(8,\); give \(rows, columns\)"),
        ([[1.0, np.nan]], r"a table has nan at \[0, 1\]; give finite numbers"),
        ("learned", "a table cannot be made of a str: could not convert"),
        ([[1.0], [1.0, 2.0]], "a table cannot be made of a list: "),
    ],
)
def test_what_is_no_table(numbers, said):
    with pytest.raises(ConfigError, match=said) as caught:
        FixedTable(numbers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"context": 10}, r"positions = FixedTable\(9 x 8\) does not fit; give at least 10 rows of 8 numbers"),
        ({"position_offset": 2}, r"positions = FixedTable\(9 x 8\) does not fit; give at least 10 rows"),
        ({"d_model": 4}, r"positions = FixedTable\(9 x 8\) does not fit; give at least 8 rows of 4 numbers"),
    ],
)
def test_a_table_that_does_not_fit(changes, said):
    with pytest.raises(ConfigError, match=said):
        replace(CONFIG, **changes)


def test_a_source_needs_rows_too():
    fields = {name: value for name, value in asdict(CONFIG).items() if name in EncoderDecoderConfig.__dataclass_fields__}
    EncoderDecoderConfig(**fields, source_context=9)
    with pytest.raises(ConfigError, match=r"^positions = FixedTable\(9 x 8\) does not fit; give at least 11 rows"):
        EncoderDecoderConfig(**fields, source_context=11)
    with pytest.raises(ConfigError, match=r"^source_positions = FixedTable\(2 x 8\) does not fit; give at least 8 rows"):
        EncoderDecoderConfig(**fields, source_positions=FixedTable(NUMBERS[:2]))


@pytest.fixture(scope="module")
def model():
    return excite(abstract(CONFIG), seed=0)


@pytest.mark.slow
def test_a_step_trains_everything_but_the_table(model):
    optimizer = optax.adamw(0.1, weight_decay=0.1)

    @jax.jit
    def step(model):
        gradients = jax.grad(lambda model: (model(IDS) ** 2).sum())(model)
        return optax.apply_updates(model, optimizer.update(gradients, optimizer.init(model), model)[0])

    before, after = named_leaves(model), named_leaves(stepped := step(model))
    assert not [name for name in before if "position" in name]
    assert [name for name in before if (before[name] == after[name]).all()] == []
    assert stepped.embed.positions == FixedTable(NUMBERS)


def test_models_with_equal_tables_are_one_program(model):
    run = jax.jit(lambda model: model(IDS))
    first = run(model)
    again = excite(abstract(replace(CONFIG, positions=FixedTable(NUMBERS.copy()))), seed=0)
    assert np.array_equal(run(again), first)
    assert np.array_equal(run(copy.deepcopy(model)), first)
    assert run._cache_size() == 1
    other = excite(abstract(replace(CONFIG, positions=FixedTable(NUMBERS + 1))), seed=0)
    assert not np.array_equal(run(other), first)
    assert run._cache_size() == 2


def test_several_models_at_once(model):
    both = jax.tree.map(lambda leaf: jax.numpy.stack([leaf, 2 * leaf]), model)
    found = jax.jit(jax.vmap(lambda model: model(IDS)))(both)
    np.testing.assert_allclose(found[0], jax.jit(lambda model: model(IDS))(model), atol=1e-6)
    assert jax.tree.structure(abstract(CONFIG)) == jax.tree.structure(model)


def test_json_keeps_it():
    held = json.loads(json.dumps({"recipe": asdict(CONFIG)}, default=plain))
    assert from_dict(GPTConfig, held["recipe"]) == CONFIG


def test_a_flag_reads_it_from_a_file(tmp_path):
    np.save(tmp_path / "table.npy", NUMBERS)
    found = parse(GPTConfig, ["--positions", str(tmp_path / "table.npy")], prog="x", default=tiny_config(n_layers=1))
    assert found == CONFIG
    assert parse(GPTConfig, ["--d-ff", "16"], prog="x", default=CONFIG) == CONFIG
    assert parse(GPTConfig, ["--positions", "sinusoid"], prog="x", default=CONFIG).positions == "sinusoid"


@pytest.mark.parametrize("content", [None, b"1, 2\n3, 4\n", b""])
def test_a_file_without_a_table(tmp_path, content):
    if content is not None:
        (tmp_path / "table.npy").write_bytes(content)
    with pytest.raises(ConfigError, match=r"table.npy holds no table: .*; give a .npy file of numpy.save$"):
        FixedTable.load(str(tmp_path / "table.npy"))
