//! A transform that is good to most rows, and fails on those whose column `do` says how.
//! Never of use to anybody but the tests of quarantine.

use restitch_guest::{Batch, Context, Failure, Input, Output, Parameter, Row, Transform, info};

/// What comes in.
#[derive(Row)]
pub struct Given<'a> {
    id: &'a str,
    r#do: Option<&'a str>,
    v: Option<i64>,
}

/// The same, without `do`.
#[derive(Row)]
pub struct Kept {
    id: String,
    v: Option<i64>,
    seen: i64,
}

/// The transform.
pub struct Rows {
    always: bool,
    seen: i64,
    pairs: u32,
    late: Option<String>,
}

impl Transform for Rows {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["id"];
    type Output<'a> = Kept;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Given>("rows")]
    }

    fn parameters() -> Vec<Parameter> {
        vec![Parameter::optional("always", "no", "where it fails without any row: no, begin, finish")]
    }

    fn begin(context: &Context) -> Result<Self, Failure> {
        let always = context.parameter("always");
        assert!(always != "begin", "it never begins");
        Ok(Rows { always: always == "finish", seen: 0, pairs: 0, late: None })
    }

    fn push(&mut self, batch: &Batch, output: &mut Output<Self>) -> Result<(), Failure> {
        for (row, r) in batch.rows::<Given>().enumerate() {
            let mut times = 1;
            match r.r#do.unwrap_or("ok") {
                "spin" => spin(),
                // It asks the host again and again.
                "sleep" => (0u64..).for_each(|_| info(&"z".repeat(1 << 16))),
                "trap" => panic!("row {} is a trap", r.id),
                "err" => return Err(Failure::row(row, format!("{} is refused", r.id))),
                "lie" => return Err(Failure::row(row + 1_000_000, "a row that is not there")),
                "other" => return Err(Failure::other("a reason of its own")),
                "grow" => grow(),
                "big" => output.push(Kept { id: "big".repeat(1 << 18), v: None, seen: 0 }),
                "extra" => times = 2,
                // The second one of a partition fails.
                "pair" => {
                    self.pairs += 1;
                    assert!(self.pairs < 2, "row {} is the second of its kind", r.id);
                }
                "late" => self.late = Some(r.id.to_owned()),
                _ => {}
            }
            for _ in 0..times {
                output.push(Kept { id: r.id.to_owned(), v: r.v, seen: self.seen });
            }
            self.seen += 1;
        }
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Kept>, Failure> {
        assert!(!self.always, "it never finishes");
        if let Some(id) = self.late {
            panic!("row {id} comes back");
        }
        Ok(std::iter::empty())
    }
}

fn spin() {
    let mut n = 0u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn grow() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        // Never written to: what counts is that it is there.
        kept.push(std::hint::black_box(Vec::with_capacity(1 << 20)));
    }
}

restitch_guest::export!(Rows);
