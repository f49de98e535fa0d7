"""The verdict on a claim: from its estimate to a sentence.

- *supported*, *contradicted*: the effect differs from zero at 5 % for all claims of the sweep together
  (S. Holm, "A simple sequentially rejective multiple test procedure", 1979).
- *mixed*: two parts of the association, or two ways to hold the loss, say opposite things at that level.
- *no clear relation*: the 95 % interval contains zero and excludes every effect that is worth mentioning.
- *not enough data*: everything else, with the amount of data that it would take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from raysweep.report.format import signed
from raysweep.report.power import Pilot
from raysweep.report.ratio import Array, Distribution
from raysweep.report.statistics import holm

Outcome = Literal["supported", "contradicted", "mixed", "no clear relation", "not enough data"]

ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An effect with its 95 % interval and p-value, by one way; nan where there is too little data.

    `standard_error` is that on the scale of the test, Fisher's z for a correlation, and `ratio` the
    distribution of the test.
    `shrinks` says whether more clusters make them better; a reference that was measured once sets a limit.
    """

    name: str
    value: float
    low: float
    high: float
    p: float
    standard_error: float = math.nan
    ratio: Distribution | None = None
    clusters: int = 0
    shrinks: bool = True

    @property
    def tested(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.p)

    @property
    def pilot(self) -> Pilot | None:
        """The facts of the finding that decide the power of such tests; None where there is no interval."""
        if not self.tested or self.ratio is None or not self.standard_error > 0:
            return None
        return Pilot(self.standard_error, self.ratio, self.clusters)


@dataclass(frozen=True, kw_only=True)
class Adjusted:
    """The evidence of an association: places of flatness `x` and accuracy `y` [m] beyond those of the loss.

    They are the residuals of the ranks among `among` checkpoints, in places.  Each is of the checkpoint of a
    run and a step in `keys`, or of the mean over a group of `of` that begins with it.  `flatness` and
    `accuracy` are their names.  `within` has the same association in the runs of each variant alone, such as
    a learning rate, for a reader: no verdict depends on it.
    """

    x: Array
    y: Array
    keys: Sequence[tuple[str, int]]
    of: str
    among: int
    flatness: str
    accuracy: str
    loss: str
    within: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A claim with what was found about it, before it is judged.

    `expected` is the sign of the effect if the claim is true.  `unit` is "ρ" for a correlation; otherwise it
    follows the number of a difference of accuracy.  `units` is the kind of clusters, in the plural.  `ways`
    are other ways to hold the loss, and `parts` parts of the association.  `reason` says why there is no
    effect, and `adjusted` is what a correlation is of.
    """

    about: str
    says: str
    unit: str
    expected: int
    least: float
    main: Finding
    ways: tuple[Finding, ...] = ()
    parts: tuple[Finding, ...] = ()
    checkpoints: int = 0
    runs: int = 0
    units: str = "runs"
    test: str = ""
    reason: str = ""
    adjusted: Adjusted | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Verdict(Asked):
    """A claim that was judged together with the other claims of its sweep."""

    #: The p-value corrected for the number of claims; nan without a test.
    p_corrected: float
    outcome: Outcome

    def __repr__(self) -> str:
        return f"Verdict({f'{self.about}{self.says}: {self.outcome}'!r})"

    @property
    def level(self) -> float:
        """The level at which Holm's procedure tests the claim among all claims of its sweep."""
        return ALPHA * self.main.p / self.p_corrected if self.p_corrected > self.main.p else ALPHA

    @property
    def detectable(self) -> float:
        """The smallest effect that this design sees with a probability of 80 %; nan where unknown."""
        if self.main.pilot is None:
            return math.nan
        found = self.main.pilot.detectable()
        return math.tanh(found) if self.unit == "ρ" else found

    def needed(self, effect: float | None = None, *, level: float = ALPHA) -> int | None:
        """Return the number of clusters, such as configurations, that an effect would take: the observed one.

        `level` is that of the test.  None where nothing was tested, where it would take more than any sweep
        has, and where clusters are not all that it takes.
        """
        pilot = self.main.pilot
        if pilot is None or not self.main.shrinks:
            return None
        seen = self.main.value if effect is None else effect
        scaled = math.atanh(max(-1 + 1e-9, min(1 - 1e-9, seen))) if self.unit == "ρ" else seen
        return pilot.needed(scaled, level=level)

    @property
    def sentence(self) -> str:
        """The claim, the verdict and the numbers, as one sentence."""
        return f"{self.about}{self.says}: {self.outcome} ({self.numbers})"

    @cached_property
    def numbers(self) -> str:
        """The effect with its interval, the data, and what more would be needed."""
        parts = [effect(self.main, self.unit)] if not math.isnan(self.main.value) else []
        runs = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        if self.units != "runs" and self.main.clusters:
            runs += f" of {self.main.clusters} {self.units}"
        parts.append(runs)
        text = ", ".join(parts)
        if self.reason:
            text += f"; {self.reason}"
        if self.outcome == "mixed":
            text += f"; but {', '.join(self._opposed())}"
        elif self.outcome in ("supported", "contradicted"):
            text += "".join(f"; but by {way.name} {effect(way, self.unit)}" for way in self._dissent())
        if self.outcome == "not enough data" and self.main.tested:
            text += f"; {self.more}"
        if self.outcome == "no clear relation":
            text += f"; an effect of {amount(self.least, self.unit)} is excluded"
            text += "".join(f"; but by {way.name} {effect(way, self.unit)}" for way in _sure(self.ways))
        return text

    @property
    def more(self) -> str:
        """A clause on the data that the effect would take, or the least one if it is not worth mentioning."""
        if self.p_corrected > ALPHA >= self.main.p:
            text = f"p = {self.main.p:.2g} alone, {self.p_corrected:.2g} among all claims"
            count = self.needed(level=self.level)
            more = count is not None and count > self.main.clusters
            return f"{text}; 80 % power among them takes about {count:,} {self.units}" if more else text
        small = abs(self.main.value) < self.least
        count = self.needed(self.least if small else None)
        if count is None:
            return f"80 % power only for {amount(self.detectable, self.unit)} or more"
        what = f"an effect of {amount(self.least, self.unit)}" if small else "this effect"
        if count <= self.main.clusters:
            return f"{what} is seen with 80 % and not yet excluded"
        return f"80 % power for {what} takes about {count:,} {self.units}"

    def _dissent(self) -> list[Finding]:
        """Return the ways that have the other sign, however unsure."""
        return [way for way in self.ways if way.value * self.main.value < 0]

    def _opposed(self) -> list[str]:
        return [
            f"{found.name} {effect(found, self.unit)}"
            for found in (*self.parts, *self.ways)
            if found.tested and found.p <= ALPHA
        ]

    def encode(self) -> dict[str, Any]:
        """Return plain data for a program; numbers that are not known are None."""

        def plain(value: float) -> float | None:
            return None if math.isnan(value) else float(value)

        def of(found: Finding) -> dict[str, Any]:
            return {
                "name": found.name,
                **{name: plain(getattr(found, name)) for name in ("value", "low", "high", "p")},
                "clusters": found.clusters,
            }

        return {
            "claim": f"{self.about}{self.says}",
            "verdict": self.outcome,
            "sentence": self.sentence,
            "unit": self.unit,
            "effect": of(self.main),
            "p_corrected": plain(self.p_corrected),
            "ways": [of(found) for found in self.ways],
            "parts": [of(found) for found in self.parts],
            "runs": self.runs,
            "checkpoints": self.checkpoints,
            "detectable": plain(self.detectable),
            "needed": self.needed(),
            "units": self.units,
            "test": self.test,
            "reason": self.reason,
        }


def judged(asked: Sequence[Asked]) -> list[Verdict]:
    """Judge claims together."""
    tested = [k for k, claim in enumerate(asked) if claim.main.tested]
    corrected = dict(zip(tested, holm([asked[k].main.p for k in tested]), strict=True))
    return [_judged(claim, corrected.get(k, math.nan)) for k, claim in enumerate(asked)]


def _judged(asked: Asked, p: float) -> Verdict:
    verdict = Verdict(**vars(asked), p_corrected=p, outcome="not enough data")
    main = asked.main
    if _opposite(asked):
        return replace(verdict, outcome="mixed")
    if not main.tested:
        return verdict
    if p <= ALPHA:
        right = main.value * asked.expected > 0
        return replace(verdict, outcome="supported" if right else "contradicted")
    if -asked.least < main.low <= 0 <= main.high < asked.least:
        return replace(verdict, outcome="no clear relation")
    return verdict


def _opposite(asked: Asked) -> bool:
    """Return whether parts, or ways, contradict each other or the whole, each for their number."""
    for group in (asked.parts, asked.ways):
        sure = [one.value > 0 for one in _sure(group)]
        if asked.main.tested and asked.main.p <= ALPHA:
            sure.append(asked.main.value > 0)
        if len(set(sure)) > 1:
            return True
    return False


def _sure(group: Sequence[Finding]) -> list[Finding]:
    """Return the findings that differ from zero at 5 % for all of them together."""
    found = [one for one in group if one.tested]
    return [one for one, p in zip(found, holm([o.p for o in found]), strict=True) if p <= ALPHA]


def effect(found: Finding, unit: str) -> str:
    """Return an effect with its interval for a reader."""
    between = f" [{_shown(found.low, unit)}, {_shown(found.high, unit)}]" if found.tested else ""
    value = _shown(found.value, unit)
    return f"ρ = {value}{between}" if unit == "ρ" else f"{value}{between} {unit}"


def amount(value: float, unit: str) -> str:
    """Return the size of an effect for a reader."""
    return f"|ρ| = {value:.2f}" if unit == "ρ" else f"{value:.3f} {unit}"


def _shown(value: float, unit: str) -> str:
    return signed(value) if unit == "ρ" else f"{value:+.3f}".replace("-", "−")
