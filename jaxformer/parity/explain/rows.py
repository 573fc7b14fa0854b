"""Which rows of its table a module looks up: positions that begin elsewhere, shifted tokens."""

import numpy as np

from jaxformer.parity.explain.evidence import Difference

SHOWN = 4


def explain_rows(difference: Difference) -> str:
    """'jax looks up rows -2 from torch's'. The normal run tells, where there is one: alone, a module may be
    given torch's ids, which may mean something else to it."""
    table = difference.evidence.parameters.get("table")
    ours = difference.jax if difference.normal is None else difference.normal
    if table is None or (theirs := rows_of(difference.torch, table)) is None or (mine := rows_of(ours, table)) is None:
        return ""
    try:
        mine, theirs = np.broadcast_arrays(mine, theirs)
    except ValueError:
        return ""
    shifts = np.unique(mine - theirs)
    if shifts.size == 1:
        return f"jax looks up rows {shifts[0]:+d} from torch's" if shifts[0] else ""
    wrong = mine != theirs
    some = (", ".join(map(str, rows[wrong][:SHOWN])) for rows in (mine, theirs))
    return "jax looks up rows {}, ... where torch has {}, ...".format(*some)


def rows_of(array: np.ndarray, table: np.ndarray) -> np.ndarray | None:
    """The numbers of the rows that an array has along its last axis; None where it has others."""
    if array.ndim < 2 or array.shape[-1] != table.shape[1] or array.dtype.kind != "f":
        return None
    numbers = {row.tobytes(): i for i, row in reversed([*enumerate(table.astype(np.float64))])}
    found = [numbers.get(row.tobytes(), -1) for row in array.astype(np.float64).reshape(-1, table.shape[1])]
    return np.array(found).reshape(array.shape[:-1]) if -1 not in found else None
