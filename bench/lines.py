"""The lines of the table: which commands are measured beside each other, on what, and which ratio is wanted.

A line is a list of entries that do the same work. The first is restitch; the others are what it is compared with.
"""
from dataclasses import dataclass, field
from typing import Callable

import place
from place import BENCH, WORK, python
from warehouse import copy

ROLLBACK = "1000000x1000"


@dataclass
class Entry:
    """One way to do the work."""

    name: str
    command: list
    prepare: Callable = lambda: None  # not measured
    check: list = None  # a command that fails if the result is wrong; not measured
    environment: dict = field(default_factory=dict)


@dataclass
class Line:
    """The same work, done in several ways."""

    name: str
    entries: list
    wanted: dict = field(default_factory=dict)  # name of an entry: restitch's time / its time, at most


class Bench:
    """What the lines are made of."""

    def __init__(self, warehouses, peers):
        self.warehouses, self.peers = warehouses, peers

    def out(self, name):
        return str(WORK / "out" / name)

    def check(self, what, size, out):
        return [python("core"), str(BENCH / "digest.py"), what, str(place.data(size)), out]

    def ours(self, name, size, kept, command, check, **more):
        """An entry of restitch: `command` in a copy of the kept warehouse."""
        out = self.out(name)
        return Entry(name, command(out), lambda: copy(kept, out), check and self.check(check, size, out), **more)

    def peer(self, name, operation, size, format):
        """An entry of a peer, or none if it is not asked for or does not do this."""
        if name not in self.peers or (name == "native" and format != "parquet"):
            return []
        out, data = self.out(f"{name}-{size}-{format}"), str(place.data(size, (format,)))
        script = {"duckdb": ("core", "copy_partitions"), "dbt": ("dbt", "microbatch"), "sqlmesh": ("sqlmesh", "time_range")}
        if name == "native":
            command = [place.native(), operation, data, out]
        else:
            environment, file = script[name]
            command = [python(environment), str(BENCH / f"peers/{file}.py"), operation, format, data, out]
        quiet = {"DO_NOT_TRACK": "1", "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true"}
        prepare = lambda: None
        if operation == "repair":  # a peer repairs what it built itself
            prepare = lambda: (WORK / "out" / f"{name}-{size}-{format}").exists() or place.call([*command[:-4], "backfill", *command[-3:]])
            if name == "native":
                prepare = lambda: place.call([command[0], "backfill", data, out])
        return [Entry(name, command, prepare, self.check(operation, size, out), quiet)]

    def backfill(self, size, format="parquet"):
        kept = self.warehouses.at(size, "landed", format)
        ours = self.ours("restitch", size, kept, lambda out: self.warehouses.backfill(out, size), "backfill")
        peers = [e for name in ("native", "duckdb", "dbt", "sqlmesh") for e in self.peer(name, "backfill", size, format)]
        wanted = {"S": {"dbt": 0.08, "sqlmesh": 0.15}, "M": {"duckdb": 0.6, "native": 2.0}, "T100": {"dbt": 0.03, "sqlmesh": 0.08}}
        return Line(f"backfill {size}", [ours, *peers], wanted.get(size, {}))

    def repair(self, size, format="parquet"):
        kept = self.warehouses.at(size, "corrected", format)
        ours = self.ours("restitch", size, kept, self.warehouses.repair, "repair")
        peers = [e for name in ("native", "duckdb", "dbt", "sqlmesh") for e in self.peer(name, "repair", size, format)]
        return Line(f"repair {size}", [ours, *peers], {"M": {"duckdb": 0.7}}.get(size, {}))

    def land(self, size, format):
        out, peer, data = self.out("restitch"), self.out("duckdb-land"), place.data(size, ("parquet", format))
        ours = Entry("restitch", self.warehouses.landing(out, size, format), lambda: self.warehouses.empty(out, format), self.check("landed", size, out))
        command = [python("core"), str(BENCH / "peers/land.py"), "backfill", format, str(data), peer]
        return Line(f"land {size} {format}", [ours, Entry("duckdb", command, check=self.check("landed", size, peer))], {"duckdb": 1.5} if size == "M" else {})

    def tiny(self):
        """Many tiny partitions against few large ones, with the same number of rows."""
        entry = lambda name, size: self.ours(name, size, self.warehouses.at(size, "landed"), lambda out: self.warehouses.backfill(out, size), "backfill")
        return Line("tiny partitions", [entry("3,650 days (T)", "T"), entry("30 days (S)", "S")], {"30 days (S)": 2.0})

    def rollback(self, size):
        undone, done = self.warehouses.at(size, "rebuilt"), self.warehouses.at(size, "built")
        rollback = self.ours("rollback", size, undone, lambda out: self.warehouses.command(out, "rollback", "r2"), "backfill")
        backfill = self.ours("backfill", size, done, lambda out: self.warehouses.backfill(out, size), "backfill")
        return Line(f"rollback of {place.size(size)[1]:,} partitions", [rollback, backfill], {"backfill": 0.05} if size == ROLLBACK else {})

    def status(self, size="T10000"):
        """`status` against DuckDB's own command, which opens the same catalog with its SQLite extension and counts partitions and runs."""
        kept = self.warehouses.at(size, "runs")
        ours = Entry("restitch", self.warehouses.command(kept, "status"))  # changes nothing
        [extension] = place.environment("core").glob("lib/python*/site-packages/duckdb_extension_sqlite_scanner/**/*.duckdb_extension")
        count = "SELECT (SELECT count(partition) FROM c.restitch_partition), (SELECT count(run_id) FROM c.restitch_run)"
        command = [str(place.environment("tools") / "bin/duckdb"), "-unsigned", "-c", f"LOAD '{extension}'; ATTACH '{kept}/warehouse/catalog.sqlite' AS c (TYPE sqlite, READ_ONLY); {count}"]
        return Line("status, 10,000 partitions and runs", [ours, Entry("duckdb", command)], {"duckdb": 1.0})

    def plan(self):
        """A plan over a million hours, by the command: what the catalog holds of them is read, too."""
        kept = self.warehouses.at("hours", "landed", grain="hour")
        return Line("plan of 1,000,008 partitions", [Entry("restitch", self.warehouses.plan(kept, "hours", "hour"))])

    def rows(self, most):
        """The same 90 days with more and more rows."""
        return self.scaling("rows", [(f"{rows:,}", f"{rows}x90" if rows != 10_000_000 else "M", "day") for rows in (100_000, 1_000_000, 10_000_000, 100_000_000) if rows <= most])

    def partitions(self):
        """The same million rows in more and more partitions."""
        return self.scaling("partitions", [("1", "S", "month"), ("30", "S", "day"), ("720", "S", "hour"), ("3,650", "T", "day"), ("87,600", "T", "hour")])

    def scaling(self, name, points):
        def entry(label, size, grain):
            kept = self.warehouses.at(size, "landed", grain=grain)
            return self.ours(label, size, kept, lambda out: self.warehouses.backfill(out, size, grain=grain), "backfill" if grain == "day" else "sums")
        return Line(name, [entry(*point) for point in points])

    def memory(self, size="100000000x365"):
        """A hundred million rows into one partition, under a gibibyte."""
        kept = self.warehouses.at(size, "landed", grain="year")
        command = lambda out: self.warehouses.backfill(out, size, "--memory", "1GiB", grain="year")
        return Line("100,000,000 rows into one partition, --memory 1GiB", [self.ours("restitch", size, kept, command, "sums")])

    def workers(self, size):
        """The same backfill with both cores and with one."""
        kept = self.warehouses.at(size, "landed")
        entry = lambda n: self.ours(f"{n} worker(s)", size, kept, lambda out: self.warehouses.backfill(out, size, "--workers", str(n)), "backfill")
        return Line(f"workers {size}", [entry(2), entry(1)])
