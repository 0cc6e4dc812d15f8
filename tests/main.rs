//! The one test binary: stories through the library and the command, contracts, house rules.

mod command;
mod crash;
mod examples;
mod guests;
mod interop;
mod landing;
mod lateness;
mod main_job;
mod masks;
mod order;
mod retention;
mod support;
mod tidy;
