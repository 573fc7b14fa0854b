"""Texts by name, or from a file."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import InputError


@dataclass(frozen=True)
class Corpus:
    """Where a public text lies, and what it must hash to."""

    file: str
    url: str
    sha256: str


CORPORA = {
    "tinyshakespeare": Corpus(
        "tinyshakespeare.txt",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    )
}
FOLDER = "JAXFORMER_DATA"
"""Environment variable: a folder that is looked into before the network."""


def read_corpus(name: str) -> str:
    """The text of a corpus by name, or of a file by path."""
    return read_text(fetch(name) if name in CORPORA else _file(name))


def read_text(path: Path) -> str:
    """A UTF-8 file; InputError says which byte is not."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {error.start}; convert the file first") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not text:
        raise InputError(f"{path} is empty; give a file with text")
    return text


def fetch(name: str) -> Path:
    """The corpus on disk: from the folder named by JAXFORMER_DATA, else from the cache, else downloaded once."""
    corpus = CORPORA[name]
    if folder := os.environ.get(FOLDER):
        path = Path(folder) / corpus.file
        if path.is_file():
            return path
    import pooch

    cache = pooch.os_cache("jaxformer")
    try:
        pooch.get_logger().disabled = True
        return Path(pooch.retrieve(corpus.url, f"sha256:{corpus.sha256}", fname=corpus.file, path=cache, progressbar=False))
    except ValueError:
        raise InputError(f"{corpus.url} does not have the wanted sha256 {corpus.sha256}; give --data FILE") from None
    except OSError:
        host = corpus.url.split("/")[2]
        raise InputError(
            f"{name} is not in the cache and {host} cannot be reached; give --data FILE, or set {FOLDER} to a folder that "
            f"holds {corpus.file}"
        ) from None


def _file(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    near = difflib.get_close_matches(name, CORPORA, 1)
    hint = f"did you mean {near[0]}?" if near else f"give a file, or one of {', '.join(CORPORA)}"
    raise InputError(f"data: {name} is neither a file nor a corpus; {hint}")
