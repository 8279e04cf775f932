//! What the line counts, once per transaction, through handles that are made once.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Histogram};

use super::{
    COMMIT_SECONDS, CONFLICTS, DEAD_LETTERS, EVENTS, FENCED, RETRIES, TRANSACTION_EVENTS,
    TRANSACTION_SECONDS,
};
use crate::outcome::{Outcome, Tally};

/// Counters and histograms of a pipeline's workers and retriers.
///
/// The handles are made at the first use, so that this may be built before the recorder is
/// installed; without a recorder nothing is counted.
#[derive(Debug, Default)]
pub struct LineMetrics {
    handles: OnceLock<Handles>,
}

#[derive(Debug)]
struct Handles {
    events: [Counter; Outcome::ALL.len()],
    conflicts: Counter,
    dead_letters: Counter,
    retries_applied: Counter,
    retries_waiting: Counter,
    retries_dead: Counter,
    fenced: Counter,
    transaction_events: Histogram,
    transaction_seconds: Histogram,
    commit_seconds: Histogram,
}

impl Handles {
    fn register() -> Self {
        let retries = |result: &'static str| metrics::counter!(RETRIES, "result" => result);
        Self {
            events: Outcome::ALL.map(|o| metrics::counter!(EVENTS, "outcome" => o.name())),
            conflicts: metrics::counter!(CONFLICTS),
            dead_letters: metrics::counter!(DEAD_LETTERS),
            retries_applied: retries("applied"),
            retries_waiting: retries("waiting"),
            retries_dead: retries("dead"),
            fenced: metrics::counter!(FENCED),
            transaction_events: metrics::histogram!(TRANSACTION_EVENTS),
            transaction_seconds: metrics::histogram!(TRANSACTION_SECONDS),
            commit_seconds: metrics::histogram!(COMMIT_SECONDS),
        }
    }
}

impl LineMetrics {
    fn handles(&self) -> &Handles {
        self.handles.get_or_init(Handles::register)
    }

    /// Counts the outcomes of a committed transaction, and its ids that came with another body.
    pub fn committed(&self, tally: &Tally, conflicts: u64) {
        let handles = self.handles();
        for (counter, count) in handles.events.iter().zip(tally.counts()) {
            if count > 0 {
                counter.increment(count);
            }
        }
        handles.conflicts.increment(conflicts);
        handles.dead_letters.increment(tally.get(Outcome::Dead));
        handles.transaction_events.record(tally.total() as f64);
    }

    /// Records how long a committed transaction took from its beginning to the answer of its
    /// commit, and how much of that was the commit.
    pub fn took(&self, transaction: Duration, commit: Duration) {
        let handles = self.handles();
        handles.transaction_seconds.record(transaction);
        handles.commit_seconds.record(commit);
    }

    /// Counts what became of waiting events that were tried again, once that is committed.
    pub fn retried(&self, applied: u64, waiting: u64, dead: u64) {
        let handles = self.handles();
        handles.retries_applied.increment(applied);
        handles.retries_waiting.increment(waiting);
        handles.retries_dead.increment(dead);
        handles.dead_letters.increment(dead);
    }

    /// Counts a partition that another member claimed while this one believed to own it.
    pub fn fenced(&self) {
        self.handles().fenced.increment(1);
    }
}
