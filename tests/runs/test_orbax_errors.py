"""Where orbax fails, its threads say nothing of it later; what others say of theirs stays."""

import asyncio
import gc
import logging
from typing import Any

import pytest

from jaxformer.runs.orbax_errors import LOGGERS, end_of_fault, is_not_orbax

pytestmark = pytest.mark.usefixtures("little_to_collect")


@pytest.fixture(autouse=True)
def loggers():
    yield
    for name in LOGGERS:
        logging.getLogger(name).removeFilter(is_not_orbax)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("file", "error", "said"),
    [
        ("/lib/orbax/checkpoint/futures.py", "No space left on device", 0),
        ("/home/orbax/train.py", "No space left on device", 1),
        ("/lib/asyncio/tasks.py", "Error writing 'w/zarr.json' [tensorstore_spec='{}'] [os_error_code='28']", 0),
    ],
)
def test_an_error_that_nobody_waited_for(file, error, said, caplog):
    names: dict[str, Any] = {}
    exec(compile(f"async def write():\n    raise ValueError({error!r})", file, "exec"), names)

    async def leave():
        task = asyncio.create_task(names["write"]())
        await asyncio.wait([task])

    end_of_fault()
    asyncio.run(leave())
    gc.collect()
    assert [record.name for record in caplog.records] == ["asyncio"] * said
