//! The one test binary: stories through the library and the command, contracts, house rules.

mod approvals;
mod cases;
mod command;
mod contract;
mod crash;
mod doctor;
mod examples;
mod fuzz;
mod guests;
mod interop;
mod landing;
mod lateness;
mod main_job;
mod masks;
mod modes;
mod order;
mod publication_cases;
mod quarantine;
mod reparse;
mod retention;
mod saved_plans;
mod support;
mod tidy;
mod versions;
