//! What follows a run downstream: the datasets that are made of what it publishes, each after all of its inputs, each in a run of its own.
//! Never goes on behind a dataset that failed or waits for somebody's word, and says so.
//! `run`, `repair` and `backfill` end with it when they are asked to.

use super::{Error, RunRequest, RunResult, Workshop};
use crate::{
    execute::Progress,
    manifest::{Kind, Mode, WriteMode},
    plan::Plan,
};
use indexmap::IndexMap;

/// A dataset that a cascade came to.
#[derive(Debug)]
pub struct Step {
    /// The dataset.
    pub dataset: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a dataset in a cascade.
#[derive(Debug)]
pub enum Outcome {
    /// It was computed and published; or nothing was to be done, and there is no manifest.
    Done(Box<RunResult>),
    /// It failed, was rejected, or waits for somebody's word.
    Failed(Box<Error>),
    /// It was not run: a dataset before it is not as it should be.
    Left {
        /// The dataset that failed or waits.
        behind: String,
    },
}

/// Makes what is told how far a run is, from its dataset and its plan.
pub type Watch<'w> = dyn FnMut(&str, &Plan) -> Box<dyn Progress> + 'w;

impl Workshop {
    /// Refreshes the datasets that are made of the request's, in order: partitions that are missing, or whose input has other rows than they were
    /// computed from. `done` says whether the request's own run came to its end; if not, nothing is run. Its reason, its validation and its
    /// limits hold for each; its window, its filter and what else it says of rows are its own.
    ///
    /// # Errors
    /// None of its own: what failed is in the steps.
    pub fn cascade(&mut self, request: &RunRequest, done: bool, watch: &mut Watch) -> Vec<Step> {
        let order: Vec<(String, Vec<String>)> =
            self.project.downstream(&request.dataset).into_iter().map(|d| (d.name.clone(), d.upstream.clone())).collect();
        // Which dataset keeps others from being run, by what is behind it.
        let mut broken: IndexMap<String, String> = IndexMap::new();
        if !done {
            broken.insert(request.dataset.clone(), request.dataset.clone());
        }
        let mut steps = Vec::new();
        for (dataset, inputs) in order {
            let outcome = match inputs.iter().find_map(|i| broken.get(i)).cloned() {
                Some(behind) => Outcome::Left { behind },
                None => match self.refresh(&refreshing(request, &dataset), watch) {
                    Ok(result) => Outcome::Done(Box::new(result)),
                    Err(e) => Outcome::Failed(Box::new(e)),
                },
            };
            match &outcome {
                Outcome::Done(_) => {}
                Outcome::Failed(_) => drop(broken.insert(dataset.clone(), dataset.clone())),
                Outcome::Left { behind } => drop(broken.insert(dataset.clone(), behind.clone())),
            }
            steps.push(Step { dataset, outcome });
        }
        steps
    }

    fn refresh(&mut self, request: &RunRequest, watch: &mut Watch) -> Result<RunResult, Error> {
        let bound = self.bind(request)?;
        let progress = watch(&request.dataset, &bound.plan()?);
        self.carry_out(&bound, progress.as_ref())
    }
}

/// The request for one dataset downstream.
fn refreshing(request: &RunRequest, dataset: &str) -> RunRequest {
    RunRequest {
        kind: Kind::Run,
        dataset: dataset.into(),
        start: None,
        end: None,
        only: None,
        transform: None,
        mode: Mode::Overwrite,
        write: WriteMode::Overwrite,
        filter: None,
        snapshot: None,
        grant_payload: None,
        seed: 0,
        params: Vec::new(),
        ..request.clone()
    }
}
