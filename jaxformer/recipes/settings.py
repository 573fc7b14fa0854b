"""Settings of each recipe: its fields are the flags of `jaxformer train NAME`, checked before anything is read or trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxformer.config.mesh import MeshConfig, check_batch, check_model
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.data.corpora import UNPACKED, located
from jaxformer.data.tasks import TASKS
from jaxformer.decoding.prepare import MOST_TOKENS
from jaxformer.errors import ConfigError, InputError
from jaxformer.recipes.recipe import Recipe
from jaxformer.runtime.compilation_cache import CacheFlag
from jaxformer.validation.fields import check_choice, check_number, check_size

MOST_EPOCHS = 1_000_000
"""Maximum number of epochs, about a minute on one core: all epochs are one program, which prints nothing until its end."""


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(CacheFlag):
    """Train the smallest transformer on two sentences, then let it answer both questions."""

    seed: int = 0
    """Seed of the random numbers."""
    seeds: int = 1
    """Train this many models at once, the first with `seed`, the next with `seed` + 1, and so on."""
    epochs: int = 30
    """Passes over the two sentences, one optimizer step a sentence."""
    mesh: str | None = None
    """Devices that share the seeds, as data=4. None: one device."""

    def __post_init__(self) -> None:
        check_size("seed", self.seed, least=0)
        check_size("seeds", self.seeds)
        check_size("epochs", self.epochs, most=MOST_EPOCHS)
        if (mesh := self.layout) is None:
            return
        if mesh.data != mesh.devices:
            raise ConfigError(f"mesh = {mesh} cuts models, and these are too small; give data alone, as data={mesh.devices}")
        if self.seeds % mesh.data:
            more = self.seeds // mesh.data * mesh.data + mesh.data
            raise ConfigError(f"seeds = {self.seeds} is not divided by {mesh} of the mesh; give {more}")

    @property
    def layout(self) -> MeshConfig | None:
        """Parsed mesh; None for one device."""
        return None if self.mesh is None else MeshConfig.read(self.mesh)


@dataclass(frozen=True, kw_only=True)
class Reverse(Recipe):
    """Train an encoder-decoder on pairs made by a rule, until it predicts every token of the held-out pairs."""

    preset: Literal["quick", "original", "copy"]
    """quick: the reversal in the least time; original: a smaller batch and a stepped rate; copy: digits are copied."""
    task: str
    """The rule: reverse or copy."""
    show: int = 3
    """Pairs shown at the end."""
    smoothing: float = 0.0
    """Probability that is spread over all symbols but the target (label smoothing)."""
    model: EncoderDecoderConfig
    """The model. Its vocabularies are always those of the task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("task", self.task, TASKS)
        check_size("show", self.show, least=0)
        check_batch(self.batch, self.layout)
        check_model(self.model, self.layout)
        check_number("smoothing", self.smoothing, 0, below=1)
        longest = TASKS[self.task].longest + 2
        for name, most in (("context", self.model.context), ("source_context", self.model.source.context)):
            if most < longest:
                raise InputError(f"model.{name} = {most} is too short for {self.task}; give at least {longest}")


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Recipe):
    """Train a GPT on the characters of a text, and let it write."""

    preset: Literal["tiny", "cpu", "gpu"]
    """The size of the model and its training; other flags change single values."""
    data: str = "tinyshakespeare"
    """A text file, packed as .gz or not, or a corpus by name."""
    unpacked: int = UNPACKED
    """Maximum size, in MiB, of an unpacked .gz file."""
    sample: int = 200
    """Characters written at each evaluation."""
    model: GPTConfig
    """The model. Its vocab_size is always the number of distinct characters in the text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "data", located(self.data))
        check_size("unpacked", self.unpacked)
        check_size("sample", self.sample, least=0, most=MOST_TOKENS)
        check_batch(self.batch, self.layout)
        check_model(self.model, self.layout)


@dataclass(frozen=True, kw_only=True)
class Translate(Recipe):
    """Train an encoder-decoder on sentence pairs, average its best weights, and measure BLEU."""

    preset: Literal["smoke", "small", "base"]
    """smoke: one minute, to see that it works; small: 40 minutes on two cores; base: the paper's model, on an accelerator."""
    data: tuple[str, ...] = ("multi30k-de-en",)
    """A corpus by name, a source and a target file, or one file with a tab in each line; each may be packed as .gz."""
    validation: tuple[str, ...] = ()
    """Pairs that choose the best weights. Left out: the corpus's own, or the end of the training pairs."""
    test: tuple[str, ...] = ()
    """Pairs that BLEU is measured on. Left out: the corpus's own, or the validation pairs."""
    unpacked: int = UNPACKED
    """Maximum size, in MiB, of an unpacked .gz file."""
    tokenizer: Path | None = None
    """A tokenizer.json, or BERT's uncased vocab.txt. None: byte-level BPE of model.vocab-size tokens, trained on both sides."""
    batch: int
    """Maximum number of tokens per step, in both languages and with padding."""
    parts: int = 1
    """Split each batch into this many parts and add up their gradients, for less memory (gradient accumulation)."""
    shapes: int = 10
    """Maximum number of batch shapes. Each is compiled once; more shapes need less padding."""
    longest: int = 100
    """Pairs with more tokens than this in one language are left out of training."""
    smoothing: float = 0.1
    """Probability that is spread over all tokens but the target (label smoothing)."""
    averaged: int = 5
    """Number of newest evaluated weights to average at the end."""
    show: int = 3
    """Translations to show at each evaluation and at the end."""
    tested: int | None = None
    """Test pairs to translate. None: all."""
    model: EncoderDecoderConfig
    """The model. Its vocabulary is always the tokenizer's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("data", "validation", "test"):
            object.__setattr__(self, name, tuple(map(located, getattr(self, name))))
        object.__setattr__(self, "tokenizer", self.tokenizer and self.tokenizer.absolute())
        for name in ("unpacked", "parts", "shapes", "longest", "averaged"):
            check_size(name, getattr(self, name))
        check_size("show", self.show, least=0)
        if self.tested is not None:
            check_size("tested", self.tested)
        check_number("smoothing", self.smoothing, 0, below=1)
        check_model(self.model, self.layout)
        if not self.data:
            raise InputError("data is empty; give a corpus by name, or files")
        for name, most in (("context", self.model.context), ("source_context", self.model.source.context)):
            if self.longest > most:
                raise InputError(f"longest = {self.longest} is more than model.{name} = {most}; give at most that")
