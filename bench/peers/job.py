"""What every peer is asked: `PEER.py OPERATION FORMAT DATA OUT`, where OPERATION is backfill or repair."""
import json
import os
import shutil
import sys

operation, format, data, out = sys.argv[1:5]
with open(f"{data}/meta.json") as file:
    meta = json.load(file)
repair = operation == "repair"
files = [f"{data}/{format}/*.{format}"] + ([f"{data}/repair/{format}/*.{format}"] if repair else [])
first, end = (meta["repair_start"], meta["repair_end"]) if repair else (meta["start"], meta["end"])  # end: exclusive
if operation == "backfill":
    shutil.rmtree(out, ignore_errors=True)
os.makedirs(out, exist_ok=True)

COLUMNS = "{event_id: 'VARCHAR', event_time: 'TIMESTAMPTZ', ingested_at: 'TIMESTAMPTZ', customer_id: 'VARCHAR', amount_cents: 'BIGINT'}"
RAW = f"read_parquet({files})" if format == "parquet" else f"read_json({files}, format = 'newline_delimited', columns = {COLUMNS})"


def totals(source, condition=""):
    """The job in DuckDB's SQL. The integer division is faster than a cast to a date; arg_max is faster than a window."""
    return f"""
        SELECT event_date, customer_id, count(*) AS orders, sum(amount_cents)::BIGINT AS amount_cents FROM (
          SELECT make_date((epoch_us(event_time) // 86400000000)::INT) AS event_date,
            arg_max(customer_id, ingested_at) AS customer_id, arg_max(amount_cents, ingested_at) AS amount_cents
          FROM {source} {condition} GROUP BY event_date, event_id)
        GROUP BY event_date, customer_id"""
