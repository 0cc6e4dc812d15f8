//! A hostile transform: it imports a function that sends bytes somewhere.
//! Never gets to run: it is refused when it is registered.

#[allow(missing_docs, clippy::all)]
mod bindings {
    wit_bindgen::generate!({
        path: ["../../wit/restitch-transform-1.0.0", "wit"],
        world: "restitch:evil/transformer",
        generate_all,
    });
}

use bindings::exports::restitch::transform::transform::{Batch, Context, Descriptor, Failure, Guest};

struct Sockets;

impl Guest for Sockets {
    fn describe() -> Descriptor {
        bindings::restitch::evil::sockets::send("somewhere", b"hello");
        let name = "misbehave-sockets".into();
        Descriptor { name, version: "1.0.0".into(), summary: String::new(), inputs: vec![], output: vec![], key: vec![], parameters: vec![] }
    }

    fn begin(_: Context) -> Result<(), Failure> {
        Ok(())
    }

    fn push(_: u32, _: Batch) -> Result<Option<Batch>, Failure> {
        Ok(None)
    }

    fn finish() -> Result<Option<Batch>, Failure> {
        Ok(None)
    }
}

#[cfg(target_family = "wasm")]
bindings::export!(Sockets with_types_in bindings);
