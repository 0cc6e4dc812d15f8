//! Cutting a plan into tasks: neighbouring partitions that share one pass over the raw files.
//! Never looks at rows. The cut cannot change a result, only its cost.

use crate::plan::PlannedPartition;

/// Partitions that one worker computes in one pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// The partitions, in order of time.
    pub partitions: Vec<PlannedPartition>,
    /// Records expected.
    pub records: u64,
    /// Whether the records may not fit into memory: then it is one partition, and it is streamed.
    pub large: bool,
}

/// How partitions are put together into tasks. It cannot change a result: `transform prove` shows that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grouping {
    /// As memory and workers suggest.
    Usual,
    /// Each partition is a task.
    Alone,
    /// As many as fit into memory are one task.
    Together,
}

/// More partitions than this are not left to one worker, however few records they have.
const TASK_PARTITIONS_MAX: usize = 256;
/// Fewer records than this are not worth a task of their own.
const TASK_RECORDS_MIN: u64 = 50_000;
/// More records than this are not put together: memory that is used again is faster than memory that the system has to clear first.
const TASK_RECORDS_MAX: u64 = 250_000;

/// Returns the tasks for `partitions`, each with the number of records expected of it, so that as many as
/// `workers` compute at once fit into `memory_bytes` at `row_bytes` each.
pub fn cut(
    partitions: impl Iterator<Item = (PlannedPartition, u64)>,
    row_bytes: u64,
    memory_bytes: usize,
    workers: usize,
    grouping: Grouping,
) -> Vec<Task> {
    let all: Vec<_> = partitions.collect();
    let total: u64 = all.iter().map(|(_, n)| n).sum();
    let workers = workers.min(all.len()).max(1) as u64;
    // Half the memory is for records; output, transform and writers share the rest.
    let fits = (memory_bytes as u64 / 2 / workers / row_bytes.max(1)).max(1);
    let (wanted, most) = match grouping {
        Grouping::Usual => ((total / (workers * 4)).clamp(TASK_RECORDS_MIN, TASK_RECORDS_MAX).min(fits), TASK_PARTITIONS_MAX),
        Grouping::Alone => (fits, 1),
        Grouping::Together => (fits, usize::MAX),
    };
    let mut tasks: Vec<Task> = Vec::new();
    for (partition, records) in all {
        let large = records > fits;
        match tasks.last_mut() {
            Some(task) if !large && !task.large && task.partitions.len() < most && task.records + records <= wanted => {
                task.partitions.push(partition);
                task.records += records;
            }
            _ => tasks.push(Task { partitions: vec![partition], records, large }),
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::Reason,
        window::{Calendar, Grain},
    };
    use chrono_tz::Tz;

    #[test]
    fn small_neighbours_share_a_task_and_large_ones_stand_alone() {
        let calendar = Calendar { grain: Grain::Day, zone: Tz::UTC };
        let window = calendar.resolve("2026-05-01", "2026-05-05").unwrap();
        let records = [10, 20, 200_000, 30, 40_000_000];
        let days = calendar.partitions(window).map(|window| PlannedPartition { name: calendar.name(&window), window, reason: Reason::Missing });
        let days: Vec<_> = days.collect();
        let tasks = cut(days.clone().into_iter().zip(records), 100, 1 << 30, 2, Grouping::Usual);
        let shape: Vec<_> = tasks.iter().map(|t| (t.partitions.len(), t.large)).collect();
        assert_eq!(shape, [(4, false), (1, true)]);
        assert_eq!(tasks.iter().map(|t| t.records).sum::<u64>(), records.iter().sum::<u64>());
        assert_eq!(cut(days.clone().into_iter().zip(records), 100, 1 << 30, 2, Grouping::Alone).len(), 5);
        // One partition is computed by one worker, who has all the memory.
        let alone = |workers| cut(std::iter::once((days[0].clone(), 4_000_000)), 100, 1 << 30, workers, Grouping::Usual);
        assert!(!alone(1)[0].large && !alone(8)[0].large);
    }
}
