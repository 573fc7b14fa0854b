"""Print the parity table of the README as Markdown: models with excited parameters on adversarial inputs."""

from dataclasses import dataclass, replace

import torch_ref.models
from jaxformer.cli.flags import parse, run
from jaxformer.config.models import GPTConfig, ModelConfig
from jaxformer.config.presets import PRESETS
from jaxformer.config.settings import OptimizerConfig
from jaxformer.evaluation.ladder import (
    TrainingCase,
    adversarial_inputs,
    call_jax,
    call_torch,
    check_output,
    check_weights,
    compare_twins,
    jax_gradients,
    load_torch,
)
from jaxformer.models import abstract
from jaxformer.parity.attribute.low_precision import check_output32
from jaxformer.parity.numerics.metrics import check_gradients, difference
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.trace.reference import run_torch
from jaxformer.parity.training.compare import check_training
from jaxformer.validation.fields import check_choice

LONGEST = 128
"""Largest number of tokens in a sequence."""


@dataclass(frozen=True, kw_only=True)
class ParityTable:
    """Measure models against their PyTorch twins; a difference above its tolerance is a ParityError."""

    presets: tuple[str, ...] = ("qa", "gpt.tiny", "gpt.cpu", "gpt.gpu", "reverse", "shared", "transformer.copy")
    """Names of presets."""
    steps: int = 100
    """Optimizer steps of the training rows; 0: no training."""


def main(arguments: list[str]) -> None:
    """Print the table."""
    flags = parse(ParityTable, arguments, prog="python -m benchmarks.parity")
    for name in flags.presets:
        check_choice("presets", name, PRESETS)
    print("| model | logits, float64: relL2 | max/rms | gradients, float64: max/rms | logits, float32: error / tolerance |")
    print("|---|---|---|---|---|")
    for name in flags.presets:
        print(f"| {name} | {' | '.join(compared(PRESETS[name]))} |", flush=True)
    if flags.steps:
        print(f"\n| {flags.steps} steps, float64 | loss, relative | parameters, max/rms |\n|---|---|---|")
        for name, optimizer in OPTIMIZERS.items():
            print(f"| {name} | {' | '.join(trained(optimizer, flags.steps))} |", flush=True)


def compared(config: ModelConfig) -> list[str]:
    """Compare a model with its twin; return the errors in the order of the table's columns."""
    config = replace(config, context=min(config.context, LONGEST))
    twin = load_torch(torch_ref.models.build(config), excite(abstract(config), seed=1)).eval()
    inputs = adversarial_inputs(config, 5, config.context, seed=2)
    reference, candidate = run_torch(twin, inputs, call_torch), Candidate(abstract(config), call_jax)
    check_weights(reference, candidate)
    output, gradients = check_output(reference, candidate), jax_gradients(reference, candidate)
    nulls = check_gradients(gradients, reference.gradients)
    worst = max(difference(n, gradients[n], theirs).peak for n, theirs in reference.gradients.items() if n not in nulls)
    return [f"{output.relative:.1e}", f"{output.peak:.1e}", f"{worst:.1e}", f"{check_output32(reference, candidate):.2f}"]


OPTIMIZERS = {
    "SGD": OptimizerConfig(name="sgd", learning_rate=0.02, momentum=0.9, clip_norm=1.0),
    "Adam": OptimizerConfig(name="adam", learning_rate=1e-3),
    "Adam with L2": OptimizerConfig(name="adam", learning_rate=1e-3, weight_decay=0.1),
    "AdamW": OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0),
}


def trained(optimizer: OptimizerConfig, steps: int) -> list[str]:
    """Train a small model and its twin; return the errors of the losses and of the final parameters."""
    model = GPTConfig(vocab_size=23, context=13, d_model=12, n_layers=2, n_heads=3, d_ff=20)
    course = compare_twins(TrainingCase(model=model, optimizer=optimizer, steps=steps))
    check_training(course)
    return [f"{max(step.loss_error for step in course.steps):.1e}", f"{course.steps[-1].parameter_error:.1e}"]


if __name__ == "__main__":
    run(main)
