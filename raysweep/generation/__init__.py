"""Large sets of sentences, exact conditionals and labels: the request, a shard, and the sum of all shards.

Nothing here starts Ray: `raysweep.engine.generate` has the shards of a request made on a cluster.

    work = plan(config, language, what=("entropy",), sizes={"sentences": 1000}, ...)
    arrays = make_shard(language, work, "sentences", 0)     # a pure function of language, seed and numbers
    tally = Tally(language, work.tasks)
    tally.add(counts_of(arrays))                            # for every shard, in order
"""

from raysweep.generation.request import Part, Positions, Work, plan
from raysweep.generation.shard import make_shard
from raysweep.generation.tally import Generated, Tally, counts_of

__all__ = ["Generated", "Part", "Positions", "Tally", "Work", "counts_of", "make_shard", "plan"]
