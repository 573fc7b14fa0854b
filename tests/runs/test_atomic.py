"""Files and folders appear whole, on the disk, or not at all."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxformer.io.atomic import new_folder, written_whole


@pytest.mark.parametrize(
    ("number", "kept"), [(errno.EIO, False), (errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EINVAL, True)]
)
def test_what_the_disk_does_not_take_is_not_written(tmp_path, monkeypatch, number, kept):
    """Unless its file system cannot be asked."""

    def refused(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    told = None
    try:
        with written_whole(tmp_path / "file") as unfinished:
            unfinished.write_text("new")
    except OSError as error:
        told = error
    assert [path.name for path in tmp_path.iterdir()] == ["file"] * kept
    assert kept == (told is None)
    assert kept or (told.errno, told.filename) == (number, str(unfinished))


def test_two_that_write_one_name_leave_one_whole_file(tmp_path):
    """The other folder has such a name too, and is somebody's."""
    (tmp_path / "file.unfinished").mkdir()
    with written_whole(tmp_path / "file") as one, written_whole(tmp_path / "file") as other:
        one.write_text("one")
        other.write_text("other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file.unfinished"]
    assert (tmp_path / "file").read_text() == "one"


def write(folder: Path, text: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    with new_folder(folder) as unfinished:
        (unfinished / "config.json").write_text(text)
        meanwhile()


def test_a_folder_that_another_process_wrote_meanwhile_stays(tmp_path):
    model = tmp_path / "model"
    with pytest.raises(OSError, match="not empty"):
        write(model, "late", lambda: write(model, "first"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (model / "config.json").read_text() == "first"
