"""Typed rows: a `typing.NamedTuple` says which columns there are, and of which type.

Never holds data. `transform` reads and writes batches by it.
"""

import datetime
import decimal
import types
import typing
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated

from . import columns as c

_INT32, _FLOAT32, _JSON = c.Int32s(), c.Float32s(), c.Texts("json")

#: A 32-bit integer. A plain `int` is a 64-bit one.
Int32 = Annotated[int, _INT32]
#: A 32-bit float. A plain `float` is a 64-bit one.
Float32 = Annotated[float, _FLOAT32]
#: JSON, as the text it is: `json.loads` reads it.
Json = Annotated[str, _JSON]
#: A date as days since 1970-01-01: all of them, where `datetime.date` ends with the year 9999.
Days = Annotated[int, c.Days()]
#: A time of day as microseconds since midnight.
TimeMicros = Annotated[int, c.TimeMicros()]
#: An instant as microseconds since 1970-01-01T00:00:00Z: faster than `datetime.datetime`, and without its end.
TimestampMicros = Annotated[int, c.TimestampMicros()]

_PLAIN = {
    bool: c.Booleans(),
    int: c.Int64s(),
    float: c.Float64s(),
    str: c.Texts("utf8"),
    bytes: c.Binaries(),
    datetime.date: c.Dates(),
    datetime.time: c.Times(),
    datetime.datetime: c.Timestamps(),
}


@dataclass(frozen=True)
class Named:
    """The column's name, where it is no name of a field: `Annotated[str, Named("_record_id")]`."""

    name: str


@dataclass(frozen=True)
class Field:
    """One column of a row type."""

    name: str
    codec: c.Codec
    nullable: bool


def fields(row: type) -> list[Field]:
    """Returns the columns of a row type, in its order."""
    if not (isinstance(row, type) and issubclass(row, tuple) and hasattr(row, "_fields")):
        raise TypeError(f"{row!r} is no typing.NamedTuple")
    hints = typing.get_type_hints(row, include_extras=True)
    return [_field(row, name, hints[name]) for name in row._fields]


def _field(row: type, name: str, hint) -> Field:
    nullable, marks = False, []
    while True:
        if typing.get_origin(hint) is Annotated:
            hint, *more = typing.get_args(hint)
            marks.extend(more)
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            some = [part for part in typing.get_args(hint) if part is not type(None)]
            if len(some) != 1 or len(typing.get_args(hint)) != 2:
                raise TypeError(f"{row.__name__}.{name}: {hint} is no column type")
            nullable, hint = True, some[0]
        else:
            break
    column = next((mark.name for mark in marks if isinstance(mark, Named)), name)
    digits = next((mark for mark in marks if isinstance(mark, c.Digits)), None)
    codec = next((mark for mark in marks if isinstance(mark, c.Codec)), None)
    if digits is not None and hint in (decimal.Decimal, int):
        codec = c.Decimals(digits, hint is decimal.Decimal)
    if codec is None and hint is decimal.Decimal:
        raise TypeError(f"{row.__name__}.{name}: how many digits? Write Annotated[Decimal, Digits(18, 2)]")
    codec = codec or _PLAIN.get(hint)
    if codec is None:
        raise TypeError(f"{row.__name__}.{name}: {hint} is no column type")
    return Field(column, codec, nullable)


class Columns:
    """Rows to return, column by column: `Columns(Total, customer_id=[...], orders=array("q", ...))`.

    A column is a list of values as typed rows have them, or `bytes`, a `bytearray`, an `array` or a `memoryview` that holds
    the buffer of a column of fixed size without nulls as it is.
    """

    def __init__(self, row: type, **columns):
        self.row, self.columns = row, columns
        missing = [name for name in row._fields if name not in columns]
        unknown = [name for name in columns if name not in row._fields]
        if missing or unknown:
            raise TypeError(f"columns of {row.__name__}: missing {missing}, unknown {unknown}")

    def encode(self, of: list[Field]) -> tuple[int, list]:
        rows, encoded = None, []
        for name, field in zip(self.row._fields, of):
            values = self.columns[name]
            if isinstance(values, (list, tuple)):
                count, buffers = len(values), encode_column(field, list(values))
            else:
                buffer = memoryview(values).cast("B").tobytes()
                count = len(buffer) // _size_bytes(field)
                buffers = (b"", b"", buffer)
            if rows not in (None, count):
                raise c.ColumnError(f"column {field.name}: {count} rows, and the first column has {rows}")
            rows = count
            encoded.append(buffers)
        return rows or 0, encoded


def _size_bytes(field: Field) -> int:
    if isinstance(field.codec, c.Decimals):
        return 16
    if field.codec.format == "B":
        raise TypeError(f"column {field.name}: a {field.codec.name} column is given as a list")
    return memoryview(b"").cast(field.codec.format).itemsize


def encode_column(field: Field, values: list) -> tuple[bytes, bytes, bytes]:
    """Returns the buffers of one column."""
    if not field.nullable and None in values:
        raise c.ColumnError(f"column {field.name}, row {values.index(None)}: None, and the column is not Optional")
    try:
        return field.codec.encode(values)
    except c.ColumnError as error:
        raise c.ColumnError(f"column {field.name}, {error}") from None


def encode(of: list[Field], rows: list) -> list[tuple[bytes, bytes, bytes]]:
    """Returns the columns of rows."""
    values = map(list, zip(*rows, strict=True)) if rows else repeat([], len(of))
    return [encode_column(field, column) for field, column in zip(of, values, strict=True)]
