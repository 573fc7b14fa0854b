"""Measure the memory of a train step on a mesh, and compare it with the prediction of `jaxformer info --mesh --batch`.

`python -m benchmarks.sharding_memory [MODEL:MESH:ROWS ...]`: each case in a process of its own, on simulated devices (Linux,
glibc). The measurement is the size of the state plus the largest amount that a step adds to the memory of the process; it
leaves out Python, jax and the compiler. Freed memory is returned to the system at once, so that the allocator's caching is not
measured; YNNPACK is off, as in the prediction.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.xla_flags import xla_flags
from jaxformer.config.mesh import MeshConfig
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.runtime.xla_options import YNNPACK

SIZES: dict[str, Any] = {"vocab_size": 1024, "context": 256, "d_model": 256, "n_layers": 4, "n_heads": 8, "d_ff": 1024}
GPT = GPTConfig(**SIZES)
MODELS: dict[str, ModelConfig] = {
    "gpt": GPT,
    "gpt-remat": replace(GPT, n_layers=8, layers="rolled", remat=True),
    "encoder-decoder": EncoderDecoderConfig(**SIZES, tied=True),
}
CASES = (
    *("gpt:data=1:32", "gpt:data=8:32", "gpt:fsdp=8:32", "gpt:tensor=4:16", "gpt:data=2,fsdp=2,tensor=2:32"),
    *("gpt-remat:data=1:32", "gpt-remat:data=2,fsdp=2,tensor=2:32"),
    *("encoder-decoder:data=1:32", "encoder-decoder:fsdp=8:32", "encoder-decoder:data=2,fsdp=2,tensor=2:32"),
)
"""Cases: model, mesh, and rows of a batch."""
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "JAXFORMER_BENCHMARK": "child",
    "XLA_FLAGS": xla_flags({YNNPACK: ""}),
}


def held(what: str) -> int:
    """Return a size of this process in bytes: VmRSS is the current one, VmHWM the peak."""
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def measure(config: ModelConfig, mesh: MeshConfig, rows: int) -> tuple[int, int]:
    """Return the predicted and the measured bytes of all devices together."""
    import jax
    import numpy as np

    from jaxformer.evaluation.sharded.predict import abstract_batch, compiled_step
    from jaxformer.evaluation.sharded.recorded_step import OPTIMIZER, default_loss
    from jaxformer.models import build
    from jaxformer.parallel.mesh import on_mesh
    from jaxformer.parallel.placement import init, shardings
    from jaxformer.training.optimizers import make_optimizer
    from jaxformer.training.step import train_state, train_step

    predicted, optimizer = compiled_step(config, mesh, rows, config.context), make_optimizer(*OPTIMIZER)
    with on_mesh(mesh):
        state = init(lambda key: train_state(build(config, rngs=key), optimizer), jax.random.key(0))
        batch = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), abstract_batch(state.model, rows, config.context))
        step = partial(train_step, loss=default_loss(state.model), optimizer=optimizer)
        run = jax.jit(step, donate_argnums=0, out_shardings=(shardings(state), None))
        run = run.lower(state, batch, key := jax.random.key(0)).compile()
        taken = sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = held("VmRSS")
        jax.block_until_ready(run(state, batch, key))
    return mesh.devices * predicted.peak, taken + held("VmHWM") - before


def main() -> None:
    """Print a row for each case."""
    for asked in sys.argv[1:] or CASES:
        name, axes, rows = asked.split(":")
        mesh = MeshConfig.read(axes)
        if "JAXFORMER_BENCHMARK" in os.environ:
            predicted, measured = measure(MODELS[name], mesh, int(rows))
            sizes = f"{predicted / 1e9:.2f} GB | {measured / 1e9:.2f} GB | {measured / predicted:.3f}"
            print(f"| {name} | {mesh} | {rows} | {sizes} |")
            return
        command = [sys.executable, "-m", "benchmarks.sharding_memory", asked]
        subprocess.run(command, check=True, env=os.environ | ENVIRONMENT | {"JAX_NUM_CPU_DEVICES": str(mesh.devices)})


if __name__ == "__main__":
    main()
