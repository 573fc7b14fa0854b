"""Files by name, from a folder, the cache or the network, and the user's own text files."""

import difflib
import gzip
import hashlib
import io
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.runtime.memory import check_fits, free_bytes
from jaxformer.runtime.packages import extra_package
from jaxformer.validation.fields import check_file, check_kind, check_path, read_small


@dataclass(frozen=True)
class Source:
    """Location of a public file, and its checksum."""

    file: str
    """Path in the folder and in the cache."""
    url: str
    sha256: str


def _multi30k(split: str, language: str, sha256: str) -> Source:
    file = f"{split}.{language}.gz"
    return Source(
        f"multi30k/{file}", f"https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{file}", sha256
    )


CORPORA: dict[str, dict[str, Source]] = {
    "tinyshakespeare": {
        "text": Source(
            "tinyshakespeare.txt",
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        )
    },
    "multi30k-de-en": {
        "train.source": _multi30k("train", "de", "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        "train.target": _multi30k("train", "en", "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
        "validation.source": _multi30k("val", "de", "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        "validation.target": _multi30k("val", "en", "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
        "test.source": _multi30k("test_2016_flickr", "de", "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        "test.target": _multi30k("test_2016_flickr", "en", "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    },
}
"""Parts of each corpus: one text, or sources and targets line by line."""
FOLDER = "JAXFORMER_DATA"
"""Environment variable that names a folder to look into before the network."""
UNPACKED = 256
"""Most MiB to which a packed text may unpack, unless its reader allows more."""
WRONG = "does not have the wanted sha256"


def find(name: str, part: str) -> Path:
    """Return the path of a corpus's part by name, or of a file; InputError if it is neither."""
    if part in CORPORA.get(name, {}):
        return fetch(CORPORA[name][part])
    path = Path(name)
    with suppress(OSError):  # a name may be too long for a path
        if path.is_file():
            return path
    fitting = [corpus for corpus, parts in CORPORA.items() if part in parts]
    near = difflib.get_close_matches(name, fitting, 1)
    hint = f"did you mean {near[0]}?" if near else f"give a file, or one of {', '.join(fitting)}"
    raise InputError(f"data: {name or repr(name)} is neither a file nor a corpus; {hint}")


def located(name: str) -> str:
    """Return the name of a corpus as it is, or the absolute path of a file, so that it is found from every folder."""
    check_kind("data", name, str, "a file, or a corpus by its name")
    with suppress(OSError):
        if name not in CORPORA and Path(name).is_file():
            return str(Path(name).absolute())
    return name


def read_corpus(name: str, unpacked: int = UNPACKED) -> str:
    """Read the text of a corpus by name, or of a file by path; a gzipped one has at most `unpacked` MiB."""
    return read_text(find(name, "text"), unpacked)


def read_text(path: Path | str, unpacked: int = UNPACKED) -> str:
    """Read a UTF-8 file, with or without a byte order mark, gzipped or not.

    InputError says which byte is not UTF-8, or that a packed file has more than `unpacked` MiB.
    """
    path = check_path("path", path)
    try:
        size = check_file(path).stat().st_size
        check_fits(f"{path}, of {size:,} bytes,", 2 * size, free_bytes(), "give a smaller file")  # as bytes, and as text
        found = path.read_bytes()
        packed = path.suffix == ".gz" or found.startswith(b"\x1f\x8b")
        text = (_unpack(path, found, unpacked) if packed else found).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {error.start}; convert the file first") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be unpacked: {str(error) or 'its end is missing'}; pack the file again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not text:
        raise InputError(f"{path} is empty; give a file with text")
    return text


def _unpack(path: Path, packed: bytes, most: int) -> bytes:
    """Unpack gzipped bytes; InputError if they have more than `most` MiB."""
    found = bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        while chunk := file.read(2**20):
            found += chunk
            if len(found) > most * 2**20:
                raise InputError(
                    f"{path} has {len(packed):,} bytes and unpacks to more than {most:,} MiB; if that is wanted, allow it with "
                    "--unpacked MIB, or give the unpacked file"
                )
    return bytes(found)


def _checked(path: Path, source: Source) -> Path:
    """Return the path of a file whose checksum is the source's; InputError otherwise."""
    try:
        found = hashlib.sha256(read_small(path)).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if found != source.sha256:
        raise InputError(f"{path} {WRONG} {source.sha256}; put {source.url} there, or give --data FILE")
    return path


def fetch(source: Source) -> Path:
    """Return the file on disk: from the folder named by JAXFORMER_DATA, else from the cache, else downloaded once."""
    if folder := os.environ.get(FOLDER):
        path = Path(folder) / source.file
        if path.is_file():
            return _checked(path, source)
    with extra_package():
        import pooch

    cache, name = pooch.os_cache("jaxformer"), source.file.replace("/", "-")
    try:
        pooch.get_logger().disabled = True
        return Path(pooch.retrieve(source.url, f"sha256:{source.sha256}", fname=name, path=cache, progressbar=False))
    except ValueError:
        raise InputError(f"{source.url} {WRONG} {source.sha256}; give --data FILE") from None
    except (PermissionError, FileExistsError, NotADirectoryError):
        raise InputError(f"{cache} cannot be written; give --data FILE, or set XDG_CACHE_HOME to another folder") from None
    except OSError:
        host = source.url.split("/")[2]
        raise InputError(
            f"{source.file} is not in the cache and {host} cannot be reached; give --data FILE, or set {FOLDER} to a folder "
            f"that holds it"
        ) from None
