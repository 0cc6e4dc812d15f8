//! Orders and cents per customer: the arithmetic alone.
//! Never knows where rows come from: the guest feeds it columns of the contract, `bench/` feeds it Arrow's.

use super::{Text, Texts};

/// Sums per customer.
#[derive(Default)]
pub struct Totals {
    customers: Texts,
    /// Orders and cents, at the customer's number.
    sums: Vec<(i64, i64)>,
}

impl Totals {
    /// Adds orders: their customers, and their cents in the same order.
    ///
    /// # Errors
    /// The place of an order with which its customer's total does not fit into 64 bits.
    #[inline]
    pub fn add<'c>(&mut self, customers: impl Iterator<Item = &'c str>, cents: impl Iterator<Item = i64>) -> Result<(), usize> {
        let numbers = self.customers.numbers(customers);
        self.sums.resize(self.customers.len(), (0, 0));
        for (place, (number, cents)) in numbers.into_iter().zip(cents).enumerate() {
            let sum = &mut self.sums[number as usize];
            *sum = (sum.0 + 1, sum.1.checked_add(cents).ok_or(place)?);
        }
        Ok(())
    }

    /// Returns customer, orders and cents, in no order: whoever writes the rows sorts them.
    pub fn rows(self) -> impl Iterator<Item = (Text, i64, i64)> {
        self.customers.into_texts().zip(self.sums).map(|(customer, (orders, cents))| (customer, orders, cents))
    }
}
