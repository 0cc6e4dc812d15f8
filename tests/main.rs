//! The one test binary: stories through the library and the command, contracts, house rules.

mod guests;
mod interop;
mod main_job;
mod support;
mod tidy;
