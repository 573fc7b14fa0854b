"""What is wrong with a checkpoint, in our own words: orbax speaks of its settings, and tensorstore of its places in memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxformer.errors import REFUSED, CheckpointError, JaxformerError, message_of

PARTS = "_CHECKPOINT_METADATA", "state", "state/_METADATA", "state/manifest.ocdbt"
"""What every checkpoint has."""
NOT_ITS_FAULT = "RESOURCE_EXHAUSTED", *map(os.strerror, REFUSED)


@contextmanager
def read_from(path: str, what: str) -> Iterator[None]:
    """Inside, an error means that this is damaged, if it is not the system's or our own."""
    try:
        yield
    except (JaxformerError, OSError, MemoryError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise damage(path, what) from None
        raise
    except Exception as error:
        if any(reason in message_of(error) for reason in NOT_ITS_FAULT):
            raise
        raise damage(path, what) from None


def damage(path: str, what: str) -> CheckpointError:
    """Names the first file that is missing; if none is, what is damaged."""
    place = Path(path)
    if not place.is_dir():
        return CheckpointError("it is no folder")
    missing = next((name for name in PARTS if not (place / name).exists()), None)
    return CheckpointError(f"its {what} damaged" if missing is None else f"it has no {missing}")
