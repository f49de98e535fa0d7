"""`raysweep bench`: raysweep beside its peers, the same work in one run on one machine.

A benchmark is a *suite* of *cases*.  A case is one piece of work that raysweep does and that *peers* do too:
other libraries, or the straightforward program that one would write.  Before anything is timed, a peer's
results are checked against raysweep's.  Then all contestants take turns, so that a machine that slows down
slows all of them.  The result is the ratio of CPU times; goals stand beside the cases as data.

`suites` lists and runs the suites, `harness` runs a case, `record` is the JSON that a run leaves, `table`
renders it, `environment` describes the machine, and `process` gives a run its own process and threads.
`README.md` holds the tables of the committed records, and the commands that install the peers.  A peer that
is absent, or that cannot do the work, is listed with the reason.
"""
