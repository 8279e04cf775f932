//! `[batch]`, `[limits]` and `[shutdown]`: how much at once, and for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{duration, size};

const MIB: usize = 1024 * 1024;

/// How many events share a transaction: the first bound that is reached counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Events.
    pub max_events: usize,
    /// Bytes of keys, headers and values. One event that is larger is a batch of its own.
    #[serde(with = "size")]
    pub max_bytes: usize,
    /// How long the first event waits for others; zero: not at all.
    #[serde(with = "duration")]
    pub max_wait: Duration,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            max_events: 5_000,
            max_bytes: 8 * MIB,
            max_wait: Duration::from_millis(20),
        }
    }
}

/// What the process may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Workers, each with one Postgres connection.
    pub workers: usize,
    /// Events a second in this process; 0: no limit.
    pub events_per_second: u32,
    /// Bytes of events read and not yet committed.
    #[serde(with = "size")]
    pub in_flight_bytes: usize,
    /// A larger event is a dead letter.
    #[serde(with = "size")]
    pub max_event_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            workers: 2,
            events_per_second: 0,
            in_flight_bytes: 64 * MIB,
            max_event_bytes: 8 * MIB,
        }
    }
}

/// How the process leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long the work in hand may take to finish.
    #[serde(with = "duration")]
    pub timeout: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
        }
    }
}
