"""What cannot fit is refused before anything is allocated, with what it needs and what is free."""

import gzip
import json
import os
import re
from dataclasses import asdict, replace
from functools import partial

import pytest

import jaxformer as jf
from jaxformer.cli.main import dispatch
from jaxformer.data.corpora import read_corpus, read_text
from jaxformer.errors import CheckpointError, InputError
from jaxformer.runtime.memory import check_fits, free_bytes
from tests.tiny import tiny_config

TOO_BIG = {
    "shakespeare --model.d-model 1000000 --model.n-heads 1": "take smaller --model sizes",
    "shakespeare --model.n-layers 1000000000": "take smaller --model sizes",
    "shakespeare --batch 1000000000": "take a smaller --batch",
    "reverse --model.d-ff 2147483647 --model.n-layers 99": "take smaller --model sizes",
    "qa --seeds 1000000000": "take fewer --seeds or --epochs",
    "qa --seeds 1000000 --epochs 1000000": "take fewer --seeds or --epochs",
}


@pytest.mark.parametrize("command", TOO_BIG)
def test_one_line_with_both_numbers(command, refusal, text_file, tmp_path):
    data = ["--data", str(text_file)] if "shakespeare" in command else []
    out = [] if "qa" in command else ["--out", str(tmp_path / "run")]
    said = refusal(dispatch, ["train", *command.split(), *data, *out])
    wanted = rf"training [\w, ]+ needs at least [\d,]+\.\d\d GB of memory, and [\d,]+\.\d\d GB are free; {TOO_BIG[command]}"
    assert re.fullmatch(wanted, said)
    assert not (tmp_path / "run").exists()


def test_what_fits_is_not_refused():
    """The control."""
    free = free_bytes()
    assert free
    check_fits("this", free // 2, free, "")
    check_fits("this", 2**60, None, "")
    with pytest.raises(InputError, match=r"^this needs at least 0\.01 GB of memory, and 0\.00 GB are free; do that$"):
        check_fits("this", 10**7, 10**6, "do that")


def test_a_configuration_far_larger_than_its_tensors(tmp_path, refusal):
    jf.save(jf.excite(jf.abstract(tiny_config()), seed=0), tmp_path / "model")
    path = tmp_path / "model/config.json"
    described = json.loads(path.read_text())
    (tmp_path / "model/manifest.json").unlink(missing_ok=True)
    path.write_text(json.dumps(described | {"config": asdict(replace(tiny_config(), n_layers=10**8))}))
    with pytest.raises(CheckpointError, match=r"holds [\d,]+ numbers, and its config\.json describes a model of [\d,]+$"):
        jf.load(tmp_path / "model")
    assert "describes a model of" in refusal(dispatch, ["info", str(tmp_path / "model")])


def test_a_text_that_was_packed_too_well(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a" * 2**22))
    with pytest.raises(InputError, match=r"text\.gz has [\d,]+ bytes and unpacks to more than 3 MiB; .* with --unpacked MIB"):
        read_corpus(str(path), 3)
    assert len(read_corpus(str(path), 4)) == 2**22


def test_a_text_far_larger_than_the_memory(tmp_path):
    path = tmp_path / "text.txt"
    path.touch()
    os.truncate(path, 2**42)
    wanted = r"text\.txt, of 4,398,046,511,104 bytes, needs at least 8,796\.09 GB of memory, and .* free; give a smaller file$"
    with pytest.raises(InputError, match=wanted):
        read_text(path)


@pytest.mark.parametrize("suffix", ["txt", "safetensors", "pt", "npy"])
def test_a_pipe_is_not_read(tmp_path, suffix):
    path = tmp_path / f"pipe.{suffix}"
    os.mkfifo(path)
    load = {"txt": read_text, "npy": jf.FixedTable.load}.get(suffix, partial(jf.load, family="gpt2", config=tiny_config()))
    with pytest.raises(InputError, match=rf"pipe\.{suffix} is a pipe or a device; give a file$"):
        load(str(path))
