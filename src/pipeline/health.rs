//! What a pipeline's workers say of themselves, for readiness, metrics and whoever asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::TopicPartition;
use crate::outcome::Tally;
use crate::telemetry::{Heartbeats, LedgerState, LineMetrics};

/// Shared by the workers of a process; cheap to write once per batch.
#[derive(Debug, Default)]
pub struct Health {
    /// What the workers count.
    pub metrics: LineMetrics,
    /// Whether their loops turn.
    pub heartbeats: Heartbeats,
    /// How this process keeps the ledger's memory, if it does.
    pub ledger: Mutex<Option<LedgerState>>,
    postgres_down: AtomicBool,
    postgres_silent: AtomicBool,
    connected_once: AtomicBool,
    fenced: AtomicU64,
    tally: Mutex<Tally>,
    partitions: Mutex<BTreeMap<TopicPartition, PartitionHealth>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Health {
    /// Notes whether Postgres answers a worker. True if that is news.
    pub fn postgres_is(&self, up: bool) -> bool {
        let missed = self.postgres_missed();
        if up {
            self.connected_once.store(true, Ordering::Relaxed);
            self.postgres_silent.store(false, Ordering::Relaxed);
        }
        self.postgres_down.store(!up, Ordering::Relaxed);
        missed == up
    }

    /// Notes whether Postgres answers short questions beside the line, whose own may rightly take
    /// long. True if that is news.
    pub fn postgres_is_silent(&self, silent: bool) -> bool {
        let missed = self.postgres_missed();
        self.postgres_silent.store(silent, Ordering::Relaxed);
        missed != self.postgres_missed()
    }

    fn postgres_missed(&self) -> bool {
        self.postgres_down.load(Ordering::Relaxed) || self.postgres_silent.load(Ordering::Relaxed)
    }

    /// Whether a connection was made, and none is being missed since.
    pub fn postgres_up(&self) -> bool {
        self.connected_once.load(Ordering::Relaxed) && !self.postgres_missed()
    }

    /// Counts a partition that another member claimed while this one believed to own it.
    pub fn count_fenced(&self) {
        self.fenced.fetch_add(1, Ordering::Relaxed);
        self.metrics.fenced();
    }

    /// How often this process was fenced.
    pub fn fenced(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    /// Adds the outcomes of a committed transaction, and its ids that came with another body.
    pub fn count(&self, tally: &Tally, conflicts: u64) {
        locked(&self.tally).merge(tally);
        self.metrics.committed(tally, conflicts);
    }

    /// What this process committed since it started.
    pub fn tally(&self) -> Tally {
        *locked(&self.tally)
    }

    /// Notes the position of a partition that is read.
    pub fn reading(&self, at: &TopicPartition, position: i64) {
        let mut partitions = locked(&self.partitions);
        match partitions.get_mut(at) {
            Some(partition) => {
                *partition = PartitionHealth {
                    position,
                    stopped: None,
                }
            }
            None => {
                partitions.insert(
                    at.clone(),
                    PartitionHealth {
                        position,
                        stopped: None,
                    },
                );
            }
        }
    }

    /// Notes that a partition stands still until a person decides.
    pub fn stopped(&self, at: &TopicPartition, position: i64, reason: &str) {
        let stopped = Some(reason.to_owned());
        locked(&self.partitions).insert(at.clone(), PartitionHealth { position, stopped });
    }

    /// Forgets a partition that went to another member.
    pub fn forget(&self, at: &TopicPartition) {
        locked(&self.partitions).remove(at);
    }

    /// The partitions that this process claimed.
    pub fn partitions(&self) -> BTreeMap<TopicPartition, PartitionHealth> {
        locked(&self.partitions).clone()
    }
}

/// How a claimed partition fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionHealth {
    /// The next offset to process.
    pub position: i64,
    /// Why it stands still, if a person has to decide.
    pub stopped: Option<String>,
}
