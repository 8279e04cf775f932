//! Ledgers: one suite for all of them.

mod support;

use onceonly::event::TopicPartition;
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

mod in_postgres {
    use super::{Database, InPostgres};
    use crate::ledger_suite;

    ledger_suite!(InPostgres(Database::with_pipeline("orders").await));
}
