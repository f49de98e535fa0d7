"""The process in which a suite runs: `python -m raysweep.bench REQUEST FILE`; see `process`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from raysweep.bench.process import hold

if __name__ == "__main__":
    request, file = json.loads(sys.argv[1]), Path(sys.argv[2])
    # Before torch and its kin are loaded.
    hold(request["threads"])
    from raysweep.bench.record import save
    from raysweep.bench.suites import run_here

    save(run_here(**request, say=lambda line: print(line, file=sys.stderr, flush=True)), file)
