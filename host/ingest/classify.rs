//! What each landed record is: on time or late and in which tier, in the future, in which slot, for which partitions.
//! Never moves a watermark by itself and never looks at a payload. All records of a file meet the same cutoffs.

use crate::{
    catalog::{QueueRow, SLOT_US, Slot},
    id::SnapshotId,
    schema::envelope,
    time::{EventTime, IngestTime},
    watermark::{Cutoffs, Policy, Punctuality, Tier, Watermark},
    window::{Calendar, Window},
};
use std::collections::BTreeMap;

/// Records of one file, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileCounts {
    /// Records that were at or after the cutoff.
    pub on_time: u64,
    /// Late ones that `repair` will handle.
    pub repair: u64,
    /// Late ones that need approval.
    pub approval: u64,
    /// Records too far ahead of the clock.
    pub future: u64,
    /// First and last event time.
    pub events: Option<(EventTime, EventTime)>,
    /// The latest event time that may move the watermark.
    latest: Option<EventTime>,
}

struct Target {
    dataset: String,
    calendar: Calendar,
    current: Option<Window>,
}

#[derive(Default)]
struct Late {
    records: i64,
    least_us: i64,
    most_us: i64,
    name: Option<(String, Window)>,
}

/// Classifies the records of an ingest, file by file.
pub(super) struct Classifier {
    policy: Policy,
    future_after: EventTime,
    watermark: Option<Watermark>,
    cutoffs: Option<Cutoffs>,
    targets: Vec<Target>,
    slots: BTreeMap<i64, Slot>,
    queue: Vec<QueueRow>,
    file: FileCounts,
    late: BTreeMap<(usize, EventTime, Tier), Late>,
}

impl Classifier {
    pub(super) fn new(policy: Policy, now: IngestTime, watermark: Option<Watermark>, datasets: Vec<(String, Calendar)>) -> Classifier {
        let target = |(dataset, calendar)| Target { dataset, calendar, current: None };
        Classifier {
            policy,
            future_after: policy.future_after(now),
            watermark,
            cutoffs: watermark.map(|w| w.cutoffs(&policy)),
            targets: datasets.into_iter().map(target).collect(),
            slots: BTreeMap::new(),
            queue: Vec::new(),
            file: FileCounts::default(),
            late: BTreeMap::new(),
        }
    }

    /// Returns the flags of a record at `at`, and counts it.
    pub(super) fn record(&mut self, at: EventTime) -> i32 {
        let future = at > self.future_after;
        let punctuality = self.cutoffs.map_or(Punctuality::OnTime, |c| c.classify(at));
        let counts = &mut self.file;
        counts.events = Some(counts.events.map_or((at, at), |(a, b)| (a.min(at), b.max(at))));
        if future {
            counts.future += 1;
        } else {
            counts.latest = counts.latest.max(Some(at));
        }
        let start = EventTime(at.0.div_euclid(SLOT_US) * SLOT_US);
        let slot = self.slots.entry(start.0).or_insert(Slot { start, snapshot: SnapshotId(0), records: 0, late: 0, future: 0 });
        slot.records += 1;
        match punctuality {
            Punctuality::OnTime => {
                slot.future += future as i64;
                self.file.on_time += 1;
                if future { envelope::FUTURE } else { 0 }
            }
            Punctuality::Late(tier) => {
                slot.late += 1;
                match tier {
                    Tier::Repair => self.file.repair += 1,
                    Tier::Approval => self.file.approval += 1,
                }
                self.queue_late(at, tier);
                envelope::LATE
            }
        }
    }

    fn queue_late(&mut self, at: EventTime, tier: Tier) {
        let late_us = self.watermark.map_or(0, |w| w.0.0 - at.0);
        for (i, target) in self.targets.iter_mut().enumerate() {
            let window = target.current.filter(|w| w.contains(at)).unwrap_or_else(|| target.calendar.at(at));
            target.current = Some(window);
            let late = self.late.entry((i, window.start(), tier)).or_default();
            if late.name.is_none() {
                late.name = Some((target.calendar.name(&window), window));
                late.least_us = late_us;
            }
            late.records += 1;
            late.least_us = late.least_us.min(late_us);
            late.most_us = late.most_us.max(late_us);
        }
    }

    /// Ends a file: its late records are queued, and only now it moves the watermark.
    pub(super) fn end_file(&mut self, file: &str) -> FileCounts {
        for ((i, _, tier), late) in std::mem::take(&mut self.late) {
            let Some((partition, window)) = late.name else { continue };
            self.queue.push(QueueRow {
                dataset: self.targets[i].dataset.clone(),
                partition,
                window,
                snapshot: SnapshotId(0),
                file: file.into(),
                tier: tier.name().into(),
                records: late.records,
                least_late_us: late.least_us,
                most_late_us: late.most_us,
            });
        }
        let counts = std::mem::take(&mut self.file);
        if let Some(latest) = counts.latest {
            let watermark = Watermark::advance(self.watermark, latest, &self.policy);
            (self.watermark, self.cutoffs) = (Some(watermark), Some(watermark.cutoffs(&self.policy)));
        }
        counts
    }

    pub(super) fn watermark(&self) -> Option<(Watermark, Cutoffs)> {
        self.watermark.zip(self.cutoffs)
    }

    pub(super) fn finish(self) -> (Vec<Slot>, Vec<QueueRow>) {
        (self.slots.into_values().collect(), self.queue)
    }
}
