"""Tables of records, and those in the README of raysweep/bench."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from raysweep.bench import table
from raysweep.bench.record import RESULTS, CaseRecord, Figure, Goal, Record, Spread, of_suite
from raysweep.errors import ConfigError

MARKDOWN = """\
| work | raysweep | beside | found | goal |
| --- | --- | --- | --- | --- |
| `first` some work | 10,000 sentences per CPU-second | good | 1,000× (900–1,100) | ≥ 800× ✓ |
|  |  | odd\\|peer | 1,000× (900–1,100) (not equal) | ≥ 8,000× missed |
|  |  | wrong | not equal, not timed |  |
|  |  | gone | absent |  |
| `second` other work |  | peak memory | 1.50 GiB | ≤ 2 GiB ✓ |
|  |  | entropy | 4.35 nats |  |
| `third` no work |  |  | not run |  |

- odd|peer (first): no zeros.
- gone (first): gone is not installed.
- third: not on this system.

"""


def test_markdown(record: Record) -> None:
    text = table.markdown(record)
    assert text.startswith(MARKDOWN)
    assert text.endswith("Python 3.11.7, torch 2.13.0; 2026-01-02; commit 0123456789 (changed).\n")


def test_a_quick_run_judges_nothing(record: Record) -> None:
    text = table.markdown(record.model_copy(update={"quick": True}))
    assert "A quick run on small sizes" in text
    assert "≥ 8,000×" in text
    assert "✓" not in text
    assert "missed" not in text


def test_terminal(record: Record) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(table.terminal(record))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "first some work" in rows
    assert "10,000 sentences per CPU-second" in rows
    assert "good 1,000× (900–1,100) ≥ 800× ✓" in rows
    assert "gone absent" in rows
    assert "- third: not on this system." in rows


def test_a_text_is_rewritten_between_its_comments(record: Record) -> None:
    text = "before\n<!-- bench:exact -->\nold\n<!-- /bench:exact -->\nafter\n"
    new = table.written(text, record)
    assert new.startswith("before\n<!-- bench:exact -->\n| work |")
    assert new.endswith("(changed).\n<!-- /bench:exact -->\nafter\n")
    assert table.written(new, record) == new


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "<!-- bench:exact -->",
        "<!-- /bench:exact --><!-- bench:exact -->",
        2 * "<!-- bench:exact --><!-- /bench:exact -->",
    ],
)
def test_a_text_without_its_comments_is_left_alone(record: Record, tmp_path: Path, text: str) -> None:
    file = tmp_path / "text.md"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"text\.md: the text needs one line '<!-- bench:exact"):
        table.write(file, record)
    assert file.read_text() == text


@pytest.mark.parametrize("suite", sorted(path.name for path in RESULTS.iterdir()))
def test_readme_holds_the_table_of_the_records(suite: str) -> None:
    text = table.README.read_text(encoding="utf-8")
    assert table.written(text, *of_suite(suite)) == text


ACROSS = """\
The same on other processors:

| ratio | a-processor-avx2 | amd-25-1-avx2 | goal |
| --- | --- | --- | --- |
| first: good | 1,000× ✓ | 700× missed | ≥ 800× |
| first: odd\\|peer | 1,000× missed | 1,000× missed | ≥ 8,000× |

"""


def test_records_of_other_processors_stand_beside_the_newest(record: Record) -> None:
    first, *rest = record.cases
    good, *others = first.comparisons
    slower = good.model_copy(update={"cpu_ratio": Spread.of([700.0])})
    # A case and a peer that this record alone has are no comparison.
    alone = first.model_copy(update={"key": "alone", "comparisons": (good,)})
    cases = (first.model_copy(update={"comparisons": (slower, *others)}), *rest, alone)
    update = {"cpu": "AMD EPYC (family 25, model 1)", "others": 0.7, "stolen": 0.031}
    there = record.environment.model_copy(update=update)
    other = record.model_copy(update={"environment": there, "cases": cases})
    text = table.markdown(record, other)
    above, between, below = text.partition(ACROSS)
    assert between
    assert above.strip() == table.markdown(record).strip()
    assert "8 cores, 0.7 of them busy with other work, 3% of their time taken away by the host; its" in below
    out = io.StringIO()
    Console(file=out, width=80).print(table.terminal(record, [other]))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "ratio here amd-25-1-avx2 goal" in rows
    assert "first: good 1,000× ✓ 700× missed ≥ 800×" in rows


def test_a_record_of_a_gpu_tells_seconds_on_the_wall(record: Record) -> None:
    place = record.environment.model_copy(update={"gpu": "A GPU"})
    peak = record.peak.model_copy(update={"gemm_bfloat16_gflops": 800_000.0})
    case = record.cases[0]
    assert case.timing is not None
    timing = case.timing.model_copy(update={"clock": "wall", "wall_seconds": Spread.of([1e-3])})
    update = {"environment": place, "peak": peak, "cases": (case.model_copy(update={"timing": timing}),)}
    text = table.markdown(record.model_copy(update=update))
    assert "1,000 sentences per second" in text
    assert "Ratios are of wall time" in text
    assert "A GPU; A Processor (AVX2)" in text
    assert "50.0 in float64, 800,000 in bfloat16, copying" in text
    assert "Ratios are of CPU time" in table.markdown(record)


def test_gpus_have_a_table_of_their_own(record: Record) -> None:
    place = record.environment.model_copy(update={"gpu": "A GPU"})
    gpu = record.model_copy(update={"environment": place})
    text = table.markdown(record, gpu)
    assert text == f"{table.markdown(record)}\nOn GPUs:\n\n{table.markdown(gpu)}"
    assert text == table.markdown(gpu, record)
    assert ACROSS not in text
    assert table.across([record, gpu]) == table.across([record])


CROSSED = """\
| beside | `first` | `second` | goal |
| --- | --- | --- | --- |
| raysweep, CPU-seconds a trace | 0.000100 |  |  |
| good | 1,000× (900–1,100) ✓ |  | ≥ 800× |
| odd\\|peer | 1,000× (900–1,100) (not equal) missed | 1,000× (900–1,100) (not equal) missed | ≥ 8,000× |
| wrong | not equal, not timed |  |  |
| gone | absent |  |  |
| peak memory |  | 1.50 GiB ✓ | ≤ 2 GiB |
| entropy |  | 4.35 nats |  |

- third: not on this system.
- good: all cases; its own here.
- odd|peer: no zeros (first); none (second).
- gone: gone is not installed.

"""


def test_cases_of_the_same_peers_are_columns(record: Record) -> None:
    first, second, third = record.cases
    good, odd, *rest = first.comparisons
    good = good.model_copy(update={"note": "all cases; its own here"})
    first = first.model_copy(update={"unit": "trace", "comparisons": (good, odd, *rest)})
    second = second.model_copy(update={"comparisons": (odd.model_copy(update={"reason": "none"}),)})
    text = table.markdown(record.model_copy(update={"suite": "trace", "cases": (first, second, third)}))
    above, _, below = text.partition("\n\n")
    assert above.startswith("The cost of a Fisher trace to 1 % relative standard error")
    assert "cheaper by 1,000× (good), 1,000× (odd|peer)." in above
    assert above.endswith("2 of 4 goals are met.")
    assert below.startswith(CROSSED)


def test_cases_of_other_figures_are_tables_of_their_own(record: Record) -> None:
    """A case is a line if there are more cases than figures."""

    def case(key: str, *names: str) -> CaseRecord:
        figures = [Figure(name=n, unit="", value=0.5, goal=Goal(sense="at most", value=1)) for n in names]
        figures.append(Figure(name="replicates", unit="", value=8.0))
        return CaseRecord(key=key, work="", unit="sweep", figures=tuple(figures))

    cases = (case("a", "one", "two"), case("b", "one"), *(case(key, "three") for key in "cdef"))
    text = table.markdown(record.model_copy(update={"suite": "statistics", "cases": cases}))
    first, second, *_ = text.split("\n\n")
    assert first.splitlines() == [
        "| beside | `a` | `b` | goal |",
        "| --- | --- | --- | --- |",
        "| one | 0.500 ✓ | 0.500 ✓ | ≤ 1 |",
        "| two | 0.500 ✓ |  | ≤ 1 |",
        "| replicates | 8 | 8 |  |",
    ]
    assert second.splitlines()[0] == "| case | three (≤ 1) | replicates |"
    assert second.splitlines()[2:] == [f"| `{key}` | 0.500 ✓ | 8 |" for key in "cdef"]


def test_a_goal_says_what_chance_it_allows_for(record: Record) -> None:
    goal = Goal(sense="at most", value=0.05, errors=2.576)
    found = {"a": 0.054, "b": 0.056}
    figures = [Figure(name=k, unit="", value=v, among=14_000, goal=goal) for k, v in found.items()]
    case = CaseRecord(key="one", work="", unit="sweep", figures=tuple(figures))
    text = table.markdown(record.model_copy(update={"suite": "statistics", "cases": (case,)}))
    assert "| a | 0.0540 ✓ | ≤ 0.05 + 0.0047 |\n| b | 0.0560 missed | ≤ 0.05 + 0.0047 |" in text
