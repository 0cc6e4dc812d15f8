"""Warehouses of restitch, each kept at the step before the one that is measured, and copied for every run.

Data files are linked, since restitch never edits one; the rest is copied. So every run finds the same, and a warm cache.
"""
import hashlib
import os
import shutil
from datetime import date, timedelta
from pathlib import Path

from place import BENCH, ROOT, WORK, call, data, meta, say

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
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(parents=True)
        text = (BENCH / "peers/restitch.toml").read_text().replace("FORMAT", format).replace("GRAIN", grain)
        (Path(folder) / "restitch.toml").write_text(text)
        call(self.command(folder, "transform", "add", str(COMPONENT)))

    def landing(self, folder, size, format):
        return self.command(folder, "ingest", "orders", *self.files(size, format))

    def backfill(self, folder, size, *more):
        asked = meta(size)
        last = date.fromisoformat(asked["end"]) - timedelta(days=1)  # dates are inclusive
        return self.command(folder, "backfill", "daily_customer", "--start", asked["start"], "--end", str(last), "--max-partitions", "2000000", *more)

    def repair(self, folder):
        return self.command(folder, "repair", "daily_customer")

    def at(self, size, step, format="parquet", grain="day"):
        """The kept warehouse of a size at a step: landed, built, rebuilt (built twice), or corrected (built, corrections landed)."""
        kept = self.folder / f"{size}-{format}-{grain}-{step}"
        if (kept / "finished").exists():
            return kept
        say(f"making a warehouse of {size}: {step}")
        making = self.folder / "making"
        if step == "landed":
            self.empty(making, format, grain)
            call(self.landing(making, size, format))
        elif step == "built":
            copy(self.at(size, "landed", format, grain), making)
            call(self.backfill(making, size))
        elif step == "rebuilt":
            copy(self.at(size, "built", format, grain), making)
            call(self.backfill(making, size))
        else:
            copy(self.at(size, "built", format, grain), making)
            call(self.command(making, "ingest", "orders", *self.files(size, format, corrections=True)))
        (making / "finished").touch()
        shutil.rmtree(kept, ignore_errors=True)
        making.rename(kept)
        return kept


def copy(kept, folder):
    """Copies a kept warehouse: data files by links."""
    shutil.rmtree(folder, ignore_errors=True)
    by_link = lambda source, target: os.link(source, target) if source.endswith((".parquet", ".wasm")) else shutil.copy2(source, target)
    shutil.copytree(kept, folder, copy_function=by_link)
    (Path(folder) / "finished").unlink(missing_ok=True)
