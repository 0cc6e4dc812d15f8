//! The one test binary: stories through the library and the command, contracts, house rules.

mod approvals;
mod beginnings;
mod cases;
mod checks;
mod command;
mod contract;
mod crash;
#[cfg(unix)]
mod disk;
mod doctor;
mod downstream;
mod examples;
mod fuzz;
mod growth;
mod guests;
mod handbook;
mod interop;
#[cfg(unix)]
mod killed;
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
mod raw_gone;
mod reparse;
mod retention;
mod rivals;
mod rollbacks;
mod saved_plans;
mod staged_keep;
mod strange_tables;
mod support;
mod tidy;
mod trials;
mod versions;
