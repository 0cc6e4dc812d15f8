"""DuckDB: one statement, COPY with PARTITION_BY. No checks, no checksums, and not atomic across partitions.

A repair writes beside the table and swaps the folders itself: OVERWRITE would clear the partitions it does not write.
"""
import os
import shutil

import duckdb

from job import RAW, end, first, out, repair, totals

table, target = f"{out}/table", f"{out}/{'stage' if repair else 'table'}"
duckdb.execute("SET TimeZone = 'UTC'")
query = totals(RAW, f"WHERE event_time >= '{first}' AND event_time < '{end}'")
duckdb.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, PARTITION_BY (event_date), COMPRESSION snappy, OVERWRITE)")
if repair:
    for partition in os.listdir(target):
        shutil.rmtree(f"{table}/{partition}", ignore_errors=True)
        os.rename(f"{target}/{partition}", f"{table}/{partition}")
    os.rmdir(target)
