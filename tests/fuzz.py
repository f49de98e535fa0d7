"""Reads many mutated sweep files and overrides, and tells defects: `python tests/fuzz.py --count 100000`.

Nothing is launched.  Each case is a function of the seed and its number, so `--first N --count 1` shows one
again.  A case that takes too long ends all, with its stack.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

#: Seconds that a case may take.
LONGEST = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(Path(__file__).parent))
    from helpers.mutations import good_files, mutated
    from helpers.reading import outcome, peak

    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        os.environ["RAYSWEEP_CACHE"] = f"{place}/cache"
        (Path(place) / "sweep").mkdir()
        os.chdir(Path(place) / "sweep")
        sweeps = good_files(Path(place) / "examples")
        begun, longest = time.process_time(), 0.0
        for number in range(options.first, options.first + options.count):
            text, overrides = mutated(sweeps, Random(f"{options.seed}/{number}"))
            started = time.process_time()
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            kind, said = outcome(text, overrides, Path(place) / "sweep")
            faulthandler.cancel_dump_traceback_later()
            longest = max(longest, time.process_time() - started)
            outcomes[kind] += 1
            if (number + 1) % 5000 == 0:
                print(f"{number + 1:,}: {dict(outcomes)}, {peak() >> 20} MiB at most", flush=True)
            if kind == "defect":
                print(
                    f"case {number}: {said}\n{text[:3000]}\n{[text[:300] for text in overrides]}\n",
                    flush=True,
                )
            elif options.count == 1:
                print(f"{kind}: {said}\n{text[:3000]}\n{[text[:300] for text in overrides]}")
    spent = time.process_time() - begun
    print(
        f"{options.count:,} cases: {dict(outcomes)}; {spent:.0f} s of processor time, the longest "
        f"{longest:.1f} s; {peak() >> 20} MiB at most"
    )
    return 1 if outcomes["defect"] else 0


if __name__ == "__main__":
    sys.exit(main())
