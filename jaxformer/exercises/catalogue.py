"""List of the exercises: the model of each, the bug that is planted in its port, and where such a bug was found."""

from dataclasses import dataclass
from importlib import resources

from jaxformer.errors import InputError

LEVELS = {
    1: "first steps: one line of a layer",
    2: "whole models: shapes fit, axes and names do not",
    3: "quiet: padding, gradients, training or decoding show it",
    4: "from the field: such a bug lived in a public project",
}


@dataclass(frozen=True)
class Exercise:
    """A model, and one change of its right port."""

    model: str
    """Name of the files of `originals` and `ports`."""
    level: int
    right: str
    """Text of the right port that the bug takes the place of; it stands there once."""
    wrong: str
    """Text of the bug."""
    kind: str
    """Kind of the bug, told when it is mended."""
    module: str | None
    """Module that the comparison has to name, '' for the model itself; None where a check alone differs."""
    field: str = ""
    """Public project in which such a bug lived, and how long."""

    @property
    def original(self) -> str:
        """Source of the torch side."""
        return source_of("originals", self.model)

    @property
    def solution(self) -> str:
        """Source of the right port."""
        return source_of("ports", self.model)

    @property
    def port(self) -> str:
        """Source of the port with the bug."""
        return self.solution.replace(self.right, self.wrong)

    def defines(self, name: str) -> bool:
        """True if the torch side has this function: 'optimizer' if it is trained, 'steps' if it writes with a cache."""
        return f"\ndef {name}(" in self.original

    @property
    def about(self) -> str:
        """Description of the model: the torch side's first line."""
        return self.original.splitlines()[0].strip('"')


def source_of(folder: str, name: str) -> str:
    """Read a source from the package."""
    return resources.files("jaxformer.exercises").joinpath(folder, f"{name}.py").read_text("utf-8")


def find(number: int) -> Exercise:
    """Return the exercise with this number, from 1; InputError if there is none."""
    if not 1 <= number <= len(EXERCISES):
        raise InputError(f"exercise = {number} is not there; give one of 1 to {len(EXERCISES)} (jaxformer exercise lists them)")
    return EXERCISES[number - 1]


EXERCISES = (
    Exercise(
        "reviews",
        1,
        "jax.nn.gelu(self.up(x), approximate=False)",
        "jax.nn.relu(self.up(x))",
        "another activation",
        "layers.0",
    ),
    Exercise(
        "writer",
        1,
        'jf.tap(name, x * p[f"{name}.weight"] + p[f"{name}.bias"])',
        'jf.tap(name, x * p[f"{name}.weight"])',
        "a bias of a norm that is left out",
        "blocks.0.norm1",
    ),
    Exercise(
        "sound",
        1,
        'jf.tap("mix", mixed + p["mix.bias"][:, None]), 0.2)',
        'jf.tap("mix", mixed + p["mix.bias"][:, None]))',
        "the default slope of an activation",
        "out",
    ),
    Exercise(
        "recycling",
        1,
        'x + linear(p, "transition.down", y)',
        'linear(p, "transition.down", y)',
        "a residual that is left out",
        "transition",
    ),
    Exercise(
        "experts",
        1,
        "jax.nn.silu(self.gate(x)) * self.up(x)",
        "self.gate(x) * jax.nn.silu(self.up(x))",
        "the gate and the value exchanged",
        "mixture.experts.0",
    ),
    Exercise(
        "writer",
        2,
        "jnp.tri(x.shape[1], dtype=bool)",
        "jnp.tri(x.shape[1], k=1, dtype=bool)",
        "a causal mask that shows one token more",
        "blocks.0.attention.out",
    ),
    Exercise(
        "llama",
        2,
        "jnp.repeat(each, HEADS // KEYS, axis=1)",
        "jnp.tile(each, (1, HEADS // KEYS, 1, 1))",
        "key heads tiled, not repeated",
        "layers.0.attention.o_proj",
    ),
    Exercise(
        "pictures",
        2,
        "x.transpose(0, 3, 1, 2).reshape(len(x), -1)",
        "x.reshape(len(x), -1)",
        "features flattened with channels last",
        "",
    ),
    Exercise(
        "translator",
        2,
        'norm(p, "decoder.norm2", x), memory, source)',
        'norm(p, "decoder.norm1", x), memory, source)',
        "a module that reads the weights of another",
        "decoder.cross.query",
    ),
    Exercise(
        "reviews",
        2,
        "f(x).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)",
        "f(x).reshape(*x.shape[:2], -1, HEADS).transpose(0, 3, 1, 2)",
        "heads split the wrong way round",
        "layers.0.attention",
    ),
    Exercise(
        "translator",
        3,
        "(losses * valid).sum() / valid.sum()",
        "(losses * valid).mean()",
        "a loss averaged over padding",
        "(call)",
    ),
    Exercise(
        "codes",
        3,
        "x + jax.lax.stop_gradient(found - x)",
        "found",
        "a gradient that does not pass straight through",
        None,
    ),
    Exercise(
        "trainer",
        3,
        "b1=0.9, b2=0.98, eps=1e-9",
        "b1=0.9, eps=1e-9",
        "the default of a second beta",
        None,
    ),
    Exercise(
        "chat",
        3,
        'heads("value").astype(values.dtype), (0, 0, start, 0))',
        'heads("value").astype(values.dtype), (0, 0, jnp.maximum(start - 1, 0), 0))',
        "values written to the slot before",
        None,
    ),
    Exercise(
        "reviews",
        3,
        "total / valid.sum(1, keepdims=True)",
        "total / ids.shape[1]",
        "a mean over padding",
        "",
    ),
    Exercise(
        "gemma",
        4,
        "(distance < WINDOW)",
        "(distance <= WINDOW)",
        "a window of one token more",
        "layers.0.attention.out",
        "MaxText 4289, 22 months",
    ),
    Exercise(
        "gemma",
        4,
        "CAP * jnp.tanh(q @ k.mT * SCALE / CAP)",
        "q @ k.mT * SCALE",
        "a soft cap that is not passed on",
        "layers.0.attention.out",
        "MaxText 4305, 6.5 months",
    ),
    Exercise(
        "llama",
        4,
        "ROTATED, BASE = WIDTH // 2, 10000.0",
        "ROTATED, BASE = WIDTH, 10000.0",
        "the partial rotary factor is ignored",
        "layers.0.attention.o_proj",
        "MaxText 4616, 12 days",
    ),
    Exercise(
        "llama",
        4,
        "rotate(q) @ k.mT * WIDTH**-0.5",
        "rotate(q * WIDTH**-0.5) @ k.mT * WIDTH**-0.5",
        "queries scaled twice",
        "layers.0.attention.o_proj",
        "MaxText 9c2cc66ce, 10.5 months",
    ),
    Exercise(
        "translator",
        4,
        "decoder(p, embed(p, given), memory, causal, seen)",
        "decoder(p, embed(p, given), memory, causal, jnp.ones_like(seen))",
        "padding that is attended to",
        "decoder.cross.out",
        "MaxText 4016, 9 months",
    ),
    Exercise(
        "experts",
        4,
        "outputs = jnp.stack([expert(x) for expert in self.experts], -2)",
        "outputs = scale[..., None] * jnp.stack([expert(x) for expert in self.experts], -2)",
        "the scale of experts applied twice",
        "mixture",
        "MaxText 014fc4985, 1 day",
    ),
    Exercise(
        "pictures",
        4,
        "strides=2, padding=1",
        'strides=2, padding="SAME"',
        "SAME padding with a stride",
        "stem.conv",
        "flax 963 and 2993, 31 days",
    ),
    Exercise(
        "sound",
        4,
        "bounds = [(i * length // FRAMES, -(-(i + 1) * length // FRAMES)) for i in range(FRAMES)]",
        "bounds = [(i * length // FRAMES, (i + 1) * length // FRAMES) for i in range(FRAMES)]",
        "windows of an adaptive pooling that do not overlap",
        "out",
        "equinox 641",
    ),
    Exercise(
        "recycling",
        4,
        "for _ in range(TIMES):",
        "for _ in range(TIMES + 1):",
        "one round of recycling too many",
        "out",
        "TorchX 1 (AlphaFold 3)",
    ),
)
