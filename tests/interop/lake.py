#!/usr/bin/env python3
"""Looks at a lake (a DuckLake catalog in SQLite) through the real DuckDB. Answers are JSON, one object per line.

    lake.py rows CATALOG TABLE [--at SNAPSHOT] [--order "a,b"]
    lake.py sql CATALOG "SELECT …" [--write] [--data-path FOLDER]     the lake is attached as `lake` and in use
    lake.py snapshots CATALOG
    lake.py compact CATALOG [TABLE]                                   merge_adjacent_files
    lake.py expire CATALOG (--versions 1,2 | --older-than TIME)       expire_snapshots
    lake.py cleanup CATALOG                                           cleanup_old_files, all of them

Everything opens the catalog read-only, except `sql --write`, `compact`, `expire` and `cleanup`. With `--write
--data-path` a catalog that does not exist is created. Decimals are texts; so are integers beyond 64 bits, NaN and
infinities. Timestamps with a zone are ISO 8601 in UTC and end in Z; those without a zone have no suffix. Bytes are hex.
An error of DuckDB goes to stderr, exit code 1. Run with the python that setup.sh prints.
"""

import argparse
import datetime
import decimal
import importlib.util
import json
import math
import pathlib
import sys
import uuid

import duckdb


def extension(name):
    """Returns the file of a signed extension that came as a Python package."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None:
        sys.exit(f"lake.py: the package duckdb-extension-{name.replace('_', '-')} is not installed; run tests/interop/setup.sh")
    folder = pathlib.Path(next(iter(spec.submodule_search_locations)))
    return folder / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"


def text(value):
    return "'" + str(value).replace("'", "''") + "'"


def name(value):
    return ".".join('"' + part.replace('"', '""') + '"' for part in value.split("."))


def attach(catalog, write=False, data_path=None):
    if data_path is None and not pathlib.Path(catalog).is_file():
        sys.exit(f"lake.py: there is no catalog {catalog}")
    db = duckdb.connect(config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"})
    # It would stand among the answers, on a machine that is slow enough.
    db.execute("SET enable_progress_bar = false")
    for builtin in ("parquet", "json", "icu"):
        db.execute(f"LOAD {builtin}")
    for file in map(extension, ("sqlite_scanner", "ducklake")):
        db.execute(f"LOAD {text(file)}")
    db.execute("SET TimeZone = 'UTC'")
    options = [] if write else ["READ_ONLY"]
    if data_path is not None:
        options.append(f"DATA_PATH {text(data_path)}")
    db.execute(f"ATTACH {text(f'ducklake:sqlite:{catalog}')} AS lake" + (f" ({', '.join(options)})" if options else ""))
    db.execute("USE lake")
    return db


def plain(value):
    """Returns `value` as something that JSON can say without loss."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case decimal.Decimal():
            return format(value, "f")
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.timezone.utc).replace(tzinfo=None).isoformat() + "Z"
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case uuid.UUID() | datetime.timedelta():
            return str(value)
        case list() | tuple():
            return [plain(v) for v in value]
        case dict():
            return {str(plain(k)): plain(v) for k, v in value.items()}
    raise TypeError(f"a {type(value).__name__} has no JSON here; CAST it to VARCHAR in the query")


def show(result):
    columns = [c[0] for c in result.description or []]
    if len(set(columns)) != len(columns):
        sys.exit(f"lake.py: two columns have one name: {', '.join(columns)}")
    while rows := result.fetchmany(10_000):
        for row in rows:
            print(json.dumps(dict(zip(columns, map(plain, row))), ensure_ascii=False))


def rows(a):
    at = f" AT (VERSION => {a.at})" if a.at is not None else ""
    order = " ORDER BY " + ", ".join(name(c.strip()) for c in a.order.split(",")) if a.order else ""
    show(attach(a.catalog).execute(f"SELECT * FROM {name(a.table)}{at}{order}"))


def sql(a):
    if a.data_path is not None and not a.write:
        sys.exit("lake.py: --data-path needs --write")
    show(attach(a.catalog, a.write, a.data_path).execute(a.query))


def snapshots(a):
    show(attach(a.catalog).execute("SELECT * FROM ducklake_snapshots('lake') ORDER BY snapshot_id"))


def compact(a):
    table = f", {text(a.table)}" if a.table else ""
    show(attach(a.catalog, write=True).execute(f"CALL ducklake_merge_adjacent_files('lake'{table})"))


def expire(a):
    if a.versions:
        which = f"versions => [{', '.join(str(int(v)) for v in a.versions.split(','))}]"
    else:
        which = f"older_than => CAST({text(a.older_than)} AS TIMESTAMPTZ)"
    show(attach(a.catalog, write=True).execute(f"CALL ducklake_expire_snapshots('lake', {which})"))


def cleanup(a):
    show(attach(a.catalog, write=True).execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(run):
        v = verbs.add_parser(run.__name__)
        v.set_defaults(run=run)
        v.add_argument("catalog")
        return v

    v = verb(rows)
    v.add_argument("table")
    v.add_argument("--at", type=int, metavar="SNAPSHOT")
    v.add_argument("--order", metavar="COLUMNS")
    v = verb(sql)
    v.add_argument("query")
    v.add_argument("--write", action="store_true")
    v.add_argument("--data-path", metavar="FOLDER")
    verb(snapshots)
    v = verb(compact)
    v.add_argument("table", nargs="?")
    which = verb(expire).add_mutually_exclusive_group(required=True)
    which.add_argument("--versions")
    which.add_argument("--older-than", metavar="TIME")
    verb(cleanup)

    a = parser.parse_args()
    try:
        a.run(a)
    except duckdb.Error as e:
        sys.exit(f"lake.py: {e}")


if __name__ == "__main__":
    main()
