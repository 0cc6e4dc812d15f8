//! What each landed record is: on time or late and in which tier, in the future, in which slot, for which partitions.
//! Never moves a watermark by itself and never looks at a payload. All records of a file meet the same cutoffs.

use crate::{
    catalog::{QueueKind, QueueRow, SLOT_US, Slot},
    id::SnapshotId,
    schema::envelope,
    time::{DAY_US, EventTime, IngestTime},
    watermark::{InputState, Policy, Stand, Tier, Watermark, lateness_bucket},
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

/// A dataset whose partitions late records are queued for.
pub(super) struct Target {
    pub(super) dataset: String,
    pub(super) calendar: Calendar,
    /// The other sources that it is made of, and how far it was complete. Without others the source's own cutoffs hold.
    pub(super) others: Vec<InputState>,
    pub(super) joint: Option<Stand>,
    pub(super) current: Option<Window>,
    /// How far it was complete when the ingest began, and the first of its records that are on time by that.
    pub(super) begun: Option<Stand>,
    pub(super) first_on_time: Option<EventTime>,
}

impl Target {
    /// Brings the dataset's own cutoffs up to where its sources stand.
    pub(super) fn follow(&mut self, own: &InputState) {
        if !self.others.is_empty() {
            let inputs: Vec<InputState> = self.others.iter().chain([own]).cloned().collect();
            self.joint = Stand::of_all(&inputs, self.joint);
        }
    }
}

#[derive(Default)]
struct Late {
    records: i64,
    least_us: i64,
    most_us: i64,
    name: Option<(String, Window)>,
}

/// Slots of a day: a bit of a number stands for each.
const DAY_SLOTS: usize = (DAY_US / SLOT_US) as usize;

/// Records of a slot that came in a row of one day.
#[derive(Clone, Copy, Default)]
struct Counted {
    records: i64,
    late: i64,
    future: i64,
}

/// What the records in a row of one UTC day brought.
struct Day {
    /// Days since the epoch.
    day: i64,
    slots: [Counted; DAY_SLOTS],
    /// The slots that have any.
    touched: u128,
}

impl Default for Day {
    fn default() -> Day {
        Day { day: i64::MIN, slots: [Counted::default(); DAY_SLOTS], touched: 0 }
    }
}

impl Day {
    /// Adds what is counted to `slots`, by their first instant, and begins anew.
    fn settle(&mut self, slots: &mut BTreeMap<i64, Slot>) {
        while self.touched != 0 {
            let i = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            let counted = std::mem::take(&mut self.slots[i]);
            let start = self.day * DAY_US + i as i64 * SLOT_US;
            let fresh = || Slot { start: EventTime(start), snapshot: SnapshotId(0), records: 0, late: 0, future: 0 };
            let slot = slots.entry(start).or_insert_with(fresh);
            slot.records += counted.records;
            slot.late += counted.late;
            slot.future += counted.future;
        }
    }
}

/// Classifies the records of an ingest, file by file.
pub(super) struct Classifier {
    policy: Policy,
    future_after: EventTime,
    own: InputState,
    targets: Vec<Target>,
    /// Whether a target has cutoffs of its own.
    joint: bool,
    /// What each slot has, without what the records in a row of one UTC day brought: that is in `day`.
    slots: BTreeMap<i64, Slot>,
    day: Day,
    lateness: BTreeMap<i64, i64>,
    queue: Vec<QueueRow>,
    file: FileCounts,
    late: BTreeMap<(usize, EventTime, Tier), Late>,
}

impl Classifier {
    pub(super) fn new(policy: Policy, now: IngestTime, own: InputState, mut targets: Vec<Target>) -> Classifier {
        targets.iter_mut().for_each(|t| t.follow(&own));
        Classifier {
            policy,
            future_after: policy.future_after(now),
            own,
            joint: targets.iter().any(|t| !t.others.is_empty()),
            targets,
            slots: BTreeMap::new(),
            day: Day::default(),
            lateness: BTreeMap::new(),
            queue: Vec::new(),
            file: FileCounts::default(),
            late: BTreeMap::new(),
        }
    }

    /// Returns the flags of a record at `at`, and counts it.
    pub(super) fn record(&mut self, at: EventTime) -> i32 {
        let future = at > self.future_after;
        let counts = &mut self.file;
        counts.events = Some(counts.events.map_or((at, at), |(a, b)| (a.min(at), b.max(at))));
        if future {
            counts.future += 1;
        } else {
            counts.latest = counts.latest.max(Some(at));
        }
        let tier = self.late(at);
        let slot = self.slot(at);
        slot.records += 1;
        match tier {
            None => {
                slot.future += future as i64;
                self.file.on_time += 1;
                if future { envelope::FUTURE } else { 0 }
            }
            Some(tier) => {
                slot.late += 1;
                match tier {
                    Tier::Repair => self.file.repair += 1,
                    Tier::Approval => self.file.approval += 1,
                }
                envelope::LATE
            }
        }
    }

    /// Returns where the record at `at` is counted: most often in the day of the record before.
    fn slot(&mut self, at: EventTime) -> &mut Counted {
        let day = at.0.div_euclid(DAY_US);
        if self.day.day != day {
            self.day.settle(&mut self.slots);
            self.day.day = day;
        }
        let i = (at.0.rem_euclid(DAY_US) / SLOT_US) as usize;
        self.day.touched |= 1 << i;
        &mut self.day.slots[i]
    }

    /// Queues a late record, and returns its tier: the one of its source, or the worst one that it has in a dataset of several sources.
    fn late(&mut self, at: EventTime) -> Option<Tier> {
        let own = self.own.stands;
        if let Some(stand) = own
            && at < stand.watermark.0
        {
            *self.lateness.entry(lateness_bucket(stand.watermark.0.0 - at.0)).or_default() += 1;
        }
        let mut worst = own.and_then(|s| s.cutoffs.late_tier(at));
        if worst.is_none() && !self.joint {
            return None;
        }
        for i in 0..self.targets.len() {
            let stand = if self.targets[i].others.is_empty() { own } else { self.targets[i].joint };
            let Some((stand, tier)) = stand.and_then(|s| Some((s, s.cutoffs.late_tier(at)?))) else {
                let first = &mut self.targets[i].first_on_time;
                *first = Some(first.map_or(at, |f| f.min(at)));
                continue;
            };
            worst = worst.max(Some(tier));
            self.queue_late(i, at, tier, stand.watermark.0.0 - at.0);
        }
        worst
    }

    fn queue_late(&mut self, i: usize, at: EventTime, tier: Tier, late_us: i64) {
        let target = &mut self.targets[i];
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
                kind: QueueKind::Late,
                tier: tier.name().into(),
                records: late.records,
                least_late_us: late.least_us,
                most_late_us: late.most_us,
            });
        }
        let counts = std::mem::take(&mut self.file);
        if let Some(latest) = counts.latest {
            let watermark = Watermark::advance(self.own.stands.map(|s| s.watermark), latest, &self.policy);
            self.own = InputState { stands: Some(watermark.stand(&self.policy)), idle: false, ..self.own.clone() };
            self.targets.iter_mut().for_each(|t| t.follow(&self.own));
        }
        counts
    }

    pub(super) fn stands(&self) -> Option<Stand> {
        self.own.stands
    }

    pub(super) fn finish(mut self) -> Classified {
        self.day.settle(&mut self.slots);
        let slots = self.slots.into_values().collect();
        let joint = self.targets.into_iter().filter(|t| !t.others.is_empty()).collect();
        Classified { slots, queue: self.queue, lateness: self.lateness, joint }
    }
}

/// What an ingest found out about its records.
pub(super) struct Classified {
    pub(super) slots: Vec<Slot>,
    pub(super) queue: Vec<QueueRow>,
    /// Records by how long before the watermark they happened: see [`lateness_bucket`].
    pub(super) lateness: BTreeMap<i64, i64>,
    /// Datasets of several sources.
    pub(super) joint: Vec<Target>,
}
