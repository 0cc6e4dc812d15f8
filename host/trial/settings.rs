//! case.toml: what a case says of its partition, and whether it has to fail.
//! Never asks a clock: what is not said is the same on every machine.
//! `trial` reads it beside the rows of the case.

use super::TrialError;
use crate::{
    store::Store,
    time,
    transform::Context,
    window::{Calendar, Grain, Window},
};
use chrono_tz::Tz;
use indexmap::IndexMap;

/// The partition of a case that does not say another one.
const PARTITION: &str = "2026-05-01";

/// What a case says.
pub(super) struct Settings {
    pub(super) context: Context,
    /// Words that its failure has to have.
    pub(super) expected_error: Option<String>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Declared {
    partition: Option<String>,
    start: Option<Text>,
    end: Option<Text>,
    time_zone: Option<String>,
    as_of: Option<Text>,
    seed: u64,
    expected_error: Option<String>,
    params: IndexMap<String, Text>,
}

/// A value as text, however it is written.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Text {
    Written(String),
    Whole(i64),
    Float(f64),
    Truth(bool),
    Time(toml::value::Datetime),
}

impl Text {
    fn text(&self) -> String {
        match self {
            Text::Written(text) => text.clone(),
            Text::Whole(n) => n.to_string(),
            Text::Float(f) => f.to_string(),
            Text::Truth(truth) => truth.to_string(),
            Text::Time(time) => time.to_string(),
        }
    }
}

impl Settings {
    /// Reads the file, if there is one.
    pub(super) fn read(project: &Store, path: &str) -> Result<Settings, TrialError> {
        let wrong = |problem: String| TrialError::Settings { file: path.to_owned(), problem };
        if !project.exists(path) {
            return Settings::of(Declared::default()).map_err(wrong);
        }
        let text = String::from_utf8(project.read(path)?).map_err(|_| wrong("it is not UTF-8".into()))?;
        Settings::of(toml::from_str(&text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))?).map_err(wrong)
    }

    fn of(file: Declared) -> Result<Settings, String> {
        let zone_name = file.time_zone.as_deref().unwrap_or("UTC");
        let zone: Tz = zone_name.parse().map_err(|_| format!("time_zone: {zone_name:?} is not an IANA name such as Europe/Berlin"))?;
        let instant = |key: &str, text: &Option<Text>| match text {
            Some(text) => time::parse(&text.text(), zone).map(|t| Some(t.0)).map_err(|e| format!("{key}: {e}")),
            None => Ok(None),
        };
        let (start, end) = (instant("start", &file.start)?, instant("end", &file.end)?);
        let partition = file.partition.unwrap_or_else(|| PARTITION.into());
        let window = window(&partition, zone);
        let bound = |key: &str, given: Option<i64>, of: fn(&Window) -> i64| {
            let missing = || format!("{key} has to be given: {partition:?} is no name of an hour, day, week, month or year in {zone}");
            given.or(window.as_ref().map(of)).ok_or_else(missing)
        };
        let start_us = bound("start", start, |w| w.start().0)?;
        let end_us = bound("end", end, |w| w.end().0)?;
        if end_us <= start_us {
            return Err(format!("end {} does not lie after start {}", time::format_us(end_us), time::format_us(start_us)));
        }
        let as_of_us = instant("as_of", &file.as_of)?.unwrap_or(end_us);
        let parameters = file.params.iter().map(|(name, value)| (name.clone(), value.text())).collect();
        let context = Context { partition, start_us, end_us, time_zone: zone.name().into(), as_of_us, seed: file.seed, parameters };
        Ok(Settings { context, expected_error: file.expected_error })
    }
}

/// Returns the window of a partition by its name, which tells its grain.
fn window(partition: &str, zone: Tz) -> Option<Window> {
    let grains = [Grain::Day, Grain::Hour, Grain::Week, Grain::Month, Grain::Year];
    grains.into_iter().find_map(|grain| Calendar { grain, zone }.parse(partition))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Settings, String> {
        Settings::of(toml::from_str(text).map_err(|e| e.to_string())?)
    }

    #[test]
    fn what_is_not_said_follows_from_the_partition() {
        let c = of("").unwrap().context;
        assert_eq!(
            (c.partition.as_str(), time::format_us(c.start_us), c.end_us - c.start_us),
            ("2026-05-01", "2026-05-01T00:00:00Z".into(), time::DAY_US)
        );
        assert_eq!((c.as_of_us, c.seed, c.time_zone.as_str()), (c.end_us, 0, "UTC"));
        let c = of("partition = \"2026-03\"\ntime_zone = \"Europe/Berlin\"\nseed = 7\nas_of = 2026-05-01T00:00:00Z\n[params]\ndays = 3\nof = \"x\"")
            .unwrap()
            .context;
        assert_eq!((time::format_us(c.start_us), time::format_us(c.end_us)), ("2026-02-28T23:00:00Z".into(), "2026-03-31T22:00:00Z".into()));
        assert_eq!(c.parameters, [("days".to_owned(), "3".to_owned()), ("of".to_owned(), "x".to_owned())]);
        let c = of("partition = \"mine\"\nstart = \"2026-05-01\"\nend = \"2026-05-02T12:00:00Z\"").unwrap().context;
        assert_eq!(time::format_us(c.end_us), "2026-05-02T12:00:00Z");
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let wrong = |text: &str| of(text).err().unwrap();
        assert!(wrong("partition = \"mine\"").contains("start has to be given"));
        assert!(wrong("time_zone = \"Mars\"").contains("IANA"));
        assert!(wrong("start = \"2026-05-03\"").contains("does not lie after"));
        assert!(wrong("sed = 1").contains("sed"));
    }
}
