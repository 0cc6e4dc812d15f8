//! A source's statement of completeness, and what it makes of a record: on time, or late and in which tier.
//! Never moves back, never looks at a clock; the ingest that saw the records hands in both.

use crate::time::{EventTime, IngestTime, Span};
use chrono_tz::Tz;
use std::fmt;

/// A source's lateness policy (R8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The watermark stands this long before the latest event seen.
    pub watermark_delay: Span,
    /// How late a record may be and still count as on time.
    pub allowed_lateness: Span,
    /// A late record younger than this (before the watermark) is repaired automatically.
    pub repair_window: Span,
    /// A record further ahead of the clock than this is flagged and moves no watermark.
    pub max_future: Span,
    /// After so long without records a source is called idle.
    pub idle_after: Option<Span>,
    /// The zone in which calendar days are counted.
    pub time_zone: Tz,
}

/// What a late record needs before its partition is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// `repair` handles it.
    Repair,
    /// Somebody has to ask for it by name (`backfill`, `approve`).
    Approval,
}

impl Tier {
    /// Returns the tier's name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Repair => "repair",
            Tier::Approval => "approval",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A record against the watermark as it stood before its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Punctuality {
    /// At or after the cutoff.
    OnTime,
    /// Before the cutoff, in this tier.
    Late(Tier),
}

/// Completeness of a source in event time: no record before it is expected any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Watermark(pub EventTime);

/// The instants that a watermark and a policy give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cutoffs {
    /// `watermark - allowed lateness`: earlier records are late; partitions that end by it are closed.
    pub late: EventTime,
    /// `watermark - repair window`, never after `late`: earlier records need approval; partitions that end by it are final.
    pub approval: EventTime,
}

/// One source of a dataset, as its watermark stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputState {
    /// The source.
    pub source: String,
    /// Its watermark and cutoffs; none before its first record.
    pub stands: Option<Stand>,
    /// Whether it has been silent for longer than its `idle_after`; before its first record, since another source spoke.
    pub idle: bool,
}

/// A watermark with its cutoffs: of one source, or of all that a dataset is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stand {
    /// The watermark.
    pub watermark: Watermark,
    /// What is late by it.
    pub cutoffs: Cutoffs,
}

impl Stand {
    fn pick(self, other: Stand, of: impl Fn(EventTime, EventTime) -> EventTime) -> Stand {
        let cutoffs = Cutoffs { late: of(self.cutoffs.late, other.cutoffs.late), approval: of(self.cutoffs.approval, other.cutoffs.approval) };
        Stand { watermark: Watermark(of(self.watermark.0, other.watermark.0)), cutoffs }
    }

    /// Returns the later of both, instant by instant.
    pub fn latest(self, other: Stand) -> Stand {
        self.pick(other, EventTime::max)
    }

    /// Returns how far a dataset of several sources is complete: as far as the last of those that are not idle; before each of them
    /// has landed a record it is complete to no time. If all are idle, nothing more is expected, and the furthest counts. It never
    /// moves back, also not when an idle source wakes up: `before` is where it stood.
    pub fn of_all(inputs: &[InputState], before: Option<Stand>) -> Option<Stand> {
        let awake = || inputs.iter().filter(|i| !i.idle);
        let now = if awake().any(|i| i.stands.is_none()) {
            None
        } else if awake().next().is_some() {
            awake().filter_map(|i| i.stands).reduce(|a, b| a.pick(b, EventTime::min))
        } else {
            inputs.iter().filter_map(|i| i.stands).reduce(Stand::latest)
        };
        match (now, before) {
            (Some(now), Some(before)) => Some(now.latest(before)),
            (now, before) => now.or(before),
        }
    }
}

impl Watermark {
    /// Returns the watermark with its cutoffs under `policy`.
    pub fn stand(self, policy: &Policy) -> Stand {
        Stand { watermark: self, cutoffs: self.cutoffs(policy) }
    }

    /// Returns the cutoffs under `policy`.
    pub fn cutoffs(self, policy: &Policy) -> Cutoffs {
        let late = policy.allowed_lateness.before(self.0, policy.time_zone);
        let approval = policy.repair_window.before(self.0, policy.time_zone).min(late);
        Cutoffs { late, approval }
    }

    /// Returns the watermark after a file whose latest plausible event is `latest`: it never moves back.
    pub fn advance(before: Option<Watermark>, latest: EventTime, policy: &Policy) -> Watermark {
        let reached = Watermark(policy.watermark_delay.before(latest, policy.time_zone));
        before.map_or(reached, |b| b.max(reached))
    }
}

impl Cutoffs {
    /// Returns the tier of a record at `at`, if it is late.
    pub fn late_tier(&self, at: EventTime) -> Option<Tier> {
        match self.classify(at) {
            Punctuality::OnTime => None,
            Punctuality::Late(tier) => Some(tier),
        }
    }

    /// Returns what a record at `at` is. A record exactly at the cutoff is on time.
    pub fn classify(&self, at: EventTime) -> Punctuality {
        if at >= self.late {
            Punctuality::OnTime
        } else if at >= self.approval {
            Punctuality::Late(Tier::Repair)
        } else {
            Punctuality::Late(Tier::Approval)
        }
    }
}

impl Policy {
    /// Returns whether a source that gave its last sign of life at `last` is idle at `now`.
    pub fn is_idle(&self, last: IngestTime, now: IngestTime) -> bool {
        self.idle_after.is_some_and(|s| s.after(EventTime(last.0), self.time_zone).0 < now.0)
    }

    /// Returns the last event time that is plausible for a record stored at `now`.
    pub fn future_after(&self, now: IngestTime) -> EventTime {
        self.max_future.after(EventTime(now.0), self.time_zone)
    }
}

/// Upper ends of the lateness histogram, in microseconds behind the watermark: 1 and 10 minutes, 1 and 6 hours, 1, 7, 30 and 365 days, and beyond.
pub const LATENESS_BUCKETS: [i64; 9] =
    [60_000_000, 600_000_000, 3_600_000_000, 21_600_000_000, 86_400_000_000, 604_800_000_000, 2_592_000_000_000, 31_536_000_000_000, i64::MAX];

/// Returns the bucket, by its upper end, of a record that happened `behind_us` microseconds before the watermark.
pub fn lateness_bucket(behind_us: i64) -> i64 {
    LATENESS_BUCKETS[LATENESS_BUCKETS.partition_point(|end| *end < behind_us).min(LATENESS_BUCKETS.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse;

    fn at(text: &str) -> EventTime {
        parse(text, Tz::UTC).unwrap()
    }

    fn policy() -> Policy {
        Policy {
            watermark_delay: Span::parse("5m").unwrap(),
            allowed_lateness: Span::parse("30m").unwrap(),
            repair_window: Span::parse("3d").unwrap(),
            max_future: Span::parse("1h").unwrap(),
            idle_after: None,
            time_zone: Tz::UTC,
        }
    }

    /// R6, with its numbers.
    #[test]
    fn with_a_watermark_of_noon_and_thirty_minutes_only_1120_is_late() {
        let cutoffs = Watermark(at("2026-05-01T12:00Z")).cutoffs(&policy());
        for (time, want) in [
            ("2026-05-01T11:45Z", Punctuality::OnTime),
            ("2026-05-01T12:02Z", Punctuality::OnTime),
            ("2026-05-01T11:30Z", Punctuality::OnTime),
            ("2026-05-01T11:29:59.999999Z", Punctuality::Late(Tier::Repair)),
            ("2026-05-01T11:20Z", Punctuality::Late(Tier::Repair)),
            ("2026-04-28T12:00Z", Punctuality::Late(Tier::Repair)),
            ("2026-04-28T11:59Z", Punctuality::Late(Tier::Approval)),
        ] {
            assert_eq!(cutoffs.classify(at(time)), want, "{time}");
        }
    }

    #[test]
    fn a_watermark_never_moves_back() {
        let first = Watermark::advance(None, at("2026-05-01T12:05Z"), &policy());
        assert_eq!(first, Watermark(at("2026-05-01T12:00Z")));
        assert_eq!(Watermark::advance(Some(first), at("2026-04-01T00:00Z"), &policy()), first);
        assert!(Watermark::advance(Some(first), at("2026-05-01T13:00Z"), &policy()) > first);
    }

    /// Case 12: a quiet source holds the others back for a while, and not for ever.
    #[test]
    fn several_sources_are_as_far_as_the_last_that_is_awake() {
        let five = Policy { watermark_delay: Span::parse("0s").unwrap(), allowed_lateness: Span::Elapsed(0), ..policy() };
        let input =
            |source: &str, mark: Option<&str>, idle| InputState { source: source.into(), stands: mark.map(|m| Watermark(at(m)).stand(&five)), idle };
        let (east, west) = (Some("2025-09-01T10:05Z"), Some("2025-09-01T08:55Z"));
        let all = |e, w, n, before| Stand::of_all(&[input("east", east, e), input("west", west, w), input("new", None, n)], before);
        let stand = |e, w, before| all(e, w, true, before).unwrap();
        assert_eq!(all(false, false, false, None), None, "what has not spoken yet may still have to say something");
        let value = |s: Stand| s.watermark.0.to_string();
        assert_eq!(value(stand(false, false, None)), "2025-09-01T08:55:00Z");
        let after = stand(false, true, None);
        assert_eq!(value(after), "2025-09-01T10:05:00Z");
        assert_eq!(value(stand(true, true, None)), "2025-09-01T10:05:00Z");
        assert_eq!(value(stand(false, false, Some(after))), "2025-09-01T10:05:00Z", "it never moves back");
        assert_eq!(after.cutoffs.classify(at("2025-09-01T08:59Z")), Punctuality::Late(Tier::Repair));
        assert_eq!(all(false, false, false, Some(after)), Some(after));
    }

    #[test]
    fn the_approval_cutoff_never_lies_after_the_late_one() {
        let short = Policy { repair_window: Span::parse("1m").unwrap(), ..policy() };
        let cutoffs = Watermark(at("2026-05-01T12:00Z")).cutoffs(&short);
        assert_eq!(cutoffs.classify(at("2026-05-01T11:20Z")), Punctuality::Late(Tier::Approval));
        assert_eq!(cutoffs.approval, cutoffs.late);
    }
}
