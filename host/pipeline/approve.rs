//! Who may do what to a dataset, asked at every way to a publication; and the word of somebody else.
//! Never lets a run through that `access` refuses: what waits for a word is computed, checked and staged, and invisible.
//! `run`, `publish`, `rollback` and `approve` pass through here.

use super::{Error, Extent, Workshop};
use crate::{
    access::{self, AccessError, Approval, Given},
    catalog::StateWrite,
    config::{Access, Dataset},
    id::{RunId, SnapshotId},
    manifest::{Manifest, Mode, Status},
    plan::Facts,
    publish::PublishError,
    time::EventTime,
    window::Window,
};

/// Returns the name of the user that the process runs as.
pub fn system_user() -> String {
    whoami::username().unwrap_or_else(|_| "unknown".into())
}

impl Workshop {
    /// Asks whether the operator may carry out a plan, and returns why its publication needs somebody else's word, if it does.
    ///
    /// # Errors
    /// They may not, or a partition is frozen.
    pub(super) fn admit(&self, dataset: &str, mode: Mode, windows: &[Window], facts: &Facts) -> Result<Option<String>, Error> {
        if mode == Mode::DryRun {
            return Ok(None);
        }
        let declared = self.project.dataset(dataset)?;
        access::not_frozen(dataset, &declared.access, declared.calendar(), windows.iter().copied())?;
        if mode != Mode::Stage {
            access::may_publish(dataset, &declared.access, &[&self.options.operator])?;
        }
        Ok(access::approval_needed(&declared.access, &old(facts, windows)))
    }

    /// Asks the same again of a run that was computed before.
    ///
    /// # Errors
    /// A partition is frozen, none of `operators` may publish, or a word is missing or out of date.
    pub(super) fn admit_staged(&mut self, manifest: &mut Manifest, operators: &[&str]) -> Result<(), Error> {
        let dataset = self.project.dataset(&manifest.recipe.dataset)?.clone();
        let windows = windows(manifest);
        access::not_frozen(&dataset.name, &dataset.access, dataset.calendar(), windows.iter().copied())?;
        access::may_publish(&dataset.name, &dataset.access, operators)?;
        let now = self.options.clock.now();
        if manifest.approval.is_none()
            && let Some(why) = self.approval_needed(&dataset, manifest, &windows)?
        {
            // It has grown old since it was staged.
            manifest.approval = Some(Approval::ask(why, &dataset.access, now));
            self.catalog.record(|r| r.put_run(manifest, Some(now)))?;
        }
        if let Some(approval) = &manifest.approval {
            approval.in_time(now)?;
            approval.still_counts(&dataset.name, &dataset.access, &manifest.operator)?;
            if approval.given.is_none() {
                return Err(waiting(manifest, &dataset.access));
            }
        }
        Ok(())
    }

    /// Asks whether the operator may undo a run. What stood before was published by those who may, so no third person is
    /// needed: where a publication needs a word, one of those who may give it can undo it.
    ///
    /// # Errors
    /// They may not, or a partition is frozen.
    pub(super) fn admit_rollback(&mut self, undone: &Manifest) -> Result<(), Error> {
        let dataset = self.project.dataset(&undone.recipe.dataset)?.clone();
        let (name, rules, operator) = (&dataset.name, &dataset.access, self.options.operator.clone());
        let windows = windows(undone);
        access::not_frozen(name, rules, dataset.calendar(), windows.iter().copied())?;
        if rules.approvers.contains(&operator) {
            return Ok(());
        }
        access::may_publish(name, rules, &[&operator])?;
        match self.approval_needed(&dataset, undone, &windows)? {
            Some(_) => Err(AccessError::Approver { operator, dataset: name.clone(), approvers: rules.approvers.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Gives the operator's word for a run that waits for it, and publishes the run unless `later`.
    ///
    /// # Errors
    /// It does not wait, the operator may not give it, it is too late; and those of [`Workshop::publish`].
    pub fn approve(&mut self, run: RunId, reason: &str, later: bool) -> Result<Manifest, Error> {
        if reason.trim().is_empty() {
            return Err(Error::Usage { message: "an approval needs a reason".into(), hint: Some("--reason TEXT says why".into()) });
        }
        self.show(run)?;
        let claim = self.claim(&run.to_string())?.ok_or(PublishError::Busy { run })?;
        let mut manifest = self.show(run)?.row.manifest;
        if manifest.status != Status::Staged {
            return Err(PublishError::status(&manifest, "staged").into());
        }
        let access = self.project.dataset(&manifest.recipe.dataset)?.access.clone();
        let now = self.options.clock.now();
        let operator = self.options.operator.clone();
        let Some(approval) = manifest.approval.as_mut() else {
            let hint = Some(format!("`restitch publish {run}` makes it visible"));
            return Err(Error::Usage { message: format!("{run} waits for nobody's word"), hint });
        };
        let given = Given { operator: operator.clone(), reason: reason.into(), at_us: now.0 };
        approval.give(&manifest.recipe.dataset, &access, &manifest.operator, given)?;
        self.catalog.record(|r| r.put_run(&manifest, Some(now)))?;
        drop(claim);
        let asked = manifest.operator.clone();
        if later { Ok(manifest) } else { self.publish_staged(run, &[&asked, &operator]) }
    }

    fn approval_needed(&mut self, dataset: &Dataset, manifest: &Manifest, windows: &[Window]) -> Result<Option<String>, Error> {
        if !access::asks_for_age(&dataset.access) {
            return Ok(access::approval_needed(&dataset.access, &[]));
        }
        let (facts, _) = self.facts_of(dataset, manifest.recipe.transform_digest, None, Extent::Behind)?;
        Ok(access::approval_needed(&dataset.access, &old(&facts, windows)))
    }
}

/// The error of a run that waits.
pub(super) fn waiting(manifest: &Manifest, access: &Access) -> Error {
    Error::Waiting {
        run: manifest.run,
        why: manifest.approval.as_ref().map_or(String::new(), |a| a.why.clone()),
        approvers: access.approvers.iter().filter(|a| **a != manifest.operator).cloned().collect(),
    }
}

fn windows(manifest: &Manifest) -> Vec<Window> {
    manifest.partitions.iter().filter_map(|p| Window::new(EventTime(p.start_us), EventTime(p.end_us)).ok()).collect()
}

/// The partitions that are published, or were until a rollback took them away, and are final or have late records of the last tier waiting.
fn old(facts: &Facts, windows: &[Window]) -> Vec<String> {
    let waits = |w: &Window, read| facts.queue.iter().any(|q| q.window.start() == w.start() && q.tier == "approval" && q.snapshot > read);
    let is_old = |w: &&Window| {
        // Where nothing stands, all late records wait.
        let taken = facts.was_taken(w.start()).then_some(SnapshotId(-1));
        let Some(read) = facts.published_at(w.start()).map(|p| p.input_snapshot).or(taken) else { return false };
        facts.stand.is_some_and(|s| w.end() <= s.cutoffs.approval) || waits(w, read)
    };
    windows.iter().filter(is_old).map(|w| facts.calendar.name(w)).collect()
}
