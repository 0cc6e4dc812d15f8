//! misbehave-batches: each order with the number of the batch that it came in, counted from 0.
//! Never to be trusted: where a batch ends is no fact about the data. `transform prove` has to find that out.

use restitch_guest::{Batch, Context, Failure, Input, Output, Row, Transform};

/// What is read.
#[derive(Row)]
pub struct Order<'a> {
    event_id: &'a str,
}

/// What is written.
#[derive(Row)]
pub struct Numbered {
    event_id: String,
    batch: i64,
}

/// The transform.
pub struct Batches(i64);

impl Transform for Batches {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["event_id"];
    type Output<'a> = Numbered;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Order>("orders")]
    }

    fn begin(_: &Context) -> Result<Self, Failure> {
        Ok(Batches(0))
    }

    fn push(&mut self, batch: &Batch, output: &mut Output<Self>) -> Result<(), Failure> {
        let number = self.0;
        batch.rows::<Order>().for_each(|o| output.push(Numbered { event_id: o.event_id.to_owned(), batch: number }));
        self.0 += 1;
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Numbered>, Failure> {
        Ok(std::iter::empty())
    }
}

restitch_guest::export!(Batches);
