//! Which fault strikes when: all of it follows from a seed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use onceonly::ledger::memory::{Fault, Faults, Step};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Every kind of fault that the plan knows.
pub const KINDS: [&str; 17] = [
    "crash",
    "disconnect",
    "duplicate delivery",
    "failover to an older history",
    "filter answers lost",
    "filter down",
    "filter forgets",
    "filter marks lost",
    "filter recalls",
    "handler rejects",
    "handler transient",
    "member joins",
    "move",
    "rewind",
    "stall",
    "steal",
    "transient",
];

/// Random numbers and counts, shared by everything in one run.
#[derive(Clone)]
pub struct Plan {
    state: Arc<Mutex<State>>,
    calm: Arc<AtomicBool>,
}

struct State {
    rng: StdRng,
    struck: BTreeMap<&'static str, u64>,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            struck: BTreeMap::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            calm: Arc::new(AtomicBool::new(false)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A number below `end`.
    pub fn below(&self, end: usize) -> usize {
        self.state().rng.random_range(0..end.max(1))
    }

    /// True once in `odds` times, never after the plan has calmed down.
    pub fn strikes(&self, kind: &'static str, odds: usize) -> bool {
        if self.calm.load(Ordering::Relaxed) {
            return false;
        }
        let strikes = self.below(odds) == 0;
        if strikes {
            self.note(kind);
        }
        strikes
    }

    pub fn note(&self, kind: &'static str) {
        debug_assert!(KINDS.contains(&kind), "{kind} is not among the kinds");
        *self.state().struck.entry(kind).or_insert(0) += 1;
    }

    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    pub fn struck(&self) -> BTreeMap<&'static str, u64> {
        self.state().struck.clone()
    }
}

/// What strikes one member's connections.
#[derive(Clone)]
pub struct MemberFaults {
    pub plan: Plan,
    pub crashed: Arc<AtomicBool>,
}

impl Faults for MemberFaults {
    async fn strike(&self, _: Step) -> Fault {
        if self.plan.strikes("crash", 400) {
            self.crashed.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        if self.plan.strikes("stall", 200) {
            let stall = Duration::from_millis(self.plan.below(40_000) as u64);
            tokio::time::sleep(stall).await;
        }
        if self.plan.strikes("disconnect", 80) {
            return Fault::Disconnect;
        }
        if self.plan.strikes("transient", 80) {
            return Fault::Transient;
        }
        Fault::None
    }
}
