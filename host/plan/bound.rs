//! A plan that binds: the partitions, what is read, the recipe, and what stood there when it was made. It can be a file.
//! Never looks at a clock or a catalog: whoever carries it out compares it with the ground, and refuses if that moved.
//! `pipeline` makes one for every run; `plan -o` writes it, `apply` reads it.

use super::{Facts, Plan, PlannedRange, Reason, StandingRows, Waiting};
use crate::{
    catalog::PublishedRow,
    id::{Digest, RunId, SnapshotId},
    manifest::{Grant, Kind, Mode, Recipe, Validation},
    time::{END_US, EventTime, format_us, parse},
    window::{Calendar, Window},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the file that this release writes and reads.
pub const PLAN_VERSION: u64 = 1;

/// A plan with everything that carrying it out needs, and what it stands on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundPlan {
    /// [`PLAN_VERSION`].
    pub version: u64,
    /// The warehouse that it was made for: the id of its main schema, which a moved or copied warehouse keeps.
    pub warehouse: String,
    /// Who made it.
    pub planned_by: String,
    /// When: UTC, RFC 3339.
    pub planned_at: String,
    /// run, repair or backfill.
    pub kind: Kind,
    /// Start and end as they were typed; none, if the window was left open.
    pub asked: Vec<String>,
    /// The window, resolved: its first instant, and the first after it.
    pub window: Option<[String; 2]>,
    /// Only partitions with this reason were wanted.
    pub only: Option<Reason>,
    /// How far it goes, and how it writes.
    pub mode: Mode,
    /// What failed checks do.
    pub validation: Validation,
    /// Why, for the manifest.
    pub reason: Option<String>,
    /// How many partitions it has.
    pub partitions: u64,
    /// Records to read for them, duplicates included.
    pub records: i64,
    /// Raw files to open.
    pub files: u64,
    /// Their size.
    pub bytes: i64,
    /// What it touches, in order of time, with the reasons.
    pub ranges: Vec<BoundRange>,
    /// What stands published in these partitions, in order of time: publishing compares with it.
    pub standing: Vec<Standing>,
    /// How much that is.
    #[serde(default)]
    pub standing_rows: StandingRows,
    /// Partitions that late records wait for and that it leaves alone.
    pub waiting: Vec<BoundWaiting>,
    /// Partitions in the window that need nothing.
    pub up_to_date: u64,
    /// The version of the warehouse that it was compared with.
    pub base_snapshot: SnapshotId,
    /// Rows of the raw table at the snapshot that is read, all partitions together: tells when raw was removed since.
    pub raw_rows: i64,
    /// Why stale partitions of the window are stale, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale: Vec<String>,
    /// Partitions of the datasets before it that were not as they should be, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstream: Vec<String>,
    /// What it leaves out or does not read whole because retention removed raw records, in words.
    pub gaps: Vec<String>,
    /// By whose word payloads of masked sources are read.
    pub grants: Vec<Grant>,
    /// All that determines the rows.
    pub recipe: Recipe,
}

/// Neighbouring partitions with one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundRange {
    /// Name of the first partition.
    pub first: String,
    /// Name of the last.
    pub last: String,
    /// How many.
    pub partitions: u64,
    /// Why they are in.
    pub reason: Reason,
    /// Records to read for them.
    pub records: i64,
    /// First instant of the first: UTC, RFC 3339.
    pub start: String,
    /// First instant after the last.
    pub end: String,
}

/// Neighbouring partitions that one run has published.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standing {
    /// Name of the first partition.
    pub first: String,
    /// Name of the last.
    pub last: String,
    /// The run.
    pub run: RunId,
}

/// A partition that waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundWaiting {
    /// Its name.
    pub partition: String,
    /// repair or approval.
    pub tier: String,
    /// How many records wait.
    pub records: i64,
}

/// Why a file is no plan that can be carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BoundError {
    /// It is no plan at all, or misses something.
    #[error("it is not a saved plan: {0}")]
    Shape(String),
    /// Another release wrote it.
    #[error("it is a plan of version {found}; this release reads version {PLAN_VERSION}")]
    Version {
        /// Its version.
        found: u64,
    },
    /// Its content is not what was saved.
    #[error("it was changed after it was saved: its digest does not fit what it says")]
    Edited,
    /// Its partitions are not those of its calendar, for instance because the rules of a time zone changed.
    #[error("{name:?} is not the {grain} partition from {start} in {zone}")]
    Calendar {
        /// The partition.
        name: String,
        /// Its grain.
        grain: crate::window::Grain,
        /// Where the plan says that it starts.
        start: String,
        /// The zone.
        zone: String,
    },
}

/// A plan's text with its digest at the end.
#[derive(Serialize)]
struct Sealed<'a> {
    #[serde(flatten)]
    plan: &'a BoundPlan,
    digest: Digest,
}

impl BoundPlan {
    /// Takes over what was planned.
    pub fn fill(mut self, plan: &Plan, published: &[PublishedRow]) -> BoundPlan {
        let calendar = plan.calendar;
        self.window = plan.window.map(|w| w.bounds_text().into());
        (self.partitions, self.records, self.files, self.bytes) = (plan.partition_count(), plan.records(), plan.files, plan.bytes);
        let range = |r: &PlannedRange| {
            let (start, end) = (r.first.bounds_text().0, r.last.bounds_text().1);
            BoundRange {
                first: calendar.name(&r.first),
                last: calendar.name(&r.last),
                partitions: r.partitions,
                reason: r.reason,
                records: r.records,
                start,
                end,
            }
        };
        self.ranges = plan.ranges.iter().map(range).collect();
        let waits = |w: &Waiting| BoundWaiting { partition: w.partition.clone(), tier: w.tier.clone(), records: w.records };
        (self.waiting, self.up_to_date) = (plan.waiting.iter().map(waits).collect(), plan.up_to_date);
        (self.stale, self.upstream) = (plan.stale.clone(), plan.upstream.clone());
        (self.standing, self.standing_rows, self.gaps) = (standing(plan, published), plan.standing, plan.gaps.clone());
        self
    }

    /// Returns what was planned.
    ///
    /// # Errors
    /// [`BoundError::Calendar`] if a name and an instant in it do not fit together here.
    pub fn plan(&self) -> Result<Plan, BoundError> {
        let calendar = self.recipe.calendar();
        let mut ranges = Vec::with_capacity(self.ranges.len());
        for r in &self.ranges {
            let (first, last) = (named(calendar, &r.first, &r.start)?, partition(calendar, &r.last)?);
            if last.bounds_text().1 != r.end || last.start() < first.start() {
                return Err(misfit(calendar, &r.last, &r.end));
            }
            ranges.push(PlannedRange { first, last, partitions: r.partitions, reason: r.reason, records: r.records });
        }
        let waits = |w: &BoundWaiting| {
            Ok(Waiting { partition: w.partition.clone(), window: partition(calendar, &w.partition)?, tier: w.tier.clone(), records: w.records })
        };
        let plan = Plan {
            kind: self.kind,
            window: self.window.as_ref().map(|[start, end]| Window::new(instant(start)?, instant(end)?).map_err(shape)).transpose()?,
            calendar,
            input_snapshot: self.recipe.input_snapshot,
            ranges,
            waiting: self.waiting.iter().map(waits).collect::<Result<_, _>>()?,
            up_to_date: self.up_to_date,
            files: self.files,
            bytes: self.bytes,
            gaps: self.gaps.clone(),
            write: self.recipe.write.mode(),
            downstream: !self.recipe.upstream.is_empty(),
            stale: self.stale.clone(),
            upstream: self.upstream.clone(),
            standing: self.standing_rows,
        };
        let counted = plan.partitions().count() as u64;
        if counted != self.partitions || counted != plan.partition_count() {
            return Err(BoundError::Shape(format!("it counts {} partitions, and names {counted}", self.partitions)));
        }
        Ok(plan)
    }

    /// Returns its digest: the SHA-256 of its JSON without blanks and without the digest.
    pub fn digest(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// Returns it as a file's text: indented JSON, the digest last.
    pub fn text(&self) -> String {
        let text = serde_json::to_string_pretty(&Sealed { plan: self, digest: self.digest() }).unwrap_or_default();
        text + "\n"
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`BoundError`]: no plan, of another version, or changed after it was saved.
    pub fn parse(text: &str) -> Result<BoundPlan, BoundError> {
        let mut value: serde_json::Value = serde_json::from_str(text).map_err(shape)?;
        let object = value.as_object_mut().ok_or_else(|| shape("no JSON object"))?;
        match object.get("version").and_then(serde_json::Value::as_u64) {
            Some(PLAN_VERSION) => {}
            Some(found) => return Err(BoundError::Version { found }),
            None => return Err(shape("no version")),
        }
        let digest = object.remove("digest").ok_or_else(|| shape("no digest"))?;
        let plan: BoundPlan = serde_json::from_value(value).map_err(shape)?;
        if digest.as_str() != Some(&plan.digest().to_string()) {
            return Err(BoundError::Edited);
        }
        Ok(plan)
    }

    /// Returns what has become of its partitions since it was made, in words; nothing if all is as it was.
    ///
    /// # Errors
    /// [`BoundError::Calendar`], as for [`BoundPlan::plan`].
    pub fn moved(&self, plan: &Plan, facts: &Facts) -> Result<Vec<String>, BoundError> {
        let mut then: BTreeMap<EventTime, RunId> = BTreeMap::new();
        for s in &self.standing {
            let (first, last) = (partition(plan.calendar, &s.first)?, partition(plan.calendar, &s.last)?);
            let window = Window::new(first.start(), last.end()).map_err(shape)?;
            then.extend(plan.calendar.partitions(window).map(|w| (w.start(), s.run)));
        }
        let now: BTreeMap<EventTime, &PublishedRow> = facts.published.iter().map(|p| (p.window.start(), p)).collect();
        let mut changes = Vec::new();
        for p in plan.partitions() {
            let (before, stands) = (then.get(&p.window.start()), now.get(&p.window.start()));
            match (before, stands) {
                (before, Some(s)) if before != Some(&s.run) => {
                    changes.push(format!("partition {} was published by {} (snapshot {})", p.name, s.run, s.published_snapshot));
                }
                (Some(run), None) => changes.push(format!("partition {} as {run} published it was taken away", p.name)),
                // It was published and taken away since: what was not named in the knowledge of that is not built.
                (None, None) if self.kind != Kind::Backfill && facts.was_taken(p.window.start()) => {
                    changes.push(format!("partition {} was taken away by a rollback", p.name));
                }
                _ => {}
            }
        }
        Ok(changes)
    }
}

/// Returns which runs have published the partitions of a plan, neighbours of one run together.
fn standing(plan: &Plan, published: &[PublishedRow]) -> Vec<Standing> {
    let mut standing: Vec<(Standing, Window)> = Vec::new();
    for p in published {
        if !plan.covers(p.window.start()) {
            continue;
        }
        match standing.last_mut() {
            Some((last, window)) if last.run == p.run && window.end() == p.window.start() => (last.last, *window) = (p.partition.clone(), p.window),
            _ => standing.push((Standing { first: p.partition.clone(), last: p.partition.clone(), run: p.run }, p.window)),
        }
    }
    standing.into_iter().map(|(s, _)| s).collect()
}

fn shape(e: impl ToString) -> BoundError {
    BoundError::Shape(e.to_string())
}

fn instant(text: &str) -> Result<EventTime, BoundError> {
    // The end of all time is the first instant of a year that no time is of.
    if text == format_us(END_US) {
        return Ok(EventTime(END_US));
    }
    parse(text, chrono_tz::Tz::UTC).map_err(shape)
}

fn misfit(calendar: Calendar, name: &str, start: &str) -> BoundError {
    BoundError::Calendar { name: name.into(), grain: calendar.grain, start: start.into(), zone: calendar.zone.name().into() }
}

fn partition(calendar: Calendar, name: &str) -> Result<Window, BoundError> {
    calendar.parse(name).ok_or_else(|| misfit(calendar, name, "?"))
}

/// The partition of that name, if it starts where the plan says.
fn named(calendar: Calendar, name: &str, start: &str) -> Result<Window, BoundError> {
    calendar.parse(name).filter(|w| w.bounds_text().0 == start).ok_or_else(|| misfit(calendar, name, start))
}
