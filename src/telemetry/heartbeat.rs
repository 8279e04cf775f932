//! Signs of life from a process's loops.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The loops of a process that must not stand still. Clones share them.
#[derive(Clone, Debug)]
pub struct Heartbeats {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    origin: Instant,
    next_id: AtomicU64,
    pulses: Mutex<BTreeMap<u64, Arc<Pulse>>>,
}

#[derive(Debug)]
struct Pulse {
    name: String,
    bound: Duration,
    /// Milliseconds after the origin.
    last_ms: AtomicU64,
}

/// One loop's way to say that it lives; dropped when the loop ends, which is no death.
///
/// A beat is one store: cheap enough for every turn of any loop.
#[derive(Debug)]
pub struct Heartbeat {
    id: u64,
    pulse: Arc<Pulse>,
    shared: Arc<Shared>,
}

/// A loop that was not heard of for longer than it may be silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The loop's name.
    pub name: String,
    /// Since when.
    pub silent_for: Duration,
}

impl Default for Heartbeats {
    fn default() -> Self {
        let shared = Shared {
            origin: Instant::now(),
            next_id: AtomicU64::new(0),
            pulses: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl Shared {
    fn pulses(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Pulse>>> {
        self.pulses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Heartbeats {
    /// Counts a loop among the living as of now. `bound` is how long it may be silent: longer than
    /// anything it may rightly wait for without a beat, such as a statement's timeout.
    pub fn register(&self, name: impl Into<String>, bound: Duration) -> Heartbeat {
        let pulse = Arc::new(Pulse {
            name: name.into(),
            bound,
            last_ms: AtomicU64::new(self.shared.now_ms()),
        });
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        self.shared.pulses().insert(id, Arc::clone(&pulse));
        Heartbeat {
            id,
            pulse,
            shared: Arc::clone(&self.shared),
        }
    }

    /// The loops that stand still, in the order in which they began.
    pub fn stalled(&self) -> Vec<Stalled> {
        let now_ms = self.shared.now_ms();
        let silence = |pulse: &Arc<Pulse>| {
            let last_ms = pulse.last_ms.load(Ordering::Relaxed);
            let silent_for = Duration::from_millis(now_ms.saturating_sub(last_ms));
            (silent_for > pulse.bound).then(|| Stalled {
                name: pulse.name.clone(),
                silent_for,
            })
        };
        self.shared.pulses().values().filter_map(silence).collect()
    }
}

impl Heartbeat {
    /// Says that the loop lives.
    pub fn beat(&self) {
        self.pulse
            .last_ms
            .store(self.shared.now_ms(), Ordering::Relaxed);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.shared.pulses().remove(&self.id);
    }
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.silent_for.as_secs_f64();
        write!(f, "{} stands still since {seconds:.1} s", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(heartbeats: &Heartbeats) -> Vec<String> {
        heartbeats.stalled().into_iter().map(|s| s.name).collect()
    }

    #[test]
    fn a_silent_loop_is_named_until_it_beats_or_ends() {
        let heartbeats = Heartbeats::default();
        let silent = heartbeats.register("worker 0", Duration::from_millis(1));
        let ending = heartbeats.register("worker 1", Duration::from_millis(1));
        let _patient = heartbeats.register("worker 2", Duration::from_secs(3600));
        assert!(names(&heartbeats).is_empty());
        while heartbeats.stalled().len() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(names(&heartbeats), ["worker 0", "worker 1"]);
        drop(ending);
        assert_eq!(names(&heartbeats), ["worker 0"]);
        silent.pulse.last_ms.store(u64::MAX, Ordering::Relaxed);
        assert!(names(&heartbeats).is_empty());
        silent.beat();
        let last_ms = silent.pulse.last_ms.load(Ordering::Relaxed);
        assert!(last_ms <= heartbeats.shared.now_ms());
    }
}
