//! A reparse, from its request to its manifest: landed records of a window are read again from their payloads.
//! Never reads outside the window that was named, and leaves a manifest however it ends.

use super::{Error, Workshop, run::input_file};
use crate::{
    id::RunId,
    ingest::Progress,
    manifest::{Kind, Manifest, Mode, Recipe, Status, Timings, Validation},
    reparse::{self, Look},
    window::{Calendar, Grain, Window},
};
use std::time::Instant;

/// What a reparse is asked.
#[derive(Clone, Debug)]
pub struct ReparseRequest {
    /// The source.
    pub source: String,
    /// Start of the window: a date in the source's zone, or an instant.
    pub start: Option<String>,
    /// End of the window: a date (inclusive), or an instant (exclusive).
    pub end: Option<String>,
    /// Whether it only reads and counts.
    pub dry_run: bool,
    /// Why, for the manifest.
    pub reason: Option<String>,
}

impl Workshop {
    /// Returns the window of a reparse, resolved: days are days of the source's zone.
    ///
    /// # Errors
    /// There is no such source, or the window is not bounded on both sides.
    pub fn reparse_window(&self, request: &ReparseRequest) -> Result<Window, Error> {
        let source = self.project.source(&request.source)?;
        let days = Calendar { grain: Grain::Day, zone: source.time_zone };
        let window = days.resolve_typed(request.start.as_deref(), request.end.as_deref())?;
        window.ok_or_else(|| Error::Usage {
            message: "a reparse needs --start and --end: it reads a bounded window".into(),
            hint: Some("name the days, like --start 2026-05-01 --end 2026-05-31 (both included)".into()),
        })
    }

    /// Reads landed records again, as the source is declared now.
    ///
    /// # Errors
    /// See [`reparse::reparse`]; nothing was changed then. A reparse that began has a manifest that says how it ended.
    /// # After a crash
    /// The next command marks the run as failed and removes what it wrote; see ARCHITECTURE.md.
    pub fn reparse(&mut self, request: &ReparseRequest, progress: &dyn Progress) -> Result<Manifest, Error> {
        let began = Instant::now();
        let source = self.project.source(&request.source)?.clone();
        let window = self.reparse_window(request)?;
        // No ingest of this source meanwhile: what is looked at is all that there is.
        let _turn = self.store.lock(&format!("source-{}", source.name))?;
        let look = reparse::look(&mut self.catalog, &source, window)?.ok_or_else(|| Error::NoInput { source_name: source.name.clone() })?;
        let started = self.options.clock.now();
        let recipe = Recipe::of_reparse(&source, look.snapshot, started.0);
        let fresh = self.reparse_manifest(request, &look, recipe)?;
        let (mut manifest, claim) = self.new_run(started, fresh)?;
        let done = reparse::reparse(&self.store, &mut self.catalog, &source, &look, &mut manifest, started, progress);
        manifest.timings.wall_ms = began.elapsed().as_nanos() as f64 / 1e6;
        let ended = self.end(manifest, done.map_err(Error::from));
        // Only now: a run that says running and has no claim is taken for dead.
        drop(claim);
        ended
    }

    fn reparse_manifest(&mut self, request: &ReparseRequest, look: &Look, recipe: Recipe) -> Result<Manifest, Error> {
        let mut dropped = self.catalog.read(|v| v.dropped_of(&recipe.sources, look.snapshot))?;
        dropped.retain(|d| d.window.overlaps(look.window));
        // There may be one for each quarter of an hour.
        let gap = dropped.first().map(|first| match dropped.len() {
            1 => first.to_string(),
            n => format!("{first}, and {} more of the window", n - 1),
        });
        Ok(Manifest {
            run: RunId(0),
            kind: Kind::Reparse,
            status: Status::Running,
            mode: if request.dry_run { Mode::DryRun } else { Mode::Overwrite },
            validation: Validation::Block,
            operator: self.options.operator.clone(),
            reason: request.reason.clone(),
            asked: [&request.start, &request.end].into_iter().flatten().cloned().collect(),
            window: Some(look.window.bounds_text().into()),
            only: None,
            recipe,
            plan_digest: None,
            base_snapshot: look.snapshot,
            published_snapshot: None,
            published_by: None,
            published_us: None,
            of_run: None,
            inputs: look.files.iter().map(input_file).collect(),
            partitions: Vec::new(),
            checks: Vec::new(),
            checksum: None,
            timings: Timings::default(),
            versions: self.versions(&crate::config::Limits::default())?,
            log: Vec::new(),
            grants: Vec::new(),
            approval: None,
            gaps: gap.into_iter().collect(),
            error: None,
            discarded: None,
            bases: Vec::new(),
            upstream: Vec::new(),
            together: Vec::new(),
            others: None,
            reparse: None,
        })
    }
}
