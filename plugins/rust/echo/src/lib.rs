//! echo 1.0.0: every batch goes back as it came. The benchmark measures with it what crossing the boundary costs.
//! Never looks at a row, so it speaks the contract without the SDK's help.

#![cfg_attr(not(target_family = "wasm"), allow(dead_code))]

use restitch_guest::bindings::{
    exports::restitch::transform::transform::Guest,
    restitch::transform::types::{Batch, Context, DataType, Descriptor, Failure, Field, Input},
};

struct Echo;

impl Guest for Echo {
    fn describe() -> Descriptor {
        let field = |(name, data_type): (&str, DataType)| Field { name: name.into(), data_type, nullable: false };
        let fields = || [("event_id", DataType::Utf8), ("customer_id", DataType::Utf8), ("amount_cents", DataType::Int64)].map(field).to_vec();
        Descriptor {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: env!("CARGO_PKG_DESCRIPTION").into(),
            inputs: vec![Input { name: "orders".into(), fields: fields() }],
            output: fields(),
            key: vec!["event_id".into()],
            parameters: vec![],
        }
    }

    fn begin(_: Context) -> Result<(), Failure> {
        Ok(())
    }

    fn push(_: u32, batch: Batch) -> Result<Option<Batch>, Failure> {
        Ok(Some(batch))
    }

    fn finish() -> Result<Option<Batch>, Failure> {
        Ok(None)
    }
}

#[cfg(target_family = "wasm")]
restitch_guest::bindings::export!(Echo with_types_in restitch_guest::bindings);
