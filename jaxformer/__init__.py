"""Transformers in JAX that are equal to PyTorch, weight for weight, and can prove it.

Axis letters, the same in every signature, einsum and sharding rule:

    B  batch              D  d_model           V  vocabulary
    T  query length       N  heads             L  layers
    S  key length         K  key/value heads   F  feed-forward width
    H  head width         W  beam width        E  experts
    C  labels                      M  patches             P  width of the vectors of images and texts

`import jaxformer as jf` gives the public names of the table below. Each is loaded when it is first used: importing jaxformer
loads neither jax nor torch.

The packages, bottom to top; each may import only those before it:

    config, validation, pytree, ...         base modules: configurations, checks, names of parameters
    runtime                                 the machine and the compiler: memory, signals, XLA's options and faults
    io                                      files: atomic writes, checksums, disk space
    convert                                 weights between frameworks
    parity                                  comparison of any torch model with its JAX port
    parallel                                several devices and processes: meshes, shards, groups
    nn                                      arrays and weights
    models                                  tokens -> logits
    decoding                                logits -> tokens
    exporting                               programs that run without jaxformer
    data                                    text -> batches
    runs                                    a run on disk: folder, lock, checkpoints, metrics
    training                                losses, optimizers, the train step and its loop
    checkpoints                             model folders, of jaxformer and of transformers
    plots                                   pictures of arrays, runs and reports; the page of a run
    evaluation                              jaxformer's models against their PyTorch twins, on one device and many; mutants
    exercises                               ports with a planted bug, for learners to mend
    cli                                     the `jaxformer` command
    recipes                                 complete systems, from data to evaluation
    bench                                   speed compared with PyTorch and other libraries
"""

TYPE_CHECKING = False  # importing typing takes time, in which a command could not catch Ctrl-C yet

if TYPE_CHECKING:  # the table below, for type checkers; a test compares the two
    from jaxformer.checkpoints.opened import load as load
    from jaxformer.checkpoints.sentences import load_sentence_encoder as load_sentence_encoder
    from jaxformer.checkpoints.transcriber import load_transcriber as load_transcriber
    from jaxformer.checkpoints.written import save as save
    from jaxformer.config.configuration import FixedTable as FixedTable
    from jaxformer.config.dual import DualEncoderConfig as DualEncoderConfig
    from jaxformer.config.models import EncoderConfig as EncoderConfig
    from jaxformer.config.models import EncoderDecoderConfig as EncoderDecoderConfig
    from jaxformer.config.models import GPTConfig as GPTConfig
    from jaxformer.config.presets import preset as preset
    from jaxformer.config.settings import BeamConfig as BeamConfig
    from jaxformer.config.settings import OptimizerConfig as OptimizerConfig
    from jaxformer.config.settings import SamplingConfig as SamplingConfig
    from jaxformer.config.settings import ScheduleConfig as ScheduleConfig
    from jaxformer.config.transcription import TranscriptionConfig as TranscriptionConfig
    from jaxformer.config.vision import VisionEncoderConfig as VisionEncoderConfig
    from jaxformer.convert.axes import Join as Join
    from jaxformer.convert.axes import Part as Part
    from jaxformer.convert.family import Family as Family
    from jaxformer.convert.family import Rule as Rule
    from jaxformer.convert.family import attention_rules as attention_rules
    from jaxformer.convert.family import module_rules as module_rules
    from jaxformer.convert.family import packed_rules as packed_rules
    from jaxformer.convert.family import projection_rules as projection_rules
    from jaxformer.convert.registry import within as within
    from jaxformer.convert.state_dict import from_torch as from_torch
    from jaxformer.convert.state_dict import to_torch as to_torch
    from jaxformer.data.tokenizers import Tokenizer as Tokenizer
    from jaxformer.decoding import generate as generate
    from jaxformer.decoding import generate_beam as generate_beam
    from jaxformer.decoding import translate as translate
    from jaxformer.decoding import translate_beam as translate_beam
    from jaxformer.evaluation.sharded.compare import compare_sharded as compare_sharded
    from jaxformer.exporting.programs import export as export
    from jaxformer.exporting.programs import export_generate as export_generate
    from jaxformer.models import GPT as GPT
    from jaxformer.models import DualEncoder as DualEncoder
    from jaxformer.models import Encoder as Encoder
    from jaxformer.models import EncoderDecoder as EncoderDecoder
    from jaxformer.models import VisionEncoder as VisionEncoder
    from jaxformer.models import abstract as abstract
    from jaxformer.models import with_head as with_head
    from jaxformer.models import with_image_size as with_image_size
    from jaxformer.nn import causal_mask as causal_mask
    from jaxformer.nn import empty_cache as empty_cache
    from jaxformer.nn import ids_to_valid as ids_to_valid
    from jaxformer.nn import padding_mask as padding_mask
    from jaxformer.parity.compare import compare as compare
    from jaxformer.parity.logprobs.compare import compare_logprobs as compare_logprobs
    from jaxformer.parity.probe import excite as excite
    from jaxformer.parity.probe import probe as probe
    from jaxformer.parity.probe import probe_audio as probe_audio
    from jaxformer.parity.probe import probe_config as probe_config
    from jaxformer.parity.probe import probe_image as probe_image
    from jaxformer.parity.recorded import check as check
    from jaxformer.parity.recorded import dump as dump
    from jaxformer.parity.report.report import Report as Report
    from jaxformer.parity.testing import assert_parity as assert_parity
    from jaxformer.parity.trace.jax_hooks import tap as tap
    from jaxformer.parity.training.trainers import TrainingSpec as TrainingSpec
    from jaxformer.training.optimizers import make_optimizer as make_optimizer
    from jaxformer.training.torch_norms import watch_torch as watch_torch
    from jaxformer.training.torch_run import from_torch_training as from_torch_training
    from jaxformer.training.torch_run import to_torch_training as to_torch_training
    from jaxformer.training.watch import watch as watch

__version__ = "0.1.0"

PUBLIC = {
    "checkpoints.opened": "load",
    "checkpoints.sentences": "load_sentence_encoder",
    "checkpoints.transcriber": "load_transcriber",
    "checkpoints.written": "save",
    "config.configuration": "FixedTable",
    "config.dual": "DualEncoderConfig",
    "config.models": "EncoderConfig EncoderDecoderConfig GPTConfig",
    "config.presets": "preset",
    "config.settings": "BeamConfig OptimizerConfig SamplingConfig ScheduleConfig",
    "config.transcription": "TranscriptionConfig",
    "config.vision": "VisionEncoderConfig",
    "convert.axes": "Join Part",
    "convert.family": "Family Rule attention_rules module_rules packed_rules projection_rules",
    "convert.registry": "within",
    "convert.state_dict": "from_torch to_torch",
    "data.tokenizers": "Tokenizer",
    "decoding": "generate generate_beam translate translate_beam",
    "evaluation.sharded.compare": "compare_sharded",
    "exporting.programs": "export export_generate",
    "models": "GPT DualEncoder Encoder EncoderDecoder VisionEncoder abstract with_head with_image_size",
    "nn": "causal_mask empty_cache ids_to_valid padding_mask",
    "parity.compare": "compare",
    "parity.logprobs.compare": "compare_logprobs",
    "parity.probe": "excite probe probe_audio probe_config probe_image",
    "parity.recorded": "check dump",
    "parity.report.report": "Report",
    "parity.testing": "assert_parity",
    "parity.trace.jax_hooks": "tap",
    "parity.training.trainers": "TrainingSpec",
    "training.optimizers": "make_optimizer",
    "training.torch_norms": "watch_torch",
    "training.torch_run": "from_torch_training to_torch_training",
    "training.watch": "watch",
}
"""Module -> its public names."""

_MODULES = {name: f"jaxformer.{module}" for module, names in PUBLIC.items() for name in names.split()}

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    import difflib
    import importlib

    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    near = difflib.get_close_matches(name, _MODULES, 1)
    raise AttributeError(f"jaxformer has no {name}; {f'did you mean {near[0]}?' if near else 'dir(jaxformer) lists its names'}")


def __dir__() -> list[str]:
    return ["__version__", *sorted(_MODULES)]
