//! clean-orders: one tidy row for every order.
//! Never keeps a row: each comes back with the call that brought it.

use restitch_guest::{Batch, Context, Decimal, Failure, Input, Output, Parameter, Row, Timestamp, Transform};
use std::borrow::Cow;

/// An order as it came in.
#[derive(Row)]
pub struct Order<'a> {
    event_id: &'a str,
    event_time: Timestamp,
    customer_id: Option<&'a str>,
    amount: Option<Decimal<18, 2>>,
}

/// The same order, tidied.
#[derive(Row, PartialEq, Debug)]
pub struct Clean<'a> {
    /// Without white space around it.
    event_id: &'a str,
    event_time: Timestamp,
    /// Without white space around it, in capitals; null when nothing is left.
    customer_id: Option<Cow<'a, str>>,
    amount: Decimal<18, 2>,
    /// What was done, comma-separated; null when nothing was.
    note: Option<String>,
}

/// The transform.
pub struct CleanOrders {
    default_amount: Decimal<18, 2>,
}

impl Transform for CleanOrders {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["event_id"];
    type Output<'a> = Clean<'a>;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Order>("orders")]
    }

    fn parameters() -> Vec<Parameter> {
        vec![Parameter::optional("default_amount_cents", "0", "the amount of an order that has none, in hundredths")]
    }

    fn begin(context: &Context) -> Result<Self, Failure> {
        Ok(CleanOrders { default_amount: Decimal(context.parse::<i64>("default_amount_cents")?.into()) })
    }

    fn push(&mut self, batch: &Batch, output: &mut Output<Self>) -> Result<(), Failure> {
        for (row, order) in batch.rows::<Order>().enumerate() {
            output.push(self.clean(row, order)?);
        }
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Clean<'static>>, Failure> {
        Ok(std::iter::empty())
    }
}

impl CleanOrders {
    fn clean<'a>(&self, row: usize, order: Order<'a>) -> Result<Clean<'a>, Failure> {
        let mut done = Vec::new();
        let mut did = |changed: bool, what: &'static str| {
            if changed && !done.contains(&what) {
                done.push(what);
            }
        };
        let event_id = order.event_id.trim();
        if event_id.is_empty() {
            return Err(Failure::row(row, "event_id is blank"));
        }
        did(event_id != order.event_id, "trimmed");
        let customer_id = order.customer_id.and_then(|id| {
            let trimmed = id.trim();
            did(trimmed != id, "trimmed");
            did(trimmed.is_empty(), "blank customer");
            (!trimmed.is_empty()).then(|| {
                let lower = trimmed.chars().any(char::is_lowercase);
                did(lower, "capitals");
                if lower { Cow::Owned(trimmed.to_uppercase()) } else { Cow::Borrowed(trimmed) }
            })
        });
        did(order.amount.is_none(), "default amount");
        let note = (!done.is_empty()).then(|| done.join(","));
        Ok(Clean { event_id, event_time: order.event_time, customer_id, amount: order.amount.unwrap_or(self.default_amount), note })
    }
}

restitch_guest::export!(CleanOrders);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cleaned_is_noted() {
        let transform = CleanOrders { default_amount: Decimal(0) };
        let order =
            |event_id, customer_id, amount: Option<i128>| Order { event_id, event_time: Timestamp(7), customer_id, amount: amount.map(Decimal) };
        let clean = |event_id, customer_id: Option<&'static str>, note: Option<&str>| Clean {
            event_id,
            event_time: Timestamp(7),
            customer_id: customer_id.map(Cow::Borrowed),
            amount: Decimal(0),
            note: note.map(Into::into),
        };
        assert_eq!(transform.clean(0, order("e1", Some("A"), Some(0))).unwrap(), clean("e1", Some("A"), None));
        assert_eq!(transform.clean(0, order(" e1", Some("a "), None)).unwrap(), clean("e1", Some("A"), Some("trimmed,capitals,default amount")));
        assert_eq!(transform.clean(0, order("e1", Some(" "), Some(0))).unwrap(), clean("e1", None, Some("trimmed,blank customer")));
        assert_eq!(transform.clean(3, order(" ", None, None)), Err(Failure::row(3, "event_id is blank")));
    }
}
