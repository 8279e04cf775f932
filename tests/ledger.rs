//! Ledgers: one suite for all of them.

mod support;

use onceonly::event::TopicPartition;
use onceonly::ledger::Ledger;
use onceonly::ledger::memory::{MemoryDatabase, MemoryLedger, NoFaults};
use onceonly::ledger::postgres::PostgresLedger;
use onceonly::outcome::{Outcome, Tally};
use sqlx::Row;

use support::database::Database;
use support::ledger_suite::Store;

struct InPostgres(Database);

impl Store for InPostgres {
    type Ledger = PostgresLedger;

    async fn ledger(&self) -> PostgresLedger {
        self.0.ledger("orders").await
    }

    async fn counted(&self, at: &TopicPartition) -> (Tally, u64) {
        let query = format!(
            "select * from onceonly.position where topic = '{}' and partition = {}",
            at.topic, at.partition
        );
        let rows = self.0.rows(&query).await;
        let counts = Outcome::ALL.map(|o| rows[0].get::<i64, _>(o.name()) as u64);
        (
            Tally::from_counts(counts),
            rows[0].get::<i64, _>("conflicts") as u64,
        )
    }
}

struct InMemory(MemoryDatabase);

impl Store for InMemory {
    type Ledger = MemoryLedger;

    async fn ledger(&self) -> MemoryLedger {
        let mut ledger = self.0.ledger(NoFaults);
        ledger.connect().await.expect("a connection");
        ledger
    }

    async fn counted(&self, at: &TopicPartition) -> (Tally, u64) {
        let row = self.0.tables().positions[at].clone();
        (row.tally, row.conflicts)
    }
}

mod in_memory {
    use super::{InMemory, MemoryDatabase};
    use crate::ledger_suite;

    ledger_suite!(InMemory(MemoryDatabase::new()));
}

mod in_postgres {
    use super::{Database, InPostgres};
    use crate::ledger_suite;

    ledger_suite!(InPostgres(Database::with_pipeline("orders").await));
}
