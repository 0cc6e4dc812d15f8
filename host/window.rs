//! Bounded event time: half-open windows of instants, and how a calendar cuts them into named partitions.
//! Never looks at data. One pair of UTC instants per partition drives reading, staging and the swap.

use crate::time::{END_US, EventTime, MIN_US, SECOND_US, TimeError, first_instant, format_us, local, local_midnight, parse};
use chrono::{Datelike, Days, LocalResult, Months, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Timelike};
use chrono_tz::Tz;
use std::fmt;

/// A range of event time, `[start, end)`, in UTC microseconds. Never empty, never reversed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Window {
    start: EventTime,
    end: EventTime,
}

/// Why two instants make no window, or a window no set of partitions.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WindowError {
    /// The end is not after the start.
    #[error("the window ends at {end}, which is not after its start {start}")]
    Reversed {
        /// Its start.
        start: EventTime,
        /// Its end.
        end: EventTime,
    },
    /// A border of the window cuts a partition in two.
    #[error("{border} lies inside the {grain} partition {partition}")]
    Unaligned {
        /// The border.
        border: EventTime,
        /// The partition that it cuts.
        partition: String,
        /// The dataset's grain.
        grain: Grain,
        /// The smallest window of whole partitions around what was asked.
        whole: (String, String),
    },
    /// An hour that occurs twice, named without its offset.
    #[error("the hour {0} occurs twice: it is {1}")]
    Twice(String, String),
    /// An hour that clocks skip.
    #[error("there is no hour {0} in {1}: clocks skip it")]
    Skipped(String, Tz),
    /// A bound is not a date, an instant or a partition.
    #[error("{0:?} is neither a date (2026-05-01), an instant (2026-05-01T00:00:00Z) nor a partition by {1} ({2})")]
    Bound(String, Grain, &'static str),
    /// A bound is no day of the calendar.
    #[error("{0} is not a date: that month has no such day, or the year no such month")]
    Date(String),
    /// One bound alone that is no partition.
    #[error("{0} alone is no window: it is not a partition by {1} ({2}), so a window needs --start and --end")]
    Alone(String, Grain, &'static str),
    /// A bound is an impossible time.
    #[error(transparent)]
    Time(#[from] TimeError),
}

impl Window {
    /// Returns the window `[start, end)`.
    ///
    /// # Errors
    /// [`WindowError::Reversed`] if `end` is not after `start`.
    pub fn new(start: EventTime, end: EventTime) -> Result<Window, WindowError> {
        if start < end { Ok(Window { start, end }) } else { Err(WindowError::Reversed { start, end }) }
    }

    /// Returns the first instant in it.
    pub fn start(&self) -> EventTime {
        self.start
    }

    /// Returns the first instant after it.
    pub fn end(&self) -> EventTime {
        self.end
    }

    /// Returns whether `at` lies in it.
    pub fn contains(&self, at: EventTime) -> bool {
        self.start <= at && at < self.end
    }

    /// Returns whether it has an instant in common with `other`.
    pub fn overlaps(&self, other: Window) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// The length of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grain {
    /// One hour of wall time; an hour that occurs twice is two partitions.
    Hour,
    /// One day: 23, 24 or 25 hours.
    Day,
    /// One ISO 8601 week, Monday to Sunday.
    Week,
    /// One month.
    Month,
    /// One year.
    Year,
}

impl Grain {
    /// Returns the grain that restitch.toml calls `text`.
    pub fn parse(text: &str) -> Option<Grain> {
        Some(match text {
            "hour" => Grain::Hour,
            "day" => Grain::Day,
            "week" => Grain::Week,
            "month" => Grain::Month,
            "year" => Grain::Year,
            _ => return None,
        })
    }

    fn example(self) -> &'static str {
        match self {
            Grain::Hour => "2026-05-01T13",
            Grain::Day => "2026-05-01",
            Grain::Week => "2026-W18",
            Grain::Month => "2026-05",
            Grain::Year => "2026",
        }
    }
}

impl fmt::Display for Grain {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Grain::Hour => "hour",
            Grain::Day => "day",
            Grain::Week => "week",
            Grain::Month => "month",
            Grain::Year => "year",
        })
    }
}

/// How event time is cut into partitions: they tile it, without gap or overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calendar {
    /// The length of a partition.
    pub grain: Grain,
    /// The zone whose wall time the borders follow.
    pub zone: Tz,
}

impl Calendar {
    /// Returns whether each of its partitions lies in one partition of `outer`, in every year: days lie in months, weeks do not. Of two
    /// zones none is said to fit the other, whatever their offsets are today.
    pub fn nests_in(&self, outer: &Calendar) -> bool {
        let fits = match (self.grain, outer.grain) {
            (Grain::Week, outer) => outer == Grain::Week,
            (inner, Grain::Week) => matches!(inner, Grain::Hour | Grain::Day),
            (inner, outer) => inner as u8 <= outer as u8,
        };
        fits && self.zone == outer.zone
    }

    /// Returns the partition that `at` lies in; an instant outside the years 0001 to 9999 counts as the nearest inside.
    pub fn at(&self, at: EventTime) -> Window {
        let at = EventTime(at.0.clamp(crate::time::MIN_US, crate::time::END_US - 1));
        if self.grain == Grain::Hour {
            return self.hour_at(at);
        }
        let mut first = self.first_day(local(at.0, self.zone).date());
        loop {
            let start = self.midnight(first);
            let next = self.next_first_day(first);
            let end = self.midnight(next);
            // Wall dates are not monotonic where clocks go back over midnight; the borders are.
            if at < start {
                first = self.first_day(first.pred_opt().unwrap_or(first));
            } else if at >= end {
                first = next;
            } else {
                return Window { start, end };
            }
        }
    }

    /// Returns the partition after `window`, which is one of this calendar.
    pub fn next(&self, window: &Window) -> Window {
        self.at(window.end)
    }

    /// Returns the name of `window`, which is a partition of this calendar: `2026-05-01`,
    /// `2026-05-01T13` (`…T02+0200` where the wall hour occurs twice), `2026-W18`, `2026-05`, `2026`.
    pub fn name(&self, window: &Window) -> String {
        // The last instant: the first may show the wall time before a change at midnight.
        let wall = local(window.end.0 - 1, self.zone);
        let d = wall.date();
        match self.grain {
            Grain::Hour => {
                let name = format!("{}T{:02}", d.format("%Y-%m-%d"), wall.hour());
                if !self.hour_is_double(wall) {
                    return name;
                }
                let offset = self.offset_s(window.end.0 - 1);
                format!("{name}{}{:02}{:02}", if offset < 0 { '-' } else { '+' }, offset.abs() / 3600, offset.abs() / 60 % 60)
            }
            Grain::Day => d.format("%Y-%m-%d").to_string(),
            Grain::Week => format!("{:04}-W{:02}", d.iso_week().year(), d.iso_week().week()),
            Grain::Month => d.format("%Y-%m").to_string(),
            Grain::Year => d.format("%Y").to_string(),
        }
    }

    /// Returns the partition that `name` names, if it names one of this calendar.
    pub fn parse(&self, name: &str) -> Option<Window> {
        self.parse_date(name).or_else(|| self.parse_end(name))
    }

    /// In other zones than UTC the first and the last partitions of time have names in the years 0000 and 10000.
    fn parse_end(&self, name: &str) -> Option<Window> {
        const TWO_DAYS_US: i64 = 2 * 86_400 * 1_000_000;
        if !["0000", "0001", "9999", "10000"].iter().any(|year| name.trim_start_matches('+').starts_with(year)) {
            return None;
        }
        let first = Window { start: EventTime(MIN_US), end: EventTime(MIN_US + TWO_DAYS_US) };
        let last = Window { start: EventTime(END_US - TWO_DAYS_US), end: EventTime(END_US) };
        self.partitions(first).chain(self.partitions(last)).find(|w| self.name(w) == name)
    }

    fn parse_date(&self, name: &str) -> Option<Window> {
        if !name.is_ascii() {
            return None;
        }
        let number = |r: &str| if r.bytes().all(|b| b.is_ascii_digit()) { r.parse::<u32>().ok() } else { None };
        let day = |s: &str| {
            let parts = (s.len() == 10).then(|| (number(&s[0..4]), number(&s[5..7]), number(&s[8..10])))?;
            if &s[4..5] != "-" || &s[7..8] != "-" {
                return None;
            }
            NaiveDate::from_ymd_opt(parts.0? as i32, parts.1?, parts.2?)
        };
        let guess = match self.grain {
            Grain::Year if name.len() == 4 => NaiveDate::from_ymd_opt(number(name)? as i32, 1, 1)?,
            Grain::Month if name.len() == 7 => day(&format!("{name}-01"))?,
            Grain::Week if name.len() == 8 && &name[4..6] == "-W" => {
                NaiveDate::from_isoywd_opt(number(&name[0..4])? as i32, number(&name[6..8])?, chrono::Weekday::Mon)?
            }
            Grain::Day => day(name)?,
            Grain::Hour if name.len() >= 13 && &name[10..11] == "T" => return self.parse_hour(day(&name[..10])?, number(&name[11..13])?, name),
            _ => return None,
        };
        let window = self.at(local_midnight(guess, self.zone)?);
        (self.name(&window) == name).then_some(window)
    }

    /// Returns the partitions that together make up `window`, in order.
    pub fn partitions(&self, window: Window) -> impl Iterator<Item = Window> + use<> {
        let (calendar, mut at) = (*self, window.start);
        std::iter::from_fn(move || {
            (at < window.end).then(|| {
                let current = calendar.at(at);
                at = current.end;
                current
            })
        })
    }

    /// Returns the window from the start of `start` to the end of `end`, as a user types them: a
    /// date or a partition name (both whole, so an end date is inclusive) or an instant (half-open).
    ///
    /// # Errors
    /// [`WindowError`] if a bound is none of these, or the window is reversed.
    pub fn resolve(&self, start: &str, end: &str) -> Result<Window, WindowError> {
        let start = self.bound(start)?.start;
        let end = self.bound(end)?.end;
        Window::new(start, end)
    }

    /// Returns the window of the bounds that were typed: as [`Calendar::resolve`] does of two; of one alone, the partition that it names.
    ///
    /// # Errors
    /// [`WindowError`] if a bound is none, the one that is there alone names no partition, or the window is reversed.
    pub fn resolve_typed(&self, start: Option<&str>, end: Option<&str>) -> Result<Option<Window>, WindowError> {
        let one = match (start, end) {
            (Some(start), Some(end)) => return self.resolve(start, end).map(Some),
            (None, None) => return Ok(None),
            (Some(one), None) | (None, Some(one)) => one,
        };
        // What is wrong with it comes first.
        self.bound(one)?;
        self.parse(one).map(Some).ok_or_else(|| WindowError::Alone(one.into(), self.grain, self.grain.example()))
    }

    /// Returns the slice of time that a typed bound means. An instant is a slice whose both ends are that instant.
    fn bound(&self, text: &str) -> Result<Window, WindowError> {
        if let Some(window) = self.parse(text) {
            return Ok(window);
        }
        if text.len() == 10 {
            let day = Calendar { grain: Grain::Day, zone: self.zone };
            let wrong = |e| match e {
                TimeError::Range(..) => WindowError::Date(text.into()),
                TimeError::Shape(_) => WindowError::Bound(text.into(), self.grain, self.grain.example()),
                e => e.into(),
            };
            return Ok(day.at(parse(text, self.zone).map_err(wrong)?));
        }
        if let Some(e) = self.changed_hour(text) {
            return Err(e);
        }
        match parse(text, self.zone) {
            Ok(at) => Ok(Window { start: at, end: at }),
            Err(TimeError::Shape(_)) => Err(WindowError::Bound(text.into(), self.grain, self.grain.example())),
            Err(e) => Err(e.into()),
        }
    }

    /// What is wrong with an hour's name on a day on which clocks change.
    fn changed_hour(&self, text: &str) -> Option<WindowError> {
        if self.grain != Grain::Hour || text.len() != 13 || !text.is_ascii() || text[11..].parse::<u32>().ok()? > 23 {
            return None;
        }
        let day = Calendar { grain: Grain::Day, zone: self.zone }.parse(&text[..10])?;
        let names: Vec<String> = self.partitions(day).map(|w| self.name(&w)).filter(|n| n.starts_with(text)).collect();
        Some(match names.as_slice() {
            [] => WindowError::Skipped(text.into(), self.zone),
            _ => WindowError::Twice(text.into(), names.join(" or ")),
        })
    }

    /// Returns an error unless both borders of `window` are borders of partitions.
    ///
    /// # Errors
    /// [`WindowError::Unaligned`] with the window of whole partitions around it.
    pub fn check_aligned(&self, window: Window) -> Result<(), WindowError> {
        let (first, last) = (self.at(window.start), self.at(EventTime(window.end.0 - 1)));
        let cut = if first.start != window.start {
            Some((window.start, first))
        } else if last.end != window.end {
            Some((window.end, last))
        } else {
            None
        };
        match cut {
            None => Ok(()),
            Some((border, partition)) => Err(WindowError::Unaligned {
                border,
                partition: self.name(&partition),
                grain: self.grain,
                whole: (self.name(&first), self.name(&last)),
            }),
        }
    }

    fn midnight(&self, date: NaiveDate) -> EventTime {
        local_midnight(date, self.zone).unwrap_or(EventTime(if date.year() < 5000 { MIN_US } else { END_US }))
    }

    fn first_day(&self, d: NaiveDate) -> NaiveDate {
        match self.grain {
            Grain::Hour | Grain::Day => d,
            Grain::Week => d.checked_sub_days(Days::new(d.weekday().num_days_from_monday() as u64)).unwrap_or(d),
            Grain::Month => d.with_day(1).unwrap_or(d),
            Grain::Year => NaiveDate::from_ymd_opt(d.year(), 1, 1).unwrap_or(d),
        }
    }

    fn next_first_day(&self, first: NaiveDate) -> NaiveDate {
        match self.grain {
            Grain::Hour | Grain::Day => first.succ_opt(),
            Grain::Week => first.checked_add_days(Days::new(7)),
            Grain::Month => first.checked_add_months(Months::new(1)),
            Grain::Year => first.checked_add_months(Months::new(12)),
        }
        .unwrap_or(first)
    }

    fn offset_s(&self, us: i64) -> i64 {
        let utc = chrono::DateTime::from_timestamp_micros(us).unwrap_or_default().naive_utc();
        self.zone.offset_from_utc_datetime(&utc).fix().local_minus_utc() as i64
    }

    /// A wall hour under one offset, cut at a change of offset inside it.
    fn hour_at(&self, at: EventTime) -> Window {
        const HOUR_US: i64 = 3600 * SECOND_US;
        let offset = self.offset_s(at.0);
        let start = (at.0 + offset * SECOND_US).div_euclid(HOUR_US) * HOUR_US - offset * SECOND_US;
        let end = start + HOUR_US;
        let same = |us: i64| self.offset_s(us) == offset;
        let start = if same(start) { start } else { border(start, at.0, &same) };
        let end = if same(end - 1) { end } else { border(end - 1, at.0, &same) + 1 };
        // Like longer partitions it ends where time does: an instant outside could be written in a plan, and not be read.
        Window { start: EventTime(start.max(MIN_US)), end: EventTime(end.min(END_US)) }
    }

    fn hour_is_double(&self, wall: NaiveDateTime) -> bool {
        let hour = wall.date().and_hms_opt(wall.hour(), 0, 0).unwrap_or(wall);
        [hour, hour + TimeDelta::seconds(3599)].iter().any(|w| matches!(self.zone.from_local_datetime(w), LocalResult::Ambiguous(..)))
    }

    fn parse_hour(&self, date: NaiveDate, hour: u32, name: &str) -> Option<Window> {
        let wall = date.and_hms_opt(hour, 0, 0)?;
        let first = self.at(first_instant(wall, self.zone)?);
        // The second of two equal wall hours lies at most a few hours later.
        let mut window = first;
        for _ in 0..4 {
            if self.name(&window) == name {
                return Some(window);
            }
            window = self.next(&window);
        }
        None
    }
}

/// Returns the instant next to `out` at which `same` begins to hold on the way to `within`, where it holds.
fn border(out: i64, within: i64, same: &dyn Fn(i64) -> bool) -> i64 {
    let (mut out, mut within) = (out, within);
    while (within - out).abs() > 1 {
        let middle = out + (within - out) / 2;
        if same(middle) { within = middle } else { out = middle }
    }
    within
}

/// Returns `name` as it stands in a path: everything but letters, digits and `-_.+` percent-encoded.
pub fn path_segment(name: &str) -> String {
    let mut segment = String::with_capacity(name.len());
    for b in name.bytes() {
        if b.is_ascii_alphanumeric() || b"-_.+".contains(&b) {
            segment.push(b as char);
        } else {
            segment += &format!("%{b:02X}");
        }
    }
    segment
}

impl Window {
    /// Returns both borders, for people.
    pub fn bounds_text(&self) -> (String, String) {
        (format_us(self.start.0), format_us(self.end.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair is held against the partitions of two years.
    #[test]
    fn a_grain_nests_in_another_if_no_partition_of_it_is_cut() {
        let grains = [Grain::Hour, Grain::Day, Grain::Week, Grain::Month, Grain::Year];
        let berlin = |grain| Calendar { grain, zone: Tz::Europe__Berlin };
        let years = berlin(Grain::Year).resolve("2025", "2026").unwrap();
        for (inner, outer) in grains.iter().flat_map(|i| grains.iter().map(|o| (berlin(*i), berlin(*o)))) {
            let span = Window::new(inner.at(years.start()).start(), inner.at(years.end()).end()).unwrap();
            let whole = inner.partitions(span).all(|w| outer.at(w.start()).end() >= w.end());
            assert_eq!(inner.nests_in(&outer), whole, "{inner:?} in {outer:?}");
        }
        assert!(!Calendar { grain: Grain::Day, zone: Tz::UTC }.nests_in(&berlin(Grain::Month)));
    }

    fn calendar(grain: Grain, zone: &str) -> Calendar {
        Calendar { grain, zone: zone.parse().unwrap() }
    }

    fn at(text: &str) -> EventTime {
        parse(text, Tz::UTC).unwrap()
    }

    #[test]
    fn every_instant_has_one_partition_with_a_name_that_parses_back() {
        let zones = [
            "UTC",
            "Europe/Berlin",
            "Australia/Lord_Howe",
            "America/Chicago",
            "Asia/Kolkata",
            "Pacific/Apia",
            "Africa/Cairo",
            "Antarctica/Troll",
            "America/Goose_Bay",
        ];
        for zone in zones {
            for grain in [Grain::Hour, Grain::Day, Grain::Week, Grain::Month, Grain::Year] {
                let c = calendar(grain, zone);
                for from in
                    ["2011-12-28T00:00Z", "2025-03-28T00:00Z", "2025-04-04T00:00Z", "2025-10-24T00:00Z", "2010-11-05T00:00Z", "1969-12-30T00:00Z"]
                {
                    let mut w = c.at(at(from));
                    for _ in 0..if grain == Grain::Hour { 120 } else { 5 } {
                        let name = c.name(&w);
                        assert_eq!(c.parse(&name), Some(w), "{zone} {name} {w}");
                        for t in [w.start, EventTime(w.end.0 - 1)] {
                            assert_eq!(c.at(t), w, "{zone} {name}");
                        }
                        let next = c.next(&w);
                        assert_eq!(next.start, w.end, "{zone} {name}");
                        assert_ne!(c.name(&next), name, "{zone}");
                        w = next;
                    }
                }
            }
        }
    }

    #[test]
    fn the_hour_that_occurs_twice_is_two_partitions() {
        let c = calendar(Grain::Hour, "Europe/Berlin");
        let day = calendar(Grain::Day, "Europe/Berlin").at(at("2025-10-26T12:00Z"));
        let names: Vec<_> = c.partitions(day).map(|w| c.name(&w)).collect();
        assert_eq!(names.len(), 25);
        assert_eq!(&names[1..5], ["2025-10-26T01", "2025-10-26T02+0200", "2025-10-26T02+0100", "2025-10-26T03"]);
    }

    #[test]
    fn typed_bounds_are_inclusive_dates_or_half_open_instants() {
        let c = calendar(Grain::Day, "America/Chicago");
        let w = c.resolve("2025-02-01", "2025-02-28").unwrap();
        assert_eq!(w.to_string(), "[2025-02-01T06:00:00Z, 2025-03-01T06:00:00Z)");
        assert_eq!(c.resolve("2025-02-01T06:00:00Z", "2025-02-02T06:00:00Z").unwrap(), c.resolve("2025-02-01", "2025-02-01").unwrap());
        assert!(matches!(c.resolve("2025-02-02", "2025-02-01"), Err(WindowError::Reversed { .. })));
        assert!(matches!(c.resolve("2025-02-30", "2025-03-01"), Err(WindowError::Date(_))));
        assert!(matches!(c.resolve("soon", "2025-03-01"), Err(WindowError::Bound(..))));
        let m = calendar(Grain::Month, "UTC");
        let short = m.resolve("2025-02-01", "2025-02-27").unwrap();
        assert!(matches!(m.check_aligned(short), Err(WindowError::Unaligned { .. })));
        m.check_aligned(m.resolve("2025-02", "2025-03-31").unwrap()).unwrap();
    }

    #[test]
    fn the_last_days_of_time_are_partitions_too() {
        for zone in ["UTC", "Asia/Kolkata", "America/Chicago", "America/New_York"] {
            for grain in [Grain::Hour, Grain::Day, Grain::Week, Grain::Month, Grain::Year] {
                let c = calendar(grain, zone);
                let last = c.at(EventTime(crate::time::END_US - 1));
                assert_eq!(c.partitions(last).count(), 1, "{zone} {grain}");
                let first = c.at(EventTime(crate::time::MIN_US));
                assert!(first.contains(EventTime(crate::time::MIN_US)), "{zone} {grain}");
                assert!(first.start.0 >= crate::time::MIN_US && last.end.0 <= crate::time::END_US, "{zone} {grain}: {first} {last}");
                for end in [first, last, c.at(EventTime(first.end.0)), c.at(EventTime(last.start.0 - 1))] {
                    assert_eq!(c.parse(&c.name(&end)), Some(end), "{zone} {grain}");
                }
            }
        }
        let c = calendar(Grain::Year, "UTC");
        assert_eq!(c.partitions(c.resolve("2026", "9999").unwrap()).count(), 7974);
    }

    #[test]
    fn an_hour_that_occurs_twice_or_never_is_told_so() {
        let c = calendar(Grain::Hour, "Europe/Berlin");
        let said = |text: &str| c.resolve(text, text).map(|w| w.to_string()).map_err(|e| e.to_string());
        assert_eq!(said("2026-10-25T02").unwrap_err(), "the hour 2026-10-25T02 occurs twice: it is 2026-10-25T02+0200 or 2026-10-25T02+0100");
        assert_eq!(said("2026-03-29T02").unwrap_err(), "there is no hour 2026-03-29T02 in Europe/Berlin: clocks skip it");
        assert!(said("2026-10-25T03").is_ok() && said("2026-10-25T02+0100").is_ok());
    }

    #[test]
    fn partition_names_are_safe_in_paths() {
        assert_eq!(path_segment("2025-10-26T02+0200"), "2025-10-26T02+0200");
        assert_eq!(path_segment("a/b c%"), "a%2Fb%20c%25");
    }
}
