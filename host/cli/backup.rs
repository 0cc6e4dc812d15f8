//! `backup`: the whole warehouse into another folder, while others go on writing.
//! Never changes what it copies.

use super::{
    Context,
    output::{Answer, bytes, count},
    report::Failure,
};
use serde_json::json;
use std::path::PathBuf;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A folder that is missing or empty
    folder: PathBuf,
}

/// Carries it out.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let done = cx.open()?.backup(&args.folder)?;
    let folder = args.folder.display().to_string();
    let text = format!("Backed up in {folder}: the catalog and {} ({}).\n", count(done.files as i64, "file"), bytes(done.bytes as i64));
    Ok(Answer::lasting(text, json!({ "folder": folder, "files": done.files, "bytes": done.bytes })))
}
