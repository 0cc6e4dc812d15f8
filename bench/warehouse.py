"""Warehouses of restitch, each kept at the step before the one that is measured, and copied for every run.

Data files are linked, since restitch never edits one; the rest is copied. So every run finds the same, and a warm cache.
"""
import contextlib
import hashlib
import os
import shutil
import sqlite3
import time
from datetime import date, timedelta
from pathlib import Path

from place import BENCH, ROOT, WORK, call, data, meta, say

OLD = WORK / "old"
COMPONENT = ROOT / "plugins/components/order-totals-1.0.0.wasm"


class Warehouses:
    """Warehouses that one build of restitch made."""

    def __init__(self, restitch, keep):
        self.restitch = restitch
        self.folder = WORK / "warehouses"
        with open(restitch, "rb") as file:  # not read whole: a child's peak memory begins with its parent's
            stamp = hashlib.file_digest(file, "sha256").hexdigest()
        mark = self.folder / "made-by"
        if mark.exists() and mark.read_text() != stamp and not keep:
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(stamp)

    def command(self, folder, *arguments):
        return [self.restitch, "-C", str(folder), *arguments]

    def files(self, size, format, corrections=False):
        folder = data(size, (format,)) / ("repair" if corrections else "") / format
        return sorted(str(file) for file in folder.iterdir())

    def empty(self, folder, format, grain="day"):
        """A project whose transform is registered, and nothing landed."""
        set_aside(folder)
        Path(folder).mkdir(parents=True)
        text = (BENCH / "peers/restitch.toml").read_text().replace("FORMAT", format).replace("GRAIN", grain)
        (Path(folder) / "restitch.toml").write_text(text)
        call(self.command(folder, "transform", "add", str(COMPONENT)))

    def landing(self, folder, size, format, part=slice(None)):
        return self.command(folder, "ingest", "orders", *self.files(size, format)[part])

    def backfill(self, folder, size, *more, grain="day"):
        return self.command(folder, "backfill", "daily_customer", *window(size, grain), *more)

    def plan(self, folder, size, grain):
        return self.command(folder, "plan", "backfill", "daily_customer", *window(size, grain))

    def repair(self, folder):
        return self.command(folder, "repair", "daily_customer")

    def at(self, size, step, format="parquet", grain="day"):
        """The kept warehouse of a size at a step: landed; landed by so many ingests, as in "landed 10"; built; rebuilt, that is built
        twice; runs, that is built by one run for each partition; or corrected, that is built and corrections landed."""
        kept = self.folder / f"{size}-{format}-{grain}-{step}"
        if (kept / "finished").exists():
            return kept
        say(f"making a warehouse of {size}: {step}")
        making = self.folder / "making"
        if step.startswith("landed"):
            self.empty(making, format, grain)
            files, ingests = len(self.files(size, format)), int(step.removeprefix("landed") or 1)
            borders = [files * i // ingests for i in range(ingests + 1)]
            for first, end in zip(borders, borders[1:]):
                call(self.landing(making, size, format, slice(first, end)))
        elif step == "built":
            copy(self.at(size, "landed", format, grain), making)
            call(self.backfill(making, size, grain=grain))
        elif step == "rebuilt":
            copy(self.at(size, "built", format, grain), making)
            call(self.backfill(making, size, grain=grain))
        elif step == "runs":
            copy(self.at(size, "built", format, grain), making)
            split(f"{making}/warehouse/catalog.sqlite")
        else:
            copy(self.at(size, "built", format, grain), making)
            call(self.command(making, "ingest", "orders", *self.files(size, format, corrections=True)))
        (making / "finished").touch()
        shutil.rmtree(kept, ignore_errors=True)
        making.rename(kept)
        return kept


def window(size, grain):
    """All of a size, as a command takes it: dates and partitions are inclusive."""
    asked = meta(size)
    first, last = asked["start"], str(date.fromisoformat(asked["end"]) - timedelta(days=1))
    length = {"month": len("1998-01"), "year": len("1998")}.get(grain)
    return ["--start", first[:length], "--end", last[:length], "--max-partitions", "2000000"]


def set_aside(folder):
    """Moves what an earlier run made out of the way, to be removed later: for a while after thousands of files were removed, a file system
    is slow at making new ones."""
    if Path(folder).exists():
        OLD.mkdir(parents=True, exist_ok=True)
        Path(folder).rename(OLD / str(time.monotonic_ns()))


def remove_old(files_max=None):
    """Removes what was set aside; with a bound, only what has fewer files."""
    for folder in OLD.iterdir() if OLD.exists() else []:
        if files_max is None or sum(len(files) for _, _, files in os.walk(folder)) < files_max:
            shutil.rmtree(folder)


def copy(kept, folder):
    """Copies a kept warehouse: data files by links."""
    set_aside(folder)
    by_link = lambda source, target: os.link(source, target) if source.endswith((".parquet", ".wasm")) else shutil.copy2(source, target)
    shutil.copytree(kept, folder, copy_function=by_link)
    (Path(folder) / "finished").unlink(missing_ok=True)


def split(catalog):
    """Rewrites a catalog with one run as if each partition had a run, a snapshot and a manifest of its own. Making so many runs for
    real takes hours, and `status` reads nothing but the catalog."""
    with contextlib.closing(sqlite3.connect(catalog)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(restitch_run)")]
        own = {
            "run_id": "n", "start_us": "p.start_us", "end_us": "p.end_us", "partitions": "1", "rows_in": "p.records", "rows_out": "p.rows",
            "base_snapshot": "base_snapshot + n - 1", "published_snapshot": "published_snapshot + n - 1",
            "manifest": "json_set(manifest, '$.run', 'r' || n, '$.published_snapshot', published_snapshot + n - 1)",
        }
        run_of = "(SELECT n FROM part WHERE part.partition = {0}.partition)"
        connection.executescript(f"""
            CREATE TEMP TABLE part AS SELECT row_number() OVER (ORDER BY start_us) AS n, * FROM restitch_run_partition WHERE run_id = 1;
            CREATE UNIQUE INDEX temp.part_name ON part(partition, n);
            CREATE TEMP TABLE first AS SELECT published_snapshot AS snapshot FROM restitch_run WHERE run_id = 1;
            INSERT INTO restitch_run({", ".join(columns)})
              SELECT {", ".join(own.get(name, f"r.{name}") for name in columns)} FROM restitch_run r, part p WHERE r.run_id = 1 AND n > 1;
            UPDATE restitch_run SET partitions = 1 WHERE run_id = 1;
            UPDATE restitch_run_partition SET run_id = {run_of.format("restitch_run_partition")};
            UPDATE restitch_run_file SET run_id = {run_of.format("restitch_run_file")};
            UPDATE restitch_partition SET run_id = {run_of.format("restitch_partition")};
            UPDATE restitch_partition SET published_snapshot = published_snapshot + run_id - 1;
            INSERT INTO restitch_check SELECT n, name, kind, severity, passed, measured, expected, detail FROM restitch_check, part WHERE n > 1;
            INSERT INTO ducklake_snapshot SELECT s.snapshot_id + n - 1, snapshot_time, schema_version, next_catalog_id, next_file_id
              FROM ducklake_snapshot s JOIN first f ON s.snapshot_id = f.snapshot, part WHERE n > 1;
            INSERT INTO ducklake_snapshot_changes
              SELECT s.snapshot_id + n - 1, 'inserted_into_table:3', author, 'backfill r' || n || ' of daily_customer', NULL
              FROM ducklake_snapshot_changes s JOIN first f ON s.snapshot_id = f.snapshot, part WHERE n > 1;
            UPDATE ducklake_data_file SET begin_snapshot = (
              SELECT begin_snapshot + n - 1 FROM ducklake_file_partition_value v JOIN part ON part.partition = v.partition_value
              WHERE v.data_file_id = ducklake_data_file.data_file_id) WHERE partition_id IS NOT NULL;
        """)
