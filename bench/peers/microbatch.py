"""dbt on DuckDB: an incremental model with the strategy microbatch, one batch per day. Reads the raw files as they lie.

Not called dbt_…: dbt takes every module of such a name for a plug-in and loads it.
"""
import os
import sys

from dbt.cli.main import dbtRunner

from job import RAW, end, first, meta, out, totals

project = f"{out}/project"
os.makedirs(f"{project}/models", exist_ok=True)


def write(name, text):
    with open(f"{project}/{name}", "w") as file:
        file.write(text)


write("dbt_project.yml", "name: bench\nversion: '1.0'\nprofile: bench\nmodel-paths: [models]\nflags: {send_anonymous_usage_stats: false}\n")
write("profiles.yml", f"""
bench:
  target: dev
  outputs:
    dev: {{type: duckdb, path: '{out}/peer.duckdb', threads: 1, settings: {{TimeZone: UTC}}}}
""")
write("models/sources.yml", f"""
version: 2
sources:
  - name: raw
    schema: main
    tables:
      - name: orders
        config: {{event_time: event_time, external_location: "{RAW}"}}
""")
config = f"materialized='incremental', incremental_strategy='microbatch', event_time='event_date', batch_size='day', begin='{meta['start']}'"
source = "{{ source('raw', 'orders') }}"
write("models/daily_customer.sql", f"{{{{ config({config}) }}}}\n{totals(source)}\n")
window = ["--event-time-start", first, "--event-time-end", end]
run = dbtRunner().invoke(["run", "--project-dir", project, "--profiles-dir", project, "--no-version-check", *window])
sys.exit(0 if run.success else 1)
