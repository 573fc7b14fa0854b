"""Try every mutant of sharded code: each has to be noticed, with its axis."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import jax

from jaxformer.config.mesh import MeshConfig
from jaxformer.config.models import GPTConfig
from jaxformer.evaluation.sharded.compare import Case, judge
from jaxformer.evaluation.sharded.mutants import MUTANTS, Injection, ShardMutant
from jaxformer.evaluation.sharded.recorded_step import OPTIMIZER, Recorded, default_batch, default_loss, excited, wide_state
from jaxformer.parity.report.report import Report
from jaxformer.training.optimizers import make_optimizer

MODEL = GPTConfig(
    vocab_size=64, context=17, d_model=16, n_layers=1, n_heads=4, d_ff=32, embedding_dropout=0.2, qkv_bias=False, init="normal"
)
DEVICES = max(MeshConfig.read(mutant.mesh).devices for mutant in MUTANTS)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a mutant."""

    mutant: ShardMutant
    report: Report

    @property
    def killed(self) -> bool:
        """True if the mutant was noticed, and its axis and the expected text were reported."""
        said = self.report.verdict
        return self.report.exit_code == 1 and f"axis {self.mutant.axis}" in said and self.mutant.cause in said

    def __str__(self) -> str:
        word = "killed" if self.killed else "SURVIVED"
        return f"{self.mutant.name:46}{self.mutant.mesh:16}  {word}  {self.report.verdict.partition('first ')[2]}"


@cache
def case() -> tuple[Case, Recorded]:
    """Return the step without a mistake, and its result on one device."""
    model, optimizer = excited(MODEL), make_optimizer(*OPTIMIZER)
    state, batch = wide_state(model, optimizer), default_batch(MODEL, MeshConfig())
    made = Case(state, batch, jax.random.key(0), default_loss(model), optimizer)
    return made, made.on_one_device()


def try_mutant(mutant: ShardMutant) -> Outcome:
    """Compare with the mistake in the step on the mesh."""
    return Outcome(mutant, compared(mutant.mesh, mutant.inject))


def compared(mesh: str, around: Injection = nullcontext) -> Report:
    """Compare the step on a mesh with the step on one device."""
    made, reference = case()
    return judge(made, MeshConfig.read(mesh), reference, around)


def main() -> int:
    """Print a line for each mutant; return 0 if all are killed and the correct step is equal on each of their meshes."""
    outcomes = []
    for mutant in MUTANTS:
        outcomes.append(try_mutant(mutant))
        print(outcomes[-1], flush=True)
    red = [mesh for mesh in sorted({mutant.mesh for mutant in MUTANTS}) if compared(mesh).exit_code]
    for mesh in red:
        print(f"without a mistake, mesh {mesh} differs")
    print(f"{sum(outcome.killed for outcome in outcomes)}/{len(outcomes)} mutants of shards killed, each with its axis")
    return int(bool(red) or not all(outcome.killed for outcome in outcomes))
