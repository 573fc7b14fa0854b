"""What is seen on eight simulated devices, as one line of JSON: run by test_sharding.py in a process of its own."""

import json
import os
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import jaxformer as jf
from benchmarks.sharding import GPT_CONFIG, PAIR_CONFIG, apart, trained
from jaxformer.config.mesh import MeshConfig
from jaxformer.errors import JaxformerError
from jaxformer.evaluation.sharded.compare import judge
from jaxformer.evaluation.sharded.mutants import MUTANTS
from jaxformer.evaluation.sharded.try_mutants import case, try_mutant
from jaxformer.nn import chunked_attention
from jaxformer.nn.embeddings import Embedding
from jaxformer.parallel.mesh import make_mesh, on_mesh
from jaxformer.parallel.placement import init, put, put_batch
from jaxformer.recipes.qa import train_all
from jaxformer.runs.checkpoint import digest, load_state, save_state
from jaxformer.runtime.environment import in_order
from jaxformer.training import chunked_loss
from jaxformer.training.size import held_bytes
from jaxformer.training.step import train_state, train_step

TRIED = ("a mean of unequal shards",)
PRODUCT = "data=2,fsdp=2,tensor=2"


def small(config, **changes):
    return replace(config, n_layers=1, d_model=16, d_ff=32, n_heads=4, vocab_size=32, **changes)


EXPERTS = small(jf.preset("mixtral.tiny"), n_kv_heads=2, context=17, router_bias=True, shared_d_ff=8, shared_gate=True)

LATENTS = replace(jf.preset("deepseek_v3.tiny"), n_layers=2, d_model=16, d_ff=8, dense_d_ff=16, vocab_size=32)


def training() -> dict:
    """Two steps with dropout in float64, on the mesh with attention in parts and the loss in chunks. The vocabulary is not
    divided, so that fsdp cuts the embedding along D; parts of attention draw other scores to drop."""
    config = replace(small(GPT_CONFIG, n_kv_heads=2, attention_dropout=0.0), vocab_size=33)
    sizes = patch.multiple(chunked_attention, MOST_SCORES=64, AT_ONCE=2048), patch.object(chunked_loss, "MOST_LOGITS", 4096)
    with jax.enable_x64(True):
        alone = trained(config, None, 2, "float64")
        with sizes[0], sizes[1]:
            found = trained(config, PRODUCT, 2, "float64")
    return {"product": apart(found, alone), "largest": found.largest}


def stays() -> dict:
    """Initial numbers, a checkpoint that goes on elsewhere, and written ids."""
    config = small(GPT_CONFIG, n_kv_heads=2)
    build, key = (lambda key: jf.GPT(config, rngs=key)), jax.random.key(0)
    alone, said, eight = init(build, key), [], MeshConfig(fsdp=8)
    with on_mesh(eight):
        cut = init(build, key)
        largest = max(jax.tree.leaves(cut), key=lambda leaf: leaf.size)
    with tempfile.TemporaryDirectory() as folder:
        for wrote, reads in ((eight, eight), (eight, MeshConfig(data=2, tensor=2)), (eight, None), (None, eight)):
            with on_mesh(wrote):
                save_state(place := Path(folder) / f"{wrote} {reads}", 1, alone if wrote is None else cut)
            with on_mesh(reads), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                zeros = put(jax.tree.map(lambda leaf: jax.device_put(np.zeros_like(leaf)), alone))
                again = load_state(place, zeros)
            lies = [leaf.sharding for leaf in jax.tree.leaves(again)] == [leaf.sharding for leaf in jax.tree.leaves(zeros)]
            same = digest(again) == digest(alone) and lies
            said.append([same, *(str(one.message).partition(": ")[2] for one in caught)])
    prompt = np.arange(12, dtype=np.int32).reshape(4, 3)
    written = jf.generate(alone, prompt, 6)
    with on_mesh(MeshConfig(data=2, tensor=2)):
        same = np.array_equal(jf.generate(put(alone), prompt, 6), written)
    part = largest.addressable_shards[0].data.size / largest.size
    return {"same init": digest(cut) == digest(alone), "largest": part, "resumed": said, "same ids": bool(same)}


def looked_up() -> bool:
    """Whether rows of an embedding are right whose ids are cut by all axes, as where tokens are decoded. XLA may warn."""
    table, ids = {"token": Embedding(33, 16)}, np.arange(8, dtype=np.int32)[:, None]
    table["token"].table[...] = jnp.arange(33.0 * 16).reshape(33, 16)

    def rows(table, ids):
        return table["token"].encode(jax.lax.with_sharding_constraint(ids, PartitionSpec(("data", "fsdp", "tensor"))))

    with on_mesh(MeshConfig.read(PRODUCT)):
        return np.array_equal(jax.jit(rows)(put(table), ids), table["token"].encode(ids))


def many_seeds() -> list[bool]:
    """Of models that are trained side by side: whether they lie on eight devices, and answer and lose as on one."""
    train, seeds = jax.jit(train_all, static_argnums=1), np.arange(8, dtype=np.uint32)
    answers, losses = train(seeds, 5)
    with on_mesh(MeshConfig(data=8)):
        found, lost = train(put_batch(seeds), 5)
    lies = len({str(shard.index) for shard in lost.addressable_shards}) == 8
    return [lies, np.array_equal(found, answers), np.allclose(lost, losses, rtol=1e-5)]


def own_steps() -> list[str]:
    """What is said of a user's own step on a mesh, of wrong ones, and of what is no step."""
    made, reference = case()
    right = jax.jit(partial(train_step, loss=made.loss, optimizer=made.optimizer))

    def wrong(state, batch, key):
        after, value = right(state, batch, key)
        return replace(after, model=state.model), value

    def forgets(state, batch, key):
        return right(replace(state, moments=jax.tree.map(np.zeros_like, state.moments)), batch, key)

    meshes = []

    def bound(state, batch, key):  # as a shard_map is that was made outside
        meshes.append(jax.sharding.get_abstract_mesh())
        if meshes[-1] != meshes[0]:
            raise ValueError("another mesh")
        return wrong(state, batch, key)

    def given(change):
        return lambda state, batch, key: change(*right(state, batch, key))

    def stale(after, value):
        devices = after.step.sharding.device_set
        held = [jax.device_put(np.int32(i), device) for i, device in enumerate(sorted(devices, key=lambda each: each.id))]
        return replace(after, step=jax.make_array_from_single_device_arrays((), after.step.sharding, held)), value

    steps = (
        right,
        wrong,
        forgets,
        bound,
        given(stale),
        given(lambda after, value: (replace(after, moments=()), value)),
        given(lambda after, value: (None, value)),
        given(lambda after, value: (after, value, 3)),
        given(lambda after, value: after),
        given(lambda after, value: (after, {"loss": value})),
        given(lambda after, value: (replace(after, step=np.asarray(after.step)), value)),
    )
    said = [verdict_of(replace(made, step=step), reference) for step in steps]
    return [*said, verdict_of(replace(made, loss=lambda model, batch, key: 1.0), reference)]


TOY = {"up": {"kernel": np.linspace(0.1, 1.0, 16, dtype=np.float32).reshape(4, 4)}}
ROWS = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(4, 4)
WARM_UP = optax.sgd(optax.linear_schedule(0.0, 0.1, 100))


def toy_loss(model, batch, key, count=16.0):
    return ((batch @ model["up"]["kernel"]) ** 2).sum(), jnp.asarray(count)


def toy_step(factor, optimizer=WARM_UP):
    def step(state, batch, key):
        loss = lambda model: factor * toy_loss(model, batch, key)[0] / 16  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(state.model)
        updates, moments = optimizer.update(gradient, state.moments, state.model)
        after = replace(state, step=state.step + 1, model=optax.apply_updates(state.model, updates), moments=moments)
        return after, value / factor

    return jax.jit(step)


def other_loss(model, batch, key):
    return toy_loss({"up": model["fc"]}, batch, key)


OTHER = {"fc": TOY["up"]}
TOYS = {
    "a warm-up": {"optimizer": WARM_UP, "step": toy_step(1)},
    "a warm-up, and twice the gradient": {"optimizer": WARM_UP, "step": toy_step(2)},
    "a rate of 0": {"optimizer": optax.sgd(0.0)},
    "decay alone": {"optimizer": optax.chain(optax.scale(0.0), optax.add_decayed_weights(-0.1))},
    "a rate of almost 0": {"optimizer": optax.sgd(1e-12), "step": toy_step(2, optax.sgd(1e-12))},
    "signs": {"optimizer": optax.sign_sgd(1e-3)},
    "NaN": {"loss": lambda *given: toy_loss(*given, count=jnp.nan)},
    "a count of 0": {"loss": lambda *given: toy_loss(*given, count=0.0)},
    "MultiSteps": {"optimizer": optax.MultiSteps(optax.sgd(0.1), 2)},
    "moments of other axes": {"optimizer": optax.adafactor(0.1, min_dim_size_to_factor=4)},
    "another name": {"model": OTHER, "loss": other_loss},
    "another name and its rule": {"model": OTHER, "loss": other_loss, "mesh": "tensor=2", "rules": {"fc.kernel": "D F"}},
    "a rule of another letter": {"rules": {"fc.kernel": "D tensor"}},
    "half": {"loss": lambda *given: (toy_loss(*given)[0].astype(jnp.bfloat16), 1.0)},
    "noise": {"optimizer": optax.noisy_sgd(0.1, key=0)},
    "no optimizer": {"optimizer": "adam"},
    "no model": {"model": None},
    "a name": {"model": "gpt.tiny"},
    "a key": {"model": {**TOY, "key": np.zeros(2, np.uint32)}},
    "no batch": {"batch": None},
    "lists": {"batch": [[1, 2]]},
    "strings": {"batch": np.array(["a", "b"])},
    "no key": {"key": 3},
    "no gradient": {"loss": lambda model, batch, key: (jnp.asarray(1.0), jnp.asarray(1.0))},
}
"""What a model of two lines is compared with, in little time."""


def toy(changes) -> str:
    """What is said of it, or the refusal, or whatever else is raised."""
    given = {"model": TOY, "mesh": "data=2", "batch": ROWS, "loss": toy_loss, "optimizer": optax.sgd(0.1), **changes}
    try:
        return jf.compare_sharded(**given).verdict
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def verdict_of(made, reference) -> str:
    """Or the refusal, or whatever else is raised."""
    try:
        return judge(made, MeshConfig(data=2), reference).verdict
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def sizes() -> list[int]:
    """Bytes of a state that are asked of this process, and of an accelerator, before it is made."""
    state = train_state(jf.abstract(small(GPT_CONFIG)), optax.sgd(0.1))
    found = [held_bytes(state.model)]
    with on_mesh(MeshConfig(fsdp=8)):
        found.append(held_bytes(state.model))
        with patch("jaxformer.training.size.memories", lambda mesh: mesh.size):
            found.append(held_bytes(state.model))
    return found


def refused() -> list[str]:
    """One line each."""
    said = []
    for call in (
        lambda: make_mesh(MeshConfig(data=16)),
        lambda: jf.compare_sharded(small(GPT_CONFIG, n_kv_heads=2), "tensor=8"),
        lambda: jf.compare_sharded(small(GPT_CONFIG, n_kv_heads=2), "tensor"),
        lambda: jf.compare_sharded(small(GPT_CONFIG), 4),
        lambda: jf.compare_sharded(small(GPT_CONFIG), "data=2", step=3),
        lambda: jf.compare_sharded(small(GPT_CONFIG), "data=4", np.zeros((6, 8), np.int32)),
    ):
        try:
            call()
        except (JaxformerError, AttributeError, TypeError) as error:
            said.append(str(error))
    return said


def first() -> dict:
    """What the usual run of the tests looks at."""
    outcomes = [try_mutant(mutant) for mutant in MUTANTS if mutant.name in TRIED]
    mutants = {outcome.mutant.name: [outcome.killed, outcome.report.verdict] for outcome in outcomes}
    toys = {name: toy(changes) for name, changes in TOYS.items()}
    found = {"refused": refused(), "stays": stays(), "looked up": looked_up(), "mutants": mutants, "sizes": sizes()}
    return found | {"toys": toys, "training": training()}


def more() -> dict:
    """What takes as long again."""
    compared = {"pairs": (small(PAIR_CONFIG), PRODUCT), "experts": (EXPERTS, "data=2,expert=4"), "latents": (LATENTS, PRODUCT)}
    found = {name: str(jf.compare_sharded(config, mesh)) for name, (config, mesh) in compared.items()}
    return {"seeds": many_seeds(), "own steps": own_steps(), **found}


def main(part: str) -> None:
    in_order()
    print(json.dumps({"first": first, "more": more}[part]()))


if __name__ == "__main__":
    main(sys.argv[1])
