//! customer-totals 1.1.0: like 1.0.0, but negative amounts (refunds) are left out.
//! Never a copy: the code is that of 1.0.0.

#[path = "../../customer-totals/src/totals.rs"]
mod totals;

/// The transform: orders with a negative amount do not count.
pub type CustomerTotals = totals::CustomerTotals<true>;

restitch_guest::export!(CustomerTotals);
