//! enrich-orders: orders per country, by a lookup of customers.
//! Never guesses: an order whose customer or country is not known counts as "unknown".

use restitch_guest::{Batch, Context, Decimal, Failure, Input, Map, Output, Row, Timestamp, Transform};
use std::collections::BTreeMap;

/// An order.
#[derive(Row)]
pub struct Order<'a> {
    event_id: &'a str,
    event_time: Timestamp,
    customer_id: Option<&'a str>,
    amount: Option<Decimal<18, 2>>,
}

/// A customer of the lookup.
#[derive(Row)]
pub struct Customer<'a> {
    customer_id: &'a str,
    country: Option<&'a str>,
}

/// What a country ordered.
#[derive(Row, PartialEq, Debug)]
pub struct Total {
    country: String,
    orders: i64,
    total: Decimal<38, 2>,
}

const UNKNOWN: &str = "unknown";

/// The transform.
#[derive(Default)]
pub struct EnrichOrders {
    /// Customer to country; of customers that come twice, the last counts.
    countries: Map<String, String>,
    totals: BTreeMap<String, (i64, Decimal<38, 2>)>,
}

impl Transform for EnrichOrders {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["country"];
    type Output<'a> = Total;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Order>("orders"), Input::of::<Customer>("customers")]
    }

    fn begin(_: &Context) -> Result<Self, Failure> {
        Ok(EnrichOrders::default())
    }

    fn push(&mut self, batch: &Batch, _: &mut Output<Self>) -> Result<(), Failure> {
        match batch.input() {
            0 => self.orders(batch),
            _ => {
                for customer in batch.rows::<Customer>() {
                    let country = customer.country.unwrap_or(UNKNOWN);
                    self.countries.insert(customer.customer_id.to_owned(), country.to_owned());
                }
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<impl Iterator<Item = Total>, Failure> {
        Ok(self.totals.into_iter().map(|(country, (orders, total))| Total { country, orders, total }))
    }
}

impl EnrichOrders {
    fn orders(&mut self, batch: &Batch) -> Result<(), Failure> {
        for (row, order) in batch.rows::<Order>().enumerate() {
            let country = order.customer_id.and_then(|id| self.countries.get(id)).map_or(UNKNOWN, String::as_str);
            if !self.totals.contains_key(country) {
                self.totals.insert(country.to_owned(), Default::default());
            }
            let (orders, total) = self.totals.get_mut(country).expect("it was just put there");
            *orders += 1;
            *total = total
                .checked_add(order.amount.unwrap_or_default())
                .ok_or_else(|| Failure::row(row, format!("the total of {country} has more than 38 digits")))?;
        }
        Ok(())
    }
}

restitch_guest::export!(EnrichOrders);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_without_a_known_country_are_unknown() {
        let mut transform = EnrichOrders::default();
        let customer = |customer_id, country| Customer { customer_id, country };
        let order = |customer_id, amount| Order { event_id: "e", event_time: Timestamp(0), customer_id, amount: Some(Decimal(amount)) };
        let customers = Batch::of(1, [customer("a", Some("DE")), customer("b", None)]);
        let orders = Batch::of(0, [order(Some("a"), 1), order(Some("b"), 2), order(Some("c"), 4), order(None, 8)]);
        transform.push(&customers, &mut Output::default()).unwrap();
        transform.push(&orders, &mut Output::default()).unwrap();
        let total = |country: &str, orders, total| Total { country: country.into(), orders, total: Decimal(total) };
        assert_eq!(transform.finish().unwrap().collect::<Vec<_>>(), [total("DE", 1, 1), total("unknown", 3, 14)]);
    }
}
