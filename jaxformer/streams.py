"""Standard streams of a command that somebody has closed: they lead nowhere."""

import os
import sys


def open_closed_streams() -> None:
    """Open those that are closed. Else the next file that is opened has their number, and what is meant for them is written
    into it."""
    for name, mode, flag in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_WRONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), mode, encoding="utf-8"))
