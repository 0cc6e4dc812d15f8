"""The SDK without a host: values survive the way through columns, and what does not fit is named.

Run it with `python3 -m unittest discover plugins/sdk/python/tests`.
"""

import datetime
import pathlib
import sys
import unittest
from decimal import Decimal
from typing import Annotated, NamedTuple, Optional

PLUGINS = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(PLUGINS / "sdk/python"), str(PLUGINS / "python/every-type")]

import app  # noqa: E402
import restitch_guest as g  # noqa: E402
from restitch_guest import rows as r  # noqa: E402
from restitch_guest.transform import Runner  # noqa: E402

DAY, NOON = datetime.date(2026, 5, 1), datetime.time(12, 0, 0, 1)
INSTANT = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.timezone.utc)


class Comfort(NamedTuple):
    day: Optional[datetime.date]
    at: Optional[datetime.time]
    ts: datetime.datetime
    cents: Annotated[int, g.Digits(18, 2)]
    record: Annotated[str, g.Named("_record_id")]


class Echo(g.Transform):
    name, version, inputs, output, key = "echo", "1", {"rows": Comfort}, Comfort, ["ts"]

    def push(self, batch):
        return batch.rows()


class Number(NamedTuple):
    n: int
    price: Optional[Annotated[Decimal, g.Digits(5, 2)]]


class Numbers(g.Transform):
    name, version, inputs, output, key = "numbers", "1", {"rows": Number}, Number, ["n"]
    parameters = [g.Parameter("returns", default="rows")]

    def begin(self, context):
        self.context = context

    def push(self, batch):
        column = batch.column("n")
        return g.Columns(Number, n=column.values, price=[None] * len(batch))

    def finish(self):
        return (Number(n, Decimal("1.5")) for n in range(self.context.parse("returns", int)))


class Sdk(unittest.TestCase):
    def test_every_type_survives(self):
        extreme = app.Row(-(2**63), True, -(2**31), 2**63 - 1, -0.0, float("inf"), Decimal(10**38 - 1).scaleb(-9, g.columns.EXACT), "a\0😀", "{}", b"\xff", -(2**31), 0, -(2**63))
        nulls = app.Row(1, *[None] * 12)
        rows = [extreme, nulls, extreme._replace(dec=Decimal("-1E-9"), text="")] * 5
        out = g.run(app.EveryType, {"rows": rows[:3], "names": [app.Name(1, "x"), app.Name(1, "ü")]})
        self.assertEqual([o[:13] for o in out[:3]], [tuple(row) for row in rows[:3]])
        self.assertEqual([o.name for o in out], [None, "ü", None, None])
        self.assertEqual((out[3].i64, out[3].text, out[3].seen), (-2, "a", 3))
        with self.assertRaisesRegex(g.Failure, "decimal overflow"):
            g.run(app.EveryType, {"rows": [extreme] * 2})
        with self.assertRaisesRegex(g.RowFailure, "refused"):
            g.run(app.EveryType, {"rows": [extreme._replace(text="refuse")]})

    def test_dates_and_times_as_python_has_them(self):
        rows = [Comfort(DAY, NOON, INSTANT, -1050, "a"), Comfort(None, None, INSTANT, 10**18 - 1, "")]
        self.assertEqual(g.run(Echo, {"rows": rows}), rows)
        self.assertEqual(r.fields(Comfort)[4].name, "_record_id")

    def test_what_does_not_fit_is_named(self):
        row = Comfort(DAY, NOON, INSTANT, 0, "a")
        for change, message in [
            ({"ts": INSTANT.replace(tzinfo=None)}, "column ts, row 1: .* no time zone"),
            ({"ts": None}, "column ts, row 1: None, and the column is not Optional"),
            ({"day": INSTANT}, "column day, row 1: .* a datetime, not a date"),
            ({"cents": 10**18}, "column cents, row 1: .* more than 18 digits"),
            ({"cents": 1.5}, "column cents, row 1"),
            ({"record": "\ud800"}, "column _record_id, row 1"),
        ]:
            with self.assertRaisesRegex(g.ColumnError, message):
                r.encode(r.fields(Comfort), [row, row._replace(**change)])
        for price in [Decimal("1.005"), Decimal("1000"), Decimal("NaN"), 1.5]:
            with self.assertRaisesRegex(g.ColumnError, "column price, row 0"):
                r.encode(r.fields(Number), [Number(1, price)])

    def test_columns_and_batches_of_the_end(self):
        runner = Runner(Numbers)
        runner.begin(g.Context(parameters={"returns": "20000"}))
        pushed = r.encode(r.fields(Number), [Number(n, None) for n in range(100)])
        self.assertEqual(runner.push(0, 100, pushed), (100, pushed))
        sizes = []
        while made := runner.finish():
            sizes.append(made[0])
        self.assertEqual(sizes, [8_192, 8_192, 3_616])
        with self.assertRaisesRegex(g.ParameterFailure, "returns = 'rows'"):
            g.run(Numbers, {})


if __name__ == "__main__":
    unittest.main()
