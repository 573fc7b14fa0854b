"""What torch computes can be kept in a folder and compared with where there is no torch."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import torch_ref.models
from jaxformer.convert.families.twin import TWIN
from jaxformer.errors import InputError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import abstract
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check, dump
from jaxformer.parity.recording import record_torch
from jaxformer.parity.trace.archive import load, save
from parity_tests.support.helpers import gpt_config
from tests.room import room_for

CONFIG = gpt_config(n_layers=1, layers="rolled")


@pytest.fixture(scope="module")
def sides():
    model = excite(abstract(CONFIG), seed=1)
    return load_torch(torch_ref.models.GPT(CONFIG), model).eval(), model, adversarial_inputs(CONFIG, 5, 11, seed=2)


@pytest.fixture(scope="module")
def reference(sides):
    return record_torch(sides[0], sides[2], call_torch, tier="C")


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    path = tmp_path_factory.mktemp("dump") / "mine"
    save(reference, path)
    return path


def test_everything_comes_back(reference, folder):
    back = load(folder)
    assert list(back.calls) == list(reference.calls)
    assert back.environment == reference.environment
    assert (back.padding, back.keeps_buffers) == (reference.padding, reference.keeps_buffers) == ({}, True)
    for kind in ("weights", "gradients", "low_precision"):
        ours, theirs = getattr(back, kind), getattr(reference, kind)
        assert list(ours) == list(theirs)
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)
    for site, record in reference.calls.items():
        for part in ("inputs", "output", "input_gradients", "output_gradients"):
            for one, other in zip(getattr(back.calls[site], part), getattr(record, part), strict=True):
                assert (one is None) == (other is None)
                assert one is None or np.array_equal(one, other, equal_nan=True)


@pytest.mark.slow
def test_check_says_what_compare_says(sides, folder):
    twin, model, inputs = sides
    wrong = excite(abstract(replace(CONFIG, norm_epsilon=1e-6)), seed=1)
    for ours, code in ((model, 0), (wrong, 1)):
        at_once = compare(twin, ours, inputs, rules=TWIN, call_torch=call_torch, call_jax=call_jax, tier="C")
        later = check(load(folder), ours, call_jax=call_jax, rules=TWIN, tier="C")
        assert later.exit_code == at_once.exit_code == code
        assert str(later) == str(at_once)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("changes", "says"), [({}, "EQUAL: "), ({"attention_scale": 1 / 12}, "DIFFERENT: stack.blocks.0.attention: ")]
)
def test_check_needs_no_torch(folder, changes, says):
    """Nor does it warn of a search in torch's code where it finds no cause."""
    script = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from jaxformer.models import abstract, GPT
from jaxformer.evaluation.ladder import call_jax
from jaxformer.parity.recorded import check
from jaxformer.parity.trace.archive import load
from jaxformer.parity.probe import excite
from jaxformer.config.models import GPTConfig
report = check(load(Path({str(folder)!r})), excite(abstract({replace(CONFIG, **changes)!r}), seed=1), call_jax=call_jax)
print(report.verdict)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."})
    assert done.stdout.startswith(says), done.stderr
    assert "search" not in done.stderr


def test_a_dump_of_format_3_opens(reference, folder, tmp_path):
    """Two of its names were others."""
    before = tmp_path / "before"
    before.mkdir()
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format": 3}
    manifest |= {"narrow": manifest.pop("low_precision"), "unnoticed": manifest.pop("not_covered")}
    (before / "manifest.json").write_text(json.dumps(manifest))
    arrays = safetensors.numpy.load_file(folder / "reference.safetensors")
    renamed = {name.replace("low_precision/", "narrow/"): array for name, array in arrays.items()}
    safetensors.numpy.save_file(renamed, before / "reference.safetensors")
    back = load(before)
    assert back.not_covered == reference.not_covered
    assert {name: array.tobytes() for name, array in back.low_precision.items()} == {
        name: array.tobytes() for name, array in reference.low_precision.items()
    }


def test_a_tier_that_was_not_dumped(sides, tmp_path):
    save(record_torch(sides[0], sides[2], call_torch, tier="A"), tmp_path / "a")
    report = check(load(tmp_path / "a"), sides[1], call_jax=call_jax, rules=TWIN, checks=("weights",), tier="B")
    assert report.verdict == (
        "COULD NOT COMPARE: float32: torch's output in float32 was not dumped; dump it with --tier B, or check a lower tier"
    )


def damage(folder: Path, how: str) -> Path:
    if how == "no folder":
        return folder / "none"
    manifest = json.loads((folder / "manifest.json").read_text())
    if how == "another format":
        (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    elif how == "brackets":
        (folder / "manifest.json").write_text("[" * 200_000)
    elif how.startswith("a pipe as "):
        (path := folder / how.removeprefix("a pipe as ")).unlink()
        os.mkfifo(path)
    elif how == "arrays cut off":
        os.truncate(folder / "reference.safetensors", 1000)
    elif how == "a huge count":
        manifest = {name: held for name, held in manifest.items() if name not in ("sha256", "arrays")}
        manifest["calls"][-1]["input_gradients"] = 10**12
        (folder / "manifest.json").write_text(json.dumps(manifest))
    elif how == "arrays missing":
        manifest["weights"].append("unknown.weight")
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


DAMAGES = {
    "no folder": "cannot be read: No such file or directory; give a folder that dump wrote",
    "another format": "is of format 99, this reads 4; dump it again",
    "arrays cut off": "is damaged, or no dump",
    "arrays missing": "is damaged, or no dump",
    "a huge count": "has 1000000000000 input_gradients, and reference.safetensors holds ",
    "brackets": "is damaged, or no dump (maximum recursion depth exceeded",
    "a pipe as manifest.json": "manifest.json is a pipe or a device; give a file",
    "a pipe as reference.safetensors": "reference.safetensors is a pipe or a device; give a file",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_dump(reference, tmp_path, how):
    save(reference, tmp_path / "dump")
    with pytest.raises(InputError) as refused:
        load(damage(tmp_path / "dump", how))
    assert DAMAGES[how] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_is_not_overwritten(reference, sides, folder):
    with pytest.raises(InputError, match="exists already; remove it, or give another name"):
        save(reference, folder)
    with pytest.raises(InputError, match="exists already; remove it, or give another name"):
        dump(sides[0], sides[2], folder, call_torch=lambda *_: pytest.fail("torch ran first"))


def test_no_room(reference, tmp_path):
    with room_for(2000), pytest.raises(InputError, match=r"dump cannot be written: File too large; give another name$"):
        save(reference, tmp_path / "dump")
    assert list(tmp_path.iterdir()) == []


def test_in_one_call(sides, reference, tmp_path):
    twin, model, inputs = sides
    recorded = dump(twin, inputs, str(tmp_path / "said"), call_torch=call_torch, tier="A", checks=("forward",))
    assert recorded.output.tobytes() == reference.output.tobytes()
    options = {"call_jax": call_jax, "checks": ("weights", "forward"), "tier": "A"}
    folders = [check(given, model, **options) for given in (tmp_path / "said", recorded)]
    assert [report.exit_code for report in folders] == [0, 0]
    assert folders[0].to_json() == folders[1].to_json()


def test_what_cannot_be_recorded(sides, tmp_path):
    with pytest.raises(InputError, match=r"^the torch model is a str; give a torch\.nn\.Module, or a JAX model"):
        dump("a model", sides[2], tmp_path / "said")
    with pytest.raises(InputError, match=r"^input 0 is empty: its shape is \[0, 3\]; give it some rows$"):
        dump(sides[0], (np.zeros((0, 3)),), tmp_path / "said")
    assert not [*tmp_path.iterdir()]


def test_no_flipped_bit_of_a_dump_is_silent(reference, tmp_path):
    """Ten in each file; one in a weight would blame a correct port."""
    folder, draw = tmp_path / "dump", random.Random(0)
    save(reference, folder)
    for path in folder.iterdir():
        whole = path.read_bytes()
        for _ in range(10):
            data, place = bytearray(whole), draw.randrange(8 * len(whole))
            data[place // 8] ^= 1 << place % 8
            path.write_bytes(data)
            with pytest.raises(InputError, match=r"is damaged, or no dump|is of format"):
                load(folder)
        path.write_bytes(whole)
    load(folder)


def test_a_dump_without_checksums_opens(reference, tmp_path):
    save(reference, tmp_path / "dump")
    path = tmp_path / "dump/manifest.json"
    manifest = {name: held for name, held in json.loads(path.read_text()).items() if name not in ("sha256", "arrays")}
    path.write_text(json.dumps(manifest))
    assert load(tmp_path / "dump").calls.keys() == reference.calls.keys()
