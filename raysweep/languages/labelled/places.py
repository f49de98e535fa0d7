"""The places of rows in local tables, as a person counts them, and the place where a table is broken.

Both read the files again, which only an error does.  Lines are those of a text editor, from 1: the header of
a .csv file is one, and so is a blank line.  Rows of other files count from 1.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

#: What stands between the rows of a JSON file: nothing but space, or the signs of a list.
_BETWEEN = re.compile(r"[\s,\[\]]*")


def place(loader: str, files: Sequence[str], k: int) -> str:
    """Return the place of row `k`, counted from 0 over files that `loader` has read without an error.

    `loader` is one of json, csv, parquet, and saved: one folder of `save_to_disk`.
    """
    if loader == "saved":
        return f"row {k + 1} of {os.path.dirname(files[0])}"
    for path in files:
        if loader == "parquet":
            import pyarrow.parquet

            lines: Sequence[int] = range(1, pyarrow.parquet.read_metadata(path).num_rows + 1)
        else:
            lines = [line for line, _ in (_csv_rows(path)[1:] if loader == "csv" else _json_rows(path))]
        if k < len(lines):
            return f"{'row' if loader == 'parquet' else 'line'} {lines[k]} of {path}"
        k -= len(lines)
    raise IndexError(f"no row {k} behind the last one of {', '.join(files)}")


def fault(loader: str, files: Sequence[str]) -> str | None:
    """Return place, fault and remedy of the first line that makes a .json, .jsonl or .csv file no table.

    None where there is no such line, and for files of other kinds.
    """
    find = {"json": _json_fault, "csv": _csv_fault}.get(loader)
    for path in files if find else ():
        try:
            found = find(path) if find else None
        except UnicodeDecodeError:
            found = f"line {_undecodable(path)} of {path} is not UTF-8; save the file as UTF-8"
        if found is not None:
            return found
    return None


class _BrokenError(Exception):
    """A row that cannot be read: the line where it begins, and the fault."""

    def __init__(self, line: int, fault: str) -> None:
        self.line, self.fault = line, fault


def _json_rows(path: str, *, strict: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield line and value of each row: objects one after another, or in a list."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    decoder, at, line = json.JSONDecoder(strict=strict), 0, 1
    while True:
        begin = at + len(_BETWEEN.match(text, at)[0])  # type: ignore[index]  # it always matches
        line += text.count("\n", at, begin)
        if begin == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            where = f"column {error.colno}" if error.lineno == line else f"line {error.lineno}"
            # Some of the messages end with "at".
            raise _BrokenError(line, f"{error.msg.removesuffix(' at')} at {where}") from None
        yield line, value
        line += text.count("\n", begin, at)


def _json_fault(path: str) -> str | None:
    try:
        for line, value in _json_rows(path, strict=True):
            if not isinstance(value, dict):
                return (
                    f"line {line} of {path} holds {shown(value)}, not an object; write each row as "
                    '{"COLUMN": ..., "COLUMN": ...}'
                )
    except _BrokenError as error:
        return f"line {error.line} of {path} is broken JSON: {error.fault}; correct it, or remove the row"
    return None


def _csv_rows(path: str, *, strict: bool = False) -> list[tuple[int, list[str]]]:
    """Return the lines where the rows begin, the header first, and their values."""
    # Python refuses texts of more than 128 kB, and pandas, which reads the tables, does not.
    limit = csv.field_size_limit(sys.maxsize)
    begin, rows = 1, []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=strict)
            for values in reader:
                if any(value.strip() for value in values) or len(values) > 1:
                    rows.append((begin, values))
                begin = reader.line_num + 1
    except csv.Error as error:
        raise _BrokenError(begin, str(error)) from None
    finally:
        csv.field_size_limit(limit)
    return rows


def _csv_fault(path: str) -> str | None:
    try:
        rows = _csv_rows(path, strict=True)
    except _BrokenError as error:
        ended = error.fault == "unexpected end of data"
        what = "a quote that opens in it is never closed" if ended else error.fault
        return f"line {error.line} of {path} is broken: {what}; correct it, or remove the row"
    for line, values in rows[1:]:
        if len(values) > len(rows[0][1]):
            return (
                f"line {line} of {path} has {len(values)} columns, and the header {len(rows[0][1])}; name "
                "all columns there, and put a text with commas in double quotes"
            )
    return None


def _undecodable(path: str) -> int:
    """Return the first line that is not UTF-8."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    raise ValueError(f"{path} is UTF-8")


def shown(value: Any) -> str:
    """Return a value as an error message shows it, shortened.

    >>> shown("a" * 100), shown(None)
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'", 'null')
    """
    text = "null" if value is None else repr(value)
    return text if len(text) <= 41 else f"{text[:37]}...{text[-1]}"
