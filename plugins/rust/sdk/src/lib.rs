//! The SDK for authors of restitch transforms: typed rows in, typed rows out.
//! Never does any I/O: a transform has its input, its parameters and a log, and nothing else.
//! It sits between your code and the contract in `wit/restitch-transform-1.0.0`.
//!
//! A whole transform, counting orders per customer:
//!
//! ```
//! use restitch_guest::{Batch, Context, Decimal, Failure, Input, Map, Output, Row, Transform};
//!
//! /// What is read.
//! #[derive(Row)]
//! pub struct Order<'a> {
//!     customer_id: &'a str,
//!     amount: Option<Decimal<18, 2>>,
//! }
//!
//! /// What is written.
//! #[derive(Row)]
//! pub struct Total {
//!     customer_id: String,
//!     orders: i64,
//!     total: Decimal<38, 2>,
//! }
//!
//! pub struct Totals(Map<String, (i64, i128)>);
//!
//! impl Transform for Totals {
//!     const NAME: &'static str = "totals";
//!     const VERSION: &'static str = "1.0.0";
//!     const SUMMARY: &'static str = "Orders and their total per customer";
//!     const KEY: &'static [&'static str] = &["customer_id"];
//!     type Output<'a> = Total;
//!
//!     fn inputs() -> Vec<Input> {
//!         vec![Input::of::<Order>("orders")]
//!     }
//!     fn begin(_: &Context) -> Result<Self, Failure> {
//!         Ok(Totals(Map::default()))
//!     }
//!     fn push(&mut self, batch: &Batch, _: &mut Output<Self>) -> Result<(), Failure> {
//!         for order in batch.rows::<Order>() {
//!             let entry = self.0.entry(order.customer_id.to_owned()).or_default();
//!             entry.0 += 1;
//!             entry.1 += order.amount.map_or(0, |a| a.0);
//!         }
//!         Ok(())
//!     }
//!     fn finish(self) -> Result<impl Iterator<Item = Total>, Failure> {
//!         let mut rows: Vec<_> = self.0.into_iter().collect();
//!         rows.sort();
//!         Ok(rows.into_iter().map(|(customer_id, (orders, total))| Total { customer_id, orders, total: Decimal(total) }))
//!     }
//! }
//!
//! restitch_guest::export!(Totals);
//! # fn main() {}
//! ```
//!
//! Build it with `restitch transform build DIR`, or with `cargo build --target wasm32-unknown-unknown`
//! and `wasm-tools component new`. Not for a WASI target: that adds imports, and they are refused.

#![deny(unsafe_code)]

// What the derive makes names this crate; its own tests are inside.
extern crate self as restitch_guest;

/// The contract as wit-bindgen generates it; for transforms that want to speak it themselves.
#[allow(missing_docs, unsafe_code, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "transformer",
        pub_export_macro: true,
        default_bindings_module: "restitch_guest::bindings",
        additional_derives: [Clone, PartialEq],
    });
}

mod column;
mod map;
mod row;
mod texts;
mod transform;
mod value;

pub use bindings::restitch::transform::log::Level;
pub use bindings::restitch::transform::types::{Context, DataType, DecimalType, Descriptor, Failure, Field, Input, Parameter};
pub use column::{Builder, Column, Fixed, View};
pub use map::{Hasher, Map};
pub use restitch_guest_derive::Row;
pub use row::Row;
pub use texts::{Text, Texts};
pub use transform::{Batch, Output, Transform, debug, info, warn};
pub use value::{Date, Decimal, Json, Time, Timestamp, Value};

/// What `export!` needs; not for authors.
#[doc(hidden)]
pub mod hidden {
    pub use crate::transform::{Runner, report_panics};
}
