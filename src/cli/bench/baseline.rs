//! What the product is compared with: its parts by themselves, each as fast as this machine does
//! it, and the usual way without them.
//!
//! All of them have their connections open, and their events in memory, before the clock starts.
//! What the product must do for each event as well is inside: encoding rows and commands, and
//! sorting keys.

use std::sync::Arc;

use super::database::Database;
use super::events::Event;
use super::measured::Measured;
use super::stage::Stage;

pub(super) mod consume;
mod copy;
mod marks;
mod naive;
mod sql;

/// A baseline's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Baseline {
    /// Rows into one table with a unique key by binary `COPY`.
    Copy,
    /// A consumer that only counts.
    Consume,
    /// Ids read and set in Redis.
    Marks,
    /// A transaction and a `SET NX EX` for each event.
    Naive,
    /// The user's statement by hand.
    Sql,
}

impl Baseline {
    /// As in tables and JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Consume => "consume",
            Self::Marks => "marks",
            Self::Naive => "naive",
            Self::Sql => "sql",
        }
    }
}

/// What there is to do.
#[derive(Clone)]
pub(super) struct Work {
    /// The events, in the order of their first records.
    pub(super) events: Arc<Vec<Event>>,
    /// Where their records are.
    pub(super) topic: String,
    /// How many records that topic has.
    pub(super) records: u64,
    /// The product's connections.
    pub(super) workers: usize,
    /// Events of one transaction.
    pub(super) batch: usize,
}

impl Work {
    /// The numbers of one worker's events: it has whole partitions, as the product's workers do.
    fn of_worker(&self, worker: usize) -> impl Iterator<Item = &Event> {
        let workers = self.workers;
        let is_his = move |event: &&Event| usize::from(event.partition) % workers == worker;
        self.events.iter().filter(is_his)
    }
}

/// Measures one.
pub(super) async fn measure(
    baseline: Baseline,
    stage: &Stage,
    database: &mut Database,
    work: &Work,
) -> anyhow::Result<Measured> {
    match baseline {
        Baseline::Copy => copy::measure(stage, database, work).await,
        Baseline::Consume => consume::measure(stage, work).await,
        Baseline::Marks => marks::measure(stage, work).await,
        Baseline::Naive => naive::measure(stage, database, work).await,
        Baseline::Sql => sql::measure(stage, database, work).await,
    }
}
