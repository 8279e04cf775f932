//! The pipeline: workers that take batches through one line.
//!
//! [`Worker::run`] feeds the line, `process_batch` in `line.rs` is the line:
//!
//! ```text
//! source.next -> identify -> filter.probe -> ledger.begin -> advance (positions, fenced)
//!   -> claim (ids) -> handler.handle (new events) -> commit -> filter.mark -> source.acknowledge
//! ```
//!
//! It knows its parts by their traits only, so that it runs over a simulated log, filter and ledger
//! as it does over Kafka, Redis and Postgres.

use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::config::OnTombstone;
use crate::error::Error;
use crate::event::Event;
use crate::identity::{Found, Identity, OnMissing};
use crate::ledger::{Failure, Verdict};
use crate::retry::RetryPolicy;

mod assignment;
mod claiming;
mod health;
mod line;
mod ownership;
mod plan;
mod recovery;
mod retrier;
mod work;
mod worker;

pub use assignment::{Decision, decide};
pub use health::{Health, PartitionHealth};
pub use retrier::Retrier;
pub use worker::Worker;

/// What a pipeline's workers share.
#[derive(Debug)]
pub struct Settings {
    /// Identifies this process as the owner of partitions.
    pub owner: Uuid,
    /// How events are told apart.
    pub identity: Identity,
    /// What to do with tombstones.
    pub on_tombstone: OnTombstone,
    /// When a failed event is tried again, and when it is given up.
    pub retry: RetryPolicy,
    /// So many failed events of a partition, with none applied between them, stop it.
    pub max_dead_in_a_row: u32,
    /// Whether to keep body hashes and count ids that come with another body.
    pub detect_conflicts: bool,
    /// Whether repeats are only counted, and handled all the same.
    pub observe: bool,
    /// How many applied ids each worker remembers.
    pub recent_ids: usize,
    /// How long to wait before another try when the surroundings fail.
    pub reconnect: Backoff,
    /// Events per second of this process.
    pub rate: Option<Rate>,
}

/// What the configuration says of a record.
enum Sort {
    Take,
    Skip,
    Condemn(Failure),
}

impl Settings {
    /// What becomes of an event after so many attempts that all failed.
    fn judge(&self, attempts_made: u32) -> Verdict {
        self.retry.judge(attempts_made, &mut rand::rng())
    }

    /// Whether a record is consumed without any effect: a tombstone, or one without an id.
    #[cfg(feature = "kafka")]
    pub(crate) fn passes_over(&self, event: &Event<'_>, found: Found) -> bool {
        matches!(self.sort(event, found), Sort::Skip)
    }

    /// What the configuration says of a record, before the handler is asked.
    fn sort(&self, event: &Event<'_>, found: Found) -> Sort {
        let failure = |code: &str, message: String| {
            Sort::Condemn(Failure {
                code: code.to_owned(),
                message,
            })
        };
        // First of all: where the id stands in the value, a tombstone has none.
        if event.payload().is_none_or(<[u8]>::is_empty) {
            match self.on_tombstone {
                OnTombstone::Skip => return Sort::Skip,
                OnTombstone::Pass => {}
                OnTombstone::DeadLetter => {
                    return failure(
                        "tombstone",
                        "the value is null or empty (handler.on_tombstone)".to_owned(),
                    );
                }
            }
        }
        match found {
            Found::Id | Found::Place => Sort::Take,
            Found::Missing(_) if self.identity.on_missing == OnMissing::Skip => Sort::Skip,
            Found::Missing(reason) => {
                let from = &self.identity.from;
                failure(
                    "missing-id",
                    format!("no id by identity.from = \"{from}\": {reason}"),
                )
            }
        }
    }
}

/// A limit on events per second, charged per batch.
#[derive(Debug)]
pub struct Rate {
    limiter: DefaultDirectRateLimiter,
    burst: std::num::NonZeroU32,
}

impl Rate {
    /// A limit; `None` for 0, which means none. A tenth of a second may come in one burst.
    pub fn new(events_per_second: u32) -> Option<Self> {
        let per_second = std::num::NonZeroU32::new(events_per_second)?;
        let burst = std::num::NonZeroU32::new(events_per_second.div_ceil(10))?;
        let limiter = RateLimiter::direct(Quota::per_second(per_second).allow_burst(burst));
        Some(Self { limiter, burst })
    }

    /// Waits until so many events may pass.
    pub async fn charge(&self, mut events: usize) {
        while let Some(charge) =
            std::num::NonZeroU32::new(events.min(self.burst.get() as usize) as u32)
        {
            match self.limiter.check_n(charge) {
                Ok(Ok(())) => events -= charge.get() as usize,
                Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(_) => return,
            }
        }
    }
}

/// Counts tries of one thing, for the growing pause between them.
#[derive(Debug, Default)]
struct Retries {
    made: u32,
}

impl Retries {
    fn next_delay(&mut self, backoff: &Backoff) -> Duration {
        self.made = self.made.saturating_add(1);
        backoff.wait(self.made, Duration::ZERO, &mut rand::rng())
    }
}

/// The failure that an error becomes in a waiting or dead event.
fn failure_of(error: &Error) -> Failure {
    Failure {
        code: error.code().unwrap_or("rejected").to_owned(),
        message: error.to_string(),
    }
}
