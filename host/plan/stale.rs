//! Why published partitions are stale, and what of the datasets before them is not as it should be: computed, never stored.
//! Never says what is to be done about it: a plan does.

use super::{Facts, TAKEN, known_partitions};
use crate::{
    catalog::{PartitionVersions, PublishedRow, QueueKind, QueueRow},
    id::{Digest, RunId, SnapshotId},
    manifest::Settings,
    time::EventTime,
    window::{Calendar, Window},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
};

/// Why a published partition is stale.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Staleness {
    /// The dataset's transform has other bytes now.
    Transform,
    /// Its parameters, key, dedup, lookups or filter are others than declared: what was, and what is, in words.
    Settings(Vec<String>),
    /// A reparse changed records of it after it was computed.
    Reparse,
    /// A partition that it is made of has other rows than it was computed from.
    Upstream {
        /// The dataset.
        dataset: String,
        /// The partition, the first of those that changed.
        partition: String,
        /// The run that made its rows what they are.
        run: RunId,
        /// What that run did: published, rolled back, or taken away.
        what: &'static str,
        /// How many more partitions of its input changed.
        more: usize,
    },
}

impl Staleness {
    /// Returns whether rows of another dataset are the reason.
    pub fn is_upstream(&self) -> bool {
        matches!(self, Staleness::Upstream { .. })
    }
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Staleness::Transform => f.write_str("another transform"),
            Staleness::Settings(words) => f.write_str(&words.join(", ")),
            Staleness::Reparse => f.write_str("upstream changed"),
            Staleness::Upstream { dataset, partition, run, what, more } => {
                let more = if *more > 0 { format!(", and {more} more changed") } else { String::new() };
                write!(f, "upstream {dataset} {partition} was {what} by {run} after this{more}")
            }
        }
    }
}

/// A partition of a dataset that another dataset is made of, and that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unready {
    /// The dataset.
    pub dataset: String,
    /// The partition's name.
    pub partition: String,
    /// Its window.
    pub window: Window,
    /// missing, dirty, behind its records, or stale.
    pub what: &'static str,
}

/// Tells why a published partition is stale: one at a time, since there may be a million of them.
pub struct Reasons<'f> {
    facts: &'f Facts,
    declared: Option<(&'f Settings, Digest)>,
    /// What each partition is made of, where that is datasets.
    made_of: HashMap<EventTime, Vec<&'f PartitionVersions>>,
    /// Partitions with records that a reparse changed after they were computed.
    reparsed: HashSet<EventTime>,
    /// How settings that rows were made with differ from those that are declared, in words, as far as it was asked for.
    differences: RefCell<HashMap<(Digest, bool), Vec<String>>>,
}

impl<'f> Reasons<'f> {
    /// Returns the reasons that `facts` have.
    pub fn of_all(facts: &'f Facts) -> Reasons<'f> {
        let mut made_of: HashMap<EventTime, Vec<&PartitionVersions>> = HashMap::new();
        for u in &facts.upstream {
            facts.calendar.partitions(u.window).for_each(|w| made_of.entry(w.start()).or_default().push(u));
        }
        let mut reparsed = HashSet::new();
        for (window, snapshot) in &facts.reparsed {
            let first = facts.published.partition_point(|p| p.window.end() <= window.start());
            let touched = facts.published[first..].iter().take_while(|p| p.window.start() < window.end());
            reparsed.extend(touched.filter(|p| p.input_snapshot < *snapshot).map(|p| p.window.start()));
        }
        let declared = facts.declared.as_ref().map(|d| (d, d.digest()));
        Reasons { facts, declared, made_of, reparsed, differences: RefCell::default() }
    }

    /// Returns why a partition is stale; nothing, if it is not.
    pub fn of(&self, p: &PublishedRow) -> Vec<Staleness> {
        let mut reasons = Vec::new();
        let same = p.transform_digest == self.facts.transform_digest;
        if !same {
            reasons.push(Staleness::Transform);
        }
        if let Some((declared, digest)) = &self.declared
            && *digest != p.settings_digest
        {
            let mut known = self.differences.borrow_mut();
            let words = known.entry((p.settings_digest, same)).or_insert_with(|| match self.facts.settings.get(&p.settings_digest) {
                Some(made) => made.differences(declared, same),
                None => vec!["its rows were made with several settings".to_owned()],
            });
            if !words.is_empty() {
                reasons.push(Staleness::Settings(words.clone()));
            }
        }
        let start = p.window.start();
        reasons.extend(self.made_of.get(&start).and_then(|made_of| upstream_changed(self.facts, p, made_of)));
        if self.reparsed.contains(&start) {
            reasons.push(Staleness::Reparse);
        }
        reasons
    }
}

/// Returns why published partitions are stale, by their first instant; the others are not in it.
pub fn stale(facts: &Facts) -> BTreeMap<EventTime, Vec<Staleness>> {
    let reasons = Reasons::of_all(facts);
    let all = facts.published.iter().map(|p| (p.window.start(), reasons.of(p)));
    all.filter(|(_, why)| !why.is_empty()).collect()
}

/// Compares what a partition was computed from with what is published of it now, by content: the same rows under another run change nothing.
fn upstream_changed(facts: &Facts, p: &PublishedRow, made_of: &[&PartitionVersions]) -> Option<Staleness> {
    let rows = |u: &PartitionVersions, at: SnapshotId| u.at(at).and_then(|v| v.checksum);
    let differs = |u: &&&PartitionVersions| facts.input_snapshot > p.input_snapshot && rows(u, p.input_snapshot) != rows(u, facts.input_snapshot);
    let mut changed = made_of.iter().filter(differs);
    let first = changed.next()?;
    let now = first.at(facts.input_snapshot)?;
    let what = match (now.rollback, now.checksum) {
        (_, None) => "taken away",
        (true, _) => "rolled back",
        (false, _) => "published",
    };
    let (dataset, partition) = (first.dataset.clone(), first.partition.clone());
    Some(Staleness::Upstream { dataset, partition, run: now.run, what, more: changed.count() })
}

/// Returns the rows that partitions can be made of at the input snapshot, by their first instant; `None` where there were some, and are none any more.
pub(super) fn upstream_rows(facts: &Facts) -> BTreeMap<EventTime, Option<i64>> {
    let mut rows: BTreeMap<EventTime, Option<i64>> = BTreeMap::new();
    for u in &facts.upstream {
        let Some(version) = u.at(facts.input_snapshot) else { continue };
        for window in facts.calendar.partitions(u.window) {
            let entry = rows.entry(window.start()).or_default();
            if version.checksum.is_some() {
                *entry = Some(entry.unwrap_or(0) + version.rows);
            }
        }
    }
    rows
}

/// Returns the partitions of a dataset that are not as they should be, in order of time, and the word for each.
pub fn unready(facts: &Facts) -> Vec<(Window, &'static str)> {
    let stale = stale(facts);
    let known = known_partitions(facts);
    let starts: BTreeSet<EventTime> = known.keys().chain(stale.keys()).copied().collect();
    let word = |start: EventTime| {
        let now = known.get(&start).copied().unwrap_or_default();
        Some(match facts.published_at(start) {
            None if facts.was_taken(start) => TAKEN,
            None => "missing",
            Some(_) if now.waiting > 0 => "dirty",
            Some(p) if now.on_time.is_some_and(|s| s > p.input_snapshot) => "behind its records",
            Some(_) if stale.contains_key(&start) => "stale",
            Some(_) => return None,
        })
    };
    starts.into_iter().filter_map(|start| Some((facts.calendar.at(start), word(start)?))).collect()
}

/// Lines that a plan has of one kind, at most.
const LINES_MAX: usize = 20;

/// Returns in words what of the datasets before it is not as it should be, as far as it lies in the window.
pub(super) fn unready_words(facts: &Facts, window: Option<Window>) -> Vec<String> {
    let inside: Vec<&Unready> = facts.unready.iter().filter(|u| window.is_none_or(|w| w.overlaps(u.window))).collect();
    let mut words: Vec<String> = inside.iter().take(LINES_MAX).map(|u| format!("{} {} is {}", u.dataset, u.partition, u.what)).collect();
    if inside.len() > LINES_MAX {
        words.push(format!("and {} more", inside.len() - LINES_MAX));
    }
    words
}

/// Adds why a partition is stale to the lines of a plan, as long as they are few.
pub(super) fn say(lines: &mut Vec<String>, calendar: &Calendar, partition: Window, why: &[Staleness]) {
    match lines.len() {
        LINES_MAX => lines.push("and more".into()),
        n if n < LINES_MAX => {
            lines.push(format!("{}: {}", calendar.name(&partition), why.iter().map(Staleness::to_string).collect::<Vec<_>>().join("; ")))
        }
        _ => {}
    }
}

/// Returns the partitions, by their first instant, whose published rows may hold what their input does not give any more: records of theirs
/// count elsewhere now, were read again, or a dataset that they are made of has other rows. A merge takes no such row away, so it does not settle them.
pub fn unsettled(facts: &Facts) -> BTreeSet<EventTime> {
    let left = |q: &&QueueRow| q.kind == QueueKind::Moved && facts.published_at(q.window.start()).is_some_and(|p| q.snapshot > p.input_snapshot);
    let moved = facts.queue.iter().filter(left).map(|q| q.window.start());
    let changed = |why: &[Staleness]| why.iter().any(|w| *w == Staleness::Reparse || w.is_upstream());
    let upstream = stale(facts).into_iter().filter(|(_, why)| changed(why)).map(|(start, _)| start);
    moved.chain(upstream).collect()
}
