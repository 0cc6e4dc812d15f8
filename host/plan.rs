//! Which partitions a run would touch, and why: a pure function of facts and a request.
//! Never reads the catalog or a clock. A plan holds ranges; partitions are named only when they must be.
//! `pipeline` gathers the facts; the same plan is printed by `plan` and executed by a run.

mod bound;
mod stale;

pub use bound::{BoundError, BoundPlan, BoundRange, BoundWaiting, PLAN_VERSION, Standing};
pub use stale::{Reasons, Staleness, Unready, stale, unready, unsettled};

use crate::{
    catalog::{Dropped, LiveFile, OPEN, PartitionVersions, PublishedRow, QueueKind, QueueRow, SLOT_US, Slot, cuts},
    id::{Digest, SnapshotId},
    manifest::{Kind, Settings, WriteMode},
    raw::RawInput,
    time::EventTime,
    watermark::{InputState, Stand, Tier},
    window::{Calendar, Window},
};
use std::collections::{BTreeMap, HashMap};

/// What the warehouse looks like at one snapshot, as far as one dataset is concerned.
#[derive(Clone, Debug)]
pub struct Facts {
    /// How the dataset's event time is cut.
    pub calendar: Calendar,
    /// The snapshot that the run would read.
    pub input_snapshot: SnapshotId,
    /// The transform that it would use.
    pub transform_digest: Digest,
    /// Its sources, as they stand.
    pub inputs: Vec<InputState>,
    /// How far they are complete, all together; none without a watermark.
    pub stand: Option<Stand>,
    /// Published partitions, in order of time.
    pub published: Vec<PublishedRow>,
    /// Records by quarter of an hour and ingest, in order of time.
    pub slots: Vec<Slot>,
    /// The repair queue, in order of time.
    pub queue: Vec<QueueRow>,
    /// Raw files at the input snapshot, with the bounds of their event time.
    pub files: Vec<LiveFile>,
    /// Where reparses of the source changed records, with the snapshot that each made.
    pub reparsed: Vec<(Window, SnapshotId)>,
    /// Event times of which raw records were removed by retention, in order of time.
    pub dropped: Vec<Dropped>,
    /// Whether it says which column has a row's time: a delete-insert of a part of a partition needs that.
    pub by_row_time: bool,
    /// The first instants of partitions that were published once, and that a rollback took away: in order of time.
    pub taken: Vec<EventTime>,
    /// Whether datasets are its input, and not sources.
    pub downstream: bool,
    /// The partitions of the datasets that are its input, with all that was published of them.
    pub upstream: Vec<PartitionVersions>,
    /// What of the datasets before it is not as it should be.
    pub unready: Vec<Unready>,
    /// The settings that are declared; `None` where nothing is registered that says which.
    pub declared: Option<Settings>,
    /// The settings that published partitions were made with, by their digest.
    pub settings: HashMap<Digest, Settings>,
}

impl Facts {
    /// Returns the published partition that begins at `start`.
    pub fn published_at(&self, start: EventTime) -> Option<&PublishedRow> {
        self.published.binary_search_by_key(&start, |p| p.window.start()).ok().map(|i| &self.published[i])
    }

    /// Returns whether the partition that begins at `start` was published once, and a rollback took it away.
    pub fn was_taken(&self, start: EventTime) -> bool {
        self.taken.binary_search(&start).is_ok()
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// run, repair or backfill.
    pub kind: Kind,
    /// The window; a backfill has one.
    pub window: Option<Window>,
    /// Only partitions with this reason.
    pub only: Option<Reason>,
    /// Partitions that begin before are left as they stand.
    pub frozen_before: Option<EventTime>,
    /// How its rows are to be put among those that are published.
    pub write: WriteMode,
    /// More partitions than this are refused.
    pub partitions_max: Option<u64>,
    /// More bytes to read than this are refused.
    pub bytes_max: Option<u64>,
}

/// Why a partition is in a plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// It is not there: it was never published, or a rollback took it away.
    Missing,
    /// Late records wait for it.
    Dirty,
    /// Records arrived on time after it was built.
    #[serde(rename = "new records")]
    NewRecords,
    /// It was made by another transform or with other settings, or what it was made of is another now (upstream changed).
    Stale,
    /// It was named, and nothing else speaks for it.
    Forced,
}

impl Reason {
    /// Returns its name in plans and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Missing => "missing",
            Reason::Dirty => "dirty",
            Reason::NewRecords => "new records",
            Reason::Stale => "stale",
            Reason::Forced => "forced",
        }
    }
}

/// Neighbouring partitions with one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedRange {
    /// The first partition.
    pub first: Window,
    /// The last partition.
    pub last: Window,
    /// How many.
    pub partitions: u64,
    /// Why they are in.
    pub reason: Reason,
    /// Records to read for them, duplicates included.
    pub records: i64,
}

/// What keeps records waiting that no run can take in any more.
pub const RAW_GONE: &str = "raw is gone";
/// What keeps late records waiting for a partition that a rollback took away.
pub const TAKEN: &str = "taken away";

/// A partition that records wait for and that this request leaves alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its name.
    pub partition: String,
    /// Its window.
    pub window: Window,
    /// repair or approval, which late records need; frozen; or raw is gone, where new records wait like late ones.
    pub tier: String,
    /// How many records wait.
    pub records: i64,
}

/// Which partitions a run would touch, and why.
#[derive(Clone, Debug)]
pub struct Plan {
    /// run, repair or backfill.
    pub kind: Kind,
    /// The window, resolved; `None` if nothing at all is known of.
    pub window: Option<Window>,
    /// How it is cut.
    pub calendar: Calendar,
    /// The snapshot that the run would read.
    pub input_snapshot: SnapshotId,
    /// What it would touch, in order of time.
    pub ranges: Vec<PlannedRange>,
    /// What waits and is left alone.
    pub waiting: Vec<Waiting>,
    /// Partitions in the window that need nothing.
    pub up_to_date: u64,
    /// Raw files to open.
    pub files: u64,
    /// Their size.
    pub bytes: i64,
    /// Partitions that are left out because raw of them is gone, and lookups that are not whole, in words; none if that holds for none.
    pub gaps: Vec<String>,
    /// How its rows are put among those that are published.
    pub write: WriteMode,
    /// Whether datasets are read, and not raw records.
    pub downstream: bool,
    /// Why stale partitions of the window are stale, in words, the first of them.
    pub stale: Vec<String>,
    /// Partitions of the datasets before it that are not as they should be, in words, the first of them.
    pub upstream: Vec<String>,
    /// What is published in its partitions: an overwrite replaces it, the other modes read it.
    pub standing: StandingRows,
}

/// What is published in the partitions of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, serde::Serialize, serde::Deserialize)]
pub struct StandingRows {
    /// Partitions that are there.
    pub partitions: u64,
    /// Their rows.
    pub rows: i64,
    /// Their bytes.
    pub bytes: i64,
}

/// One partition of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedPartition {
    /// Its name.
    pub name: String,
    /// Its window.
    pub window: Window,
    /// Why it is in.
    pub reason: Reason,
}

/// A plan that is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A backfill without start and end.
    #[error("a backfill needs --start and --end")]
    Unbounded,
    /// A border of the window cuts a partition.
    #[error(transparent)]
    Window(#[from] crate::window::WindowError),
    /// Raw of the window is gone: half of the rows are worse than none.
    #[error("{partitions} of the window cannot be computed again: {dropped}")]
    Dropped {
        /// How many partitions, and which.
        partitions: String,
        /// What was removed, when and why.
        dropped: Box<Dropped>,
        /// The first partition from which on the window could be computed.
        next: String,
    },
    /// Too many partitions.
    #[error("the plan has {partitions} partitions, more than --max-partitions {limit} allows")]
    Partitions {
        /// How many it has.
        partitions: u64,
        /// How many it may have.
        limit: u64,
    },
    /// Too much to read.
    #[error("the plan reads {bytes} bytes, more than --max-bytes {limit} allows")]
    Bytes {
        /// How much it reads.
        bytes: u64,
        /// How much it may read.
        limit: u64,
    },
}

impl Plan {
    /// Returns how many partitions it has.
    pub fn partition_count(&self) -> u64 {
        self.ranges.iter().map(|r| r.partitions).sum()
    }

    /// Returns how many records it reads.
    pub fn records(&self) -> i64 {
        self.ranges.iter().map(|r| r.records).sum()
    }

    /// Returns whether a partition that starts at `start` is in it.
    pub fn covers(&self, start: EventTime) -> bool {
        let next = self.ranges.partition_point(|r| r.last.end() <= start);
        self.ranges.get(next).is_some_and(|r| r.first.start() <= start)
    }

    /// Returns the part of a slice of time whose records are read: a delete-insert reads its window alone.
    fn part_of(&self, slice: Window) -> Window {
        let Some(window) = self.window.filter(|_| self.write == WriteMode::DeleteInsert) else { return slice };
        Window::new(slice.start().max(window.start()), slice.end().min(window.end())).unwrap_or(slice)
    }

    /// Returns the window from its first partition to its last.
    pub fn hull(&self) -> Option<Window> {
        Window::new(self.ranges.first()?.first.start(), self.ranges.last()?.last.end()).ok()
    }

    /// Returns its partitions, named, in order of time.
    pub fn partitions(&self) -> impl Iterator<Item = PlannedPartition> + '_ {
        self.ranges.iter().flat_map(|r| {
            let window = Window::new(r.first.start(), r.last.end()).unwrap_or(r.first);
            self.calendar.partitions(window).map(|window| PlannedPartition { name: self.calendar.name(&window), window, reason: r.reason })
        })
    }
}

/// What is known of one partition before it is decided on.
#[derive(Clone, Copy, Default)]
struct Known {
    records: i64,
    /// Newest ingest with records that were on time.
    on_time: Option<SnapshotId>,
    /// Records that were on time and came after what it was computed from.
    fresh: i64,
    waiting: i64,
    approval: bool,
    /// Whether it is stale.
    stale: bool,
    /// Whether that is because a dataset that it is made of has other rows now.
    upstream: bool,
}

/// Returns the plan.
///
/// # Errors
/// [`PlanError`]: an unbounded backfill, a window that cuts a partition, a limit.
pub fn plan(facts: &Facts, request: &Request) -> Result<Plan, PlanError> {
    let known = known_partitions(facts);
    if request.kind == Kind::Backfill && request.window.is_none() {
        return Err(PlanError::Unbounded);
    }
    if let Some(window) = request.window.filter(|_| request.write != WriteMode::DeleteInsert) {
        facts.calendar.check_aligned(window)?;
    }
    let hull = || {
        let (first, last) = (known.keys().next()?, facts.calendar.at(*known.keys().next_back()?));
        Window::new(*first, last.end()).ok()
    };
    let window = request.window.or_else(hull);
    let mut plan = Plan {
        kind: request.kind,
        window,
        calendar: facts.calendar,
        input_snapshot: facts.input_snapshot,
        ranges: Vec::new(),
        waiting: Vec::new(),
        up_to_date: 0,
        files: 0,
        bytes: 0,
        gaps: Vec::new(),
        write: request.write,
        downstream: facts.downstream,
        stale: Vec::new(),
        upstream: stale::unready_words(facts, request.window),
        standing: StandingRows::default(),
    };
    if let Some(window) = window {
        choose(facts, request, window, &known, &mut plan);
        refuse_dropped(facts, &plan)?;
        count_input(facts, &mut plan);
        count_standing(facts, &mut plan);
    }
    match (request.partitions_max, plan.partition_count()) {
        (Some(limit), partitions) if partitions > limit => return Err(PlanError::Partitions { partitions, limit }),
        _ => {}
    }
    match (request.bytes_max, plan.bytes as u64) {
        (Some(limit), bytes) if bytes > limit => Err(PlanError::Bytes { bytes, limit }),
        _ => Ok(plan),
    }
}

/// Returns how many records each partition has, duplicates included, by its first instant.
pub fn records_by_partition(calendar: Calendar, slots: &[Slot]) -> BTreeMap<EventTime, i64> {
    let mut records = BTreeMap::new();
    let mut current: Option<Window> = None;
    for slot in slots {
        let window = current.filter(|w| w.contains(slot.start)).unwrap_or_else(|| calendar.at(slot.start));
        current = Some(window);
        *records.entry(window.start()).or_default() += slot.records;
    }
    records
}

/// What is known, by the first instant of the partition.
type KnownMap = BTreeMap<EventTime, Known>;

fn known_partitions(facts: &Facts) -> KnownMap {
    let mut known = KnownMap::new();
    let mut queued: HashMap<(EventTime, SnapshotId), i64> = HashMap::new();
    for row in facts.queue.iter().filter(|q| q.kind == QueueKind::Late) {
        *queued.entry((row.window.start(), row.snapshot)).or_default() += row.records;
    }
    // An ingest brought records on time for a partition if it brought more than it queued.
    let settle = |start: EventTime, arrived: &BTreeMap<SnapshotId, i64>, known: &mut KnownMap| {
        let (read, entry) = (facts.published_at(start).map(|p| p.input_snapshot), known.entry(start).or_default());
        for (at, records) in arrived {
            let more = records - queued.get(&(start, *at)).copied().unwrap_or(0);
            if more > 0 {
                entry.on_time = entry.on_time.max(Some(*at));
                entry.fresh += if read.is_none_or(|read| *at > read) { more } else { 0 };
            }
        }
    };
    let mut current: Option<Window> = None;
    let mut arrived: BTreeMap<SnapshotId, i64> = BTreeMap::new();
    // What lay in the future when it came counts as on time once the watermark has passed it.
    let come = |s: &Slot| facts.stand.is_some_and(|w| s.start.0 + SLOT_US <= w.cutoffs.late.0);
    let slots = facts.slots.iter().map(|s| Slot { future: if come(s) { 0 } else { s.future }, ..*s });
    for slot in slots.filter(|s| s.records > s.future) {
        let window = match current {
            Some(w) if w.contains(slot.start) => w,
            _ => {
                if let Some(done) = current {
                    settle(done.start(), &arrived, &mut known);
                }
                arrived.clear();
                facts.calendar.at(slot.start)
            }
        };
        current = Some(window);
        *arrived.entry(slot.snapshot).or_default() += slot.records - slot.future;
        known.entry(window.start()).or_default().records += slot.records;
        // Only in zones of the past does a border cut a slot: then both sides may have its records.
        let end = EventTime(slot.start.0 + SLOT_US);
        if end > window.end() {
            let next = known.entry(window.end()).or_default();
            next.on_time = next.on_time.max((slot.records > slot.late + slot.future).then_some(slot.snapshot));
        }
    }
    if let Some(done) = current {
        settle(done.start(), &arrived, &mut known);
    }
    for (start, rows) in stale::upstream_rows(facts) {
        if rows.is_some() || facts.published_at(start).is_some() {
            known.entry(start).or_default().records += rows.unwrap_or(0);
        }
    }
    for row in &facts.queue {
        if row.waits(facts.published_at(row.window.start()).map(|p| p.input_snapshot)) && row.snapshot <= facts.input_snapshot {
            let entry = known.entry(row.window.start()).or_default();
            match row.tier.as_str() {
                // A key went elsewhere from a partition that was open: normal runs build it again.
                OPEN => {
                    entry.on_time = entry.on_time.max(Some(row.snapshot));
                    entry.fresh += row.records;
                }
                tier => {
                    entry.waiting += row.records;
                    entry.approval |= tier == Tier::Approval.name();
                }
            }
        }
    }
    known
}

/// Says what is left as it stands because a rollback took it away.
fn say_taken(facts: &Facts, left: &[Window], plan: &mut Plan) {
    if let (Some(first), Some(last)) = (left.first(), left.last()) {
        let names = named(facts, left.len() as u64, *first, *last);
        plan.gaps.push(format!("{names} left as it stands: taken away by a rollback, and only `restitch backfill` builds it again"));
    }
}

/// Decides on every partition of the window, and merges neighbours with one reason.
fn choose(facts: &Facts, request: &Request, window: Window, known: &KnownMap, plan: &mut Plan) {
    let reasons = Reasons::of_all(facts);
    let mut left_out: Vec<Window> = Vec::new();
    let mut left_frozen: Vec<Window> = Vec::new();
    let mut left_taken: Vec<Window> = Vec::new();
    let mut decide = |slice: Window| {
        let mut now = known.get(&slice.start()).copied().unwrap_or_default();
        let before = facts.published_at(slice.start());
        let why = before.map_or(Vec::new(), |p| reasons.of(p));
        (now.stale, now.upstream) = (!why.is_empty(), why.iter().any(Staleness::is_upstream));
        let reason = reason(request.kind, &now, before);
        let chosen = match request.kind {
            Kind::Repair => reason == Some(Reason::Dirty) && !now.approval,
            // What was never published has no history to protect; what was, waits for its approval.
            // Late records that are in no queue were landed before the dataset was declared.
            Kind::Run => match before {
                None => now.on_time.is_some() || now.waiting == 0,
                Some(_) if facts.downstream => now.upstream,
                Some(_) => reason == Some(Reason::NewRecords) && !now.approval,
            },
            _ => true,
        };
        let reason = match (request.kind, reason) {
            (Kind::Backfill, None) => Some(Reason::Forced),
            (_, reason) => reason,
        };
        let wanted = request.only.is_none_or(|only| applies(only, &now, before));
        if now.stale {
            stale::say(&mut plan.stale, &facts.calendar, slice, &why);
        }
        // A window that was named is refused; elsewhere such a partition is left as it stands.
        let gone = request.kind != Kind::Backfill && cuts(&facts.dropped, slice).is_some();
        // No run will ever take such records in: they wait like late ones.
        let fresh = gone && before.is_some_and(|p| now.on_time.is_some_and(|s| s > p.input_snapshot));
        if gone && reason.is_some() && ((chosen && wanted) || fresh || now.waiting > 0) {
            left_out.push(slice);
        }
        // Somebody took it back on purpose: only who names it has it built again.
        let taken = request.kind != Kind::Backfill && facts.was_taken(slice.start());
        if taken && ((chosen && wanted) || now.waiting > 0) {
            left_taken.push(slice);
        }
        let frozen = request.frozen_before.is_some_and(|before| slice.start() < before);
        // Where several reasons hold, the one that was asked for is the one to show.
        match reason.filter(|_| chosen && wanted && !gone && !frozen && !taken).map(|r| request.only.unwrap_or(r)) {
            Some(reason) => push(&mut plan.ranges, slice, reason, now.records),
            None if fresh || now.waiting > 0 => {
                let tier = match (gone, frozen, now.approval, taken) {
                    (true, ..) => RAW_GONE,
                    (_, true, ..) => "frozen",
                    (_, _, true, _) => "approval",
                    (.., true) => TAKEN,
                    _ => "repair",
                };
                let records = now.waiting + if fresh { now.fresh } else { 0 };
                plan.waiting.push(Waiting { partition: facts.calendar.name(&slice), window: slice, tier: tier.into(), records });
            }
            None if frozen && chosen && wanted && reason.is_some() => left_frozen.push(slice),
            None => plan.up_to_date += before.is_some() as u64,
        }
    };
    if request.kind == Kind::Backfill {
        facts.calendar.partitions(window).for_each(&mut decide);
    } else {
        for start in known.range(window.start()..window.end()).map(|(s, _)| *s) {
            decide(facts.calendar.at(start));
        }
    }
    say_left(facts, &left_frozen, &left_out, plan);
    say_taken(facts, &left_taken, plan);
}

/// Says what is left as it stands, and why.
fn say_left(facts: &Facts, left_frozen: &[Window], left_out: &[Window], plan: &mut Plan) {
    if let (Some(first), Some(last)) = (left_frozen.first(), left_frozen.last()) {
        plan.gaps.push(format!("{} left as it stands: frozen (frozen_before)", named(facts, left_frozen.len() as u64, *first, *last)));
    }
    if let (Some(first), Some(drop)) = (left_out.first(), left_out.iter().find_map(|w| cuts(&facts.dropped, *w))) {
        let names = named(facts, left_out.len() as u64, *first, left_out[left_out.len() - 1]);
        let rest = if facts.by_row_time { "; a backfill with --mode delete-insert still takes in what lies outside of that" } else { "" };
        plan.gaps.push(format!("{names} left as it stands: {drop}{rest}"));
    }
}

/// Refuses what was named and cannot be computed any more.
fn refuse_dropped(facts: &Facts, plan: &Plan) -> Result<(), PlanError> {
    let cut = |r: &PlannedRange| Window::new(r.first.start(), r.last.end()).ok().and_then(|w| cuts(&facts.dropped, plan.part_of(w)));
    let Some(dropped) = plan.ranges.iter().find_map(cut) else { return Ok(()) };
    let gone: Vec<Window> = plan.partitions().map(|p| p.window).filter(|w| cuts(&facts.dropped, plan.part_of(*w)).is_some()).collect();
    let (Some(first), Some(last)) = (gone.first(), gone.last()) else { return Ok(()) };
    let mut next = facts.calendar.at(last.end());
    while cuts(&facts.dropped, next).is_some() {
        next = facts.calendar.at(next.end());
    }
    let next = facts.calendar.name(&next);
    Err(PlanError::Dropped { partitions: named(facts, gone.len() as u64, *first, *last), dropped: Box::new(dropped.clone()), next })
}

/// How many partitions, and which are the first and the last.
fn named(facts: &Facts, count: u64, first: Window, last: Window) -> String {
    let (first, last) = (facts.calendar.name(&first), facts.calendar.name(&last));
    if count == 1 { format!("partition {first}") } else { format!("{count} partitions ({first} to {last})") }
}

fn reason(kind: Kind, now: &Known, before: Option<&PublishedRow>) -> Option<Reason> {
    let Some(before) = before else {
        // Late records for a partition that was never built are repaired like all late records.
        return Some(if kind == Kind::Repair && now.waiting > 0 { Reason::Dirty } else { Reason::Missing });
    };
    if kind == Kind::Run && now.on_time.is_some_and(|s| s > before.input_snapshot) {
        return Some(Reason::NewRecords);
    }
    if now.waiting > 0 {
        Some(Reason::Dirty)
    } else if now.on_time.is_some_and(|s| s > before.input_snapshot) {
        Some(Reason::NewRecords)
    } else if now.stale {
        Some(Reason::Stale)
    } else {
        None
    }
}

/// Returns whether one reason holds, whatever else does.
fn applies(only: Reason, now: &Known, before: Option<&PublishedRow>) -> bool {
    match (only, before) {
        (Reason::Missing, before) => before.is_none(),
        (Reason::Dirty, _) => now.waiting > 0,
        (Reason::NewRecords, Some(before)) => now.on_time.is_some_and(|s| s > before.input_snapshot),
        (Reason::Stale, Some(_)) => now.stale,
        (Reason::NewRecords | Reason::Stale, None) => false,
        (Reason::Forced, _) => true,
    }
}

fn push(ranges: &mut Vec<PlannedRange>, slice: Window, reason: Reason, records: i64) {
    match ranges.last_mut() {
        Some(last) if last.reason == reason && last.last.end() == slice.start() => {
            last.last = slice;
            last.partitions += 1;
            last.records += records;
        }
        _ => ranges.push(PlannedRange { first: slice, last: slice, partitions: 1, reason, records }),
    }
}

/// Counts the raw files whose event times overlap a planned range. Without bounds a file counts.
fn count_input(facts: &Facts, plan: &mut Plan) {
    let windows: Vec<Window> = plan.ranges.iter().filter_map(|r| Window::new(r.first.start(), r.last.end()).ok()).map(|w| plan.part_of(w)).collect();
    if windows.is_empty() {
        return;
    }
    for file in facts.files.iter().filter(|f| RawInput::may_hold(f, &windows)) {
        plan.files += 1;
        plan.bytes += file.bytes;
    }
    if plan.write == WriteMode::DeleteInsert && !facts.downstream {
        // Quarters of an hour that the window touches: whole partitions would say too much.
        for (range, window) in plan.ranges.iter_mut().zip(windows) {
            let touched = |s: &&Slot| s.start.0 + SLOT_US > window.start().0 && s.start < window.end();
            range.records = facts.slots.iter().filter(touched).map(|s| s.records).sum();
        }
    }
}

/// Counts what is published in the planned partitions, and names what stays there although raw of it is gone.
fn count_standing(facts: &Facts, plan: &mut Plan) {
    let (mut gaps, mut standing) = (Vec::new(), StandingRows::default());
    for p in facts.published.iter().filter(|p| plan.covers(p.window.start())) {
        standing = StandingRows { partitions: standing.partitions + 1, rows: standing.rows + p.rows, bytes: standing.bytes + p.bytes };
        if let (WriteMode::DeleteInsert, Some(dropped)) = (plan.write, cuts(&facts.dropped, p.window)) {
            gaps.push(format!("rows of {} outside the window are kept as {} published them: {dropped}", p.partition, p.run));
        }
    }
    plan.gaps.extend(gaps);
    plan.standing = standing;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::RunId, time::parse, window::Grain};
    use chrono_tz::Tz;

    const DAY: Calendar = Calendar { grain: Grain::Day, zone: Tz::UTC };

    fn published(day: &str, input: i64, transform: &[u8]) -> PublishedRow {
        let digest = Digest::of(transform);
        let window = DAY.parse(day).unwrap();
        let (input_snapshot, published_snapshot) = (SnapshotId(input), SnapshotId(input + 1));
        PublishedRow {
            window,
            partition: day.into(),
            run: RunId(1),
            input_snapshot,
            published_snapshot,
            transform_digest: digest,
            rows: 1,
            bytes: 1,
            checksum: digest,
            settings_digest: digest,
        }
    }

    fn slot(at: &str, snapshot: i64, records: i64, late: i64) -> Slot {
        Slot { start: parse(at, Tz::UTC).unwrap(), snapshot: SnapshotId(snapshot), records, late, future: 0 }
    }

    fn queue(day: &str, snapshot: i64, tier: &str) -> QueueRow {
        let window = DAY.parse(day).unwrap();
        let (partition, file, tier) = (day.into(), "late.jsonl".into(), tier.into());
        let kind = QueueKind::Late;
        QueueRow {
            dataset: "d".into(),
            partition,
            window,
            snapshot: SnapshotId(snapshot),
            file,
            kind,
            tier,
            records: 2,
            least_late_us: 1,
            most_late_us: 2,
        }
    }

    fn facts(published: Vec<PublishedRow>, slots: Vec<Slot>, queue: Vec<QueueRow>) -> Facts {
        let transform_digest = Digest::of(b"v1");
        Facts {
            calendar: DAY,
            input_snapshot: SnapshotId(9),
            transform_digest,
            inputs: vec![],
            stand: None,
            published,
            slots,
            queue,
            files: vec![],
            reparsed: vec![],
            dropped: vec![],
            by_row_time: false,
            taken: vec![],
            downstream: false,
            upstream: vec![],
            unready: vec![],
            declared: None,
            settings: HashMap::new(),
        }
    }

    fn request(kind: Kind, window: Option<(&str, &str)>, only: Option<Reason>) -> Request {
        Request {
            kind,
            window: window.map(|(a, b)| DAY.resolve(a, b).unwrap()),
            only,
            write: WriteMode::Overwrite,
            frozen_before: None,
            partitions_max: None,
            bytes_max: None,
        }
    }

    fn check(facts: &Facts, request: &Request, want: &[(&str, &str)]) -> Plan {
        let plan = plan(facts, request).unwrap();
        let got: Vec<(String, &str)> = plan.partitions().map(|p| (p.name, p.reason.name())).collect();
        let got: Vec<(&str, &str)> = got.iter().map(|(n, r)| (n.as_str(), *r)).collect();
        assert_eq!(got, want);
        plan
    }

    /// R12, with its days.
    #[test]
    fn only_missing_plans_the_two_days_that_are_not_there() {
        let f = facts(vec![published("2026-04-01", 1, b"v1"), published("2026-04-03", 1, b"v1")], vec![], vec![]);
        let window = Some(("2026-04-01", "2026-04-04"));
        check(&f, &request(Kind::Backfill, window, Some(Reason::Missing)), &[("2026-04-02", "missing"), ("2026-04-04", "missing")]);
        let all = check(
            &f,
            &request(Kind::Backfill, window, None),
            &[("2026-04-01", "forced"), ("2026-04-02", "missing"), ("2026-04-03", "forced"), ("2026-04-04", "missing")],
        );
        assert_eq!(all.ranges.len(), 4);
    }

    #[test]
    fn run_builds_what_came_on_time_and_leaves_late_records_to_repair() {
        let f = facts(
            vec![published("2026-05-01", 2, b"v1"), published("2026-05-02", 2, b"v1"), published("2026-05-04", 2, b"v0")],
            vec![
                slot("2026-04-20T10:00Z", 5, 1, 1),
                slot("2026-05-01T10:00Z", 1, 4, 0),
                slot("2026-05-01T10:00Z", 5, 2, 2),
                slot("2026-05-02T10:00Z", 1, 4, 0),
                slot("2026-05-02T10:15Z", 6, 1, 0),
                slot("2026-05-03T10:00Z", 5, 7, 0),
                slot("2026-05-04T10:00Z", 1, 7, 0),
            ],
            vec![queue("2026-04-20", 5, "approval"), queue("2026-05-01", 5, "repair")],
        );
        let run = check(&f, &request(Kind::Run, None, None), &[("2026-05-02", "new records"), ("2026-05-03", "missing")]);
        let waiting: Vec<_> = run.waiting.iter().map(|w| (w.partition.as_str(), w.tier.as_str())).collect();
        assert_eq!(waiting, [("2026-04-20", "approval"), ("2026-05-01", "repair")]);
        assert_eq!(run.up_to_date, 1, "a stale partition is not rebuilt in passing");
        let repair = check(&f, &request(Kind::Repair, None, None), &[("2026-05-01", "dirty")]);
        assert_eq!(repair.waiting.len(), 1);
        check(&f, &request(Kind::Backfill, Some(("2026-05-04", "2026-05-04")), Some(Reason::Stale)), &[("2026-05-04", "stale")]);
    }

    #[test]
    fn a_reparse_makes_stale_what_was_computed_before_it_and_nothing_else() {
        let days = ["2026-05-01", "2026-05-02", "2026-05-03"];
        let rows = vec![published(days[0], 2, b"v1"), published(days[1], 5, b"v1"), published(days[2], 2, b"v0")];
        let mut f = facts(rows, days.map(|d| slot(&format!("{d}T10:00Z"), 1, 4, 0)).to_vec(), vec![]);
        let hour =
            |day: &str| Window::new(parse(&format!("{day}T10:00Z"), Tz::UTC).unwrap(), parse(&format!("{day}T11:00Z"), Tz::UTC).unwrap()).unwrap();
        f.reparsed = vec![(hour("2026-04-30"), SnapshotId(4)), (hour(days[0]), SnapshotId(3)), (hour(days[1]), SnapshotId(4))];
        let why: Vec<String> = stale(&f).values().flatten().map(|s| s.to_string()).collect();
        assert_eq!(why, ["upstream changed", "another transform"]);
        let window = Some((days[0], days[2]));
        check(&f, &request(Kind::Backfill, window, Some(Reason::Stale)), &[(days[0], "stale"), (days[2], "stale")]);
        assert_eq!(check(&f, &request(Kind::Run, None, None), &[]).up_to_date, 3);
        check(&f, &request(Kind::Repair, None, None), &[]);
    }

    #[test]
    fn a_covered_queue_row_waits_no_more() {
        let f = facts(vec![published("2026-05-01", 5, b"v1")], vec![slot("2026-05-01T10:00Z", 5, 2, 2)], vec![queue("2026-05-01", 5, "repair")]);
        check(&f, &request(Kind::Repair, None, None), &[]);
    }

    #[test]
    fn limits_and_borders_refuse() {
        let f = facts(vec![], vec![], vec![]);
        assert_eq!(plan(&f, &request(Kind::Backfill, None, None)).unwrap_err(), PlanError::Unbounded);
        let many = Request { partitions_max: Some(3), ..request(Kind::Backfill, Some(("2026-04-01", "2026-04-04")), None) };
        assert_eq!(plan(&f, &many).unwrap_err(), PlanError::Partitions { partitions: 4, limit: 3 });
        let cut = request(Kind::Backfill, Some(("2026-04-01T06:00Z", "2026-04-02")), None);
        assert!(matches!(plan(&f, &cut).unwrap_err(), PlanError::Window(_)));
        assert!(plan(&f, &request(Kind::Run, None, None)).unwrap().window.is_none());
    }

    #[test]
    fn a_million_partitions_are_a_few_ranges() {
        let hours = Calendar { grain: Grain::Hour, zone: Tz::UTC };
        let f = Facts { calendar: hours, ..facts(vec![], vec![], vec![]) };
        let window = hours.resolve("1900-01-01", "2014-01-29").unwrap();
        let plan = plan(&f, &Request { window: Some(window), ..request(Kind::Backfill, None, None) }).unwrap();
        assert_eq!((plan.ranges.len(), plan.partition_count()), (1, 1_000_008));
    }
}
