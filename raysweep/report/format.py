"""Numbers as people read them."""

from __future__ import annotations

import math


def count(value: float | None) -> str:
    """Return a count in at most four characters or so.

    >>> count(512), count(38_400), count(1_250_000), count(None)
    ('512', '38.4k', '1.25M', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, without an exponent where one can do without.

    >>> number(0.012345), number(98.7654), number(1234.5), number(0.0), number(None)
    ('0.0123', '98.8', '1234', '0', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    if places > 7 or places < -6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return f"{value:.{max(places, 0)}f}".replace("-", "−")


def short(value: float) -> str:
    """Return a round number, such as a tick, with no more digits than it has.

    >>> short(0.03), short(50.0), short(1.5e-7), short(-2.0)
    ('0.03', '50', '1.5e−7', '−2')
    """
    text = f"{value:.6g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def plus_minus(value: float | None, error: float | None, digits: int = 2) -> str:
    """Return value ± error with `digits` digits of the error; without an error, three digits.

    >>> plus_minus(0.87213, 0.0031), plus_minus(43.2, 1.9), plus_minus(0.5, None)
    ('0.8721 ± 0.0031', '43.2 ± 1.9', '0.500')
    >>> plus_minus(0.87213, 0.0031, digits=1)
    '0.872 ± 0.003'
    """
    if value is None or math.isnan(value):
        return "–"
    if error is None or math.isnan(error) or error <= 0 or not math.isfinite(value + error):
        return number(value)
    places = min(max(digits - 1 - math.floor(math.log10(error)), 0), 7)
    return f"{value:.{places}f} ± {error:.{places}f}".replace("-", "−")


def signed(value: float) -> str:
    """Return a correlation with its sign and two places.

    >>> signed(-0.834), signed(0.5)
    ('−0.83', '+0.50')
    """
    return f"{value:+.2f}".replace("-", "−")


def shared_ending(labels: list[str]) -> str:
    """Return the settings, such as `-dropout0`, that end every label and so distinguish none.

    >>> shared_ending(["16/1/1/64-post-dropout0", "32/1/1/128-dropout0"])
    '-dropout0'
    """
    endings = [label.partition("-")[2].split("-") for label in labels]
    shared: list[str] = []
    for words in zip(*(reversed(ending) for ending in endings), strict=False):
        if len(set(words)) > 1 or not words[0]:
            break
        shared.insert(0, words[0])
    return "".join(f"-{word}" for word in shared)
