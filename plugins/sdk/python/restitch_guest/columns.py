"""Columns in Arrow's physical layout: read into Python's values, and made of them.

Never rounds and never guesses: a value that its column cannot hold is an error that names column and row.
`rows` says which of these a row's annotations mean. The layout is written down in types.wit.
"""

import datetime
import decimal
from array import array
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

#: Exact for sums, differences and products of numbers with 38 digits. Divisions round to this.
EXACT = decimal.Context(prec=78, rounding=decimal.ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY_MICROS = 86_400_000_000

#: For each byte its bits, lowest first, and the places of those that are not set.
_BITS = [tuple(bool(byte >> i & 1) for i in range(8)) for byte in range(256)]
_UNSET = [tuple(i for i in range(8) if not byte >> i & 1) for byte in range(256)]


class ColumnError(ValueError):
    """A value that its column cannot hold, or a value of a column that Python cannot hold."""


@dataclass(frozen=True)
class Digits:
    """Precision and scale of a decimal column: `Annotated[Decimal, Digits(18, 2)]`."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
            raise ValueError(f"{self}: 1 to 38 digits, of which 0 to all stand after the point")


@dataclass
class Column:
    """One column of a batch that was pushed, for transforms that think in columns.

    `values` is a memoryview without a copy: of numbers for int32, int64, float32, float64, date (days), time and
    timestamp (microseconds); of bytes for everything else (decimal: 16 a value, little-endian two's complement).
    `offsets` is a memoryview of rows + 1 numbers for string, json and binary, otherwise empty. `validity` is empty
    when there are no nulls; otherwise the bit of a row is set when it has a value. Zeros stand under nulls.
    """

    codec: "Codec"
    rows: int
    validity: bytes
    offsets: memoryview
    values: memoryview

    def nulls(self) -> list[int]:
        """Returns the rows without a value."""
        return null_rows(self.validity, self.rows)

    def to_list(self) -> list:
        """Returns the values as typed rows have them, `None` for null."""
        return self.codec.decode(self.validity, self.offsets, self.values, self.rows)

    def unscaled(self) -> list[int]:
        """Returns a decimal column's values as counts of its smallest unit, 0 for null."""
        if not isinstance(self.codec, Decimals):
            raise TypeError(f"{self.codec.name} is no decimal column")
        return unscaled(self.values)


def null_rows(validity: bytes, rows: int) -> list[int]:
    """Returns the rows whose bit is not set."""
    if not validity:
        return []
    found = [8 * at + bit for at, byte in enumerate(validity) if byte != 255 for bit in _UNSET[byte]]
    while found and found[-1] >= rows:
        found.pop()
    return found


def bits(flags: list) -> bytes:
    """Returns the flags as bits, lowest first."""
    made = bytearray((len(flags) + 7) // 8)
    for i, flag in enumerate(flags):
        if flag:
            made[i >> 3] |= 1 << (i & 7)
    return bytes(made)


def unscaled(values) -> list[int]:
    """Returns 16-byte numbers as ints."""
    low = memoryview(values).cast("B").cast("Q").tolist()
    high = memoryview(values).cast("B").cast("q").tolist()
    return [lo if hi == 0 else (hi << 64) + lo for lo, hi in zip(low[::2], high[1::2])]


class Codec:
    """How a column type is read and written. `decode` gets buffers, `encode` gives them."""

    #: The type's name in the contract.
    tag = ""
    #: How a fixed size is read by `memoryview.cast`; "B" for bytes.
    format = "B"
    #: What stands under a null.
    zero: object = 0

    @property
    def name(self) -> str:
        return self.tag

    def view(self, values: bytes) -> memoryview:
        return memoryview(values).cast("B").cast(self.format)

    def decode(self, validity, offsets, values, rows: int) -> list:
        found = self.read(offsets, values, rows)
        for row in null_rows(validity, rows):
            found[row] = None
        return found

    def encode(self, values: list) -> tuple[bytes, bytes, bytes]:
        """Returns validity, offsets and values of a column with these values."""
        validity = b""
        if None in values:
            validity = bits([value is not None for value in values])
            values = [self.zero if value is None else value for value in values]
        try:
            return (validity, *self.write(values))
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            self.blame(values)
            raise

    def blame(self, values: list) -> None:
        """Finds the value that cannot be written, and says which it is."""
        for row, value in enumerate(values):
            try:
                self.write([value])
            except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
                shown = repr(value)
                shown = shown if len(shown) <= 60 else shown[:57] + "..."
                raise ColumnError(f"row {row}: {shown} is no {self.name}: {error}") from None

    def read(self, offsets, values, rows: int) -> list:
        return self.view(values).tolist()

    def write(self, values: list) -> tuple[bytes, bytes]:
        """Returns offsets and values."""
        return b"", array(self.format, values).tobytes()


class Booleans(Codec):
    tag, zero = "boolean", False

    def read(self, offsets, values, rows):
        return list(chain.from_iterable(map(_BITS.__getitem__, values)))[:rows]

    def write(self, values):
        if not set(map(type, values)) <= {bool}:
            raise TypeError("not True or False")
        return b"", bits(values)


class Int32s(Codec):
    tag, format = "int32", "i"


class Int64s(Codec):
    tag, format = "int64", "q"


class Float32s(Codec):
    tag, format = "float32", "f"


class Float64s(Codec):
    tag, format = "float64", "d"


class Decimals(Codec):
    """Exact decimals as `decimal.Decimal`, or as counts of the smallest unit (`exact` is False)."""

    tag = "decimal"

    def __init__(self, digits: Digits, as_decimal: bool):
        self.digits, self.as_decimal = digits, as_decimal
        self._end = 10**digits.precision
        self._up, self._down = decimal.Decimal(digits.scale), decimal.Decimal(-digits.scale)

    @property
    def name(self):
        return f"decimal({self.digits.precision},{self.digits.scale})"

    def read(self, offsets, values, rows):
        numbers = unscaled(values)
        if not self.as_decimal:
            return numbers
        scaleb, make, down = EXACT.scaleb, decimal.Decimal, self._down
        return [scaleb(make(number), down) for number in numbers]

    def write(self, values):
        numbers = list(map(self.count, values)) if self.as_decimal else values
        if numbers and (max(numbers) >= self._end or min(numbers) <= -self._end):
            raise ValueError(f"more than {self.digits.precision} digits")
        return b"", b"".join([number.to_bytes(16, "little", signed=True) for number in numbers])

    def count(self, value) -> int:
        if not isinstance(value, (decimal.Decimal, int)):
            raise TypeError("not a Decimal or an int")
        exact = EXACT.scaleb(decimal.Decimal(value), self._up)
        number = int(exact)
        if number != exact:
            raise ValueError(f"more than {self.digits.scale} digits after the point; round it first")
        return number


class Texts(Codec):
    zero = ""

    def __init__(self, tag: str):
        self.tag = tag

    @property
    def name(self):
        return "string" if self.tag == "utf8" else self.tag

    def read(self, offsets, values, rows):
        values = bytes(values)
        places = pairwise(memoryview(offsets).cast("B").cast("i").tolist())
        if values.isascii():
            text = values.decode("ascii")
            return [text[start:end] for start, end in places]
        return [values[start:end].decode("utf-8") for start, end in places]

    def write(self, values):
        return sized([value.encode("utf-8") for value in values])


class Binaries(Codec):
    tag, zero = "binary", b""

    def read(self, offsets, values, rows):
        values = bytes(values)
        return [values[start:end] for start, end in pairwise(memoryview(offsets).cast("B").cast("i").tolist())]

    def write(self, values):
        if not all(isinstance(value, (bytes, bytearray, memoryview)) for value in values):
            raise TypeError("not bytes")
        return sized(values)


def sized(values: list) -> tuple[bytes, bytes]:
    """Returns offsets and values of pieces of any size."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    return offsets.tobytes(), b"".join(values)


class Days(Codec):
    tag, format = "date", "i"


class Dates(Days):
    """Dates as `datetime.date`, which knows the years 1 to 9999."""

    zero = datetime.date(1970, 1, 1)

    def read(self, offsets, values, rows):
        make = datetime.date.fromordinal
        try:
            return [make(_EPOCH_DAY + days) for days in self.view(values)]
        except (ValueError, OverflowError):
            raise ColumnError("a date outside of the years 1 to 9999: read the column as Days") from None

    def write(self, values):
        if any(isinstance(value, datetime.datetime) for value in values):
            raise TypeError("a datetime, not a date")
        return super().write([value.toordinal() - _EPOCH_DAY for value in values])


class TimeMicros(Codec):
    tag, format = "time", "q"

    def write(self, values):
        if any(not 0 <= value < _DAY_MICROS for value in values):
            raise ValueError("not within a day")
        return super().write(values)


class Times(TimeMicros):
    """Times of day as `datetime.time`."""

    zero = datetime.time()

    def read(self, offsets, values, rows):
        return [(datetime.datetime.min + datetime.timedelta(microseconds=micros)).time() for micros in self.view(values)]

    def write(self, values):
        if any(value.tzinfo is not None for value in values):
            raise TypeError("a time of day has no zone")
        return super().write([((v.hour * 60 + v.minute) * 60 + v.second) * 1_000_000 + v.microsecond for v in values])


class TimestampMicros(Codec):
    tag, format = "timestamp", "q"


class Timestamps(TimestampMicros):
    """Instants as `datetime.datetime` in UTC, which knows the years 1 to 9999."""

    zero = _EPOCH

    def read(self, offsets, values, rows):
        delta = datetime.timedelta
        try:
            return [_EPOCH + delta(microseconds=micros) for micros in self.view(values)]
        except OverflowError:
            raise ColumnError("a timestamp outside of the years 1 to 9999: read the column as TimestampMicros") from None

    def write(self, values):
        if any(value.tzinfo is None for value in values):
            raise TypeError("no time zone: make it aware, such as with tzinfo=datetime.timezone.utc")
        return super().write([(value - _EPOCH) // _MICROSECOND for value in values])
