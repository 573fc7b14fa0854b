"""Files of torch.save are zip archives with a checksum for each record, which torch itself does not compare."""

import os
import pickle
import zipfile
from fractions import Fraction

import numpy as np
import pytest
import torch

from jaxformer.convert.state_files import open_state
from jaxformer.errors import CheckpointError


@pytest.fixture
def path(tmp_path):
    torch.save({"w": torch.ones(500)}, tmp_path / "it.pt")
    return tmp_path / "it.pt"


def refused(path):
    with pytest.raises(CheckpointError) as error:
        open_state(path)
    return str(error.value).removeprefix(f"{path} ")


def test_a_flipped_bit(path):
    data = bytearray(path.read_bytes())
    data[data.index(np.ones(9, np.float32).tobytes()) + 4 * 300] ^= 1
    path.write_bytes(data)
    assert refused(path) == "is damaged: its it/data/0 has another checksum than when it was written; copy it again"


def test_a_file_without_checksums(path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(5)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert open_state(path)["w"].sum() == 5


def test_a_compressed_file(path, tmp_path):
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in plain.namelist():
            new.writestr(name, plain.read(name))
    assert refused(packed) == "cannot be read: its it/data.pkl is compressed, and torch.save never does that"


def test_the_format_of_before_1_6(path):
    torch.save({"w": torch.ones(5)}, path, _use_new_zipfile_serialization=False)
    said = "is written in torch's format of before 1.6, and is not opened; load it in torch and save it again"
    assert refused(path) == said


class Calling:
    """A pickle that calls a function."""

    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        return self.function, ("1",)


@pytest.mark.parametrize(("function", "name"), [(os.system, "posix.system"), (eval, "eval"), (Fraction, "fractions.Fraction")])
def test_what_a_pickle_calls_is_named_and_no_advice_of_torch_is_given(path, function, name):
    torch.save({"w": Calling(function)}, path)
    assert refused(path) == f"is not a file of tensors alone, and is not opened: it calls {name}; save its state_dict()"


def test_what_is_no_file_of_torch(path):
    path.write_bytes(pickle.dumps({"w": 1}))
    assert refused(path) == "is not a file of tensors alone, or is damaged, and is not opened; save its state_dict()"
