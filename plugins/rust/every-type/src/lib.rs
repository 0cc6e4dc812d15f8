//! every-type: each row comes back as it was, with what the context and a lookup add to it.
//! Never changes a value. The same transform stands in every language, and returns the same bytes in each.

use restitch_guest::{Batch, Context, Date, Decimal, Failure, Input, Json, Map, Output, Parameter, Row, Time, Timestamp, Transform};

/// A row with a column of every type.
#[derive(Row)]
pub struct Every<'a> {
    id: i64,
    flag: Option<bool>,
    i32: Option<i32>,
    i64: Option<i64>,
    f32: Option<f32>,
    f64: Option<f64>,
    dec: Option<Decimal<38, 9>>,
    text: Option<&'a str>,
    doc: Option<Json<&'a str>>,
    bytes: Option<&'a [u8]>,
    day: Option<Date>,
    at: Option<Time>,
    ts: Option<Timestamp>,
}

/// A name for an id.
#[derive(Row)]
pub struct Name<'a> {
    key: i64,
    name: Option<&'a str>,
}

/// The same row, and what was added.
#[derive(Row, Default)]
pub struct Seen<'a> {
    id: i64,
    flag: Option<bool>,
    i32: Option<i32>,
    i64: Option<i64>,
    f32: Option<f32>,
    f64: Option<f64>,
    dec: Option<Decimal<38, 9>>,
    text: Option<std::borrow::Cow<'a, str>>,
    doc: Option<Json<&'a str>>,
    bytes: Option<&'a [u8]>,
    day: Option<Date>,
    at: Option<Time>,
    ts: Option<Timestamp>,
    name: Option<&'a str>,
    seen: i64,
    label: std::borrow::Cow<'a, str>,
    start: Timestamp,
    seed: i64,
}

/// The transform.
pub struct EveryType {
    label: String,
    start: Timestamp,
    seed: i64,
    names: Map<i64, Option<String>>,
    seen: i64,
    sum: i64,
    decimals: Exact,
    initials: String,
}

impl Transform for EveryType {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["id"];
    type Output<'a> = Seen<'a>;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Every>("rows"), Input::of::<Name>("names")]
    }

    fn parameters() -> Vec<Parameter> {
        vec![Parameter::optional("label", "none", "Text of the column label"), Parameter::optional("scale", "1", "A whole number")]
    }

    fn begin(context: &Context) -> Result<Self, Failure> {
        restitch_guest::info(&format!("begin {}", context.partition));
        context.parse::<i64>("scale").map_err(|_| Failure::Parameters("scale: not a whole number".into()))?;
        Ok(EveryType {
            label: context.parameter("label").to_owned(),
            start: Timestamp(context.start_micros),
            seed: context.seed.cast_signed(),
            names: Map::default(),
            seen: 0,
            sum: 0,
            decimals: Exact::default(),
            initials: String::new(),
        })
    }

    fn push(&mut self, batch: &Batch, output: &mut Output<Self>) -> Result<(), Failure> {
        if batch.input() == 1 {
            for row in batch.rows::<Name>() {
                self.names.insert(row.key, row.name.map(str::to_owned));
            }
            return Ok(());
        }
        for (i, row) in batch.rows::<Every>().enumerate() {
            match row.text {
                Some("refuse") => return Err(Failure::row(i, "refused")),
                Some("panic") => panic!("boom"),
                Some("loop") => spin(),
                Some("grow") => grow(),
                _ => {}
            }
            self.sum = self.sum.wrapping_add(row.i64.unwrap_or(0));
            self.decimals.add(row.dec.map_or(0, |d| d.0));
            self.initials.extend(row.text.and_then(|t| t.chars().next()));
            let name = self.names.get(&row.id).and_then(|n| n.as_deref());
            let Every { id, flag, i32, i64, f32, f64, dec, text, doc, bytes, day, at, ts } = row;
            let (text, label) = (text.map(Into::into), self.label.as_str().into());
            let (seen, start, seed) = (self.seen, self.start, self.seed);
            output.push(Seen { id, flag, i32, i64, f32, f64, dec, text, doc, bytes, day, at, ts, name, seen, label, start, seed });
            self.seen += 1;
        }
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Seen<'static>>, Failure> {
        let dec =
            self.decimals.sum().and_then(|sum| Decimal(0).checked_add(Decimal::<38, 9>(sum))).ok_or_else(|| Failure::other("decimal overflow"))?;
        let (text, label) = (Some(self.initials.into()), self.label.into());
        let last =
            Seen { id: -1, i64: Some(self.sum), dec: Some(dec), text, seen: self.seen, label, start: self.start, seed: self.seed, ..Seen::default() };
        Ok(std::iter::once(last))
    }
}

/// A sum of more than 128 bits: only the whole of it has to fit, however the rows are ordered.
#[derive(Default)]
struct Exact {
    high: i128,
    /// Of each number the lower 64 bits, taken without their sign.
    low: i128,
}

impl Exact {
    fn add(&mut self, n: i128) {
        self.high += n >> 64;
        self.low += n & i128::from(u64::MAX);
    }

    fn sum(&self) -> Option<i128> {
        let high = i64::try_from(self.high + (self.low >> 64)).ok()?;
        Some(i128::from(high) << 64 | self.low & i128::from(u64::MAX))
    }
}

/// Runs for ever.
fn spin() {
    let mut n = 0u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

/// Takes memory until there is none.
fn grow() {
    let mut all = Vec::new();
    loop {
        all.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}

restitch_guest::export!(EveryType);

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(label: &str) -> EveryType {
        let parameters = vec![("label".to_owned(), label.to_owned()), ("scale".to_owned(), "1".to_owned())];
        let context = Context {
            partition: "2026-05-01".into(),
            start_micros: 5,
            end_micros: 6,
            time_zone: "UTC".into(),
            as_of_micros: 0,
            seed: u64::MAX,
            parameters,
        };
        EveryType::begin(&context).unwrap_or_else(|_| panic!("refused"))
    }

    #[test]
    fn a_sum_is_exact_whatever_the_order() {
        let (most, sum) = (10i128.pow(38) - 1, |numbers: &[i128]| {
            let mut exact = Exact::default();
            numbers.iter().for_each(|n| exact.add(*n));
            exact.sum()
        });
        assert_eq!(sum(&[most, most, most, -most, -most]), Some(most));
        assert_eq!(sum(&[-most, -most, -1, most]), Some(-most - 1));
        assert_eq!(sum(&[most; 4]), None);
        assert_eq!(sum(&[-1, 1, i128::MIN]), Some(i128::MIN));
    }

    #[test]
    fn a_partition_without_rows_has_the_last_one() {
        let row = begun("x").finish().unwrap_or_else(|_| panic!("failed")).next().unwrap();
        assert_eq!((row.id, row.i64, row.dec, row.text.as_deref(), row.seen), (-1, Some(0), Some(Decimal(0)), Some(""), 0));
        assert_eq!((row.label.as_ref(), row.start, row.seed), ("x", Timestamp(5), -1));
    }
}
