"""Timeouts in seconds, None for ever, as deadlines of time.monotonic()."""

from __future__ import annotations

import time

_FOR_EVER = 9e9  # Seconds, from which on a timeout is None: 285 years, as everywhere.


def bounded(timeout: "float | None") -> "float | None":
    """None also for one that no clock would see the end of; otherwise 0 or more."""
    return None if timeout is None or timeout > _FOR_EVER else max(timeout, 0)


def deadline_of(timeout: "float | None", began: "float | None" = None) -> "float | None":
    """began: when the time began, if not now."""
    seconds = bounded(timeout)
    return None if seconds is None else (time.monotonic() if began is None else began) + seconds


def left_of(deadline: "float | None") -> "float | None":
    return None if deadline is None else max(deadline - time.monotonic(), 0)
