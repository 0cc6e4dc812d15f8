//! Core modules that carry no description of the contract become components: the description is embedded here.
//! Never lets such a module import WASI: the stub stands in for it.
//! The builds of C and Go end with it; Rust guests bring their world along.

use super::{BuildError, stub};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The contract. WIT takes the files of a package as one text, if the package is named once.
const CONTRACT: &str = concat!(
    include_str!("../../../wit/restitch-transform-1.0.0/types.wit"),
    include_str!("../../../wit/restitch-transform-1.0.0/log.wit"),
    include_str!("../../../wit/restitch-transform-1.0.0/transform.wit"),
);

/// Returns the component of a core module that speaks the contract's canonical ABI by itself.
///
/// # Errors
/// The module is damaged, lacks a function of the contract, or imports what is neither the log nor WASI's preview 1.
pub(super) fn componentize(mut module: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let mut helper = stub::module();
    // Its error type is not named, so that its crate need not be a dependency of ours.
    let mut encode = || {
        let mut resolve = Resolve::default();
        let contract = resolve.push_source("contract.wit", CONTRACT)?;
        let beside = resolve.push_source("stub.wit", stub::WORLD)?;
        let (contract, beside) = (resolve.select_world(&[contract], Some("transformer"))?, resolve.select_world(&[beside], Some("stub"))?);
        embed_component_metadata(&mut module, &resolve, contract, StringEncoding::UTF8)?;
        embed_component_metadata(&mut helper, &resolve, beside, StringEncoding::UTF8)?;
        ComponentEncoder::default().validate(true).module(&module)?.adapter(stub::NAME, &helper)?.encode()
    };
    encode().map_err(|e| BuildError::Component { reason: format!("{e:#}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_no_transform_is_told_what_it_lacks() {
        let problem = componentize(b"\0asm\x01\0\0\0".to_vec()).unwrap_err().to_string();
        assert!(problem.contains("restitch:transform/transform@1.0.0") && problem.contains("describe"), "{problem}");
        assert!(matches!(componentize(b"".to_vec()), Err(BuildError::Component { .. })));
    }
}
