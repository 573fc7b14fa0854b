"""Files that are never large are refused by their size, before they are read."""

import os
from types import SimpleNamespace
from typing import cast

import pytest

from jaxformer.checkpoints.describe import read_certificate
from jaxformer.checkpoints.opened import Opened
from jaxformer.checkpoints.texts import read_ids
from jaxformer.checkpoints.written import write_tokenizer
from jaxformer.cli.parity import explain
from jaxformer.convert.weight_files import weight_map
from jaxformer.data import corpora
from jaxformer.errors import CheckpointError
from jaxformer.evaluation.sharded.predict import read_config
from jaxformer.parity.trace import archive
from jaxformer.runs.folder import RunFolder

SIZE = 2**40
READERS = {
    "generation_config.json": read_ids,
    "parity.json": read_certificate,
    "model.safetensors.index.json": lambda folder: weight_map(folder / "model.safetensors.index.json"),
    archive.MANIFEST: archive.load,
    "described.json": lambda folder: read_config(folder / "described.json"),
    "report.json": lambda folder: explain([str(folder / "report.json")]),
    "tinyshakespeare.txt": lambda folder: corpora.read_corpus("tinyshakespeare"),
    "special_tokens_map.json": lambda folder: write_tokenizer(cast(Opened, SimpleNamespace(place=folder)), folder / "copy"),
    "metrics.jsonl": lambda folder: RunFolder(folder).metrics,
}


@pytest.mark.parametrize("name", READERS)
def test_it_is_not_read(name, tmp_path, monkeypatch):
    monkeypatch.setenv(corpora.FOLDER, str(tmp_path))
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, SIZE)
    with pytest.raises(CheckpointError) as caught:
        READERS[name](tmp_path)
    said = "has 1,099,511,627,776 bytes, where 134,217,728 are the most: it is damaged; put it back"
    assert str(caught.value) == f"{tmp_path / name} {said}"
