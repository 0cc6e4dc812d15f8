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

impl Watermark {
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
    /// Returns the last event time that is plausible for a record stored at `now`.
    pub fn future_after(&self, now: IngestTime) -> EventTime {
        self.max_future.after(EventTime(now.0), self.time_zone)
    }
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

    #[test]
    fn the_approval_cutoff_never_lies_after_the_late_one() {
        let short = Policy { repair_window: Span::parse("1m").unwrap(), ..policy() };
        let cutoffs = Watermark(at("2026-05-01T12:00Z")).cutoffs(&short);
        assert_eq!(cutoffs.classify(at("2026-05-01T11:20Z")), Punctuality::Late(Tier::Approval));
        assert_eq!(cutoffs.approval, cutoffs.late);
    }
}
