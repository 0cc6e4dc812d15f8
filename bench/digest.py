"""Looks whether a table is right: `digest.py backfill|repair|sums|landed DATA OUT`.

After a backfill or a repair the result is written as a sorted CSV, whose SHA-256 must be the generator's. Of other grains than days
the sums must be right; landed rows must have the raw files' count and sum.
"""
import hashlib
import json
import os
import sys
import tempfile

import duckdb

what, data, out = sys.argv[1:]
duckdb.execute("SET TimeZone = 'UTC'")
ours = os.path.exists(f"{out}/warehouse/catalog.sqlite")
if ours:  # as everybody may read them: with the extensions of the real DuckDB
    for extension in ("ducklake", "sqlite_scanner"):
        package = __import__(f"duckdb_extension_{extension}")
        folder = os.path.dirname(package.__file__)
        [file] = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name.endswith(".duckdb_extension")]
        duckdb.execute(f"LOAD '{file}'")
    duckdb.execute(f"ATTACH 'ducklake:sqlite:{out}/warehouse/catalog.sqlite' AS lake (READ_ONLY)")

if what == "landed":
    query = "SELECT count(*), sum(amount_cents), count(DISTINCT event_id) FROM "
    found = duckdb.execute(query + ("lake.raw_orders" if ours else f"'{out}/raw.parquet'")).fetchone()
    wanted = duckdb.execute(query + f"'{data}/parquet/*.parquet'").fetchone()
elif what == "sums":
    found = duckdb.execute("SELECT sum(orders), sum(amount_cents) FROM lake.daily_customer").fetchone()
    with open(f"{data}/meta.json") as file:
        meta = json.load(file)
    wanted = (meta["orders"], meta["cents"])
else:
    if ours:
        table = "(SELECT _partition AS event_date, * FROM lake.daily_customer)"
    elif os.path.isdir(f"{out}/table"):
        table = f"read_parquet('{out}/table/*/*.parquet', hive_partitioning = true, hive_types = {{'event_date': DATE}})"
    else:
        duckdb.execute(f"ATTACH '{out}/peer.duckdb' AS peer (READ_ONLY)")
        table = "peer.main.daily_customer"
    columns = "event_date::DATE AS event_date, customer_id, orders::BIGINT AS orders, amount_cents::BIGINT AS amount_cents"
    text = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        duckdb.execute(f"COPY (SELECT {columns} FROM {table} ORDER BY ALL) TO '{folder}/sorted.csv' (HEADER, DELIMITER ',', QUOTE '')")
        with open(f"{folder}/sorted.csv", "rb") as file:
            while piece := file.read(1 << 20):
                text.update(piece)
    found = text.hexdigest()
    with open(f"{data}/expected{'_repair' if what == 'repair' else ''}.sha256") as file:
        wanted = file.read()
if found != wanted:
    sys.exit(f"{out} is wrong: found {found}, wanted {wanted}")
