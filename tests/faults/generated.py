"""Configurations and inputs that hypothesis draws: each is built and answered, or refused in one line of ours."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import jaxformer as jf
from jaxformer.errors import JaxformerError
from tests.tiny import tiny_config

ODD = st.one_of(
    st.integers(-3, 20),
    st.sampled_from([2**31 - 1, 2**31, 2**63, 10**9]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
FIELDS = [*tiny_config().__dataclass_fields__]
SIZES = st.tuples(st.integers(0, 3), st.integers(0, 9))
IDS = st.one_of(st.tuples(SIZES, st.integers(-2, 12), st.sampled_from(["int32", "int64", "uint8", "float32", "bool"])), ODD)


def ran(times: int, strategy: Any, check: Any) -> list[str]:
    """What was wrong with one of so many draws."""
    wrong: list[str] = []

    @seed(0)
    @settings(max_examples=times, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(strategy)
    def one(drawn: Any) -> None:
        try:
            check(drawn)
        except JaxformerError as error:
            if "\n" in str(error):
                wrong.append(f"{drawn!r:.100}: {error}")
        except Exception as error:
            wrong.append(f"{drawn!r:.100}: {type(error).__name__}: {error!s:.100}")

    one()
    return wrong


def configs(times: int, folder: Path) -> list[str]:
    """A small configuration of which up to three fields are anything."""
    return ran(
        times, st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3), lambda changes: jf.abstract(tiny_config(**changes))
    )


def inputs(times: int, folder: Path) -> list[str]:
    """Ids and masks of any type, shape and value."""
    model = jf.excite(jf.abstract(tiny_config(n_layers=1)), seed=0)

    def check(drawn: Any) -> None:
        ids, mask = (array(each) for each in drawn)
        found = model(ids, mask=None if mask is None else mask)
        assert np.isfinite(found).all()

    with jax.disable_jit(False):
        return ran(times, st.tuples(IDS, st.one_of(st.none(), IDS)), check)


def array(drawn: Any) -> Any:
    """Three drawn numbers as an array; anything else as it is."""
    if isinstance(drawn, tuple):
        shape, value, dtype = drawn
        return np.full(shape, max(value, 0) if dtype == "uint8" else value, dtype)
    return drawn
