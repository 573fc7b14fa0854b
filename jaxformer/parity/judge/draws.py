"""What draws in training mode say of diverging modules."""

from dataclasses import replace

from jaxformer.parity.judge.trained_alone import row_around
from jaxformer.parity.match.draw_pairs import DrawPairs
from jaxformer.parity.report.data import Module


def with_draws(rows: list[Module], draws: DrawPairs | None) -> list[Module]:
    """The table's rows; the innermost diverging module around a draw that one side alone has, or has at another rate, diverges
    of it."""
    said: dict[int, list[str]] = {}
    for side, path, says in draws.differences() if draws else ():
        place = row_around(rows, f"{path}.(draw)" if path else "(draw)", side == "torch")
        if rows[place].diverging:
            said.setdefault(place, []).append(says)
    return [replace(row, cause="; ".join(said.get(i, [])) or with_line(row, draws)) for i, row in enumerate(rows)]


def with_line(row: Module, draws: DrawPairs | None) -> str:
    """Its cause, and where jax has the draw of torch's that it is about."""
    labels = {target.label for cause in row.causes for target in cause.targets}
    pairs = draws.pairs if draws else {}
    lines = [draws.jax[j].line for j, i in pairs.items() if draws and draws.torch[i].says in labels]
    return f"{row.cause}; jax has it at {lines[0]}" if lines and lines[0] else row.cause
