"""gpt-oss's files in MXFP4: every number is the one that transformers reads."""

import json
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import jaxformer as jf
from jaxformer.convert.mxfp4 import unpack
from jaxformer.errors import CheckpointError
from parity_tests.zoo.model_types import CASES

CLASS, SIZES = CASES["gpt_oss"]
SIZES = SIZES | {"hidden_size": 32, "intermediate_size": 64}
PACKED = "gate_up_proj", "down_proj"


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def test_every_pattern_and_every_exponent():
    blocks, scales = np.arange(256, dtype=np.uint8).reshape(1, 2, 8, 16), np.arange(0, 248, 31, dtype=np.uint8)
    scales = np.stack([scales, scales + 1])[None]
    wanted = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    found = unpack("w", blocks, scales)
    assert found.shape == (1, 256, 2)
    assert found.view(np.int16).tolist() == wanted.contiguous().view(torch.int16).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What OpenAI's files hold: experts' weights in blocks, everything else in bfloat16."""
    place = tmp_path_factory.mktemp("oss") / "packed"
    cls = getattr(transformers, CLASS)
    jf.excite(cls(cls.config_class(**SIZES)), seed=3).bfloat16().save_pretrained(place)
    state = dict(safetensors.torch.load_file(place / "model.safetensors"))
    for name in [name for name in state if name.endswith(PACKED)]:
        experts, inner, outer = state.pop(name).shape
        state[f"{name}_blocks"] = torch.from_numpy(drawn(experts, outer, inner // 32, 16))
        state[f"{name}_scales"] = torch.from_numpy(120 + drawn(experts, outer, inner // 32) % 8)
    safetensors.torch.save_file(state, place / "model.safetensors", {"format": "pt"})
    described = json.loads((place / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (place / "config.json").write_text(json.dumps(described))
    return place


def test_a_folder_is_read_as_transformers_reads_it(folder, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = transformers.Mxfp4Config(dequantize=True)
        theirs = getattr(transformers, CLASS).from_pretrained(folder, dtype=torch.bfloat16, quantization_config=how)
    ours = jf.load(folder)
    jf.save(ours, tmp_path / "ours", like="hf", source=folder)
    assert "quantization_config" not in json.loads((tmp_path / "ours/config.json").read_text())
    found = safetensors.torch.load_file(tmp_path / "ours/model.safetensors")
    wanted = theirs.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].view(torch.int16), wanted[name].view(torch.int16)) for name in wanted)


def test_blocks_without_scales_are_refused(folder, tmp_path):
    state = safetensors.torch.load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    lost = next(name for name in state if name.endswith("down_proj_scales"))
    safetensors.torch.save_file(
        {n: it for n, it in state.items() if n != lost}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(CheckpointError, match=f"has no {lost} beside it"):
        jf.load(tmp_path)
