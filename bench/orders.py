"""Makes the data of the benchmark "orders": raw order events, and the digest of what must come out of them.

    orders.py FOLDER ROWS DAYS [FORMATS]
    orders.py FOLDER hours                  one order in each hour of 114 years, for plans of a million partitions

The same arguments give the same files. 3 % of the rows are duplicates with a later ingestion time, half of them with
another amount; 2 % are late by 1 to 10 days. One file per day of ingestion, in parquet/ and jsonl/ (or the FORMATS asked
for); corrections of two days in the middle in repair/; meta.json; expected.sha256 and expected_repair.sha256: the truth,
computed by numpy and no engine.
"""
import datetime
import hashlib
import json
import os
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAY = 86_400_000_000  # microseconds
START = "1998-01-01"  # so that 10,000 days end before today
DUPLICATES, LATE = 0.03, 0.02
CURRENCIES = pa.array(["EUR", "USD", "GBP", "CHF", "JPY"])
STATES = pa.array(["paid", "shipped", " Pending", "REFUNDED", "cancelled "])
WORDS = "gift fast blue late call door ring back desk north side gate left parcel fragile note keep cold dry up".split()


def notes():
    """65,536 short texts."""
    random = np.random.default_rng(7)
    text = lambda: " ".join(WORDS[i] for i in random.integers(0, len(WORDS), random.integers(2, 7)))
    return pa.array([f"{text()} {number}" for number in range(65536)])


def names(prefix, numbers, width):
    """A column of texts like ord-0000000017, without making a Python object of each."""
    size = len(prefix) + width
    digits = np.empty((len(numbers), size), np.uint8)
    digits[:, : len(prefix)] = np.frombuffer(prefix.encode(), np.uint8)
    rest = numbers.copy()
    for place in reversed(range(len(prefix), size)):
        digits[:, place] = 48 + rest % 10
        rest //= 10
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * size
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits.ravel()))


class Orders:
    """All events, in order of ingestion: `order` says which order a row is, the other columns belong to the order."""

    def __init__(self, rows, days):
        random = np.random.default_rng(42)
        self.days, self.first_day = days, (datetime.date.fromisoformat(START) - datetime.date(1970, 1, 1)).days
        unique = round(rows / (1 + DUPLICATES))
        self.event_time = np.sort(random.integers(0, days * DAY, unique)) + self.first_day * DAY
        self.customers = max(rows // 50, 10)
        weights = np.cumsum(1.0 / (np.arange(self.customers) + 10.0))  # like Zipf's
        self.customer = np.searchsorted(weights / weights[-1], random.random(unique))
        self.customer = random.permutation(self.customers)[self.customer].astype(np.int64)
        amount = np.maximum(1, random.lognormal(8.0, 1.0, unique)).astype(np.int64)
        self.currency = random.choice(5, unique, p=[0.55, 0.2, 0.15, 0.07, 0.03]).astype(np.int8)
        self.state = random.choice(5, unique, p=[0.5, 0.25, 0.1, 0.1, 0.05]).astype(np.int8)
        self.note = random.integers(0, 65536, unique).astype(np.int32)
        ingested = self.event_time + random.exponential(120e6, unique).astype(np.int64)
        late = random.random(unique) < LATE
        ingested[late] = self.event_time[late] + random.integers(DAY, 10 * DAY, int(late.sum()))
        again = np.sort(random.choice(unique, rows - unique, replace=False))
        ingested_again = ingested[again] + random.integers(60_000_000, 2 * DAY, len(again))
        amount_again = amount[again].copy()
        changed = random.random(len(again)) < 0.5
        amount_again[changed] += random.integers(1, 5000, int(changed.sum()))
        self.ingested = np.concatenate([ingested, ingested_again])
        arrival = np.argsort(self.ingested, kind="stable")
        self.ingested = self.ingested[arrival]
        self.order = np.concatenate([np.arange(unique), again])[arrival]
        self.amount = np.concatenate([amount, amount_again])[arrival]
        self.final = amount
        self.final[again] = amount_again  # a duplicate is always the latest
        self.random, self.notes = random, notes()

    def table(self, order, ingested, amount):
        """Rows as Arrow has them."""
        instant = pa.timestamp("us", tz="UTC")
        return pa.table({
            "event_id": names("ord-", order + 1, 10),
            "event_time": pa.array(self.event_time[order]).cast(instant),
            "ingested_at": pa.array(ingested).cast(instant),
            "customer_id": names("c-", self.customer[order], 8),
            "amount_cents": pa.array(amount),
            "currency": CURRENCIES.take(pa.array(self.currency[order])),
            "status": STATES.take(pa.array(self.state[order])),
            "note": self.notes.take(pa.array(self.note[order])),
        })

    def by_day_of_ingestion(self):
        """(day, rows) for each file."""
        day = self.ingested // DAY
        edges = np.concatenate([[0], np.flatnonzero(np.diff(day)) + 1, [len(day)]])
        for start, end in zip(edges, edges[1:]):
            part = slice(start, end)
            yield iso(day[start]), self.table(self.order[part], self.ingested[part], self.amount[part])

    def digest(self, final):
        """SHA-256 of the result as a sorted CSV, and its number of rows."""
        key = self.event_time // DAY * self.customers + self.customer
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = np.concatenate([[0], np.flatnonzero(np.diff(key)) + 1])
        totals = np.add.reduceat(final[order], first)
        orders = np.diff(np.concatenate([first, [len(key)]]))
        text = hashlib.sha256(b"event_date,customer_id,orders,amount_cents\n")
        for start in range(0, len(first), 1 << 18):
            part = slice(start, start + (1 << 18))
            day, customer = np.divmod(key[first[part]], self.customers)
            day = np.datetime_as_string(day.astype("datetime64[D]"))
            rows = zip(day, customer.tolist(), orders[part].tolist(), totals[part].tolist())
            text.update("".join(f"{d},c-{c:08d},{n},{total}\n" for d, c, n, total in rows).encode())
        return text.hexdigest(), len(first)


def iso(day):
    return str(np.datetime64(int(day), "D"))


def write(table, folder, name, formats):
    if "parquet" in formats:
        pq.write_table(table, f"{folder}/parquet/{name}.parquet", compression="zstd", row_group_size=1 << 20)
    if "jsonl" in formats:
        columns = {name: table[name].to_pylist() for name in table.column_names if name not in ("event_time", "ingested_at")}
        for name_of_time in ("event_time", "ingested_at"):
            columns[name_of_time] = np.datetime_as_string(table[name_of_time].to_numpy(), unit="us")
        with open(f"{folder}/jsonl/{name}.jsonl", "w") as file:
            file.writelines(
                f'{{"event_id":"{a}","event_time":"{b}Z","ingested_at":"{c}Z","customer_id":"{d}","amount_cents":{e},'
                f'"currency":"{f}","status":"{g}","note":"{h}"}}\n'
                for a, b, c, d, e, f, g, h in zip(*(columns[name] for name in table.column_names)))


def main(folder, rows, days, formats):
    orders = Orders(rows, days)
    shutil.rmtree(folder, ignore_errors=True)
    for place in (folder, f"{folder}/repair"):
        for format in formats:
            os.makedirs(f"{place}/{format}")
    files = 0
    for day, table in orders.by_day_of_ingestion():
        write(table, folder, day, formats)
        files += 1
    digest, result_rows = orders.digest(orders.final)
    # Corrections of two days in the middle: 1 % of their orders, in one file that comes last.
    repaired = orders.first_day + days // 2
    low, high = np.searchsorted(orders.event_time, [repaired * DAY, (repaired + 2) * DAY])
    fixed = np.sort(orders.random.choice(np.arange(low, high), max(1, (high - low) // 100), replace=False))
    corrected = orders.final.copy()
    corrected[fixed] += 1000
    arrival = (orders.first_day + days + 20) * DAY + np.arange(len(fixed))
    write(orders.table(fixed, arrival, corrected[fixed]), f"{folder}/repair", "corrections", formats)
    for name, text in (("expected", digest), ("expected_repair", orders.digest(corrected)[0])):
        with open(f"{folder}/{name}.sha256", "w") as file:
            file.write(text)
    meta = {
        "rows": rows, "orders": len(orders.event_time), "days": days, "files": files, "customers": orders.customers,
        "start": iso(orders.first_day), "end": iso(orders.first_day + days), "result_rows": result_rows,
        "repair_start": iso(repaired), "repair_end": iso(repaired + 2), "repair_rows": len(fixed),
        "cents": int(orders.final.sum()),
    }
    with open(f"{folder}/meta.json", "w") as file:  # last: a folder without it was not finished
        json.dump(meta, file, indent=1)


def hours(folder):
    orders = Orders(1_000_000, 1)
    first, last = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("1900-01-01", "2014-01-30"))
    orders.event_time = np.arange(first, last, DAY // 24)
    rows = np.arange(len(orders.event_time))
    orders.customer, orders.currency, orders.state, orders.note = (
        np.resize(column, len(rows)) for column in (orders.customer, orders.currency, orders.state, orders.note))
    os.makedirs(f"{folder}/parquet", exist_ok=True)
    write(orders.table(rows, orders.event_time, np.ones(len(rows), np.int64)), folder, "hours", ["parquet"])
    with open(f"{folder}/meta.json", "w") as file:
        json.dump({"rows": len(rows), "start": "1900-01-01", "end": "2014-01-30"}, file)


if __name__ == "__main__" and sys.argv[2] == "hours":
    hours(sys.argv[1])
elif __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",") if len(sys.argv) > 4 else ["parquet", "jsonl"])
