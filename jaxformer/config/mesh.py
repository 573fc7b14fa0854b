"""Device mesh by the sizes of its axes, as `data=2,fsdp=2,tensor=2`. Imports no jax."""

import math
from dataclasses import dataclass, fields

from jaxformer.config.blocks import BlockConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_kind, check_size


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Number of devices along each axis of a mesh. An axis of size 1 shards nothing."""

    data: int = 1
    """Data parallelism: sequences are sharded, parameters are replicated."""
    fsdp: int = 1
    """Fully sharded data parallelism: sequences, parameters and moments are sharded; parameters are gathered for use (ZeRO;
    FSDP)."""
    tensor: int = 1
    """Tensor parallelism: heads, feed-forward units and the vocabulary are sharded (Megatron)."""
    expert: int = 1
    """Expert parallelism: the experts of a mixture are sharded; each device computes its own, for all tokens."""
    sequence: int = 1
    """Sequence parallelism, for long contexts: the tokens of a sequence are sharded; keys and values are gathered."""

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            check_size(f"mesh.{name}", size)

    @classmethod
    def read(cls, text: str) -> "MeshConfig":
        """Parse a mesh as `data=4,tensor=2`; ConfigError for anything else."""
        check_kind("mesh", text, str, "axes and sizes, as data=4,tensor=2")
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, equals, size = part.strip().partition("=")
            if not equals or not size.strip().isdecimal():
                raise ConfigError(f"mesh = {text!r:.60} is not a mesh; give axes and sizes, as data=4,tensor=2")
            check_choice("mesh axis", name, AXES)
            if name in sizes:
                raise ConfigError(f"mesh = {text!r:.60} has {name} twice; give it once")
            sizes[name] = int(size)
        return cls(**sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every axis, in the order of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes.values())

    @property
    def rows(self) -> int:
        """Number of shards of a batch's sequences."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes.items() if size > 1) or "data=1"


AXES = tuple(field.name for field in fields(MeshConfig))


CUT = {"n_heads": "tensor", "d_ff": "tensor", "n_experts": "expert", "d_model": "fsdp", "context": "sequence"}
"""Size of a model -> the mesh axis that has to divide it."""


def check_model(config: BlockConfig, mesh: MeshConfig | None) -> None:
    """Raise ConfigError if the mesh does not divide the model's sizes."""
    for name, axis in CUT.items() if mesh is not None else ():
        whole, parts = getattr(config, name), getattr(mesh, axis)
        if whole % parts:
            raise ConfigError(f"mesh = {mesh}: {axis} = {parts} does not divide {name} = {whole}; give a divisor of {whole}")


def check_batch(batch: int, mesh: MeshConfig | None) -> None:
    """Raise ConfigError if the mesh does not divide the batch."""
    if mesh is not None and batch % mesh.rows:
        below = batch // mesh.rows * mesh.rows
        raise ConfigError(
            f"batch = {batch} is not divided by data x fsdp = {mesh.data} x {mesh.fsdp} of the mesh; "
            f"give {below + mesh.rows}{f' or {below}' if below else ''}"
        )
