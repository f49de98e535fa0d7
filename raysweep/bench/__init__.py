"""`raysweep bench`: this code beside its peers, the same work in one run on one machine.

A benchmark is a *suite* of *cases*.  A case is one piece of work that raysweep does and that *peers* do too:
other libraries, or the straightforward program that one would write.  Before anything is timed, a peer's
results are checked against raysweep's; then all contestants take turns, so that a machine that slows down
slows all of them.  What counts is the ratio of CPU times; goals stand beside the cases as data.

`harness` runs cases, `record` is what a run leaves (JSON), `table` renders it, `environment` says where it
ran, `process` gives a run a process and threads of its own.  Peers are installed with `raysweep[bench]`; one
that is absent, or that cannot do the work, is listed with the reason.
"""
