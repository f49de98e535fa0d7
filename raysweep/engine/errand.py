"""A command that runs elsewhere: its two streams come as one, in frames.

    python -m raysweep.engine.errand status scaling --storage /shared/results

The log of a Ray job is one stream, and holds lines of Ray and of the shell besides.
"""

from __future__ import annotations

import codecs
import json
import os
import selectors
import subprocess
import sys

#: The beginning of a frame's line.
_MARK = "raysweep-frame "

#: Most bytes of a frame's text.
_BLOCK = 4096


def frame(stream: str, text: str) -> str:
    """Return the line that holds a piece of what a stream, "out" or "err", got.

    >>> read_frame(frame("out", "a line\\n"))
    ('out', 'a line\\n')
    """
    return _MARK + json.dumps([stream, text])


def read_frame(line: str) -> tuple[str, str] | None:
    """Return the stream and the text of a frame; None for any other line."""
    if not line.startswith(_MARK):
        return None
    stream, text = json.loads(line.removeprefix(_MARK))
    return stream, text


def main(arguments: list[str]) -> int:
    """Run `raysweep ARGUMENTS`, print a frame for each piece of its output, and return its exit code."""
    words = [sys.executable, "-m", "raysweep.cli", *arguments]
    with (
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
        selectors.DefaultSelector() as ready,
    ):
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            ready.register(stream, selectors.EVENT_READ, (name, decoder))  # type: ignore[arg-type]
        while ready.get_map():
            for key, _ in ready.select():
                name, decoder = key.data
                block = os.read(key.fd, _BLOCK)
                text = decoder.decode(block, final=not block)
                if text:
                    print(frame(name, text), flush=True)
                if not block:
                    ready.unregister(key.fileobj)
        code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
