"""The lines of the table: which commands are measured beside each other, on what, and which ratio is wanted.

A line is a list of entries that do the same work. The first is restitch; the others are what it is compared with.
"""
from dataclasses import dataclass, field
from typing import Callable

import place
from place import BENCH, WORK, python
from warehouse import copy

# 1,000 days of 1,000 rows.
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
    wanted: dict = field(default_factory=dict)  # by entry: restitch's wall time / its wall time, at most


class Bench:
    """What the lines are made of."""

    def __init__(self, warehouses, peers):
        self.warehouses, self.peers = warehouses, peers

    def out(self, name):
        return str(WORK / "out" / name)

    def check(self, what, size, out):
        return [python("core"), str(BENCH / "digest.py"), what, str(place.data(size)), out]

    def ours(self, name, size, step, command, check, grain="day"):
        """An entry of restitch: `command` in a copy of the warehouse that is kept at a step."""
        kept, out = self.warehouses.at(size, step, grain=grain), self.out(name)
        return Entry(name, command(out), lambda: copy(kept, out), self.check(check, size, out))

    def building(self, name, size, *more, grain="day", step="landed"):
        """An entry of restitch that computes all partitions."""
        command = lambda out: self.warehouses.backfill(out, size, *more, grain=grain)
        return self.ours(name, size, step, command, "backfill" if grain == "day" else "sums", grain)

    def peer(self, name, operation, size):
        """An entry of a peer, or none if it is not asked for."""
        if name not in self.peers:
            return []
        out, data = self.out(f"{name}-{size}"), place.data(size)
        if name == "native":
            asked = lambda operation: [place.native(), operation, str(data), out]
        else:
            environment, script = {"duckdb": ("core", "copy_partitions"), "dbt": ("dbt", "microbatch"), "sqlmesh": ("sqlmesh", "time_range")}[name]
            asked = lambda operation: [python(environment), str(BENCH / f"peers/{script}.py"), operation, "parquet", str(data), out]
        prepare = lambda: None
        if operation == "repair":  # a peer repairs what it built itself; that it may have repaired it before changes nothing
            prepare = lambda: (place.WORK / "out" / f"{name}-{size}").exists() or place.call(asked("backfill"))
        quiet = {"DO_NOT_TRACK": "1", "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true"}
        return [Entry(name, asked(operation), prepare, self.check(operation, size, out), quiet)]

    def all_peers(self, operation, size):
        return [entry for name in ("native", "duckdb", "dbt", "sqlmesh") for entry in self.peer(name, operation, size)]

    def backfill(self, size):
        wanted = {"S": {"dbt": 0.08, "sqlmesh": 0.15}, "M": {"duckdb": 0.6, "native": 2.0}, "T100": {"dbt": 0.03, "sqlmesh": 0.08}}
        return Line(f"backfill {size}", [self.building("restitch", size), *self.all_peers("backfill", size)], wanted.get(size, {}))

    def wasm(self, size):
        """A backfill alone; `run` sets beside it what it would take with the transform compiled into the host."""
        return Line(f"backfill {size}, for WASM against the host", [self.building("restitch", size, "--json")])

    def repair(self, size):
        ours = self.ours("restitch", size, "corrected", self.warehouses.repair, "repair")
        return Line(f"repair {size}", [ours, *self.all_peers("repair", size)], {"M": {"duckdb": 0.7}}.get(size, {}))

    def land(self, size, format):
        out, peer, data = self.out("restitch"), self.out("duckdb-land"), place.data(size, ("parquet", format))
        empty = lambda: self.warehouses.empty(out, format)
        ours = Entry("restitch", self.warehouses.landing(out, size, format), empty, self.check("landed", size, out))
        command = [python("core"), str(BENCH / "peers/land.py"), "backfill", format, str(data), peer]
        theirs = Entry("duckdb", command, check=self.check("landed", size, peer))
        return Line(f"land {size} {format}", [ours, theirs], {"duckdb": 1.5} if size == "M" else {})

    def tiny(self):
        """Many tiny partitions against few large ones, with the same number of rows."""
        return Line("tiny partitions", [self.building("3,650 days (T)", "T"), self.building("30 days (S)", "S")], {"30 days (S)": 2.0})

    def rollback(self, size):
        """Everything was built twice; the second run is undone, and for comparison the second run itself."""
        undo = lambda out: self.warehouses.command(out, "rollback", "r2")
        entries = [self.ours("rollback", size, "rebuilt", undo, "backfill"), self.building("backfill", size, step="built")]
        return Line(f"rollback of {place.size(size)[1]:,} partitions", entries, {"backfill": 0.05} if size == ROLLBACK else {})

    def status(self):
        """`status` against DuckDB's own command, which opens the same catalog with its SQLite extension and counts partitions and runs."""
        kept = self.warehouses.at("T10000", "runs")
        [extension] = place.environment("core").glob("lib/python*/site-packages/duckdb_extension_sqlite_scanner/**/*.duckdb_extension")
        attach = f"ATTACH '{kept}/warehouse/catalog.sqlite' AS c (TYPE sqlite, READ_ONLY)"
        # count(*) would ask for row ids, which tables without them do not have
        count = "SELECT (SELECT count(partition) FROM c.restitch_partition), (SELECT count(run_id) FROM c.restitch_run)"
        duckdb = [str(place.environment("tools") / "bin/duckdb"), "-unsigned", "-c", f"LOAD '{extension}'; {attach}; {count}"]
        ours = Entry("restitch", self.warehouses.command(kept, "status"))  # changes nothing: no copy is needed
        return Line("status, 10,000 partitions and runs", [ours, Entry("duckdb", duckdb)], {"duckdb": 1.0})

    def plan(self):
        """A plan over a million hours, by the command: what the catalog holds of them is read, too."""
        kept = self.warehouses.at("hours", "landed", grain="hour")
        return Line("plan of 1,000,008 partitions", [Entry("restitch", self.warehouses.plan(kept, "hours", "hour"))])

    def rows(self, most):
        """The same 90 days with more and more rows."""
        sizes = {100_000: "100000x90", 1_000_000: "1000000x90", 10_000_000: "M", 100_000_000: "100000000x90"}
        return Line("rows", [self.building(f"{rows:,}", size) for rows, size in sizes.items() if rows <= most])

    def partitions(self):
        """The same million rows in more and more partitions."""
        points = [("1", "S", "month"), ("30", "S", "day"), ("720", "S", "hour"), ("3,650", "T", "day"), ("87,600", "T", "hour")]
        return Line("partitions", [self.building(label, size, grain=grain) for label, size, grain in points])

    def ingests(self):
        """The same million rows in the same thousand partitions, landed by more and more ingests: each makes raw files of its own."""
        return Line("ingests", [self.building(f"{n:,}", "1000000x1000", step=f"landed {n}") for n in (1, 10, 100, 1_000)])

    def workers(self, size):
        """The same backfill on two cores and on one."""
        return Line(f"workers {size}", [self.building(f"{n} worker(s)", size, "--workers", str(n)) for n in (2, 1)])

    def memory(self, size):
        """All rows of a year into one partition, under a bound that they do not fit into."""
        entry = lambda bound: self.building(f"--memory {bound}", size, "--memory", bound, grain="year")
        return Line(f"{place.size(size)[0]:,} rows into one partition", [entry(bound) for bound in ("1GiB", "256MiB")])
