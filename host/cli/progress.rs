//! How far the work is: a bar on a terminal, a line every few seconds elsewhere, nothing if it is quick.
//! Never writes to stdout, and never changes what is computed.
//! `ingest`, `run` and `replay` report to a [`Meter`].

use super::{at_terminal, output};
use crate::{execute, ingest};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// Work that ends before this shows no progress.
const QUIET: Duration = Duration::from_millis(700);
/// Between two lines where there is no terminal.
const BETWEEN: Duration = Duration::from_secs(5);

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of files.
    Bytes,
    /// Partitions.
    Partitions,
}

/// Shows how far one piece of work is.
pub struct Meter {
    unit: Unit,
    what: String,
    begun: Instant,
    terminal: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    done: u64,
    total: u64,
    records: u64,
    bar: Option<ProgressBar>,
    line: Option<Instant>,
}

impl Meter {
    /// Returns a meter for `total` of what is counted, 0 if that is not known; bytes tell their total themselves.
    pub fn new(what: impl Into<String>, unit: Unit, total: u64) -> Meter {
        let state = State { total, ..State::default() };
        Meter { unit, what: what.into(), begun: Instant::now(), terminal: at_terminal(), state: Mutex::new(state) }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        // A thread that panicked while it reported must not stop the others.
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut state);
        if self.begun.elapsed() < QUIET {
            return;
        }
        if self.terminal {
            let bar = state.bar.get_or_insert_with(|| self.bar()).clone();
            bar.set_length(state.total);
            bar.set_position(state.done);
            if state.records > 0 {
                bar.set_message(output::count(state.records, "record"));
            }
        } else if state.line.unwrap_or(self.begun).elapsed() >= BETWEEN {
            state.line = Some(Instant::now());
            output::talk(&self.line(&state));
        }
    }

    fn bar(&self) -> ProgressBar {
        let counts = match self.unit {
            Unit::Bytes => "{binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
            Unit::Partitions => "{pos}/{len} partitions",
        };
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = format!("{{prefix}} {{wide_bar}} {counts} {{msg}} {{elapsed}} ({{eta}} left)");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.with_prefix(self.what.clone()).with_elapsed(self.begun.elapsed())
    }

    fn line(&self, state: &State) -> String {
        let percent = (state.done.min(state.total) * 100).checked_div(state.total).unwrap_or(0);
        let seconds = self.begun.elapsed().as_secs();
        match self.unit {
            Unit::Bytes => format!("{}: {} of {} ({percent} %), {seconds} s", self.what, output::bytes(state.done), output::bytes(state.total)),
            Unit::Partitions => {
                let records = output::count(state.records, "record");
                if state.total == 0 {
                    return format!("{}: {}, {records}, {seconds} s", self.what, output::count(state.done, "partition"));
                }
                format!("{}: {} of {} partitions ({percent} %), {records}, {seconds} s", self.what, state.done, state.total)
            }
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl ingest::Progress for Meter {
    fn bytes(&self, done: u64, total: u64) {
        self.update(|s| (s.done, s.total) = (done, total));
    }
}

impl execute::Progress for Meter {
    fn advance(&self, partitions: u64, records: u64) {
        self.update(|s| {
            s.done += partitions;
            s.records += records;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let meter = Meter::new("repair d", Unit::Partitions, 8);
        execute::Progress::advance(&meter, 2, 100);
        let state = meter.state.lock().unwrap();
        assert_eq!(meter.line(&state), "repair d: 2 of 8 partitions (25 %), 100 records, 0 s");
    }
}
