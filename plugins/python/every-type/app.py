"""every-type 1.0.0: every column type in and out, the same in every language that has an SDK.

Never changes a value on its way; what it adds tells that the context, lookups and parameters arrive.
"""

from decimal import Decimal
from typing import Annotated, NamedTuple, Optional

from restitch_guest import (
    Context,
    Days,
    Digits,
    Failure,
    Float32,
    Int32,
    Json,
    Parameter,
    ParameterFailure,
    RowFailure,
    TimeMicros,
    TimestampMicros,
    Transform,
    log,
)


class Row(NamedTuple):
    """What is read."""

    id: int
    flag: Optional[bool]
    i32: Optional[Int32]
    i64: Optional[int]
    f32: Optional[Float32]
    f64: Optional[float]
    dec: Optional[Annotated[Decimal, Digits(38, 9)]]
    text: Optional[str]
    doc: Optional[Json]
    bytes: Optional[bytes]
    day: Optional[Days]
    at: Optional[TimeMicros]
    ts: Optional[TimestampMicros]


class Name(NamedTuple):
    """A lookup."""

    key: int
    name: Optional[str]


class Out(NamedTuple):
    """What is written."""

    id: int
    flag: Optional[bool]
    i32: Optional[Int32]
    i64: Optional[int]
    f32: Optional[Float32]
    f64: Optional[float]
    dec: Optional[Annotated[Decimal, Digits(38, 9)]]
    text: Optional[str]
    doc: Optional[Json]
    bytes: Optional[bytes]
    day: Optional[Days]
    at: Optional[TimeMicros]
    ts: Optional[TimestampMicros]
    name: Optional[str]
    seen: int
    label: str
    start: TimestampMicros
    seed: int


def signed(bits: int) -> int:
    """Returns the low 64 bits, read as a signed number."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits


class EveryType(Transform):
    """Returns what it gets, and a row of sums at the end."""

    name = "every-type"
    version = "1.0.0"
    summary = "Every column type in and out"
    inputs = {"rows": Row, "names": Name}
    output = Out
    key = ["id"]
    parameters = [
        Parameter("label", default="none", help="what the column label says"),
        Parameter("scale", default="1", help="a whole number"),
    ]

    def begin(self, context: Context):
        log.info(f"begin {context.partition}")
        try:
            int(context.parameters["scale"])
        except ValueError:
            raise ParameterFailure("scale: not a whole number") from None
        self.names = {}
        self.seen = 0
        self.i64 = 0
        self.dec = Decimal(0)
        self.text = []
        self.tail = (context.parameters["label"], context.start_micros, signed(context.seed))

    def push(self, batch):
        if batch.input == "names":
            self.names.update(batch.rows())
            return
        for at, row in enumerate(batch.rows()):
            self.trouble(at, row.text)
            yield Out(*row, self.names.get(row.id), self.seen, *self.tail)
            self.seen += 1
            self.i64 += row.i64 or 0
            if row.dec is not None:
                self.dec += row.dec
            if row.text:
                self.text.append(row.text[0])

    def trouble(self, at: int, text: Optional[str]):
        if text == "refuse":
            raise RowFailure(at, "refused")
        if text == "panic":
            raise RuntimeError("boom")
        while text == "loop":
            pass
        held = []
        while text == "grow":
            held.append(bytearray(1 << 20))

    def finish(self):
        if abs(self.dec) >= 10**29:
            raise Failure("decimal overflow")
        nothing = dict.fromkeys(Out._fields)
        text = "".join(self.text)
        label, start, seed = self.tail
        yield Out(
            **{**nothing, "id": -1, "i64": signed(self.i64), "dec": self.dec, "text": text, "seen": self.seen, "label": label, "start": start, "seed": seed}
        )
