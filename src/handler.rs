//! What an event does: statements or code that write effects in the ledger's open transaction.

use sqlx::PgConnection;

use crate::error::Error;
use crate::event::{Batch, Event};
use crate::identity::{EventKey, Ids};
use crate::ledger::Failure;

pub mod sql;

/// Events that are new to the pipeline, in the order read.
#[derive(Clone, Copy, Debug)]
pub struct NewEvents<'a> {
    batch: &'a Batch,
    ids: &'a Ids,
    selected: &'a [u32],
}

/// One event that is new to the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'a> {
    /// Its id as text.
    pub id: &'a str,
    /// The ledger's key for the id.
    pub key: EventKey,
    /// The record.
    pub event: Event<'a>,
}

impl<'a> NewEvents<'a> {
    /// Selects records of a batch by index.
    pub fn new(batch: &'a Batch, ids: &'a Ids, selected: &'a [u32]) -> Self {
        Self {
            batch,
            ids,
            selected,
        }
    }

    /// How many there are; never zero when a handler is called.
    pub fn len(&self) -> usize {
        self.selected.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.selected.is_empty()
    }

    /// Iterates in the order read: offsets rise within a partition.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = NewEvent<'a>> + Clone + use<'a> {
        let Self {
            batch,
            ids,
            selected,
        } = *self;
        selected.iter().map(move |&index| {
            let index = index as usize;
            NewEvent {
                id: ids.text(index),
                key: ids.key(index),
                event: batch.event(index),
            }
        })
    }
}

/// Gives events their effect.
///
/// `C` is the connection inside the open transaction: for a pipeline over Postgres
/// [`PgConnection`]. Effects written with it commit together with positions and ledger, or not at
/// all. Nothing else does: a handler makes no network call, because a transaction that waits holds
/// its locks, and because a call cannot be rolled back. A handler does not end the transaction;
/// if it does, or swallows a failed statement, the pipeline stops and counts nothing.
///
/// An error of class `Rejected` blames an event: the batch is halved until the culprit stands alone.
pub trait Handler<C = PgConnection>: Send + Sync {
    /// A name that goes into the pipeline's fingerprint: another name is another kind of effect.
    fn name(&self) -> &str;

    /// The text that says what the handler does, such as its statements. A hash of it is recorded
    /// with the pipeline, so that one deploy can be told from another; it is not compared.
    fn text(&self) -> String {
        self.name().to_owned()
    }

    /// Looks at an event before any transaction: `Some` sends it to the dead letters at once, since
    /// the same bytes can never pass. The cheap way out for input that is broken beyond doubt.
    fn screen(&self, event: &Event<'_>) -> Option<Failure> {
        let _ = event;
        None
    }

    /// Prepares a connection, once after each connect and outside any transaction: temporary
    /// tables, prepared statements. An error stops the pipeline before anything is read.
    fn prepare(&self, connection: &mut C) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = connection;
        async { Ok(()) }
    }

    /// Applies new events, all or none.
    fn handle(
        &self,
        transaction: &mut C,
        events: &NewEvents<'_>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}
