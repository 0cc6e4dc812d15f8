//! Staged runs become visible: one, or those of several datasets in one transaction, all of them or none.
//! Never weaker than publishing them one by one: each is admitted, checked and compared as alone; and all that speaks against it is said at once.

use super::{
    Error, Workshop,
    run::{StagedFiles, ms, read_staged},
};
use crate::{
    catalog::StateWrite,
    id::RunId,
    manifest::{Manifest, Status},
    publish::{self, PublishError, Ready},
    store::Claim,
};
use std::time::Instant;

impl Workshop {
    /// Publishes staged runs in one transaction, and returns their manifests in the given order.
    ///
    /// # Errors
    /// [`Error::Together`] with all that keeps each of them from it; a conflict of any of them. Nothing was published then.
    /// # After a crash
    /// All of them are visible or none; those that are not are staged as before.
    pub fn publish_together(&mut self, runs: &[RunId]) -> Result<Vec<Manifest>, Error> {
        if let Some(twice) = runs.iter().enumerate().find(|(i, run)| runs[..*i].contains(run)) {
            return Err(Error::Usage { message: format!("{} is named twice", twice.1), hint: None });
        }
        let (mut ready, mut problems) = (Vec::new(), Vec::new());
        let operator = self.options.operator.clone();
        for run in runs {
            match self.ready(*run, &[&operator]) {
                Ok(r) => ready.push(r),
                Err(e) => problems.push((*run, e)),
            }
        }
        for (i, (_, manifest, _)) in ready.iter().enumerate() {
            let dataset = &manifest.recipe.dataset;
            if let Some((_, first, _)) = ready[..i].iter().find(|(_, m, _)| m.recipe.dataset == *dataset) {
                let message = format!("{} is a run of {dataset} too, and one snapshot has one run of a dataset", first.run);
                problems.push((manifest.run, Error::Usage { message, hint: Some("publish them one after the other".into()) }));
            }
        }
        if !problems.is_empty() {
            return Err(Error::Together { problems });
        }
        for (_, manifest, _) in &mut ready {
            manifest.together = runs.iter().filter(|r| **r != manifest.run).copied().collect();
        }
        self.publish_ready(ready)
    }

    /// See [`Workshop::publish`].
    pub(super) fn publish_staged(&mut self, run: RunId, operators: &[&str]) -> Result<Manifest, Error> {
        let ready = self.ready(run, operators)?;
        Ok(self.publish_ready(vec![ready])?.remove(0))
    }

    fn publish_ready(&mut self, mut ready: Vec<(Claim, Manifest, StagedFiles)>) -> Result<Vec<Manifest>, Error> {
        let began = Instant::now();
        let now = self.options.clock.now();
        let mut each: Vec<Ready> =
            ready.iter_mut().map(|(_, manifest, staged)| Ready { manifest, fields: &staged.fields, staged: &staged.files }).collect();
        publish::publish_together(&self.store, &mut self.catalog, &mut each, &self.options.operator, now)?;
        let took = ms(began) / ready.len() as f64;
        let mut manifests = Vec::new();
        for (claim, mut manifest, _) in ready {
            let timings = &mut manifest.timings;
            timings.publish_ms += took;
            timings.settle(timings.wall_ms + took, timings.workers.max(1) as usize);
            // The swap wrote the manifest; only its own duration could not be in it.
            self.catalog.record(|r| r.put_run(&manifest, Some(now))).ok();
            drop(claim);
            manifests.push(manifest);
        }
        Ok(manifests)
    }

    /// Claims a staged run, and asks everything that is asked before a publication.
    fn ready(&mut self, run: RunId, operators: &[&str]) -> Result<(Claim, Manifest, StagedFiles), Error> {
        self.show(run)?;
        // First the claim, then the look: another process may just have published it.
        let claim = self.claim(&run.to_string())?.ok_or(PublishError::Busy { run })?;
        let mut manifest = self.show(run)?.row.manifest;
        if manifest.status != Status::Staged {
            return Err(PublishError::status(&manifest, "staged").into());
        }
        self.admit_staged(&mut manifest, operators)?;
        let staged = read_staged(&self.store, run)?;
        publish::check_staged(&self.store, &staged.files)?;
        Ok((claim, manifest, staged))
    }
}
