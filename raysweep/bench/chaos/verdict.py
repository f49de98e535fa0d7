"""The verdict on the end of a launch: whether it ended well, judged by its exit code and its words."""

from __future__ import annotations

import re
from collections.abc import Collection

#: Exit codes of a launch: done, failed runs, trouble around it, interrupted.
DONE, FAILED, TROUBLE, INTERRUPTED = 0, 3, 4, 130
#: The kind of fault that ends the launch itself without leaving it a word.
SILENCING = "SIGKILL of the driver"

#: A sentence of raysweep's own on why a launch ended.
_SENTENCE = re.compile(r"^(raysweep: |interrupted|not finished: |failed: )", re.MULTILINE)
#: The beginning of a trace of Python's, or of the C++ parts of Ray.
_TRACE = re.compile(r"^(Traceback \(most recent call last\)|\*\*\* SIG|.*Stack trace:)", re.MULTILINE)


def trouble(code: int, text: str, kinds: Collection[str]) -> tuple[str, ...]:
    """Return the ways in which a launch ended badly, given the kinds of faults that hit it.

    >>> trouble(-6, "*** SIGABRT received", ["SIGTERM to the driver"])
    ('exit code -6', 'a trace', 'no sentence about the end')
    >>> trouble(130, "interrupted; everything up to ...", ["SIGTERM to the driver"])
    ()
    """
    if code == -9 and SILENCING in kinds:
        return ()
    signalled = any(kind.startswith("SIG") and kind.endswith("to the driver") for kind in kinds)
    known = {DONE, TROUBLE, *([INTERRUPTED] if signalled else [])}
    found = [f"exit code {code}"] if code not in known else []
    if _TRACE.search(text):
        found.append("a trace")
    if code != DONE and not _SENTENCE.search(text):
        found.append("no sentence about the end")
    return tuple(found)
