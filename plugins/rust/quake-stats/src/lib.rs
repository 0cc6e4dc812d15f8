//! quake-stats: earthquakes by band of magnitude.
//! Never sums floats: depths are added as whole metres, so the order of rows does not show in the mean.

use restitch_guest::{Batch, Context, Failure, Input, Output, Parameter, Row, Timestamp, Transform};
use std::collections::BTreeMap;

/// An event of the feed.
#[derive(Row)]
pub struct Quake<'a> {
    id: &'a str,
    time: Timestamp,
    magnitude: Option<f64>,
    depth_km: Option<f64>,
    place: Option<&'a str>,
    r#type: Option<&'a str>,
}

/// A band of one unit of magnitude.
#[derive(Row, PartialEq, Debug)]
pub struct Stats {
    /// Such as `2-3`: from 2 inclusive to 3 exclusive; or `unknown`.
    band: String,
    quakes: i64,
    max_magnitude: Option<f64>,
    mean_depth_km: Option<f64>,
}

#[derive(Default)]
struct Band {
    quakes: i64,
    max_magnitude: Option<f64>,
    depths: i64,
    depth_sum_m: i64,
}

/// The transform.
pub struct QuakeStats {
    /// Empty: every type counts.
    only: String,
    /// By the lower bound; `None` is the band of events without a magnitude.
    bands: BTreeMap<Option<i64>, Band>,
}

impl Transform for QuakeStats {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["band"];
    type Output<'a> = Stats;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Quake>("quakes")]
    }

    fn parameters() -> Vec<Parameter> {
        vec![Parameter::optional("type", "", "count only events of this type, such as earthquake; empty: all of them")]
    }

    fn begin(context: &Context) -> Result<Self, Failure> {
        Ok(QuakeStats { only: context.parameter("type").to_owned(), bands: BTreeMap::new() })
    }

    fn push(&mut self, batch: &Batch, _: &mut Output<Self>) -> Result<(), Failure> {
        for quake in batch.rows::<Quake>() {
            if !self.only.is_empty() && quake.r#type != Some(&self.only) {
                continue;
            }
            let magnitude = quake.magnitude.filter(|m| m.is_finite());
            let band = self.bands.entry(magnitude.map(|m| m.floor() as i64)).or_default();
            band.quakes += 1;
            // Adding zero makes -0.0 and 0.0 one number.
            band.max_magnitude = [band.max_magnitude, magnitude.map(|m| m + 0.0)].into_iter().flatten().max_by(f64::total_cmp);
            if let Some(depth) = quake.depth_km.filter(|d| d.abs() < 1e6) {
                band.depths += 1;
                band.depth_sum_m += (depth * 1000.0).round() as i64;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Stats>, Failure> {
        Ok(self.bands.into_iter().map(|(from, band)| Stats {
            band: from.map_or("unknown".to_owned(), |from| format!("{from}-{}", from.saturating_add(1))),
            quakes: band.quakes,
            max_magnitude: band.max_magnitude,
            mean_depth_km: (band.depths > 0).then(|| band.depth_sum_m as f64 / band.depths as f64 / 1000.0),
        }))
    }
}

restitch_guest::export!(QuakeStats);

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(only: &str, rows: &[(Option<f64>, Option<f64>, &'static str)]) -> Vec<Stats> {
        let mut transform = QuakeStats { only: only.into(), bands: BTreeMap::new() };
        let rows = rows.iter().map(|&(magnitude, depth_km, r#type)| Quake {
            id: "q",
            time: Timestamp(0),
            magnitude,
            depth_km,
            place: None,
            r#type: Some(r#type),
        });
        transform.push(&Batch::of(0, rows), &mut Output::default()).unwrap();
        transform.finish().unwrap().collect()
    }

    #[test]
    fn bands_are_half_open_and_do_not_depend_on_order() {
        let mut rows = vec![
            (Some(2.0), Some(0.1), "earthquake"),
            (Some(2.9), Some(0.2), "earthquake"),
            (Some(3.0), None, "quarry blast"),
            (None, Some(0.3), "earthquake"),
            (Some(-0.5), Some(10.0), "earthquake"),
        ];
        let stat = |band: &str, quakes, max_magnitude, mean_depth_km| Stats { band: band.into(), quakes, max_magnitude, mean_depth_km };
        let expected = [
            stat("unknown", 1, None, Some(0.3)),
            stat("-1-0", 1, Some(-0.5), Some(10.0)),
            stat("2-3", 2, Some(2.9), Some(0.15)),
            stat("3-4", 1, Some(3.0), None),
        ];
        assert_eq!(stats("", &rows), expected);
        rows.reverse();
        assert_eq!(stats("", &rows), expected);
        assert_eq!(stats("quarry blast", &rows), expected[3..]);
    }
}
