//! The one test binary: stories through the library and the command, contracts, house rules.

mod approvals;
mod cases;
mod command;
mod crash;
mod doctor;
mod examples;
mod fuzz;
mod guests;
mod interop;
mod landing;
mod languages;
mod lateness;
mod main_job;
mod masks;
mod modes;
mod native;
mod order;
mod publication_cases;
mod quarantine;
mod reparse;
mod retention;
mod saved_plans;
mod support;
mod tidy;
mod trials;
