"""A name on the Hugging Face hub as a folder on this machine."""

import re
from pathlib import Path

from jaxformer.errors import InputError, first_line

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""What models are called there: `gpt2`, or `owner/model`."""
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
"""What is downloaded; no file there can run code."""


def local_folder(path: Path) -> Path:
    """The path itself where it is there, or cannot be a name; otherwise the folder into which the hub's files are downloaded.

    InputError in one line where that is not possible.
    """
    if path.exists() or not NAME.fullmatch(str(path)) or (path.parent != Path() and path.parent.exists()):
        return path
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{path} is not here; as a name on the hub it needs huggingface_hub: pip install huggingface_hub, or give a folder"
        ) from None
    try:
        return Path(snapshot_download(str(path), allow_patterns=list(FILES), etag_timeout=5))
    except Exception as error:  # of many libraries
        raise InputError(f"{path} is not here, and cannot be had from the hub: {first_line(error)}; give a folder") from None
