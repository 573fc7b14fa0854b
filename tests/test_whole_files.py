"""Files and folders appear whole, on the disk, or not at all."""

import errno
import os

import pytest

from jaxformer.whole_files import written_whole


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
