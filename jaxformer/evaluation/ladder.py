"""Ladder of checks that compare a jax module with its torch twin: weights, output, gradients, and float32 accuracy.

    reference = run_torch(torch_module, inputs)
    for check in LADDER.values():
        check(reference, Candidate(jax_module))

Each check raises ConversionError or ParityError; `LADDER` lists them, cheapest first. Training cases compare models with
jaxformer's losses, optimizers and schedules with their torch counterparts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.config.settings import IGNORE_INDEX, OptimizerConfig, ScheduleConfig, Spread
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.host import same_bits
from jaxformer.convert.rules import Family, gradients_to_torch, to_torch
from jaxformer.data.drawn import SHORTER, draw_images, draw_texts
from jaxformer.errors import ParityError
from jaxformer.models import DualEncoder, Encoder, EncoderDecoder, Model, VisionEncoder, abstract
from jaxformer.nn import masks
from jaxformer.parity.attribute.low_precision import check_output32
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import Error, check_float64, check_gradients
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.parity.trace.reference import Reference
from jaxformer.parity.training.compare import check_training32, compare_training
from jaxformer.parity.training.step_comparison import TrainingResult
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.pytree import map_named
from jaxformer.training import losses, optimizers, routing, schedules

MASKED = 0.3
"""Share of the patches that are masked."""


def adversarial_inputs(config: AnyModelConfig, batch: int, length: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return ids `B T` and a mask of the real tokens, followed by token types (encoder) or target ids and their mask.

    A source of features is an odd number of frames in place of ids. Of a vision encoder it is images, with a mask of patches if
    there is a token for them; of a dual encoder, images, ids and their mask. Neither source nor target is longer than its
    context.
    """
    if isinstance(config, VisionEncoderConfig):
        images = (draw_images(np.random.default_rng(seed), config, batch),)
        masked = np.random.default_rng(seed).random((batch, config.patches)) < MASKED
        return (*images, masked) if config.mask_token else images
    if isinstance(config, DualEncoderConfig):
        images, texts = (np.random.default_rng(seed) for _ in range(2))
        read = draw_texts(texts, config, batch + 1, min(length, config.text.context))
        return draw_images(images, config.vision, batch), *read
    if isinstance(config, EncoderDecoderConfig):
        source = probe(config.source_ids, batch, min(length, config.source.context), seed)
        if config.source_features is not None:
            shape = batch, 2 * source[0].shape[1] - 1, config.source_features
            source = np.random.default_rng(seed).standard_normal(shape).astype(np.float32), source[1]
        return *source, *probe(config.vocab_size, batch, min(length, config.context) - SHORTER, seed + 1000)
    tokens = probe(config.vocab_size, batch, length, seed)
    if isinstance(config, EncoderConfig):
        types = np.random.default_rng(seed).integers(0, max(config.token_types, 1), (batch, length), np.int32)
        return *tokens, types
    return tokens


def call_jax(model: Any, *inputs: Any, key: PRNGKeyArray | None = None) -> jax.Array:
    """Return jax's logits, or a headless encoder's hidden states followed by the pooled one; padding is masked."""
    if isinstance(model, VisionEncoder):
        found = model(inputs[0], masked=inputs[1] if model.config.mask_token else None, key=key)
        pooled = model.head is None and model.config.pooled_width == model.config.d_model
        return jnp.concatenate([found, model.pool(found)[:, None]], 1) if pooled else found
    if isinstance(model, DualEncoder):
        return model(inputs[0], inputs[1], mask=masks.padding_mask(jnp.asarray(inputs[2])), key=key)
    ids, valid, *rest = inputs
    mask = masks.padding_mask(jnp.asarray(valid))
    if isinstance(model, EncoderDecoder):
        target, target_valid = rest
        return model(ids, target, source_mask=mask, target_mask=masks.padding_mask(jnp.asarray(target_valid)), key=key)
    if isinstance(model, Encoder):
        types = rest[0] if model.config.token_types else None
        found = model(ids, mask=mask, token_types=types, key=key)
        pooled = model.pooler is not None and model.head is None
        return jnp.concatenate([found, model.pool(found)[:, None]], 1) if pooled else found
    return model(ids, mask=mask, key=key)


def call_torch(model: Any, *inputs: Any) -> Any:
    """Return torch's output, laid out as by `call_jax`."""
    import torch

    import torch_ref.models
    from torch_ref.nn.masks import padding_mask

    if isinstance(model, torch_ref.models.VisionEncoder):
        found = model(inputs[0], masked=inputs[1] if model.config.mask_token else None)
        pooled = model.head is None and model.config.pooled_width == model.config.d_model
        return torch.cat([found, model.pool(found)[:, None]], 1) if pooled else found
    if isinstance(model, torch_ref.models.DualEncoder):
        return model(inputs[0], inputs[1], mask=padding_mask(inputs[2]))
    ids, valid, *rest = inputs
    mask = padding_mask(valid)
    if isinstance(model, torch_ref.models.EncoderDecoder):
        target, target_valid = rest
        return model(ids, target, source_mask=mask, target_mask=padding_mask(target_valid))
    if isinstance(model, torch_ref.models.Encoder):
        found = model(ids, mask=mask, token_types=rest[0] if model.config.token_types else None)
        pooled = model.pooler is not None and model.head is None
        return torch.cat([found, model.pool(found)[:, None]], 1) if pooled else found
    return model(ids, mask=mask)


def load_torch(module: Any, tree: PyTree, family: Family = TWIN) -> Any:
    """Load a jax tree's weights into a torch module in place; strict about names and shapes."""
    import torch

    state = {name: torch.from_numpy(array) for name, array in to_torch(tree, family, like=module.state_dict()).items()}
    module.load_state_dict(state, strict=True)
    return module


def check_weights(reference: Reference, candidate: Candidate) -> None:
    """Raise ParityError unless every tensor is used exactly once and is bitwise equal after conversion to jax and back."""
    back = to_torch(candidate.model(reference), candidate.family)
    changed = [name for name, tensor in reference.weights.items() if not same_bits(back[name], tensor)]
    if changed:
        raise ParityError(f"weights change on the way to JAX and back: {', '.join(changed)}")


def check_output(reference: Reference, candidate: Candidate) -> Error:
    """Compare outputs in float64 with tier A's tolerance."""
    with jax.enable_x64(True):
        model = to_float64(candidate.model(reference))
        output = jax.jit(candidate.call)(model, *to_float64(reference.inputs))
        return check_float64("output", output, reference.output)


def jax_gradients(reference: Reference, candidate: Candidate) -> dict[str, Any]:
    """Return jax's float64 gradients of the sum of output * cotangent, by torch's names."""

    def objective(model, floats, others):
        inputs = floats | others
        output = candidate.call(model, *(inputs[f"input {i}"] for i in range(len(inputs))))
        return (output * jnp.asarray(reference.cotangent)).sum()

    with jax.enable_x64(True):
        inputs = {f"input {i}": array for i, array in enumerate(to_float64(reference.inputs))}
        floats = {name: array for name, array in inputs.items() if jnp.issubdtype(array.dtype, jnp.floating)}
        others = {name: array for name, array in inputs.items() if name not in floats}
        model = to_float64(candidate.model(reference))
        weights, arrays = jax.jit(jax.grad(objective, (0, 1)))(model, floats, others)
        return gradients_to_torch(weights, candidate.family, reference.weights) | arrays


def check_all_gradients(reference: Reference, candidate: Candidate) -> list[str]:
    """Compare the gradients of weights and float inputs with tier A's tolerance; return the names of null gradients."""
    return check_gradients(jax_gradients(reference, candidate), reference.gradients)


LADDER: dict[str, Callable[[Reference, Candidate], Any]] = {
    "weights, bitwise": check_weights,
    "output, float64": check_output,
    "gradients, float64": check_all_gradients,
    "output, float32": check_output32,
}


LARGE_LOGIT = np.float32(1000)
"""Logit of a sure model: float32 holds numbers of this size to 3e-5."""


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """Training case: everything that both sides share."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    smoothing: float = 0.0
    spread: Spread = "all"
    ignore_index: int = IGNORE_INDEX
    steps: int = 100
    batch: int = 5
    sure: float = 0.0
    """Amount by which the logit of token 0, then every target, exceeds the other, large logits: the model is sure. 0: off."""

    def start(self) -> Model:
        """Return the model before its first step, with excited weights."""
        model = excite(abstract(self.model), seed=1)
        sure = np.full(self.model.vocab_size, LARGE_LOGIT) + self.sure * (np.arange(self.model.vocab_size) == 0)
        return map_named(lambda name, leaf: leaf + sure if self.sure and name == "head.bias" else leaf, model)

    def batches(self) -> list[tuple[np.ndarray, ...]]:
        """Return batches: a model's inputs, followed by targets `B T`, of which every third is ignored."""
        rng, batches = np.random.default_rng(0), []
        for number in range(self.steps):
            inputs = adversarial_inputs(self.model, self.batch, self.model.context, seed=number)
            targets = rng.integers(0, self.model.vocab_size, inputs[-1].shape, np.int32)
            if self.sure:
                targets = np.zeros_like(targets)
            targets.ravel()[::3] = self.ignore_index
            batches.append((*inputs, targets))
        return batches

    def router_loss(self, model: Any, losses: Any, masks: Any, *inputs: Any) -> Any:
        """Return the loss of routers over tokens that are no padding, 0 for a model without it, by a side's own modules."""
        if not isinstance(self.model, GPTConfig) or not losses.has_router_loss(self.model):
            return 0.0
        ids, valid = inputs
        logits = model.routed_hidden_state(ids, mask=masks.padding_mask(valid))[1]
        return losses.router_loss(logits, self.model, valid)

    def spec(self) -> TrainingSpec:
        """Return the training of the jax model and its torch twin."""
        from torch.optim.lr_scheduler import LambdaLR

        from torch_ref.nn import masks as torch_masks
        from torch_ref.training import losses as torch_losses
        from torch_ref.training import optimizers as torch_optimizers
        from torch_ref.training import routing as torch_routing
        from torch_ref.training import schedules as torch_schedules

        rules = {"ignore_index": self.ignore_index, "smoothing": self.smoothing, "spread": self.spread}
        factor = schedules.make_schedule(self.schedule)

        def jax_loss(model: Any, *arrays: Any, key: Any) -> Any:
            logits = call_jax(model, *arrays[:-1], key=key)
            value = losses.mean(*losses.cross_entropy(logits, arrays[-1], **rules))
            return value + self.router_loss(model, routing, masks, *arrays[:-1])

        def torch_loss(model: Any, *tensors: Any) -> Any:
            logits = call_torch(model, *tensors[:-1])
            value = torch_losses.mean(*torch_losses.cross_entropy(logits, tensors[-1], **rules))
            return value + self.router_loss(model, torch_routing, torch_masks, *tensors[:-1])

        return TrainingSpec(
            batches=self.batches(),
            torch_loss=torch_loss,
            jax_loss=jax_loss,
            torch_optimizer=lambda model: torch_optimizers.make_optimizer(model, self.optimizer, ScheduleConfig())[0],
            jax_optimizer=optimizers.make_optimizer(self.optimizer, self.schedule),
            torch_schedule=lambda optimizer: LambdaLR(optimizer, torch_schedules.make_schedule(self.schedule)),
            jax_schedule=lambda step: self.optimizer.learning_rate * factor(step),
            clip_norm=self.optimizer.clip_norm,
        )


def compare_twins(training: TrainingCase) -> TrainingResult:
    """Train a model and its torch twin from the same excited weights."""
    return compare_training(*twins(training), training.spec())


def check_twins32(training: TrainingCase) -> float:
    """Train both in float32, and return the ratio of the difference to tier B's tolerance."""
    return check_training32(*twins(training), training.spec())


def twins(training: TrainingCase) -> tuple[Any, Model]:
    """Build torch's and jax's model with equal weights."""
    import torch_ref.models

    model = training.start()
    return load_torch(torch_ref.models.build(training.model), model), model
