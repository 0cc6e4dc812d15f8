"""DuckDB: landed files into one Parquet file, all columns typed, in the order they came. No payload, no hash, no clustering;
compressed with snappy, its default, which is quicker than restitch's zstd.
"""
import duckdb

from job import data, format, out

columns = ", ".join(f"{name}: 'VARCHAR'" for name in ("event_id", "customer_id", "currency", "status", "note"))
columns = f"{{{columns}, event_time: 'TIMESTAMPTZ', ingested_at: 'TIMESTAMPTZ', amount_cents: 'BIGINT'}}"
files = f"'{data}/{format}/*.{format}'"
raw = f"read_parquet({files})" if format == "parquet" else f"read_json({files}, format = 'newline_delimited', columns = {columns})"
duckdb.execute("SET TimeZone = 'UTC'")
duckdb.execute(f"COPY (FROM {raw}) TO '{out}/raw.parquet' (FORMAT parquet)")
