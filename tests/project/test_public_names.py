"""`import jaxformer as jf` gives these names, and loads a framework only when a name that needs it is used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import jaxformer as jf

GROUPS = {
    "models": (
        "GPT Encoder EncoderDecoder VisionEncoder DualEncoder GPTConfig EncoderConfig EncoderDecoderConfig VisionEncoderConfig "
        "DualEncoderConfig FixedTable preset abstract with_head with_image_size"
    ),
    "tokens": "generate generate_beam translate translate_beam SamplingConfig BeamConfig TranscriptionConfig Tokenizer",
    "masks and caches": "empty_cache padding_mask causal_mask ids_to_valid",
    "weights": "load load_sentence_encoder load_transcriber save from_torch to_torch export export_generate",
    "families": "Family Rule Part Join module_rules attention_rules packed_rules projection_rules within",
    "comparison": (
        "compare compare_sharded compare_logprobs check dump tap excite probe probe_config probe_image probe_audio "
        "assert_parity Report TrainingSpec"
    ),
    "training": "make_optimizer OptimizerConfig ScheduleConfig from_torch_training to_torch_training watch watch_torch",
}
NAMES = [name for names in GROUPS.values() for name in names.split()]
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "torch", "numpy")


def test_these_and_no_others():
    assert sorted(jf.__all__) == sorted(NAMES)
    assert len({*jf.__all__}) == len(NAMES)
    assert {*NAMES, "__version__"} <= {*dir(jf)}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    (module,) = (module for module, names in jf.PUBLIC.items() if name in names.split())
    assert getattr(jf, name) is getattr(importlib.import_module(f"jaxformer.{module}"), name)


def test_another_name_is_refused_with_the_nearest():
    with pytest.raises(AttributeError, match=r"^jaxformer has no genrate; did you mean generate\?$"):
        jf.genrate  # noqa: B018
    with pytest.raises(AttributeError, match=r"^jaxformer has no xyz; dir\(jaxformer\) lists its names$"):
        jf.xyz  # noqa: B018


def test_type_checkers_read_the_same_table():
    tree = ast.parse(Path(jf.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found: dict[str, list[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module
        for alias in node.names:
            assert alias.asname == alias.name  # what makes it public
            found.setdefault(node.module.removeprefix("jaxformer."), []).append(alias.name)
    assert {module: sorted(names) for module, names in found.items()} == {
        module: sorted(names.split()) for module, names in jf.PUBLIC.items()
    }


def test_importing_loads_no_framework():
    code = (
        "import sys, jaxformer as jf; dir(jf); first = {*sys.modules}; jf.GPTConfig, jf.BeamConfig; second = {*sys.modules};"
        f"print([[name for name in {HEAVY} if name in loaded] for loaded in (first, second)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[], ['numpy']]"
