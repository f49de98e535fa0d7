"""Colours and style sheet of the report: one page for light and dark, wide and narrow, screen and paper.

Figures are drawn in stand-in colours, and the stand-ins become CSS variables when the SVG is embedded, so
one drawing serves both schemes.  Sizes are drawn along viridis (by S. van der Walt and N. Smith, made to be
read with any colour vision and in grey), larger models in stronger contrast to the page, a marker each.
"""

from __future__ import annotations

import re
from functools import cache

import matplotlib

INK, MUTED, GRID, BAND, SURFACE = "#a10001", "#a10002", "#a10003", "#a10004", "#a10005"
_NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", BAND: "band", SURFACE: "surface"}

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = (
    *("solid", (0, (5, 2)), (0, (1, 1))),
    *((0, (7, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1))),
)

#: The name of the line of the look-up table.
LOOKUP = "look-up table"

#: Marks inside the dots of variants, beginning with that of the first one.
INNER = ("", "_", "|", "x", "+")
#: What a legend calls the models without a variant, where other sweeps of a page have some.
OTHERS = "others"

# Colours of kinds, light and dark scheme, by Okabe and Ito, "Color universal design" (2008): distinct with
# any colour vision, and darker on white.
CATEGORIES = (
    *(("#0072b2", "#56b4e9"), ("#d55e00", "#ff8a3d"), ("#009e73", "#2fd0a2")),
    *(("#a6508a", "#e39ac6"), ("#8a7300", "#f0e442"), ("#5b6470", "#b9c1cb")),
)

# Part of viridis used in each scheme, from the smallest model to the largest: the pale end vanishes on
# white, the dark end on black.
_RAMP = {"light": (0.70, 0.02), "dark": (0.42, 0.98)}


def series(index: int) -> str:
    """Return the stand-in colour of the model size number `index`."""
    return f"#a2{index:04x}"


def category(index: int) -> str:
    """Return the stand-in colour of the kind number `index` of things without an order.

    They come again after `len(CATEGORIES)`, so a marker goes with each.
    """
    return f"#a300{index % len(CATEGORIES):02x}"


@cache
def variables(sizes: int) -> dict[str, list[str]]:
    """Return the CSS declarations of the series colours of each scheme."""
    viridis = matplotlib.colormaps["viridis"]
    declared = {}
    for scheme, (start, end) in _RAMP.items():
        places = [start + (end - start) * (i / (sizes - 1) if sizes > 1 else 0.6) for i in range(sizes)]
        declared[scheme] = [
            f"--series-{i}: {matplotlib.colors.to_hex(viridis(place))}" for i, place in enumerate(places)
        ]
    return declared


def to_variables(svg: str) -> str:
    """Replace stand-in colours by the CSS variables they stand for."""
    svg = re.sub(r"#a1000[1-5]", lambda m: f"var(--{_NAMES[m[0]]})", svg)
    svg = re.sub(r"#a300([0-9a-f]{2})", lambda m: f"var(--category-{int(m[1], 16)})", svg)
    return re.sub(r"#a2([0-9a-f]{4})", lambda m: f"var(--series-{int(m[1], 16)})", svg)


@cache
def declarations(sizes: int) -> dict[str, str]:
    """Return the colours of the light scheme by CSS variable."""
    kinds = [f"--category-{k}: {pair[0]}" for k, pair in enumerate(CATEGORIES)]
    entries = (entry.partition(": ") for entry in (*_LIGHT, *kinds, *variables(sizes)["light"]))
    return {name: colour for name, _, colour in entries}


def real_colour(stand_in: str, sizes: int) -> str | None:
    """Return the colour of the light scheme that a stand-in stands for; None for any other colour.

    >>> real_colour(SURFACE, 1), real_colour("#123456", 1)
    ('#ffffff', None)
    """
    variable = to_variables(stand_in)
    return None if variable == stand_in else declarations(sizes)[variable[len("var(") : -1]]


def style_sheet(sizes: int, *ramps: int) -> str:
    """Return the page's style sheet, with a class `ramp-N` for parts of it with other numbers of sizes."""
    declared = variables(sizes)
    kinds = [[f"--category-{k}: {pair[scheme]}" for k, pair in enumerate(CATEGORIES)] for scheme in (0, 1)]
    light = "; ".join([*_LIGHT, *kinds[0], *declared["light"]])
    dark = "; ".join([*_DARK, *kinds[1], *declared["dark"]])
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f"@media print {{ :root {{ {light} }} }}\n{''.join(map(_ramp, ramps))}{_RULES}{_tables()}"
    )


def _ramp(sizes: int) -> str:
    """Return the rules of a part of the page that has so many sizes."""
    light, dark = (f".ramp-{sizes} {{ {'; '.join(variables(sizes)[scheme])} }}" for scheme in _RAMP)
    return (
        f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n@media print {{ {light} }}\n"
        if sizes
        else ""
    )


def _tables() -> str:
    """Return the rules of tables that do not fit: their rows become paragraphs of headings and values."""
    rules = [f"table.paragraphs {{ {_PARAGRAPHS} }}"]
    for media, scale in (("screen", 1.0), ("print", _PRINTED)):
        for width in TABLE_WIDTHS:
            narrow = f"(max-width: {scale * width - 0.5:.1f}px)"
            rule = f"table.from-{width} {{ {_PARAGRAPHS} }}"
            rules.append(f"@media {media} {{ @container {narrow} {{ {rule} }} }}")
    return "\n".join(rules) + "\n"


_LIGHT = (
    *("--surface: #ffffff", "--raised: #f6f7f9", "--ink: #1b1f24", "--muted: #5b6470"),
    *("--grid: #e2e5ea", "--line: #d3d8df", "--band: #c9dcf2", "--accent: #0b57a4", "--warn: #a33b00"),
)
_DARK = (
    *("--surface: #14171b", "--raised: #1d2126", "--ink: #e8eaed", "--muted: #a3abb6"),
    *("--grid: #2c3238", "--line: #3a4149", "--band: #23405f", "--accent: #8bbcf5", "--warn: #ffae7a"),
)

#: Widths in pixels that a table may need.  One that needs more than a page has is written as paragraphs.
TABLE_WIDTHS = (320, 400, 480, 560, 640, 720, 800, 880, 950, 1000, 1080, 1240, 1400, 1600, 1800)

_RULES = """
* { box-sizing: border-box }
body { margin: 0; background: var(--surface); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
main { max-width: 1880px; margin: 0 auto; padding: 24px 20px 64px }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 36px 0 6px }
h3 { font-size: 1rem; margin: 12px 0 0 }
p { margin: 6px 0 10px; max-width: 90ch }
.lead, .note, figcaption { color: var(--muted) }
.note, figcaption { font-size: .875rem }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0 8px; padding: 0; list-style: none }
.facts li { background: var(--raised); border-radius: 8px; padding: 10px 16px; flex: 1 1 150px }
.facts b { display: block; font-size: 1.3rem; line-height: 1.3; font-variant-numeric: tabular-nums }
.facts span { color: var(--muted); font-size: .875rem }
.findings { margin: 14px 0; padding-left: 20px; max-width: 96ch }
.findings li { margin: 4px 0 }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 10px 0; padding: 0; list-style: none;
  font-size: .875rem }
.legend li { display: flex; align-items: center; gap: 6px }
.legend svg { flex: none }
details { border-top: 1px solid var(--line); margin-top: 18px }
details > summary { cursor: pointer; padding: 8px 0; color: var(--accent) }
summary h2 { display: inline; margin: 0; color: var(--ink) }
details details { border-top: 0; margin-top: 8px; font-size: .875rem }
.pairs, .pair { display: grid; gap: 8px 28px }
.pairs { grid-template-columns: repeat(auto-fit, minmax(min(100%, 720px), 1fr)) }
.pair { grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)) }
.single { grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)) }
.pair > * { max-width: 520px }
@media (min-width: 860px) { .half { grid-template-columns: 1fr 1fr } }
figure { margin: 8px 0; min-width: 0 }
figure svg { display: block; width: 100%; height: auto }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif !important }
.beside { display: flex; flex-wrap: wrap; gap: 8px 28px }
.beside > .pair { flex: 1 1 330px; max-width: calc(520px * 2 + 28px) }
.beside > .pair:has(> :only-child) { max-width: 520px }
.read { flex: 1 1 330px; max-width: 90ch }
.hover { cursor: help }
.fit { container-type: inline-size; overflow-x: auto; margin: 8px 0 }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  min-width: min(100%, 860px) }
th, td { padding: 5px 14px 5px 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
th { font-weight: 600; color: var(--muted); vertical-align: bottom; white-space: normal }
td.text, th.text { text-align: left }
td.text:has(code) { white-space: normal; min-width: 16ch }
td.wrap { white-space: normal; min-width: 24ch; overflow-wrap: anywhere }
tbody tr:hover { background: var(--raised) }
td.none { color: var(--muted) }
.warn { color: var(--warn) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; font-size: .875rem; margin: 8px 0 }
dt { color: var(--muted) }
dd { margin: 0; overflow-wrap: anywhere }
code { font: .875em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere }
pre { background: var(--raised); border-radius: 8px; padding: 10px 14px; overflow-x: auto; margin: 8px 0 }
a { color: var(--accent) }
@media (max-width: 560px) { main { padding: 16px 14px 40px } dl { grid-template-columns: 1fr }
  dt { margin-top: 6px } }
@page { size: A4; margin: 12mm }
@media print {
  main { max-width: none; padding: 0 }
  details:not(.long)::details-content { content-visibility: visible; height: auto }
  .pair, .half { grid-template-columns: 1fr 1fr }
  .beside { display: block }
  .beside > .pair:has(> :only-child) { grid-template-columns: 1fr; max-width: 100mm }
  tbody tr, figure, .facts li { break-inside: avoid }
  h2, summary, .legend { break-after: avoid }
  .legend { break-inside: avoid }
  figure svg { max-height: 165mm }
  .fit { overflow: visible }
  .pairs { display: block }
  table { font-size: calc(.875rem * .7) }
  table .note, table code { font-size: 1em }
}
"""

#: The size of a printed table relative to that on a screen.
_PRINTED = 0.7

#: A table as paragraphs: rules within the rule of the table.
_PARAGRAPHS = """&, & tbody { display: block } & thead { display: none }
  & tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(8em, 1fr)); gap: 6px 1em;
    padding: 10px 0; border-bottom: 1px solid var(--line) }
  & th, & td { border: 0; padding: 0; text-align: left; white-space: normal; min-width: 0 }
  & td.wrap, & td:first-child:has(code) { grid-column: 1 / -1 }
  & td:empty, & td.absent { display: none }
  & td::before { content: attr(data-head); display: block; color: var(--muted); font-size: .93em;
    line-height: 1.3 }"""
