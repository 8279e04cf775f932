//! A ledger in memory that behaves like the one in Postgres, for simulation and for tests of
//! handlers without a database.
//!
//! Transactions run one at a time: what Postgres achieves by row locks and a unique index, this
//! achieves by letting a second transaction wait. One that is idle for too long loses its place, as
//! `idle_in_transaction_session_timeout` has it.

use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Claim, CommitError, Due, Entry, Fate, Ledger, Move, Parked, Position, Settled, Standing, Take,
    Verdict,
};
use crate::error::Error;
use crate::event::TopicPartition;
use crate::filter::Receipt;
use crate::identity::Found;
use crate::outcome::Tally;

mod database;
mod faults;
mod tables;

pub use database::MemoryDatabase;
pub use faults::{Fault, Faults, NoFaults, Step};
pub use tables::{Kept, Row, Tables};

use tables::{keep, replay};

#[derive(Debug)]
struct Transaction {
    number: u64,
    /// Copied at the first change; most transactions only look.
    tables: Arc<Tables>,
}

/// One connection to a [`MemoryDatabase`].
#[derive(Debug)]
pub struct MemoryLedger<X = NoFaults> {
    database: MemoryDatabase,
    faults: X,
    transaction: Option<Transaction>,
    /// What `Handler::prepare` gets to see, outside any transaction.
    scratch: Tables,
    /// The incarnation that it is connected to.
    connected: Option<u64>,
}

impl<X> Drop for MemoryLedger<X> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<X> MemoryLedger<X> {
    fn abandon(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.database.release(Some(transaction.number));
        }
    }

    fn disconnect(&mut self) -> Error {
        self.abandon();
        self.connected = None;
        Error::postgres("memory ledger", sqlx::Error::WorkerCrashed)
    }

    fn tables(&mut self) -> Result<&mut Arc<Tables>, Error> {
        let holder = self.database.lock().holder;
        match &self.transaction {
            Some(transaction) if holder == Some(transaction.number) => {}
            Some(_) => return Err(self.disconnect()),
            None => return Err(Error::fatal("memory ledger: no transaction is open")),
        }
        self.transaction
            .as_mut()
            .map(|t| &mut t.tables)
            .ok_or_else(|| Error::fatal("unreachable"))
    }

    fn tables_mut(&mut self) -> Result<&mut Tables, Error> {
        self.tables().map(Arc::make_mut)
    }
}

impl<X: Faults> MemoryLedger<X> {
    async fn step(&mut self, step: Step) -> Result<(), Error> {
        let fault = self.faults.strike(step).await;
        let incarnation = self.database.lock().incarnation;
        match fault {
            Fault::None if self.connected == Some(incarnation) || step == Step::Connect => Ok(()),
            Fault::Transient => Err(Error::transient(format!(
                "memory ledger: fault at {step:?}"
            ))),
            Fault::None | Fault::Disconnect => Err(self.disconnect()),
        }
    }
}

impl<X: Faults> Ledger for MemoryLedger<X> {
    type Connection = Tables;

    async fn connect(&mut self) -> Result<(), Error> {
        self.abandon();
        self.connected = None;
        self.step(Step::Connect).await?;
        self.connected = Some(self.database.lock().incarnation);
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), Error> {
        self.step(Step::Begin).await?;
        let (number, tables) = self.database.acquire().await;
        self.transaction = Some(Transaction { number, tables });
        Ok(())
    }

    async fn lock_positions(
        &mut self,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Position>, Error> {
        self.step(Step::Read).await?;
        let tables = self.tables()?;
        let row = |at| tables.positions.get(at).map(|row| row.position.clone());
        Ok(partitions.iter().filter_map(row).collect())
    }

    async fn knows_topic(&mut self, topic: &str) -> Result<bool, Error> {
        self.step(Step::Read).await?;
        Ok(self
            .database
            .lock()
            .tables
            .positions
            .keys()
            .any(|at| &*at.topic == topic))
    }

    async fn insert_positions(&mut self, topic: &str, starts: &[(i32, i64)]) -> Result<(), Error> {
        self.step(Step::Read).await?;
        let tables = self.tables_mut()?;
        for &(partition, start) in starts {
            let at = TopicPartition::new(topic, partition);
            let position = Position {
                at: at.clone(),
                epoch: 0,
                next_offset: start,
                high_water: start,
                horizon: 0,
                topic_id: None,
                cluster_id: None,
                stopped: None,
            };
            let row = Row {
                position,
                owner: None,
                tally: Tally::default(),
                conflicts: 0,
            };
            tables.positions.entry(at).or_insert(row);
        }
        Ok(())
    }

    async fn take(&mut self, owner: Uuid, takes: &[Take]) -> Result<Vec<i64>, Error> {
        self.step(Step::Read).await?;
        let tables = self.tables_mut()?;
        let mut epochs = Vec::with_capacity(takes.len());
        for take in takes {
            let row = tables.positions.get_mut(&take.at);
            let row = row.ok_or_else(|| Error::fatal(format!("no position of {}", take.at)))?;
            row.owner = Some(owner);
            row.position.epoch += 1;
            row.position.next_offset = take.next_offset;
            row.position.topic_id = take.topic_id;
            row.position.cluster_id.clone_from(&take.cluster_id);
            row.position.stopped.clone_from(&take.stopped);
            epochs.push(row.position.epoch);
        }
        Ok(epochs)
    }

    async fn advance(&mut self, moves: &[Move<'_>]) -> Result<Vec<usize>, Error> {
        self.step(Step::Advance).await?;
        let tables = self.tables_mut()?;
        let mut fenced = Vec::new();
        for (index, m) in moves.iter().enumerate() {
            match tables.positions.get_mut(m.at).map(|row| &mut row.position) {
                Some(row) if row.epoch == m.epoch && row.next_offset == m.from => {
                    row.next_offset = m.to;
                    row.high_water = row.high_water.max(m.to);
                }
                _ => fenced.push(index),
            }
        }
        Ok(fenced)
    }

    async fn claim(&mut self, entries: &[Entry<'_>]) -> Result<Vec<Claim>, Error> {
        self.step(Step::Claim).await?;
        if !entries.is_sorted_by(|a, b| a.key < b.key) {
            return Err(Error::fatal("ids must be claimed in order, none twice"));
        }
        let tables = self.tables_mut()?;
        let mut claims = Vec::with_capacity(entries.len());
        for entry in entries {
            let (fate, known) = match tables.ledger.get(&entry.key) {
                None => (Fate::New, None),
                Some(hash) if tables.waiting.contains_key(&entry.key) => (Fate::Waiting, *hash),
                Some(hash) if tables.dead.contains_key(&entry.key) => (Fate::Dead, *hash),
                Some(hash) => (Fate::Applied, *hash),
            };
            if fate == Fate::New {
                tables.ledger.insert(entry.key, entry.body_hash);
            }
            let conflict = known.zip(entry.body_hash).is_some_and(|(a, b)| a != b);
            claims.push(Claim { fate, conflict });
        }
        Ok(claims)
    }

    async fn conflicts(&mut self, entries: &[Entry<'_>]) -> Result<Vec<bool>, Error> {
        self.step(Step::Claim).await?;
        let ledger = &self.tables()?.ledger;
        let differs = |entry: &Entry<'_>| {
            let known = ledger.get(&entry.key).copied().flatten();
            known.zip(entry.body_hash).is_some_and(|(a, b)| a != b)
        };
        Ok(entries.iter().map(differs).collect())
    }

    fn connection(&mut self) -> Result<&mut Tables, Error> {
        if self.transaction.is_some() {
            return self.tables_mut();
        }
        Ok(&mut self.scratch)
    }

    async fn park(&mut self, parked: &[Parked<'_>]) -> Result<(), Error> {
        self.step(Step::Park).await?;
        let tables = self.tables_mut()?;
        for parked in parked {
            let kept = Arc::new(keep(parked));
            match parked.verdict {
                Verdict::RetryAfter(_) => tables.waiting.insert(parked.key, kept),
                Verdict::Dead => tables.dead.insert(parked.key, kept),
            };
        }
        Ok(())
    }

    async fn count(&mut self, tallies: &[(&TopicPartition, Tally, u64)]) -> Result<(), Error> {
        self.step(Step::Count).await?;
        let tables = self.tables_mut()?;
        for (at, tally, conflicts) in tallies {
            if let Some(row) = tables.positions.get_mut(*at) {
                row.tally.merge(tally);
                row.conflicts += conflicts;
            }
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<Receipt, CommitError> {
        self.step(Step::Commit)
            .await
            .map_err(|error| match error.is_disconnect() {
                true => CommitError::Unknown(error),
                false => CommitError::Failed(error),
            })?;
        self.tables().map_err(CommitError::Unknown)?;
        if let Some(transaction) = self.transaction.take() {
            self.database.lock().tables = transaction.tables;
            self.database.release(Some(transaction.number));
        }
        match self.step(Step::Answer).await {
            Ok(()) => Ok(Receipt::new()),
            Err(_) => Err(CommitError::Unknown(self.disconnect())),
        }
    }

    async fn rollback(&mut self) -> Result<(), Error> {
        self.abandon();
        match self.connected {
            Some(_) => Ok(()),
            None => Err(self.disconnect()),
        }
    }

    fn vouch(&mut self) -> Receipt {
        Receipt::new()
    }

    async fn standings(&mut self) -> Result<Vec<Standing>, Error> {
        self.step(Step::Read).await?;
        let shared = self.database.lock();
        let standing = |row: &Row| Standing {
            at: row.position.at.clone(),
            epoch: row.position.epoch,
            next_offset: row.position.next_offset,
            high_water: row.position.high_water,
            topic_id: row.position.topic_id,
        };
        Ok(shared.tables.positions.values().map(standing).collect())
    }

    fn history(&self) -> Result<String, Error> {
        Ok(self.database.history())
    }

    async fn mark_namespace(&mut self) -> Result<i32, Error> {
        self.step(Step::Read).await?;
        Ok(self.database.lock().tables.mark_namespace)
    }

    async fn bump_mark_namespace(&mut self) -> Result<i32, Error> {
        self.step(Step::Read).await?;
        let tables = self.tables_mut()?;
        tables.mark_namespace += 1;
        Ok(tables.mark_namespace)
    }

    async fn stop(&mut self, at: &TopicPartition, epoch: i64, reason: &str) -> Result<(), Error> {
        self.step(Step::Read).await?;
        if let Some(row) = Arc::make_mut(&mut self.database.lock().tables)
            .positions
            .get_mut(at)
            && row.position.epoch == epoch
        {
            row.position.stopped = Some(reason.to_owned());
        }
        Ok(())
    }

    async fn due(&mut self, limit: usize) -> Result<Due, Error> {
        self.step(Step::Read).await?;
        let now = Instant::now();
        let tables = self.tables()?;
        let mut rows: Vec<_> = tables
            .waiting
            .iter()
            .filter(|(_, kept)| kept.due_at <= now)
            .collect();
        rows.sort_by_key(|(_, kept)| kept.due_at);
        let mut due = Due::default();
        for (key, kept) in rows.into_iter().take(limit) {
            replay(&mut due.batch, kept);
            due.ids.push(&kept.id, *key, Found::Id);
            due.attempts.push(kept.attempts);
        }
        Ok(due)
    }

    async fn settle(&mut self, settled: &[Settled<'_>]) -> Result<usize, Error> {
        self.step(Step::Settle).await?;
        let tables = self.tables_mut()?;
        let mut changed = 0;
        for Settled {
            key,
            attempt,
            failed,
        } in settled
        {
            if tables
                .waiting
                .get(key)
                .is_none_or(|kept| kept.attempts != *attempt)
            {
                continue;
            }
            let Some(mut row) = tables.waiting.remove(key) else {
                continue;
            };
            changed += 1;
            let kept = Arc::make_mut(&mut row);
            kept.attempts += 1;
            if let Some((failure, verdict)) = failed {
                kept.failures.push((*failure).clone());
                match verdict {
                    Verdict::Dead => tables.dead.insert(*key, row),
                    Verdict::RetryAfter(delay) => {
                        kept.due_at = Instant::now() + *delay;
                        tables.waiting.insert(*key, row)
                    }
                };
            }
        }
        Ok(changed)
    }
}
