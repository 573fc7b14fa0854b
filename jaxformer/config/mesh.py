"""A mesh of devices by its axes and their sizes, as `data=2,fsdp=2,tensor=2`. No jax is imported here."""

import math
from dataclasses import dataclass, fields

from jaxformer.config.blocks import BlockConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.fields import check_choice, check_kind, check_size


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices stand along each axis. An axis of one device cuts nothing."""

    data: int = 1
    """Sequences are cut; every device has all parameters."""
    fsdp: int = 1
    """Sequences are cut, and parameters with their moments too: they are gathered where they are used (ZeRO; FSDP)."""
    tensor: int = 1
    """Heads, feed-forward units and the vocabulary are cut (Megatron)."""
    sequence: int = 1
    """The tokens of a sequence are cut, for long contexts; keys and values are gathered."""

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            check_size(f"mesh.{name}", size)

    @classmethod
    def read(cls, text: str) -> "MeshConfig":
        """The mesh of `data=4,tensor=2`; ConfigError for anything else."""
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
        """Of every axis, in their order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def devices(self) -> int:
        """How many the mesh has."""
        return math.prod(self.sizes.values())

    @property
    def rows(self) -> int:
        """Into how many parts the sequences of a batch are cut."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes.items() if size > 1) or "data=1"


AXES = tuple(field.name for field in fields(MeshConfig))


CUT = {"n_heads": "tensor", "d_ff": "tensor", "d_model": "fsdp", "context": "sequence"}
"""Sizes of a model, and the axis that has to divide each."""


def check_model(config: BlockConfig, mesh: MeshConfig | None) -> None:
    """ConfigError for a model that the mesh does not cut into equal parts."""
    for name, axis in CUT.items() if mesh is not None else ():
        whole, parts = getattr(config, name), getattr(mesh, axis)
        if whole % parts:
            raise ConfigError(f"mesh = {mesh}: {axis} = {parts} does not divide {name} = {whole}; give a divisor of {whole}")


def check_batch(batch: int, mesh: MeshConfig | None) -> None:
    """ConfigError for a batch that the mesh does not cut into equal parts."""
    if mesh is not None and batch % mesh.rows:
        below = batch // mesh.rows * mesh.rows
        raise ConfigError(
            f"batch = {batch} is not divided by data x fsdp = {mesh.data} x {mesh.fsdp} of the mesh; "
            f"give {below + mesh.rows}{f' or {below}' if below else ''}"
        )
