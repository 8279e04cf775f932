//! One measurement.

use std::time::{Duration, Instant};

use super::usage::{PARTS, Servers, Usage};

/// What was done, how long it took and what it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Events that were handled.
    pub(super) events: u64,
    /// How long that took.
    pub(super) took: Duration,
    /// Processor time meanwhile.
    pub(super) usage: Usage,
    /// The most memory that the product's process had, in bytes.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Measured {
    /// Events a second.
    pub(super) fn rate(&self) -> f64 {
        self.events as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Microseconds of a processor for each event, by [`PARTS`].
    pub(super) fn cpu_us(&self) -> [Option<f64>; PARTS.len()] {
        let events = self.events.max(1) as f64;
        let each = |taken: Duration| taken.as_secs_f64() * 1e6 / events;
        self.usage.0.map(|taken| taken.map(each))
    }

    /// Of all parts together, as far as they are known.
    pub(super) fn all_cpu_us(&self) -> f64 {
        self.cpu_us().into_iter().flatten().sum()
    }
}

/// A clock that runs.
pub(super) struct Clock {
    servers: Servers,
    onceonly: u32,
    before: Usage,
    begun: Instant,
}

impl Clock {
    /// Starts for a process.
    pub(super) fn start(servers: Servers, onceonly: u32) -> Self {
        Self {
            servers,
            onceonly,
            before: servers.usage(onceonly),
            begun: Instant::now(),
        }
    }

    /// Counts time, but not processor time, from then on.
    pub(super) fn begun_at(mut self, begun: Instant) -> Self {
        self.begun = begun;
        self
    }

    /// Reads it.
    pub(super) fn stop(self, events: u64) -> Measured {
        let took = self.begun.elapsed();
        Measured {
            events,
            took,
            usage: self.servers.usage(self.onceonly) - self.before,
            peak_rss_bytes: None,
        }
    }
}
