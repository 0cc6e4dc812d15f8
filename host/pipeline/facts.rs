//! What is known of a dataset at one snapshot: what a plan is made of.
//! Never decides anything, and never trusts what it read before the catalog was written.
//! The rows that there may be a million of are read once for a plan and the run that carries it out.

use super::{Error, Workshop, upstream};
use crate::{
    catalog::{CatalogError, PublishedRow, QueueRow, Slot, View},
    config::Dataset,
    id::{Digest, SnapshotId},
    manifest::Kind,
    moves,
    plan::{Facts, Request},
    schema::envelope,
    time::EventTime,
    watermark::Stand,
    window::{Calendar, Window},
};

/// How much facts say of slots and of the repair queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All that there is, for a plan.
    Whole,
    /// What decides on states: which partitions are not built, or have other records than they were computed from. A plan made of these has the
    /// partitions of a plan made of all, but counts no records and no partition that is up to date.
    Behind,
    /// The slots of whole partitions, and of the queue as for states: for a plan that is made already, or of a window that is named.
    Inside(Window),
}

impl Extent {
    /// Returns what a plan for a request needs. Only a backfill looks at no partition outside of its window.
    pub(super) fn of(request: &Request, calendar: Calendar) -> Extent {
        let Some(window) = request.window.filter(|_| request.kind == Kind::Backfill) else { return Extent::Whole };
        let (first, last) = (calendar.at(window.start()), calendar.at(EventTime(window.end().0 - 1)));
        Window::new(first.start(), last.end()).map_or(Extent::Whole, Extent::Inside)
    }
}

/// Rows of the catalog, and what they were read for.
pub(super) struct Read {
    dataset: String,
    inputs: Vec<String>,
    extent: Extent,
    input_snapshot: SnapshotId,
    /// As the catalog was.
    mark: (i64, u64),
    published: Vec<PublishedRow>,
    slots: Vec<Slot>,
    queue: Vec<QueueRow>,
}

impl Read {
    fn is_of(&self, dataset: &Dataset, extent: Extent) -> bool {
        self.dataset == dataset.name && self.inputs == dataset.inputs && self.extent == extent
    }
}

type Rows = (Vec<PublishedRow>, Vec<Slot>, Vec<QueueRow>);

fn rows(v: &View, dataset: &Dataset, input_snapshot: SnapshotId, extent: Extent) -> Result<Rows, CatalogError> {
    let published = v.published(&dataset.name, None)?;
    let slots = match extent {
        Extent::Whole => v.slots(&dataset.inputs, input_snapshot)?,
        Extent::Behind => v.slots_behind(&dataset.inputs, input_snapshot, &published)?,
        Extent::Inside(window) => v.slots_inside(&dataset.inputs, input_snapshot, window)?,
    };
    let queue = match extent {
        Extent::Whole => v.queue(&dataset.name, None)?,
        Extent::Behind | Extent::Inside(_) => v.queue_behind(&dataset.name, &published)?,
    };
    Ok((published, slots, queue))
}

impl Workshop {
    /// Returns what is known of a dataset at one snapshot.
    pub(super) fn facts(&mut self, dataset: &Dataset, transform_digest: Digest, at: Option<SnapshotId>) -> Result<(Facts, SnapshotId), Error> {
        self.facts_of(dataset, transform_digest, at, Extent::Whole)
    }

    /// As [`Workshop::facts_of`], at the snapshot of a plan that is made already: that it was expired is no mistake of who carries the plan out.
    pub(super) fn facts_planned(
        &mut self,
        dataset: &Dataset,
        transform_digest: Digest,
        at: SnapshotId,
        extent: Extent,
    ) -> Result<(Facts, SnapshotId), Error> {
        self.facts_of(dataset, transform_digest, Some(at), extent).map_err(|e| match e {
            Error::Expired { asked } => {
                let change = format!("snapshot {asked}, which it reads, was expired with files that were removed from it");
                Error::Moved { dataset: dataset.name.clone(), changes: vec![change] }
            }
            e => e,
        })
    }

    /// As [`Workshop::facts`], of slots and queue no more than is asked for.
    pub(super) fn facts_of(
        &mut self,
        dataset: &Dataset,
        transform_digest: Digest,
        at: Option<SnapshotId>,
        extent: Extent,
    ) -> Result<(Facts, SnapshotId), Error> {
        let descriptor = self.descriptor_of(transform_digest)?;
        let sources = dataset.inputs.iter().map(|i| self.project.source(i)).collect::<Result<Vec<_>, _>>()?;
        let calendar = dataset.calendar();
        let now = self.options.clock.now();
        let follows = moves::follows(&self.project, dataset);
        if follows {
            for source in &dataset.inputs {
                moves::catch_up(&self.store, &mut self.catalog, &self.project, source, None, self.options.workers)?;
            }
        }
        let kept = self.read.take().filter(|kept| kept.is_of(dataset, extent));
        let (mut facts, latest) = self.catalog.read(|v| {
            let latest = v.latest()?;
            let input_snapshot = at.unwrap_or(latest);
            if input_snapshot > latest || input_snapshot.0 < 0 {
                return Err(Error::Snapshot { asked: input_snapshot, latest });
            }
            if !v.has_snapshot(input_snapshot)? {
                return Err(Error::Expired { asked: input_snapshot });
            }
            let mut files = Vec::new();
            for source in &sources {
                if let Some(table) = v.table(&source.table(), input_snapshot)? {
                    files.extend(v.files(&table, input_snapshot, table.column_id(envelope::EVENT_TIME))?);
                }
            }
            let inputs = v.input_states(&sources, now)?;
            let stand = Stand::of_all(&inputs, if sources.len() > 1 { v.joint(&dataset.name)? } else { None });
            let mark = v.mark()?;
            let (published, slots, queue) = match kept.filter(|kept| (kept.input_snapshot, kept.mark) == (input_snapshot, mark)) {
                Some(Read { published, slots, queue, .. }) => (published, slots, queue),
                None => rows(&v, dataset, input_snapshot, extent)?,
            };
            let facts = Facts {
                by_row_time: dataset.time_column.is_some(),
                downstream: false,
                upstream: Vec::new(),
                unready: Vec::new(),
                declared: descriptor.as_ref().and_then(|d| upstream::settings(&self.project, dataset, d, follows)),
                settings: v.settings_of(&dataset.name)?,
                calendar,
                input_snapshot,
                transform_digest,
                inputs,
                stand,
                published,
                slots,
                queue,
                files,
                reparsed: v.reparsed(&dataset.inputs, input_snapshot)?,
                dropped: v.dropped_of(&dataset.inputs, input_snapshot)?,
                taken: v.taken_away(&dataset.name)?,
            };
            Ok((facts, latest))
        })?;
        self.facts_upstream(dataset, &mut facts)?;
        Ok((facts, latest))
    }

    /// Keeps what was read for a plan, for the run that carries it out at once; `mark` is how the catalog was before it was read.
    pub(super) fn keep_read(&mut self, mark: (i64, u64), dataset: &Dataset, extent: Extent, facts: Facts) {
        // A run asks for the window that it computes; a plan of any other extent is not what it would read.
        if !matches!(extent, Extent::Inside(_)) {
            return;
        }
        let Facts { input_snapshot, published, slots, queue, .. } = facts;
        let (dataset, inputs) = (dataset.name.clone(), dataset.inputs.clone());
        self.read = Some(Read { dataset, inputs, extent, input_snapshot, mark, published, slots, queue });
    }
}
