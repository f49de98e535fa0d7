"""Sizes of encoders, as four numbers or by the name of a row in a published table.

The named shapes are those of Liu, Xie, Li and Ma, "Same pre-training loss, better downstream" (ICML 2023),
Table 3 (section 2) and Table 4 (Figure 5); a name is the table and the width.
With BERT's vocabulary and 512 positions a shape has this many million parameters:

    table3-64    64/1/1/256          2.1    table4-128   128/2/4/512         4.8
    table3-128   128/2/4/512         4.8    table4-192   192/3/5/768         8.3
    table3-192   192/3/5/768         8.3    table4-320   320/5/6/1024       16.5
    table3-256   256/4/6/1024       12.8    table4-384   384/6/7/2048       27.3
    table3-512   512/8/8/2048       41.4    table4-640   640/10/12/3072     87.3
    table3-768   768/12/12/3072    109.5    table4-960   960/15/16/4096    215.8
    table3-1024  1024/16/16/4096   234.4    table4-1920  1920/30/20/5120   751.9
    table3-1280  1280/20/20/5120   435.0
    table3-1536  1536/24/24/6144   730.0

These are the published sizes (41M, 235M), except for the largest: "950M" is 1920/30/20/7680, with the
intermediate layer of four widths that the text describes, while Table 4 prints 5120.
"""

from __future__ import annotations

from typing import NamedTuple

from raysweep.registry import suggest

_TABLES = {
    "table3": (
        "64/1/1/256",
        "128/2/4/512",
        "192/3/5/768",
        "256/4/6/1024",
        "512/8/8/2048",
        "768/12/12/3072",
        "1024/16/16/4096",
        "1280/20/20/5120",
        "1536/24/24/6144",
    ),
    "table4": (
        "128/2/4/512",
        "192/3/5/768",
        "320/5/6/1024",
        "384/6/7/2048",
        "640/10/12/3072",
        "960/15/16/4096",
        "1920/30/20/5120",
    ),
}

#: Name -> "width/heads/layers/intermediate".
NAMED_SHAPES = {
    f"{table}-{shape.partition('/')[0]}": shape for table, shapes in _TABLES.items() for shape in shapes
}


#: The largest number of a shape: in width, heads and intermediate layers, and in layers.
MOST_WIDE, MOST_LAYERS = 1 << 20, 1 << 10


def numbers(text: str, parts: int) -> list[int] | None:
    """Return the numbers of a shape such as "64/1/2/256"; None if these are not `parts` positive numbers."""
    found = text.split("/")
    if len(found) != parts or not all(n.isascii() and n.isdigit() and n.strip("0") for n in found):
        return None
    # Python takes long over thousands of digits, and refuses most of them.
    return [int(n.lstrip("0")[:20]) for n in found]


def check_sizes(text: str, layers: int, *wide: int) -> None:
    """Refuse a shape that no machine holds; raises `ValueError`."""
    if layers > MOST_LAYERS or max(wide) > MOST_WIDE:
        raise ValueError(
            f"'{text}': at most {MOST_LAYERS:,} layers and widths up to {MOST_WIDE:,} are supported"
        )


class Shape(NamedTuple):
    """The four sizes of an encoder."""

    width: int
    heads: int
    layers: int
    intermediate: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read "width/heads/layers/intermediate" or a name; raises `ValueError` with the remedy.

        >>> Shape.parse("64/1/2/256")
        Shape(width=64, heads=1, layers=2, intermediate=256)
        >>> Shape.parse("table3-512") == Shape.parse("512/8/8/2048")
        True
        """
        found = numbers(NAMED_SHAPES.get(text, text), 4)
        if found is None:
            hint = suggest(text, NAMED_SHAPES)
            raise ValueError(
                f"'{text}' is not four positive numbers; write width/heads/layers/intermediate, "
                f"e.g. 64/1/2/256, or a name, e.g. table3-64{hint}"
            )
        shape = cls(*found)
        check_sizes(text, shape.layers, shape.width, shape.heads, shape.intermediate)
        if shape.width % shape.heads:
            divisors = [h for h in range(1, shape.width + 1) if shape.width % h == 0]
            nearest = min(divisors, key=lambda h: abs(h - shape.heads))
            raise ValueError(
                f"'{text}': {shape.heads} heads do not divide the width {shape.width}; "
                f"use {nearest} head{'s' if nearest > 1 else ''}, or a width that is a multiple of "
                f"{shape.heads}"
            )
        return shape
