//! The program: what was typed goes to `restitch::cli`, and its exit code comes back.
//! Never holds logic.
//! Everything it can do is in the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(restitch::cli::run(std::env::args_os()))
}
