//! restitch: repair history without corrupting it.
//!
//! The modules stand in reading order, and each uses only those above it; `tests/tidy.rs` holds
//! that. Nouns are pure. A door is the only place that names its outside world. Verbs each eat
//! what the one before them made. The main path is `pipeline`: start there.

// Nouns.
pub mod time;
pub mod id;
pub mod schema;
pub mod window;
pub mod watermark;
pub mod config;
pub mod checksum;
pub mod access;
pub mod manifest;

// Doors.
pub mod store;
pub mod catalog;
pub mod datafile;
pub mod decode;
pub mod query;
pub mod transform;

// Verbs: each eats what the one before made.
pub mod recover;
pub mod ingest;
pub mod raw;
pub mod reparse;
pub mod dedup;
pub mod moves;
pub mod plan;
pub mod execute;
pub mod check;
pub mod publish;
pub mod gc;
pub mod doctor;
pub mod trial;
pub mod pipeline;

// The edge.
pub mod cli;
