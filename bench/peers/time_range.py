"""SQLMesh on DuckDB: an INCREMENTAL_BY_TIME_RANGE model, the whole range in one statement; a repair restates two days."""
import datetime
import os

import duckdb
from sqlmesh import Context

from job import RAW, end, first, meta, out, repair, totals

project = f"{out}/project"
os.makedirs(f"{project}/models", exist_ok=True)
# The model's text must not change between backfill and repair, so it reads a view.
with duckdb.connect(f"{out}/peer.duckdb") as connection:
    connection.execute("CREATE SCHEMA IF NOT EXISTS raw")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE OR REPLACE VIEW raw.orders AS SELECT event_id, event_time, ingested_at, customer_id, amount_cents FROM {RAW}")


def last_day(end):  # ranges of SQLMesh include their last day
    return (datetime.date.fromisoformat(end) - datetime.timedelta(days=1)).isoformat()


with open(f"{project}/config.yaml", "w") as file:
    file.write(f"""
gateways:
  local:
    connection: {{type: duckdb, database: '{out}/peer.duckdb', concurrent_tasks: 1}}
    state_connection: {{type: duckdb, database: '{out}/state.duckdb'}}
default_gateway: local
disable_anonymized_analytics: true
model_defaults: {{dialect: duckdb, start: '{meta['start']}'}}
""")
with open(f"{project}/models/daily_customer.sql", "w") as file:
    condition = "WHERE event_time >= @start_ds::TIMESTAMPTZ AND event_time < @end_ds::TIMESTAMPTZ + INTERVAL 1 DAY"
    file.write(f"""MODEL (name main.daily_customer, kind INCREMENTAL_BY_TIME_RANGE (time_column event_date),
      start '{meta['start']}', end '{last_day(meta['end'])}', cron '@daily');
    SELECT event_date::DATE AS event_date, customer_id::VARCHAR AS customer_id, orders::BIGINT AS orders, amount_cents::BIGINT AS amount_cents
    FROM ({totals('raw.orders', condition)})""")
context = Context(paths=[project])
asked = dict(restate_models=["main.daily_customer"], start=first, end=last_day(end)) if repair else {}
context.plan(auto_apply=True, no_prompts=True, skip_tests=True, **asked)
context.close()
