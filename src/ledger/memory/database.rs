//! The database behind ledgers in memory: one history, one transaction at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Faults, MemoryLedger, Tables};

/// How long a transaction may stand in another's way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) tables: Arc<Tables>,
    pub(super) holder: Option<u64>,
    transactions: u64,
    /// Counts the failovers: connections of an earlier one are broken.
    pub(super) incarnation: u64,
}

/// A database that any number of [`MemoryLedger`]s share.
#[derive(Clone, Debug)]
pub struct MemoryDatabase {
    shared: Arc<Mutex<Shared>>,
    released: Arc<Notify>,
    number: u64,
}

/// Counts databases: each has a history of its own.
static DATABASES: AtomicU64 = AtomicU64::new(0);

impl Default for MemoryDatabase {
    fn default() -> Self {
        Self {
            shared: Arc::default(),
            released: Arc::default(),
            number: DATABASES.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl MemoryDatabase {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn history(&self) -> String {
        format!("memory/{}", self.number)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is committed, as it is now.
    pub fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.lock().tables)
    }

    /// Puts an older history in place, as a failover to a lagging replica does. All connections
    /// break.
    pub fn restore(&self, tables: Arc<Tables>) {
        let mut shared = self.lock();
        shared.tables = tables;
        shared.holder = None;
        shared.incarnation += 1;
        self.released.notify_waiters();
    }

    /// Changes what is committed, as an operator's statement does.
    pub fn alter(&self, change: impl FnOnce(&mut Tables)) {
        change(Arc::make_mut(&mut self.lock().tables));
    }

    /// A connection, not yet made.
    pub fn ledger<X: Faults>(&self, faults: X) -> MemoryLedger<X> {
        let (database, scratch) = (self.clone(), Tables::default());
        MemoryLedger {
            database,
            faults,
            transaction: None,
            scratch,
            connected: None,
        }
    }

    pub(super) async fn acquire(&self) -> (u64, Arc<Tables>) {
        loop {
            let released = self.released.notified();
            let holder = {
                let mut shared = self.lock();
                if shared.holder.is_none() {
                    shared.transactions += 1;
                    shared.holder = Some(shared.transactions);
                    return (shared.transactions, Arc::clone(&shared.tables));
                }
                shared.holder
            };
            if timeout(IDLE_TIMEOUT, released).await.is_err() {
                self.release(holder);
            }
        }
    }

    pub(super) fn release(&self, holder: Option<u64>) {
        let mut shared = self.lock();
        if holder.is_some() && shared.holder == holder {
            shared.holder = None;
            self.released.notify_waiters();
        }
    }
}
