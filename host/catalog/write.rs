//! Writing our own rows: on [`Record`] (our tables alone) or on [`Commit`] (with a snapshot).
//! Never changes what a run of the past recorded, but for the run that is still in the doing.
//! The rows themselves are in `state`.

use super::{
    CatalogError, Commit, DatasetRow, FileRow, MovedRow, PublishedRow, QueueRow, Record, TransformRow, View, WatermarkRow, state::PARTITION_COLUMNS,
};
use crate::{
    id::{Digest, RunId, SnapshotId},
    manifest::{Manifest, PartitionRecord},
    time::{EventTime, IngestTime},
    watermark::Stand,
    window::Window,
};
use rusqlite::{Connection, params};

fn text(d: &Option<Digest>) -> Option<String> {
    d.map(|d| d.to_string())
}

/// Returns a copy of a manifest but for its partitions and checks, which have rows of their own: there may be a hundred thousand.
fn without_rows(m: &Manifest) -> Manifest {
    Manifest {
        run: m.run,
        kind: m.kind,
        status: m.status,
        mode: m.mode,
        validation: m.validation,
        operator: m.operator.clone(),
        reason: m.reason.clone(),
        asked: m.asked.clone(),
        window: m.window.clone(),
        only: m.only.clone(),
        recipe: m.recipe.clone(),
        plan_digest: m.plan_digest,
        base_snapshot: m.base_snapshot,
        published_snapshot: m.published_snapshot,
        published_by: m.published_by.clone(),
        published_us: m.published_us,
        of_run: m.of_run,
        inputs: m.inputs.clone(),
        partitions: Vec::new(),
        checks: Vec::new(),
        checksum: m.checksum,
        timings: m.timings,
        versions: m.versions.clone(),
        grants: m.grants.clone(),
        approval: m.approval.clone(),
        gaps: m.gaps.clone(),
        log: m.log.clone(),
        error: m.error.clone(),
        discarded: m.discarded.clone(),
        reparse: m.reparse.clone(),
        bases: m.bases.clone(),
        upstream: m.upstream.clone(),
        together: m.together.clone(),
        others: m.others,
    }
}

/// The writes that a plain record and a commit of the lake have in common.
pub trait StateWrite {
    /// Returns the connection of the transaction.
    #[doc(hidden)]
    fn connection(&self) -> &Connection;

    /// Writes what the manifest of a run says of the run itself, and not of its partitions and checks: these are as they were written.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn put_manifest(&self, manifest: &Manifest, finished: Option<IngestTime>) -> Result<(), CatalogError> {
        let c = self.connection();
        let json = serde_json::to_string(&without_rows(manifest)).map_err(|e| CatalogError::Value { what: "a manifest", value: e.to_string() })?;
        let m = manifest;
        let sum = |f: fn(&PartitionRecord) -> u64| m.partitions.iter().map(f).sum::<u64>() as i64;
        c.execute(
            "UPDATE restitch_run SET status = ?2, published_snapshot = ?3, undoes = ?4, partitions = ?5, rows_in = ?6, rows_out = ?7, checksum = ?8, finished_us = ?9, error = ?10,
             manifest = ?11, input_snapshot = ?12, base_snapshot = ?13 WHERE run_id = ?1",
            params![
                m.run.0,
                m.status.name(),
                m.published_snapshot.map(|s| s.0),
                m.of_run.map(|r| r.0),
                m.partitions.len() as i64,
                m.reparse.as_ref().map_or(sum(|p| p.records), |r| r.read as i64),
                m.reparse.as_ref().map_or(sum(|p| p.rows), |r| r.changed as i64),
                text(&m.checksum),
                finished.map(|t| t.0),
                m.error,
                json,
                m.recipe.input_snapshot.0,
                m.base_snapshot.0
            ],
        )?;
        Ok(())
    }

    /// Writes a run and all that its manifest says; a run that is there already is replaced.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn put_run(&self, manifest: &Manifest, finished: Option<IngestTime>) -> Result<(), CatalogError> {
        self.put_manifest(manifest, finished)?;
        let (c, m) = (self.connection(), manifest);
        for table in ["restitch_run_partition", "restitch_run_file", "restitch_quarantine", "restitch_check"] {
            c.execute(&format!("DELETE FROM {table} WHERE run_id = ?1"), [m.run.0])?;
        }
        let marks = vec!["?"; 30].join(", ");
        let mut insert = c.prepare_cached(&format!("INSERT INTO restitch_run_partition(run_id, {PARTITION_COLUMNS}) VALUES ({marks})"))?;
        let mut insert_quarantined = c.prepare_cached("INSERT INTO restitch_quarantine VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)")?;
        let opt = |n: Option<u64>| n.map(|n| n as i64);
        for p in &m.partitions {
            let (records, late, duplicates, conflicts, rows, bytes) =
                (p.records as i64, p.late as i64, p.duplicates as i64, p.conflicts as i64, p.rows as i64, p.bytes as i64);
            insert.execute(params![
                m.run.0,
                p.partition,
                p.start_us,
                p.end_us,
                p.reason,
                records,
                late,
                duplicates,
                conflicts,
                text(&p.input_checksum),
                rows,
                bytes,
                text(&p.checksum),
                p.prior_run.map(|r| r.0),
                opt(p.prior_rows),
                text(&p.prior_checksum),
                opt(p.added),
                opt(p.removed),
                opt(p.changed),
                p.input_snapshot.map(|s| s.0),
                text(&p.transform_digest),
                p.moved as i64,
                opt(p.inserted),
                opt(p.updated),
                opt(p.unchanged),
                opt(p.target_only),
                opt(p.deleted),
                p.kept as i64,
                p.quarantined.len() as i64,
                text(&p.settings_digest)
            ])?;
            for q in &p.quarantined {
                let (run, dataset) = (m.run.0, &m.recipe.dataset);
                insert_quarantined.execute(params![
                    run,
                    dataset,
                    p.partition,
                    q.source,
                    q.record_id,
                    q.snapshot.0,
                    q.seq,
                    q.event_us,
                    q.file,
                    q.offset,
                    q.reason
                ])?;
            }
        }
        self.put_files(m)?;
        let mut insert = c.prepare_cached("INSERT INTO restitch_check VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
        for k in &m.checks {
            insert.execute(params![m.run.0, k.name, k.kind, k.severity, k.passed as i64, k.measured, k.expected, k.detail])?;
        }
        Ok(())
    }

    /// Writes the files of a run's partitions, of which none is there yet.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn put_files(&self, m: &Manifest) -> Result<(), CatalogError> {
        let mut insert = self.connection().prepare_cached("INSERT INTO restitch_run_file VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for (p, f) in m.partitions.iter().flat_map(|p| p.files.iter().map(move |f| (p, f))) {
            insert.execute(params![m.run.0, p.partition, f.path, f.rows as i64, f.bytes as i64, f.digest.to_string()])?;
        }
        Ok(())
    }

    /// Writes that these paths will be moved into place by `owner`; a commit takes it back.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn put_intents(&self, owner: &str, paths: &[String]) -> Result<(), CatalogError> {
        let mut insert = self.connection().prepare_cached("INSERT INTO restitch_intent VALUES (?1, ?2)")?;
        for path in paths {
            insert.execute(params![owner, path])?;
        }
        Ok(())
    }

    /// Removes the intents of `owner`.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn clear_intents(&self, owner: &str) -> Result<(), CatalogError> {
        self.connection().execute("DELETE FROM restitch_intent WHERE owner = ?1", [owner])?;
        Ok(())
    }

    /// Appends a watermark to the history of `source`.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn put_watermark(&self, source: &str, w: &WatermarkRow) -> Result<(), CatalogError> {
        self.connection().execute(
            "INSERT INTO restitch_watermark(source, snapshot_id, value_us, late_cutoff_us, approval_cutoff_us, reason, operator, at_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![source, w.snapshot.0, w.value.0.0, w.cutoffs.late.0, w.cutoffs.approval.0, w.reason, w.operator, w.at.0],
        )?;
        Ok(())
    }

    /// Writes how far a dataset of several sources is complete. It never moves back.
    ///
    /// # Errors
    /// The catalog cannot be written.
    fn put_joint(&self, dataset: &str, s: &Stand) -> Result<(), CatalogError> {
        self.connection().execute(
            "INSERT INTO restitch_joint_watermark VALUES (?1, ?2, ?3, ?4) ON CONFLICT(dataset) DO UPDATE SET
               value_us = max(value_us, ?2), late_cutoff_us = max(late_cutoff_us, ?3), approval_cutoff_us = max(approval_cutoff_us, ?4)",
            params![dataset, s.watermark.0.0, s.cutoffs.late.0, s.cutoffs.approval.0],
        )?;
        Ok(())
    }
}

impl StateWrite for Record<'_> {
    fn connection(&self) -> &Connection {
        &self.tx
    }
}

impl StateWrite for Commit<'_> {
    fn connection(&self) -> &Connection {
        &self.tx
    }
}

impl Record<'_> {
    /// Returns a reader inside the transaction.
    pub fn view(&self) -> View<'_> {
        View { connection: &self.tx, data_path: "" }
    }

    /// Returns a new run's id: its row stands, so that ids are never used twice.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn new_run(&self, started: IngestTime, manifest: impl FnOnce(RunId) -> Manifest) -> Result<Manifest, CatalogError> {
        self.tx.execute("INSERT INTO restitch_run(kind, dataset, status, mode, operator, base_snapshot, input_snapshot, started_us) VALUES ('', '', '', '', '', 0, 0, ?1)", [started.0])?;
        let m = manifest(RunId(self.tx.last_insert_rowid()));
        let r = &m.recipe;
        let named = !r.transform.is_empty();
        let window = m.partitions.first().zip(m.partitions.last());
        self.tx.execute(
            "UPDATE restitch_run SET kind = ?2, dataset = ?3, mode = ?4, operator = ?5, reason = ?6, transform = ?7, transform_digest = ?8, start_us = ?9, end_us = ?10 WHERE run_id = ?1",
            params![
                m.run.0, m.kind.name(), r.dataset, m.mode.name(), m.operator, m.reason, named.then_some(&r.transform), named.then(|| r.transform_digest.to_string()), window.map(|w| w.0.start_us), window.map(|w| w.1.end_us)
            ],
        )?;
        self.put_run(&m, None)?;
        Ok(m)
    }

    /// Records where ids stand that stand in several slots; what is there already stays.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_moved<'m>(&self, source: &str, rows: impl Iterator<Item = (&'m str, &'m MovedRow)>) -> Result<(), CatalogError> {
        let mut insert = self.tx.prepare_cached("INSERT OR IGNORE INTO restitch_moved VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
        for (id, m) in rows {
            insert.execute(params![source, id, m.at.0, m.snapshot.0, m.first_seq, m.last_seq, m.future, m.file])?;
        }
        Ok(())
    }

    /// Records that the partitions of `dataset` that lost a record of `source` are queued up to a snapshot.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_moves_queued(&self, dataset: &str, source: &str, upto: SnapshotId) -> Result<(), CatalogError> {
        self.tx.execute("INSERT OR REPLACE INTO restitch_moves_queued VALUES (?1, ?2, ?3)", params![dataset, source, upto.0])?;
        Ok(())
    }

    /// Records that moved ids of `source` are known up to a snapshot.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_moves_upto(&self, source: &str, upto: SnapshotId) -> Result<(), CatalogError> {
        self.tx.execute("INSERT OR REPLACE INTO restitch_moves VALUES (?1, ?2)", params![source, upto.0])?;
        Ok(())
    }

    /// Adds partitions that records moved out of to the repair queue, each with its own snapshot.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_queue(&self, source: &str, rows: impl Iterator<Item = QueueRow>) -> Result<(), CatalogError> {
        put_queue(&self.tx, source, rows)
    }

    /// Registers a transform.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_transform(&self, t: &TransformRow) -> Result<(), CatalogError> {
        self.tx.execute(
            "INSERT INTO restitch_transform VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![t.name, t.version, t.digest.to_string(), t.size_bytes, t.descriptor, t.added.0.0, t.added.1],
        )?;
        Ok(())
    }
}

impl Commit<'_> {
    /// Records landed files.
    ///
    /// # Errors
    /// The catalog cannot be written, or a file with this content was landed meanwhile.
    pub fn put_file(&self, source: &str, f: &FileRow, at: IngestTime) -> Result<(), CatalogError> {
        self.tx.execute(
            "INSERT INTO restitch_file VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            params![
                source,
                f.content_digest.to_string(),
                f.digest.to_string(),
                f.path,
                f.size_bytes,
                self.snapshot().0,
                f.records,
                f.rejects,
                f.late,
                f.future,
                f.events.map(|e| e.0.0),
                f.events.map(|e| e.1.0),
                at.0,
                f.header.as_ref().map(|h| &h.0),
                f.header.as_ref().map(|h| (h.1 as char).to_string())
            ],
        )?;
        Ok(())
    }

    /// Records how many records of this ingest happened how long before the watermark, by the upper ends of the histogram.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_lateness(&self, source: &str, buckets: &std::collections::BTreeMap<i64, i64>) -> Result<(), CatalogError> {
        let mut insert = self.tx.prepare_cached("INSERT INTO restitch_lateness VALUES (?1, ?2, ?3, ?4)")?;
        for (end, records) in buckets {
            insert.execute(params![source, self.snapshot().0, end, records])?;
        }
        Ok(())
    }

    /// Adds late records to the repair queue.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_queue(&self, source: &str, rows: impl Iterator<Item = QueueRow>) -> Result<(), CatalogError> {
        let snapshot = self.snapshot();
        put_queue(&self.tx, source, rows.map(|q| QueueRow { snapshot, ..q }))
    }

    /// Records where a reparse changed records of `source`; the windows do not overlap.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_reparsed(&self, source: &str, windows: &[Window], run: RunId) -> Result<(), CatalogError> {
        let mut insert = self.tx.prepare_cached("INSERT INTO restitch_reparse VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for w in windows {
            insert.execute(params![source, w.start().0, w.end().0, self.snapshot().0, run.0])?;
        }
        Ok(())
    }

    /// Makes partitions current.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_published(&self, dataset: &str, rows: impl Iterator<Item = PublishedRow>) -> Result<(), CatalogError> {
        // Not OR REPLACE, which removes rows without a word to triggers: what changes is noted (`sums`).
        let mut insert = self.tx.prepare_cached(
            "INSERT INTO restitch_partition VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
             ON CONFLICT(dataset, start_us) DO UPDATE SET partition = ?2, end_us = ?4, run_id = ?5, input_snapshot = ?6, published_snapshot = ?7, transform_digest = ?8,
               rows = ?9, bytes = ?10, checksum = ?11, settings_digest = ?12",
        )?;
        for p in rows {
            let (start, end) = (p.window.start().0, p.window.end().0);
            insert.execute(params![
                dataset,
                p.partition,
                start,
                end,
                p.run.0,
                p.input_snapshot.0,
                p.published_snapshot.0,
                p.transform_digest.to_string(),
                p.rows,
                p.bytes,
                p.checksum.to_string(),
                p.settings_digest.to_string()
            ])?;
        }
        Ok(())
    }

    /// Forgets a partition: it was not there before the run that is undone.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn remove_published(&self, dataset: &str, start: EventTime) -> Result<(), CatalogError> {
        self.tx.prepare_cached("DELETE FROM restitch_partition WHERE dataset = ?1 AND start_us = ?2")?.execute(params![dataset, start.0])?;
        Ok(())
    }

    /// Records the dataset that a table belongs to.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_dataset(&self, d: &DatasetRow, table: i64) -> Result<(), CatalogError> {
        self.tx.execute(
            "INSERT OR REPLACE INTO restitch_dataset VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![d.name, d.sources.join(","), d.grain, d.time_zone, table, serde_json::json!(d.upstream).to_string()],
        )?;
        self.tx.execute("DELETE FROM restitch_base WHERE dataset = ?1", [&d.name])?;
        if d.upstream.is_empty() {
            self.tx.execute("INSERT INTO restitch_base VALUES (?1, ?1)", [&d.name])?;
        }
        let mut insert = self.tx.prepare_cached("INSERT OR IGNORE INTO restitch_base SELECT ?1, base FROM restitch_base WHERE dataset = ?2")?;
        // One that is not published yet stands for itself: its dataset is complete to no time until then.
        let mut unknown = self
            .tx
            .prepare_cached("INSERT OR IGNORE INTO restitch_base SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM restitch_base WHERE dataset = ?2)")?;
        for upstream in &d.upstream {
            insert.execute([&d.name, upstream])?;
            unknown.execute([&d.name, upstream])?;
        }
        if !d.upstream.is_empty() {
            self.tx.execute(
                "INSERT OR IGNORE INTO restitch_base SELECT b.dataset, o.base FROM restitch_base b JOIN restitch_base o ON o.dataset = ?1 WHERE b.base = ?1",
                [&d.name],
            )?;
            self.tx.execute("DELETE FROM restitch_base WHERE base = ?1", [&d.name])?;
        }
        Ok(())
    }
}

pub(super) fn put_queue(c: &Connection, source: &str, rows: impl Iterator<Item = QueueRow>) -> Result<(), CatalogError> {
    let mut insert = c.prepare_cached(
        "INSERT INTO restitch_repair_queue(dataset, partition, start_us, end_us, source, snapshot_id, file, kind, tier, records, least_late_us, most_late_us)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    for q in rows {
        let (start, end) = (q.window.start().0, q.window.end().0);
        let (kind, snapshot) = (q.kind.name(), q.snapshot.0);
        insert.execute(params![
            q.dataset,
            q.partition,
            start,
            end,
            source,
            snapshot,
            q.file,
            kind,
            q.tier,
            q.records,
            q.least_late_us,
            q.most_late_us
        ])?;
    }
    Ok(())
}
