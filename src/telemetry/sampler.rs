//! Gauges, written from the process's state at regular intervals.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use metrics::{counter, gauge};

use super::{
    FORGETTING_HELD, KAFKA_FAILED_COMMITS, KAFKA_REBALANCES, KAFKA_UP, LAG, LEDGER_BYTES,
    PARTITIONS_OWNED, PARTITIONS_STOPPED, POSITION_AGE, POSTGRES_UP, ProcessState, READY,
    REDIS_BREAKER_OPEN,
};
use super::{PartitionState, SourceState};
use crate::event::TopicPartition;

/// Writes every gauge anew each time, so that those of partitions which went elsewhere fall idle,
/// and only they.
#[derive(Debug, Default)]
pub struct Sampler {
    progress: BTreeMap<TopicPartition, Progress>,
}

/// When a position was last seen to move, or to have nothing before it.
#[derive(Clone, Copy, Debug)]
struct Progress {
    position: Option<i64>,
    since: Instant,
}

impl Sampler {
    /// Writes the gauges, and the counters that others keep.
    pub fn sample(&mut self, state: &ProcessState, now: Instant) {
        let flag = f64::from;
        gauge!(READY).set(flag(state.is_ready()));
        gauge!(POSTGRES_UP).set(flag(state.postgres_up));
        gauge!(PARTITIONS_OWNED).set(state.partitions.len() as f64);
        gauge!(PARTITIONS_STOPPED).set(state.stopped().count() as f64);
        if let Some(filter) = &state.filter {
            let breaker = |name: &'static str| gauge!(REDIS_BREAKER_OPEN, "breaker" => name);
            breaker("answers").set(flag(filter.answers_open));
            breaker("writes").set(flag(filter.writes_open));
        }
        if let Some(ledger) = &state.ledger {
            gauge!(LEDGER_BYTES).set(ledger.bytes as f64);
            gauge!(FORGETTING_HELD).set(flag(ledger.forgetting_held));
        }
        source(&state.source);
        let owned = |at: &TopicPartition| state.partitions.iter().any(|p| p.at == *at);
        self.progress.retain(|at, _| owned(at));
        for partition in &state.partitions {
            let age = self.position_age(partition, now);
            let of = |name: &'static str| {
                let TopicPartition { topic, partition } = &partition.at;
                gauge!(name, "topic" => topic.clone(), "partition" => partition.to_string())
            };
            if let Some(lag) = partition.lag {
                of(LAG).set(lag as f64);
            }
            of(POSITION_AGE).set(age);
        }
    }

    fn position_age(&mut self, partition: &PartitionState, now: Instant) -> Duration {
        let position = partition.position;
        let fresh = Progress {
            position,
            since: now,
        };
        let progress = self.progress.entry(partition.at.clone()).or_insert(fresh);
        if progress.position != position || partition.lag == Some(0) {
            *progress = fresh;
        }
        now.saturating_duration_since(progress.since)
    }
}

fn source(state: &SourceState) {
    gauge!(KAFKA_UP).set(f64::from(state.connected));
    counter!(KAFKA_REBALANCES).absolute(state.rebalances);
    counter!(KAFKA_FAILED_COMMITS).absolute(state.failed_commits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_ages_only_while_records_wait_and_it_stands() {
        let begin = Instant::now();
        let mut sampler = Sampler::default();
        let mut age = |seconds, position, lag| {
            let partition = PartitionState {
                at: TopicPartition::new("orders", 0),
                position: Some(position),
                lag,
                stopped: None,
            };
            let now = begin + Duration::from_secs(seconds);
            sampler.position_age(&partition, now).as_secs()
        };
        assert_eq!(age(0, 5, Some(10)), 0, "just met");
        assert_eq!(age(4, 5, Some(10)), 4, "stands");
        assert_eq!(age(5, 5, None), 5, "an unknown lag is no progress");
        assert_eq!(age(6, 6, Some(9)), 0, "moved");
        assert_eq!(age(9, 6, Some(9)), 3, "stands again");
        assert_eq!(age(10, 6, Some(0)), 0, "nothing waits");
        assert_eq!(age(60, 6, Some(0)), 0, "nothing waits for long");
        assert_eq!(age(61, 6, Some(1)), 1, "one waits since then");
    }

    #[test]
    fn a_partition_that_went_elsewhere_is_forgotten() {
        let mut sampler = Sampler::default();
        let partition = PartitionState {
            at: TopicPartition::new("orders", 0),
            position: Some(5),
            lag: Some(1),
            stopped: None,
        };
        let mut state = ProcessState {
            partitions: vec![partition],
            ..ProcessState::default()
        };
        sampler.sample(&state, Instant::now());
        assert_eq!(sampler.progress.len(), 1);
        state.partitions.clear();
        sampler.sample(&state, Instant::now());
        assert!(sampler.progress.is_empty());
    }
}
