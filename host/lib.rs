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

// Verbs.
pub mod decode;
