//! What makes an effect happen once: positions, the ledger of ids, waiting and dead events, all in
//! the transaction that carries the effects.
//!
//! A [`Ledger`] is one connection of one worker. Its transaction follows one order:
//!
//! ```text
//! begin -> advance (positions, fenced by epoch) -> claim (ids, sorted) -> the handler -> park, count -> commit
//! ```
//!
//! After any error the transaction is rolled back with [`Ledger::rollback`]; after a lost
//! connection, [`Ledger::connect`] makes another, and nothing that was learned over the old one is
//! believed.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::Error;
use crate::event::{Batch, Event, TopicPartition};
use crate::filter::Receipt;
use crate::identity::{EventKey, Ids};
use crate::outcome::Tally;

pub mod id_state;
pub mod memory;
pub mod postgres;

/// A partition's row: the first of the two proofs against duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition.
    pub at: TopicPartition,
    /// Counts the claims; an owner with an older epoch is fenced.
    pub epoch: i64,
    /// The next offset to process.
    pub next_offset: i64,
    /// The furthest `next_offset` ever committed; a rewind does not lower it.
    pub high_water: i64,
    /// Ids of records before this offset may be forgotten.
    pub horizon: i64,
    /// The id of the topic that the offsets belong to; `None` where no broker told.
    pub topic_id: Option<Uuid>,
    /// The cluster that the offsets belong to; `None` where no broker told.
    pub cluster_id: Option<Arc<str>>,
    /// Why the partition stands still, if a person has to decide.
    pub stopped: Option<String>,
}

/// A new owner's claim of a partition whose row it holds locked.
#[derive(Clone, Debug)]
pub struct Take {
    /// The partition.
    pub at: TopicPartition,
    /// Where reading goes on; differs from the row after an operator's rewind.
    pub next_offset: i64,
    /// Recorded with the position.
    pub topic_id: Option<Uuid>,
    /// Recorded with the position.
    pub cluster_id: Option<Arc<str>>,
    /// Why the partition must stand still; it is claimed all the same, so that nobody moves it.
    pub stopped: Option<String>,
}

/// Moves one partition's position within a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The partition.
    pub at: &'a TopicPartition,
    /// The owner's epoch.
    pub epoch: i64,
    /// The position as this owner last knew it.
    pub from: i64,
    /// The position after the batch.
    pub to: i64,
    /// The timestamp of the last record, for the pipeline's own time.
    pub event_time_ms: Option<i64>,
}

/// An id to claim, with the record that brings it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The ledger's key.
    pub key: EventKey,
    /// The record.
    pub event: Event<'a>,
    /// A hash of key and value, where `dedup.detect_conflicts` asks for it.
    pub body_hash: Option<i64>,
}

/// What a claimed id met in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was unknown, and is now this transaction's.
    New,
    /// It was applied before.
    Applied,
    /// It waits for a retry.
    Waiting,
    /// It is a dead letter, or discarded.
    Dead,
}

/// A fate, and whether the body differs from the one first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What the id met.
    pub fate: Fate,
    /// The same id came with another body; only known where hashes are kept.
    pub conflict: bool,
}

/// Why an event failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A short kebab-case word to filter by: a SQLSTATE, or `missing-id`, `invalid-json`, ….
    pub code: String,
    /// The sentence for a person.
    pub message: String,
}

/// What becomes of an event that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt, after this time on the database's clock.
    RetryAfter(Duration),
    /// No further attempt until a person decides.
    Dead,
}

/// A failed event on its way into `waiting` or `dead_letter`.
#[derive(Clone, Debug)]
pub struct Parked<'a> {
    /// The record, kept as it came.
    pub event: Event<'a>,
    /// Its id as text.
    pub id: &'a str,
    /// The ledger's key, claimed in the same transaction.
    pub key: EventKey,
    /// Why it failed.
    pub failure: &'a Failure,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// Waiting events whose time has come, locked by this transaction.
#[derive(Debug, Default)]
pub struct Due {
    /// The records as they first came.
    pub batch: Batch,
    /// Their ids.
    pub ids: Ids,
    /// Attempts made so far, for each record.
    pub attempts: Vec<u32>,
}

/// How a further attempt at a waiting event ended.
#[derive(Clone, Debug)]
pub struct Settled<'a> {
    /// The event.
    pub key: EventKey,
    /// The attempts made before this one; the row changes only if it still says so.
    pub attempt: u32,
    /// `None`: applied. Otherwise why it failed again, and what becomes of it.
    pub failed: Option<(&'a Failure, Verdict)>,
}

/// A commit without a yes.
#[derive(Debug)]
pub enum CommitError {
    /// The server answered: nothing is committed.
    Failed(Error),
    /// The answer was lost: only a locked re-read of a row that had to change can tell.
    Unknown(Error),
}

/// A partition's row as a running owner re-reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The partition.
    pub at: TopicPartition,
    /// The epoch in force.
    pub epoch: i64,
    /// The next offset to process.
    pub next_offset: i64,
    /// The furthest position ever committed.
    pub high_water: i64,
    /// The topic's id, with which marks name their place.
    pub topic_id: Option<Uuid>,
}

/// One worker's connection to the truth.
///
/// No method is cancel-safe: a worker runs each to its end, bounded by the server's timeouts.
pub trait Ledger: Send {
    /// What a handler writes its effects with: the connection inside the open transaction.
    type Connection: Send;

    /// Makes a new connection and drops the old one with whatever it had open.
    fn connect(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Opens a transaction (READ COMMITTED, with timeouts).
    fn begin(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Reads rows and locks them to the end of the transaction, in the order of
    /// [`TopicPartition`]; partitions without a row are left out.
    fn lock_positions(
        &mut self,
        partitions: &[TopicPartition],
    ) -> impl Future<Output = Result<Vec<Position>, Error>> + Send;

    /// Whether any partition of the topic has a row: its start was decided.
    fn knows_topic(&mut self, topic: &str) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Inserts rows where none are, at epoch 0. Of two first claimers the first one's start counts.
    fn insert_positions(
        &mut self,
        topic: &str,
        starts: &[(i32, i64)],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Claims locked rows for `owner`: the epoch rises by one. Returns the new epochs, in order.
    fn take(
        &mut self,
        owner: Uuid,
        takes: &[Take],
    ) -> impl Future<Output = Result<Vec<i64>, Error>> + Send;

    /// Moves positions from where this owner knew them, if the epoch is still the owner's, and
    /// locks the rows. Returns the indexes that were *not* moved: those partitions are fenced.
    ///
    /// `moves` are sorted by partition.
    fn advance(
        &mut self,
        moves: &[Move<'_>],
    ) -> impl Future<Output = Result<Vec<usize>, Error>> + Send;

    /// Claims ids. Entries are sorted by key and have no key twice, so that two workers never wait
    /// for each other in a circle. One answer for each, in order.
    fn claim(
        &mut self,
        entries: &[Entry<'_>],
    ) -> impl Future<Output = Result<Vec<Claim>, Error>> + Send;

    /// Whether each entry's body is another than the one that came with its id first, in this
    /// transaction or before. Ids may repeat; an unknown one, or one without a hash, has none.
    fn conflicts(
        &mut self,
        entries: &[Entry<'_>],
    ) -> impl Future<Output = Result<Vec<bool>, Error>> + Send;

    /// What the handler writes with.
    fn connection(&mut self) -> Result<&mut Self::Connection, Error>;

    /// Stores failed events whose ids this transaction claimed.
    fn park(&mut self, parked: &[Parked<'_>]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Adds outcomes and conflicts to partitions' rows, which this transaction holds, and checks
    /// that it is still the transaction that began: a handler that committed or rolled back is
    /// fatal. The last statement before [`Ledger::commit`].
    fn count(
        &mut self,
        tallies: &[(&TopicPartition, Tally, u64)],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits.
    fn commit(&mut self) -> impl Future<Output = Result<Receipt, CommitError>> + Send;

    /// Rolls back; a connection that cannot is given up and counts as lost.
    fn rollback(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Vouches for a commit whose answer was lost, once a locked re-read showed its row changed.
    fn vouch(&mut self) -> Receipt;

    /// Reads every row of the pipeline without locking.
    fn standings(&mut self) -> impl Future<Output = Result<Vec<Standing>, Error>> + Send;

    /// Names the history that positions belong to, as of the last [`Ledger::connect`]: another
    /// database, and a schema that was made anew, have another, and marks of one prove nothing in
    /// the other.
    fn history(&self) -> Result<String, Error>;

    /// The namespace of marks that is in force.
    fn mark_namespace(&mut self) -> impl Future<Output = Result<i32, Error>> + Send;

    /// Changes the namespace of marks, within the transaction; earlier marks prove nothing more.
    fn bump_mark_namespace(&mut self) -> impl Future<Output = Result<i32, Error>> + Send;

    /// Records why an owned partition stands still, if the epoch is still the owner's.
    fn stop(
        &mut self,
        at: &TopicPartition,
        epoch: i64,
        reason: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Locks up to `limit` waiting events whose time has come, skipping those that others have.
    fn due(&mut self, limit: usize) -> impl Future<Output = Result<Due, Error>> + Send;

    /// Writes down how attempts at waiting events ended: each row changes by compare-and-set on its
    /// attempt. Returns how many changed.
    fn settle(
        &mut self,
        settled: &[Settled<'_>],
    ) -> impl Future<Output = Result<usize, Error>> + Send;
}
