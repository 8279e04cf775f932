//! What a pipeline's workers say of themselves, for readiness, metrics and whoever asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::TopicPartition;
use crate::outcome::{Outcome, Tally};

/// Shared by the workers of a process; cheap to write once per batch.
#[derive(Debug, Default)]
pub struct Health {
    postgres_down: AtomicBool,
    connected_once: AtomicBool,
    fenced: AtomicU64,
    tally: Mutex<Tally>,
    partitions: Mutex<BTreeMap<TopicPartition, Option<String>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Health {
    /// Notes whether Postgres answers. True if that is news.
    pub fn postgres_is(&self, up: bool) -> bool {
        if up {
            self.connected_once.store(true, Ordering::Relaxed);
        }
        self.postgres_down.swap(!up, Ordering::Relaxed) == up
    }

    /// Whether a connection was made, and none is being missed since.
    pub fn postgres_up(&self) -> bool {
        self.connected_once.load(Ordering::Relaxed) && !self.postgres_down.load(Ordering::Relaxed)
    }

    /// Counts a partition that another member claimed while this one believed to own it.
    pub fn count_fenced(&self) {
        self.fenced.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(crate::telemetry::FENCED).increment(1);
    }

    /// How often this process was fenced.
    pub fn fenced(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    /// Adds the outcomes of a committed transaction.
    pub fn count(&self, tally: &Tally) {
        locked(&self.tally).merge(tally);
        for (outcome, count) in Outcome::ALL.into_iter().zip(tally.counts()) {
            if count > 0 {
                metrics::counter!(crate::telemetry::EVENTS, "outcome" => outcome.name())
                    .increment(count);
            }
        }
    }

    /// What this process committed since it started.
    pub fn tally(&self) -> Tally {
        *locked(&self.tally)
    }

    /// Notes that a partition is read.
    pub fn reading(&self, at: &TopicPartition) {
        locked(&self.partitions).insert(at.clone(), None);
    }

    /// Notes that a partition stands still until a person decides.
    pub fn stopped(&self, at: &TopicPartition, reason: &str) {
        locked(&self.partitions).insert(at.clone(), Some(reason.to_owned()));
    }

    /// Forgets a partition that went to another member.
    pub fn forget(&self, at: &TopicPartition) {
        locked(&self.partitions).remove(at);
    }

    /// The owned partitions, each with the reason why it stands still, if it does.
    pub fn partitions(&self) -> BTreeMap<TopicPartition, Option<String>> {
        locked(&self.partitions).clone()
    }
}
