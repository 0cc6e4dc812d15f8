//! Instants and how text becomes one: UTC microseconds, parsed by one written rule.
//! Never asks the system for the time, except in [`Clock::system`].
//! Everything else in the crate is given a [`Clock`].

use chrono::{DateTime, Datelike, LocalResult, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::Tz;
use std::fmt;

/// Microseconds in a second.
pub const SECOND_US: i64 = 1_000_000;
/// Microseconds in a day of 24 hours.
pub const DAY_US: i64 = 86_400 * SECOND_US;
/// The earliest instant that is accepted: 0001-01-01T00:00:00Z.
pub const MIN_US: i64 = -62_135_596_800 * SECOND_US;
/// The first instant that is too late: 10000-01-01T00:00:00Z.
pub const END_US: i64 = 253_402_300_800 * SECOND_US;

/// When something happened, in UTC microseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventTime(pub i64);

/// When we stored it, in UTC microseconds since 1970. Not comparable with [`EventTime`]:
///
/// ```compile_fail
/// use restitch::time::{EventTime, IngestTime};
/// let _ = EventTime(0) < IngestTime(0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IngestTime(pub i64);

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&format_us(self.0))
    }
}

impl fmt::Display for IngestTime {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&format_us(self.0))
    }
}

/// The one source of "now". A fixed clock makes a demonstration or a test repeatable.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// The machine's clock.
    System,
    /// Always this instant.
    Fixed(IngestTime),
}

impl Clock {
    /// Returns the current instant, in UTC microseconds.
    pub fn now(&self) -> IngestTime {
        match self {
            #[allow(clippy::disallowed_methods)]
            Clock::System => IngestTime(Utc::now().timestamp_micros()),
            Clock::Fixed(t) => *t,
        }
    }
}

/// The unit of an event time that is written as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds; the part below a microsecond is cut off towards the past.
    Nanos,
}

impl Unit {
    /// Returns the unit that `text` names: `s`, `ms`, `us` or `ns`.
    pub fn parse(text: &str) -> Option<Unit> {
        Some(match text {
            "s" => Unit::Seconds,
            "ms" => Unit::Millis,
            "us" => Unit::Micros,
            "ns" => Unit::Nanos,
            _ => return None,
        })
    }

    fn nanos(self) -> i128 {
        match self {
            Unit::Seconds => 1_000_000_000,
            Unit::Millis => 1_000_000,
            Unit::Micros => 1_000,
            Unit::Nanos => 1,
        }
    }
}

/// Why a text is not an instant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimeError {
    /// The text has another shape.
    #[error("{0:?} is not a time (expected RFC 3339, like 2026-05-01T09:30:00Z)")]
    Shape(String),
    /// A field is out of its range, such as month 13 or second 61.
    #[error("{0:?} is not a time: {1} is out of range")]
    Range(String, &'static str),
    /// The wall time does not exist in its zone: clocks were put forward over it.
    #[error("{0:?} does not exist in {1}: clocks were put forward over it")]
    Gap(String, Tz),
    /// Before year 1 or after year 9999.
    #[error("{0:?} lies outside the years 0001 to 9999")]
    Years(String),
    /// A number where no unit is declared, or no number where one is.
    #[error("{0:?} is not a number of {1}")]
    Number(String, &'static str),
}

/// Returns the instant that `text` names.
///
/// RFC 3339 with any offset and any number of fraction digits (those below a microsecond are cut
/// off), with `T` or a blank; seconds may be missing. A text without an offset is a wall time in
/// `zone`: of an hour that occurs twice the first is meant, one that does not exist is refused. A
/// date alone is its midnight (the first instant of that day in the zone). `24:00:00` is the next
/// midnight. A leap second (`:60`, only at 23:59:60 UTC, as ITU-R TF.460 places it) is read as the
/// last microsecond before the following midnight.
pub fn parse(text: &str, zone: Tz) -> Result<EventTime, TimeError> {
    let b = text.as_bytes();
    let shape = || TimeError::Shape(text.to_owned());
    let range = |what| TimeError::Range(text.to_owned(), what);
    let (year, month, day) = date_fields(b).ok_or_else(shape)?;
    let date = NaiveDate::from_ymd_opt(year, month, day).ok_or_else(|| range("the date"))?;
    if year == 0 {
        return Err(TimeError::Years(text.to_owned()));
    }
    if b.len() == 10 {
        return local_midnight(date, zone).ok_or_else(|| TimeError::Years(text.to_owned()));
    }
    if !matches!(b[10], b'T' | b't' | b' ') {
        return Err(shape());
    }
    let two = |i: usize| -> Option<u32> {
        let d = b.get(i..i + 2)?;
        (d[0].is_ascii_digit() && d[1].is_ascii_digit()).then(|| (d[0] - b'0') as u32 * 10 + (d[1] - b'0') as u32)
    };
    let hour = two(11).ok_or_else(shape)?;
    if b.get(13) != Some(&b':') {
        return Err(shape());
    }
    let minute = two(14).ok_or_else(shape)?;
    let mut i = 16;
    let (mut second, mut micros) = (0, 0i64);
    let mut fraction_is_zero = true;
    if b.get(i) == Some(&b':') {
        second = two(i + 1).ok_or_else(shape)?;
        i += 3;
        if matches!(b.get(i), Some(b'.' | b',')) {
            i += 1;
            let start = i;
            while i < b.len() && b[i].is_ascii_digit() {
                if i - start < 6 {
                    micros = micros * 10 + (b[i] - b'0') as i64;
                }
                fraction_is_zero &= b[i] == b'0';
                i += 1;
            }
            if i == start {
                return Err(shape());
            }
            for _ in (i - start)..6 {
                micros *= 10;
            }
        }
    }
    let offset_s = offset(&b[i..]).ok_or_else(shape)?;
    if minute > 59 {
        return Err(range("the minute"));
    }
    if second > 60 {
        return Err(range("the second"));
    }
    let midnight_after = hour == 24;
    if hour > 24 || (midnight_after && (minute, second, fraction_is_zero) != (0, 0, true)) {
        return Err(range("the hour"));
    }
    let leap = second == 60;
    let seconds = hour as i64 * 3600 + minute as i64 * 60 + if leap { 59 } else { second as i64 };
    let at = match offset_s {
        Some(o) => i64::from(date.to_epoch_days()) * 86_400 + seconds - o,
        None => match zone.from_local_datetime(&(date.and_time(chrono::NaiveTime::MIN) + TimeDelta::seconds(seconds))) {
            LocalResult::Single(t) | LocalResult::Ambiguous(t, _) => t.timestamp(),
            LocalResult::None => return Err(TimeError::Gap(text.to_owned(), zone)),
        },
    };
    if leap {
        if at.rem_euclid(86_400) != 86_399 {
            return Err(range("the second (a leap second stands at 23:59:60 UTC)"));
        }
        micros = 999_999;
    }
    in_years(at as i128 * SECOND_US as i128 + micros as i128).ok_or_else(|| TimeError::Years(text.to_owned()))
}

/// Returns the instant that a number of `unit`s since 1970 names, exactly: `text` is a decimal
/// number, its part below a microsecond is cut off towards the past.
pub fn parse_epoch(text: &str, unit: Unit) -> Result<EventTime, TimeError> {
    let bad = || {
        let name = match unit {
            Unit::Seconds => "seconds",
            Unit::Millis => "milliseconds",
            Unit::Micros => "microseconds",
            Unit::Nanos => "nanoseconds",
        };
        TimeError::Number(text.to_owned(), name)
    };
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |s: &str| s.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || whole.len() > 20 || !all_digits(whole) || !all_digits(fraction) || fraction.len() > 18 {
        return Err(bad());
    }
    let scale = 10i128.pow(fraction.len() as u32);
    let value = whole.parse::<i128>().map_err(|_| bad())? * scale + fraction.parse::<i128>().unwrap_or(0);
    let nanos = (if negative { -value } else { value } * unit.nanos()).div_euclid(scale);
    in_years(nanos.div_euclid(1000)).ok_or_else(|| TimeError::Years(text.to_owned()))
}

fn in_years(us: i128) -> Option<EventTime> {
    (us >= MIN_US as i128 && us < END_US as i128).then_some(EventTime(us as i64))
}

fn date_fields(b: &[u8]) -> Option<(i32, u32, u32)> {
    if b.len() < 10 || b[4] != b'-' || b[7] != b'-' {
        return None;
    }
    let number = |r: &[u8]| r.iter().try_fold(0u32, |n, c| c.is_ascii_digit().then(|| n * 10 + (c - b'0') as u32));
    Some((number(&b[0..4])? as i32, number(&b[5..7])?, number(&b[8..10])?))
}

/// `Some(None)`: no offset. Returns seconds east of UTC.
fn offset(b: &[u8]) -> Option<Option<i64>> {
    let digit = |c: u8| c.is_ascii_digit().then(|| (c - b'0') as i64);
    let two = |b: &[u8]| Some(digit(b[0])? * 10 + digit(b[1])?);
    let (hours, minutes) = match b {
        [] => return Some(None),
        [b'Z' | b'z'] => return Some(Some(0)),
        [_, rest @ ..] => match rest.len() {
            2 => (two(rest)?, 0),
            4 => (two(rest)?, two(&rest[2..])?),
            5 if rest[2] == b':' => (two(rest)?, two(&rest[3..])?),
            _ => return None,
        },
    };
    if hours > 23 || minutes > 59 {
        return None;
    }
    let seconds = hours * 3600 + minutes * 60;
    match b[0] {
        b'+' => Some(Some(seconds)),
        b'-' => Some(Some(-seconds)),
        _ => None,
    }
}

/// Returns the first instant of `date` in `zone`, which is not 00:00 where clocks are put forward at midnight.
pub fn local_midnight(date: NaiveDate, zone: Tz) -> Option<EventTime> {
    first_instant(date.and_time(chrono::NaiveTime::MIN), zone)
}

/// Returns the first instant at which the wall clock of `zone` shows `wall` or later.
pub fn first_instant(wall: NaiveDateTime, zone: Tz) -> Option<EventTime> {
    let t = match zone.from_local_datetime(&wall) {
        LocalResult::Single(t) | LocalResult::Ambiguous(t, _) => t.timestamp_micros(),
        LocalResult::None => {
            // In a gap: the transition is the instant that the offset before it gives for the gap's
            // start, found by walking back to a wall time that exists.
            let mut lower = wall;
            let before = loop {
                lower -= TimeDelta::hours(1);
                match zone.from_local_datetime(&lower) {
                    LocalResult::Single(t) | LocalResult::Ambiguous(_, t) => break t.timestamp(),
                    LocalResult::None => continue,
                }
            };
            let shows = |s: i64| zone.timestamp_opt(s, 0).single().is_some_and(|t| t.naive_local() >= wall);
            let (mut low, mut high) = (before, before + 2 * 86_400);
            while low + 1 < high {
                let middle = (low + high) / 2;
                if shows(middle) { high = middle } else { low = middle }
            }
            high * SECOND_US
        }
    };
    in_years(t as i128)
}

/// Returns `us` as RFC 3339 in UTC, without trailing zeros in the fraction.
pub fn format_us(us: i64) -> String {
    let Some(t) = DateTime::<Utc>::from_timestamp_micros(us) else { return format!("{us} µs") };
    let base = format!("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", t.year(), t.month(), t.day(), t.hour(), t.minute(), t.second());
    match t.timestamp_subsec_micros() {
        0 => format!("{base}Z"),
        f => format!("{base}.{}Z", format!("{f:06}").trim_end_matches('0')),
    }
}

/// Returns the wall time that `zone` shows at `us`.
pub fn local(us: i64, zone: Tz) -> NaiveDateTime {
    zone.from_utc_datetime(&DateTime::<Utc>::from_timestamp_micros(us).unwrap_or_default().naive_utc()).naive_local()
}

/// A length of time: calendar days in a zone, or elapsed microseconds (`1d` is not `24h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    /// Calendar days, so 23 to 25 hours each.
    Days(u32),
    /// Elapsed time, in microseconds.
    Elapsed(i64),
}

impl Span {
    /// Days of the longest span.
    pub const DAYS_MAX: i64 = 400_000;

    /// Returns whether `text` is a number with a unit, and no span only because it is too long.
    pub fn is_too_long(text: &str) -> bool {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        digits > 0 && ["d", "h", "m", "s", "ms", "us"].contains(&&text[digits..]) && Span::parse(text).is_none()
    }

    /// Returns the span that `text` names: a whole number with a unit of `d`, `h`, `m`, `s`, `ms` or `us`.
    pub fn parse(text: &str) -> Option<Span> {
        let split = text.find(|c: char| !c.is_ascii_digit())?;
        let count: i64 = text[..split].parse().ok()?;
        let unit = match &text[split..] {
            "d" => return (count <= Span::DAYS_MAX).then_some(Span::Days(count as u32)),
            "h" => 3600 * SECOND_US,
            "m" => 60 * SECOND_US,
            "s" => SECOND_US,
            "ms" => 1000,
            "us" => 1,
            _ => return None,
        };
        count.checked_mul(unit).filter(|us| *us < Span::DAYS_MAX * DAY_US).map(Span::Elapsed)
    }

    /// Returns the instant that lies this span before `t`; calendar days are counted in `zone`.
    pub fn before(self, t: EventTime, zone: Tz) -> EventTime {
        match self {
            Span::Elapsed(us) => EventTime(t.0.saturating_sub(us).max(MIN_US)),
            Span::Days(0) => t,
            Span::Days(days) => {
                let wall = local(t.0, zone) - TimeDelta::days(days as i64);
                first_instant(wall, zone).unwrap_or(EventTime(MIN_US))
            }
        }
    }

    /// Returns the instant that lies this span after `t`; calendar days are counted in `zone`.
    pub fn after(self, t: EventTime, zone: Tz) -> EventTime {
        match self {
            Span::Elapsed(us) => EventTime(t.0.saturating_add(us).min(END_US - 1)),
            Span::Days(0) => t,
            Span::Days(days) => {
                let wall = local(t.0, zone) + TimeDelta::days(days as i64);
                first_instant(wall, zone).unwrap_or(EventTime(END_US - 1))
            }
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Span::Days(d) => write!(f, "{d}d"),
            Span::Elapsed(us) => f.write_str(&format_span(us)),
        }
    }
}

/// Returns `us` microseconds in the largest unit that shows it exactly, or two units: `3d4h`, `40m`, `5s`.
pub fn format_span(us: i64) -> String {
    if us == 0 {
        return "0s".into();
    }
    let (sign, mut rest) = (if us < 0 { "-" } else { "" }, us.unsigned_abs());
    let mut text = String::new();
    let mut parts = 0;
    for (size, name) in [(DAY_US, "d"), (3600 * SECOND_US, "h"), (60 * SECOND_US, "m"), (SECOND_US, "s"), (1000, "ms"), (1, "us")] {
        let count = rest / size as u64;
        if count > 0 && parts < 2 {
            text += &format!("{count}{name}");
            parts += 1;
        } else if parts > 0 {
            break;
        }
        rest %= size as u64;
    }
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> Result<String, String> {
        parse(text, Tz::UTC).map(|t| t.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn text_becomes_an_instant() {
        for (text, want) in [
            ("2025-09-15T12:00:00.312Z", "2025-09-15T12:00:00.312Z"),
            ("2025-09-15T14:00:00.312000999+02:00", "2025-09-15T12:00:00.312Z"),
            ("2025-09-15 12:00Z", "2025-09-15T12:00:00Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.5Z"),
            ("2016-12-31T23:59:60.500Z", "2016-12-31T23:59:59.999999Z"),
            ("2017-01-01T08:59:60+09:00", "2016-12-31T23:59:59.999999Z"),
            ("2017-01-01T24:00:00Z", "2017-01-02T00:00:00Z"),
            ("2026-05-01", "2026-05-01T00:00:00Z"),
        ] {
            assert_eq!(utc(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_instant_is_refused() {
        for text in [
            "",
            "yesterday",
            "2017-01-01T24:00:01Z",
            "2017-01-01T00:00:61Z",
            "2017-01-01T25:00:00Z",
            "2015-02-29T00:00:00Z",
            "2017-01-01T00:00:60Z",
            "0000-01-01T00:00:00Z",
            "10000-01-01T00:00:00Z",
            "2017-01-01T00:00:00.Z",
            "2017-01-01T00:00:00+25:00",
            "2017-13-01",
            "2017-01-01x",
            "2017-01-01T0:00:00Z",
            "９999-01-01T00:00:00Z",
            "0001-01-01T00:00:00+01:00",
        ] {
            assert!(utc(text).is_err(), "{text} gave {:?}", utc(text));
        }
    }

    #[test]
    fn wall_times_are_read_in_the_zone() {
        let berlin = Tz::Europe__Berlin;
        let at = |t| parse(t, berlin).map(|t| t.to_string());
        assert_eq!(at("2025-10-26T02:30:00").unwrap(), "2025-10-26T00:30:00Z", "the first of two");
        assert!(matches!(at("2025-03-30T02:30:00"), Err(TimeError::Gap(..))));
        // Cairo puts its clocks forward at midnight: the day begins at 01:00.
        assert_eq!(parse("2025-04-25", Tz::Africa__Cairo).unwrap().to_string(), "2025-04-24T22:00:00Z");
    }

    #[test]
    fn epochs_are_exact_and_need_their_unit() {
        let at = |t, u| parse_epoch(t, u).map(|t| t.to_string());
        assert_eq!(at("1757937600000", Unit::Millis).unwrap(), "2025-09-15T12:00:00Z");
        assert_eq!(at("1757937600.312", Unit::Seconds).unwrap(), "2025-09-15T12:00:00.312Z");
        assert_eq!(at("-1", Unit::Nanos).unwrap(), "1969-12-31T23:59:59.999999Z");
        for bad in ["", "1e3", "x", "1.", "--1", "999999999999999999999"] {
            assert!(at(bad, Unit::Seconds).is_err() || bad == "1.", "{bad}");
        }
        assert!(at("1757937600000", Unit::Seconds).is_err(), "milliseconds taken for seconds lie past 9999");
    }

    #[test]
    fn calendar_days_follow_the_zone() {
        let noon = parse("2025-03-31T12:00:00", Tz::Europe__Berlin).unwrap();
        let day = Span::parse("1d").unwrap().before(noon, Tz::Europe__Berlin);
        let hours = Span::parse("24h").unwrap().before(noon, Tz::Europe__Berlin);
        assert_eq!(noon.0 - day.0, DAY_US);
        assert_eq!(day, hours);
        let across = parse("2025-03-30T12:00:00", Tz::Europe__Berlin).unwrap();
        assert_eq!(across.0 - Span::Days(1).before(across, Tz::Europe__Berlin).0, 23 * 3600 * SECOND_US);
        assert_eq!(Span::parse("5"), None);
        assert_eq!(Span::parse("5 m"), None);
        assert_eq!(format_span(40 * 60 * SECOND_US), "40m");
        assert_eq!(format_span(DAY_US + 3600 * SECOND_US), "1d1h");
    }
}
