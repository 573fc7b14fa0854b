"""How fast a run is, and how many steps its next dispatch takes.

Only the JAX side has runs: the twin has none.
"""

import math
import time

SECONDS_A_DISPATCH = 1.0
"""Between two dispatches a run shows its progress, and stops if it was asked to."""


class Pace:
    """Seconds a step, and how many of them the next dispatch takes."""

    def __init__(self) -> None:
        self.seconds, self.size = math.inf, 1
        self.restart()

    def restart(self) -> None:
        """Time what follows alone."""
        self.start = time.perf_counter()

    def count(self, n: int) -> None:
        """n steps were taken. The first dispatch includes the compilation."""
        now = time.perf_counter()
        self.seconds = min(self.seconds, (now - self.start) / n) if n == 1 else (now - self.start) / n
        self.start = now
        self.size = max(1, min(2 * n, round(SECONDS_A_DISPATCH / self.seconds)))


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
