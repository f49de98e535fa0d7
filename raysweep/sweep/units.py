"""Counts, seconds and bytes as text."""

from __future__ import annotations


def count(n: int, what: str) -> str:
    """Return a number of things for a reader.

    >>> count(1, "run"), count(2000, "run")
    ('1 run', '2,000 runs')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share of work that is done; 100 % is all of it, and no less.

    >>> percent(0.288), percent(0.9999), percent(1.0)
    ('29%', '99%', '100%')
    """
    return f"{share if share >= 1 else min(share, 0.99):.0%}"


def duration(seconds: float) -> str:
    """Return seconds for a reader.

    >>> [duration(s) for s in (0.4, 42, 600, 7300, 200000)]
    ['1 s', '42 s', '10 min', '2 h 2 min', '2 d 7 h']
    """
    whole = max(1, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    """Return bytes for a reader.

    >>> [size(n) for n in (512, 2_000_000, 3.5e9)]
    ['512 B', '2.0 MB', '3.5 GB']
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{round(count)} B"
