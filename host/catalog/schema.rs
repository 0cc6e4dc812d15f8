//! DDL: the 28 DuckLake tables in their mandatory column order, our own tables beside them, and the views people query.
//! Never adds a column to a `ducklake_*` table: DuckDB inserts by position.
//! Used by [`super::Catalog`] when a catalog is created or opened.

/// The version of our own tables that this release writes.
pub(super) const STATE_VERSION: i64 = 4;

/// The DuckLake specification that this release writes (1.0, 2026-04-13).
pub(super) const DUCKLAKE_VERSION: &str = "1.0";

/// DuckLake 1.0, "Tables". Booleans are BIGINT, UUIDs and timestamps VARCHAR, as DuckDB's SQLite catalogs have them.
pub(super) const DUCKLAKE: &str = "
CREATE TABLE ducklake_metadata(key VARCHAR NOT NULL, value VARCHAR NOT NULL, scope VARCHAR, scope_id BIGINT);
CREATE TABLE ducklake_snapshot(snapshot_id BIGINT PRIMARY KEY, snapshot_time VARCHAR, schema_version BIGINT, next_catalog_id BIGINT, next_file_id BIGINT);
CREATE TABLE ducklake_snapshot_changes(snapshot_id BIGINT PRIMARY KEY, changes_made VARCHAR, author VARCHAR, commit_message VARCHAR, commit_extra_info VARCHAR);
CREATE TABLE ducklake_schema(schema_id BIGINT PRIMARY KEY, schema_uuid VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT, schema_name VARCHAR, path VARCHAR, path_is_relative BIGINT);
CREATE TABLE ducklake_table(table_id BIGINT, table_uuid VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT, schema_id BIGINT, table_name VARCHAR, path VARCHAR, path_is_relative BIGINT);
CREATE TABLE ducklake_view(view_id BIGINT, view_uuid VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT, schema_id BIGINT, view_name VARCHAR, dialect VARCHAR, sql VARCHAR, column_aliases VARCHAR);
CREATE TABLE ducklake_tag(object_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, key VARCHAR, value VARCHAR);
CREATE TABLE ducklake_column_tag(table_id BIGINT, column_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, key VARCHAR, value VARCHAR);
CREATE TABLE ducklake_data_file(data_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, file_order BIGINT, path VARCHAR, path_is_relative BIGINT, file_format VARCHAR, record_count BIGINT, file_size_bytes BIGINT, footer_size BIGINT, row_id_start BIGINT, partition_id BIGINT, encryption_key VARCHAR, mapping_id BIGINT, partial_max BIGINT);
CREATE TABLE ducklake_file_column_stats(data_file_id BIGINT, table_id BIGINT, column_id BIGINT, column_size_bytes BIGINT, value_count BIGINT, null_count BIGINT, min_value VARCHAR, max_value VARCHAR, contains_nan BIGINT, extra_stats VARCHAR);
CREATE TABLE ducklake_file_variant_stats(data_file_id BIGINT, table_id BIGINT, column_id BIGINT, variant_path VARCHAR, shredded_type VARCHAR, column_size_bytes BIGINT, value_count BIGINT, null_count BIGINT, min_value VARCHAR, max_value VARCHAR, contains_nan BIGINT, extra_stats VARCHAR);
CREATE TABLE ducklake_delete_file(delete_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, data_file_id BIGINT, path VARCHAR, path_is_relative BIGINT, format VARCHAR, delete_count BIGINT, file_size_bytes BIGINT, footer_size BIGINT, encryption_key VARCHAR, partial_max BIGINT);
CREATE TABLE ducklake_column(column_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, table_id BIGINT, column_order BIGINT, column_name VARCHAR, column_type VARCHAR, initial_default VARCHAR, default_value VARCHAR, nulls_allowed BIGINT, parent_column BIGINT, default_value_type VARCHAR, default_value_dialect VARCHAR);
CREATE TABLE ducklake_table_stats(table_id BIGINT, record_count BIGINT, next_row_id BIGINT, file_size_bytes BIGINT);
CREATE TABLE ducklake_table_column_stats(table_id BIGINT, column_id BIGINT, contains_null BIGINT, contains_nan BIGINT, min_value VARCHAR, max_value VARCHAR, extra_stats VARCHAR);
CREATE TABLE ducklake_partition_info(partition_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT);
CREATE TABLE ducklake_partition_column(partition_id BIGINT, table_id BIGINT, partition_key_index BIGINT, column_id BIGINT, transform VARCHAR);
CREATE TABLE ducklake_file_partition_value(data_file_id BIGINT, table_id BIGINT, partition_key_index BIGINT, partition_value VARCHAR);
CREATE TABLE ducklake_files_scheduled_for_deletion(data_file_id BIGINT, path VARCHAR, path_is_relative BIGINT, schedule_start VARCHAR);
CREATE TABLE ducklake_inlined_data_tables(table_id BIGINT, table_name VARCHAR, schema_version BIGINT);
CREATE TABLE ducklake_column_mapping(mapping_id BIGINT, table_id BIGINT, type VARCHAR);
CREATE TABLE ducklake_name_mapping(mapping_id BIGINT, column_id BIGINT, source_name VARCHAR, target_field_id BIGINT, parent_column BIGINT, is_partition BIGINT);
CREATE TABLE ducklake_schema_versions(begin_snapshot BIGINT, schema_version BIGINT, table_id BIGINT);
CREATE TABLE ducklake_macro(schema_id BIGINT, macro_id BIGINT, macro_name VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT);
CREATE TABLE ducklake_macro_impl(macro_id BIGINT, impl_id BIGINT, dialect VARCHAR, sql VARCHAR, type VARCHAR);
CREATE TABLE ducklake_macro_parameters(macro_id BIGINT, impl_id BIGINT, column_id BIGINT, parameter_name VARCHAR, parameter_type VARCHAR, default_value VARCHAR, default_value_type VARCHAR);
CREATE TABLE ducklake_sort_info(sort_id BIGINT, table_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT);
CREATE TABLE ducklake_sort_expression(sort_id BIGINT, table_id BIGINT, sort_key_index BIGINT, expression VARCHAR, dialect VARCHAR, sort_direction VARCHAR, null_order VARCHAR);
CREATE INDEX restitch_file_partition ON ducklake_file_partition_value(table_id, partition_key_index, partition_value);
CREATE INDEX restitch_file_partition_of ON ducklake_file_partition_value(data_file_id);
CREATE INDEX restitch_file_live ON ducklake_data_file(table_id, end_snapshot);
CREATE INDEX restitch_file_stats ON ducklake_file_column_stats(data_file_id, column_id);
CREATE INDEX restitch_delete_of ON ducklake_delete_file(data_file_id);
";

/// Our own tables. `restitch_base` names the datasets with sources of their own that a dataset is made of in the end, itself if it has; the view of partitions is read by other
/// engines, whose SQL has no recursion that SQLite takes. `restitch_hold` names ended files that a rollback still needs although no snapshot shows them, and (`gone`) those that
/// the last gc removed, whose rows stay until the next one, so that a reader of before meets an error and not fewer rows: its triggers keep the clean-ups of other tools from
/// them. Instants are UTC microseconds (`_us`); the views give them as text.
pub(super) const STATE: &str = "
CREATE TABLE restitch_meta(key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);
CREATE TABLE restitch_transform(name VARCHAR NOT NULL, version VARCHAR NOT NULL, digest VARCHAR NOT NULL, size_bytes BIGINT NOT NULL, descriptor VARCHAR NOT NULL,
  added_us BIGINT NOT NULL, added_by VARCHAR NOT NULL, PRIMARY KEY(name, version));
CREATE TABLE restitch_file(source VARCHAR NOT NULL, content_digest VARCHAR NOT NULL, digest VARCHAR NOT NULL, path VARCHAR NOT NULL, size_bytes BIGINT NOT NULL,
  snapshot_id BIGINT NOT NULL, records BIGINT NOT NULL, rejects BIGINT NOT NULL, late BIGINT NOT NULL, future BIGINT NOT NULL,
  first_event_us BIGINT, last_event_us BIGINT, ingested_us BIGINT NOT NULL, header VARCHAR, delimiter VARCHAR, PRIMARY KEY(source, content_digest));
CREATE INDEX restitch_file_by_snapshot ON restitch_file(source, snapshot_id);
CREATE TABLE restitch_watermark(id INTEGER PRIMARY KEY, source VARCHAR NOT NULL, snapshot_id BIGINT NOT NULL, value_us BIGINT NOT NULL, late_cutoff_us BIGINT NOT NULL,
  approval_cutoff_us BIGINT NOT NULL, reason VARCHAR NOT NULL, operator VARCHAR NOT NULL, at_us BIGINT NOT NULL);
CREATE INDEX restitch_watermark_of ON restitch_watermark(source, id);
CREATE TABLE restitch_slot(source VARCHAR NOT NULL, day_us BIGINT NOT NULL, snapshot_id BIGINT NOT NULL, records BIGINT NOT NULL, slots BLOB NOT NULL,
  PRIMARY KEY(source, day_us, snapshot_id)) WITHOUT ROWID;
CREATE TABLE restitch_lateness(source VARCHAR NOT NULL, snapshot_id BIGINT NOT NULL, behind_us_max BIGINT NOT NULL, records BIGINT NOT NULL,
  PRIMARY KEY(source, snapshot_id, behind_us_max)) WITHOUT ROWID;
CREATE TABLE restitch_repair_queue(id INTEGER PRIMARY KEY, dataset VARCHAR NOT NULL, partition VARCHAR NOT NULL, start_us BIGINT NOT NULL, end_us BIGINT NOT NULL,
  source VARCHAR NOT NULL, snapshot_id BIGINT NOT NULL, file VARCHAR NOT NULL, kind VARCHAR NOT NULL, tier VARCHAR NOT NULL, records BIGINT NOT NULL,
  least_late_us BIGINT NOT NULL, most_late_us BIGINT NOT NULL);
CREATE INDEX restitch_repair_of ON restitch_repair_queue(dataset, start_us, snapshot_id);
CREATE TABLE restitch_joint_watermark(dataset VARCHAR PRIMARY KEY, value_us BIGINT NOT NULL, late_cutoff_us BIGINT NOT NULL, approval_cutoff_us BIGINT NOT NULL) WITHOUT ROWID;
CREATE TABLE restitch_moves(source VARCHAR PRIMARY KEY, upto BIGINT NOT NULL) WITHOUT ROWID;
CREATE TABLE restitch_moved(source VARCHAR NOT NULL, record_id VARCHAR NOT NULL, at_us BIGINT NOT NULL, snapshot_id BIGINT NOT NULL, first_seq BIGINT NOT NULL, last_seq BIGINT NOT NULL,
  future BIGINT NOT NULL, file VARCHAR NOT NULL, PRIMARY KEY(source, record_id, at_us, snapshot_id)) WITHOUT ROWID;
CREATE TABLE restitch_moves_queued(dataset VARCHAR NOT NULL, source VARCHAR NOT NULL, upto BIGINT NOT NULL, PRIMARY KEY(dataset, source)) WITHOUT ROWID;
CREATE INDEX restitch_moved_since ON restitch_moved(source, snapshot_id);
CREATE INDEX restitch_moved_at ON restitch_moved(source, at_us);
CREATE TABLE restitch_dataset(name VARCHAR PRIMARY KEY, sources VARCHAR NOT NULL, grain VARCHAR NOT NULL, time_zone VARCHAR NOT NULL, table_id BIGINT NOT NULL, upstream VARCHAR NOT NULL);
CREATE TABLE restitch_base(dataset VARCHAR NOT NULL, base VARCHAR NOT NULL, PRIMARY KEY(dataset, base)) WITHOUT ROWID;
CREATE TABLE restitch_sum(dataset VARCHAR PRIMARY KEY, partitions BIGINT NOT NULL, sum VARCHAR NOT NULL) WITHOUT ROWID;
CREATE TABLE restitch_settings(digest VARCHAR PRIMARY KEY, settings VARCHAR NOT NULL) WITHOUT ROWID;
CREATE TABLE restitch_run(run_id INTEGER PRIMARY KEY AUTOINCREMENT, kind VARCHAR NOT NULL, dataset VARCHAR NOT NULL, status VARCHAR NOT NULL, mode VARCHAR NOT NULL,
  operator VARCHAR NOT NULL, reason VARCHAR, transform VARCHAR, transform_digest VARCHAR, start_us BIGINT, end_us BIGINT, base_snapshot BIGINT NOT NULL,
  input_snapshot BIGINT NOT NULL, published_snapshot BIGINT, undoes BIGINT, partitions BIGINT NOT NULL DEFAULT 0, rows_in BIGINT, rows_out BIGINT, checksum VARCHAR,
  started_us BIGINT NOT NULL, finished_us BIGINT, error VARCHAR, manifest VARCHAR);
CREATE INDEX restitch_run_of ON restitch_run(dataset, run_id);
CREATE INDEX restitch_run_running ON restitch_run(run_id) WHERE status = 'running';
CREATE TABLE restitch_run_partition(run_id BIGINT NOT NULL, partition VARCHAR NOT NULL, start_us BIGINT NOT NULL, end_us BIGINT NOT NULL, reason VARCHAR NOT NULL,
  records BIGINT NOT NULL, late BIGINT NOT NULL, duplicates BIGINT NOT NULL, conflicts BIGINT NOT NULL, input_checksum VARCHAR, rows BIGINT NOT NULL, bytes BIGINT NOT NULL, checksum VARCHAR,
  prior_run BIGINT, prior_rows BIGINT, prior_checksum VARCHAR, added BIGINT, removed BIGINT, changed BIGINT, input_snapshot BIGINT, transform_digest VARCHAR, moved BIGINT,
  inserted BIGINT, updated BIGINT, unchanged BIGINT, target_only BIGINT, deleted BIGINT, kept BIGINT NOT NULL DEFAULT 0, quarantined BIGINT NOT NULL, settings_digest VARCHAR, PRIMARY KEY(run_id, partition)) WITHOUT ROWID;
CREATE INDEX restitch_run_partition_by_name ON restitch_run_partition(partition, run_id);
CREATE TABLE restitch_run_file(run_id BIGINT NOT NULL, partition VARCHAR NOT NULL, path VARCHAR NOT NULL, rows BIGINT NOT NULL, bytes BIGINT NOT NULL, digest VARCHAR NOT NULL,
  PRIMARY KEY(run_id, path)) WITHOUT ROWID;
CREATE TABLE restitch_quarantine(run_id BIGINT NOT NULL, dataset VARCHAR NOT NULL, partition VARCHAR NOT NULL, source VARCHAR NOT NULL, record_id VARCHAR NOT NULL,
  snapshot_id BIGINT NOT NULL, seq BIGINT NOT NULL, event_us BIGINT NOT NULL, file VARCHAR NOT NULL, file_offset BIGINT NOT NULL, reason VARCHAR NOT NULL,
  PRIMARY KEY(run_id, partition, snapshot_id, seq)) WITHOUT ROWID;
CREATE INDEX restitch_quarantine_of ON restitch_quarantine(dataset, partition);
CREATE TABLE restitch_check(run_id BIGINT NOT NULL, name VARCHAR NOT NULL, kind VARCHAR NOT NULL, severity VARCHAR NOT NULL, passed BIGINT NOT NULL,
  measured VARCHAR NOT NULL, expected VARCHAR NOT NULL, detail VARCHAR);
CREATE INDEX restitch_check_of ON restitch_check(run_id);
CREATE TABLE restitch_partition(dataset VARCHAR NOT NULL, partition VARCHAR NOT NULL, start_us BIGINT NOT NULL, end_us BIGINT NOT NULL, run_id BIGINT NOT NULL,
  input_snapshot BIGINT NOT NULL, published_snapshot BIGINT NOT NULL, transform_digest VARCHAR NOT NULL, rows BIGINT NOT NULL, bytes BIGINT NOT NULL, checksum VARCHAR NOT NULL,
  settings_digest VARCHAR NOT NULL, PRIMARY KEY(dataset, start_us)) WITHOUT ROWID;
CREATE TABLE restitch_reparse(source VARCHAR NOT NULL, start_us BIGINT NOT NULL, end_us BIGINT NOT NULL, snapshot_id BIGINT NOT NULL, run_id BIGINT NOT NULL,
  PRIMARY KEY(source, start_us, snapshot_id)) WITHOUT ROWID;
CREATE TABLE restitch_digest(path VARCHAR PRIMARY KEY, digest VARCHAR NOT NULL) WITHOUT ROWID;
CREATE TABLE restitch_intent(owner VARCHAR NOT NULL, path VARCHAR NOT NULL);
CREATE TABLE restitch_removed(id INTEGER PRIMARY KEY, kind VARCHAR NOT NULL, name VARCHAR NOT NULL, partition VARCHAR, run_id BIGINT, path VARCHAR NOT NULL,
  rows BIGINT NOT NULL, bytes BIGINT NOT NULL, first_snapshot BIGINT NOT NULL, last_snapshot BIGINT NOT NULL, first_event_us BIGINT, last_event_us BIGINT,
  reason VARCHAR NOT NULL, snapshot_id BIGINT NOT NULL, at_us BIGINT NOT NULL, operator VARCHAR NOT NULL, gone BIGINT NOT NULL DEFAULT 0);
CREATE INDEX restitch_removed_path ON restitch_removed(path);
CREATE INDEX restitch_removed_of ON restitch_removed(kind, name);
CREATE INDEX restitch_removed_left ON restitch_removed(id) WHERE gone = 0;
CREATE TABLE restitch_dropped(source VARCHAR NOT NULL, start_us BIGINT NOT NULL, end_us BIGINT NOT NULL, from_snapshot BIGINT NOT NULL, until_snapshot BIGINT NOT NULL,
  reason VARCHAR NOT NULL, at_us BIGINT NOT NULL, operator VARCHAR NOT NULL, PRIMARY KEY(source, start_us, from_snapshot, until_snapshot)) WITHOUT ROWID;
CREATE TABLE restitch_payload_read(id INTEGER PRIMARY KEY, at_us BIGINT NOT NULL, operator VARCHAR NOT NULL, tables VARCHAR NOT NULL, reason VARCHAR NOT NULL, sql VARCHAR NOT NULL);
CREATE TABLE restitch_hold(data_file_id BIGINT PRIMARY KEY, path VARCHAR NOT NULL, gone BIGINT NOT NULL DEFAULT 0);
CREATE TRIGGER restitch_hold_file BEFORE DELETE ON ducklake_data_file
  WHEN EXISTS(SELECT 1 FROM restitch_hold WHERE data_file_id = OLD.data_file_id) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER restitch_hold_stats BEFORE DELETE ON ducklake_file_column_stats
  WHEN EXISTS(SELECT 1 FROM restitch_hold WHERE data_file_id = OLD.data_file_id) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER restitch_hold_value BEFORE DELETE ON ducklake_file_partition_value
  WHEN EXISTS(SELECT 1 FROM restitch_hold WHERE data_file_id = OLD.data_file_id) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER restitch_hold_bytes BEFORE INSERT ON ducklake_files_scheduled_for_deletion
  WHEN EXISTS(SELECT 1 FROM restitch_hold WHERE data_file_id = NEW.data_file_id) BEGIN SELECT RAISE(IGNORE); END;
";

/// Columns of the views that are computed and hold whole numbers.
pub(super) const VIEW_INTEGERS: [&str; 15] = [
    "dirty",
    "rows",
    "bytes",
    "input_snapshot",
    "published_snapshot",
    "records",
    "files",
    "least_late_seconds",
    "most_late_seconds",
    "partitions",
    "rows_in",
    "rows_out",
    "file_offset",
    "snapshot_id",
    "seq",
];

/// Views: what a person or a dashboard asks of the warehouse, computed and never stored twice. DuckDB binds the SQL of a view itself. Where it cannot (`strftime` of SQLite), it lets
/// SQLite scan the view, and each column is a text then, so that these stand in two: the one named `…_text` computes, the other one, whose SQL both read alike, has the types.
/// DuckDB writes the SQL of a view anew for SQLite, and makes of WITH RECURSIVE what SQLite does not read: that is a view of its own, which only SQLite opens.
pub(super) const VIEWS: &str = "
CREATE VIEW restitch_partitions_text AS
SELECT p.dataset, p.partition,
  CASE WHEN p.end_us <= c.approval_us THEN 'final' WHEN p.end_us <= c.late_us THEN 'closed' ELSE 'open' END AS state,
  EXISTS(SELECT 1 FROM restitch_repair_queue q WHERE q.dataset = p.dataset AND q.start_us = p.start_us AND q.snapshot_id > p.input_snapshot) AS dirty,
  p.rows, p.bytes, p.checksum, 'r' || p.run_id AS run, p.transform_digest, p.input_snapshot, p.published_snapshot,
  strftime('%Y-%m-%dT%H:%M:%SZ', p.start_us / 1000000, 'unixepoch') AS start_time, strftime('%Y-%m-%dT%H:%M:%SZ', p.end_us / 1000000, 'unixepoch') AS end_time
FROM restitch_partition p LEFT JOIN (
  SELECT b.dataset, CASE WHEN count(b.base) = count(coalesce(j.late_cutoff_us, w.late_cutoff_us)) THEN min(coalesce(j.late_cutoff_us, w.late_cutoff_us)) END AS late_us,
    CASE WHEN count(b.base) = count(coalesce(j.approval_cutoff_us, w.approval_cutoff_us)) THEN min(coalesce(j.approval_cutoff_us, w.approval_cutoff_us)) END AS approval_us
  FROM restitch_base b LEFT JOIN restitch_dataset d ON d.name = b.base
  LEFT JOIN restitch_joint_watermark j ON j.dataset = d.name
  LEFT JOIN restitch_watermark w ON w.id = (SELECT max(id) FROM restitch_watermark WHERE source = d.sources) GROUP BY b.dataset) c ON c.dataset = p.dataset;
CREATE VIEW restitch_partitions AS
SELECT dataset, partition, state, CAST(dirty AS BIGINT) AS dirty, CAST(rows AS BIGINT) AS rows, CAST(bytes AS BIGINT) AS bytes, checksum, run, transform_digest,
  CAST(input_snapshot AS BIGINT) AS input_snapshot, CAST(published_snapshot AS BIGINT) AS published_snapshot, start_time, end_time
FROM restitch_partitions_text;
CREATE VIEW restitch_queue AS
SELECT q.dataset, q.partition, q.kind, q.tier, CAST(sum(q.records) AS BIGINT) AS records, count(DISTINCT q.file) AS files,
  CAST(min(q.least_late_us - q.least_late_us % 1000000) / 1000000 AS BIGINT) AS least_late_seconds, CAST(max(q.most_late_us - q.most_late_us % 1000000) / 1000000 AS BIGINT) AS most_late_seconds
FROM restitch_repair_queue q LEFT JOIN restitch_partition p ON p.dataset = q.dataset AND p.start_us = q.start_us
WHERE q.snapshot_id > coalesce(p.input_snapshot, -1) AND (q.kind <> 'moved' OR p.dataset IS NOT NULL) GROUP BY q.dataset, q.start_us, q.partition, q.kind, q.tier;
CREATE VIEW restitch_runs_text AS
SELECT 'r' || run_id AS run, kind, dataset, status, mode, operator, reason, transform, transform_digest, input_snapshot, published_snapshot, json_extract(manifest, '$.published_by') AS published_by,
  strftime('%Y-%m-%dT%H:%M:%SZ', json_extract(manifest, '$.published_us') / 1000000, 'unixepoch') AS published, CASE WHEN undoes IS NULL THEN NULL ELSE 'r' || undoes END AS undoes,
  partitions, rows_in, rows_out, checksum, strftime('%Y-%m-%dT%H:%M:%SZ', started_us / 1000000, 'unixepoch') AS started, strftime('%Y-%m-%dT%H:%M:%SZ', finished_us / 1000000, 'unixepoch') AS finished, error
FROM restitch_run;
CREATE VIEW restitch_runs AS
SELECT run, kind, dataset, status, mode, operator, reason, transform, transform_digest, CAST(input_snapshot AS BIGINT) AS input_snapshot, CAST(published_snapshot AS BIGINT) AS published_snapshot, published_by, published, undoes,
  CAST(partitions AS BIGINT) AS partitions, CAST(rows_in AS BIGINT) AS rows_in, CAST(rows_out AS BIGINT) AS rows_out, checksum, started, finished, error
FROM restitch_runs_text;
CREATE VIEW restitch_quarantined_behind AS
WITH RECURSIVE behind(dataset, partition, run_id, depth) AS (
  SELECT p.dataset, p.partition, p.run_id, 0 FROM restitch_partition p
  WHERE EXISTS(SELECT 1 FROM restitch_quarantine q WHERE q.dataset = p.dataset AND q.partition = p.partition)
  UNION ALL
  SELECT b.dataset, b.partition, rp.prior_run, b.depth + 1 FROM behind b JOIN restitch_run r ON r.run_id = b.run_id
  JOIN restitch_run_partition rp ON rp.run_id = CASE WHEN r.kind = 'rollback' THEN r.undoes ELSE b.run_id END AND rp.partition = b.partition
  WHERE rp.prior_run IS NOT NULL AND (r.kind = 'rollback' OR json_extract(r.manifest, '$.recipe.write.delete-insert.start_us') IS NOT NULL
    OR (json_extract(r.manifest, '$.recipe.write') = 'merge' AND json_extract(r.manifest, '$.recipe.filter') IS NOT NULL)))
SELECT DISTINCT q.dataset, q.partition, 'r' || q.run_id AS run, q.source, q.record_id, q.event_us,
  q.file, q.file_offset, q.reason, q.snapshot_id, q.seq
FROM behind b JOIN restitch_quarantine q ON q.run_id = b.run_id AND q.partition = b.partition
WHERE NOT EXISTS(SELECT 1 FROM behind n JOIN restitch_run r ON r.run_id = n.run_id WHERE n.dataset = b.dataset AND n.partition = b.partition AND n.depth < b.depth
  AND ((q.event_us >= json_extract(r.manifest, '$.recipe.write.delete-insert.start_us') AND q.event_us < json_extract(r.manifest, '$.recipe.write.delete-insert.end_us'))
    OR EXISTS(SELECT 1 FROM restitch_quarantine again WHERE again.run_id = n.run_id AND again.partition = q.partition AND again.snapshot_id = q.snapshot_id AND again.seq = q.seq)));
CREATE VIEW restitch_quarantined_text AS
SELECT dataset, partition, run, source, record_id, strftime('%Y-%m-%dT%H:%M:%SZ', event_us / 1000000, 'unixepoch') AS event_time, file, file_offset, reason, snapshot_id, seq FROM restitch_quarantined_behind;
CREATE VIEW restitch_quarantined AS
SELECT dataset, partition, run, source, record_id, event_time, file, CAST(file_offset AS BIGINT) AS file_offset, reason, CAST(snapshot_id AS BIGINT) AS snapshot_id, CAST(seq AS BIGINT) AS seq
FROM restitch_quarantined_text;
";
