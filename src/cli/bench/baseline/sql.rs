//! The user's statement over the same rows in the same batches, sent by hand with `unnest`: no
//! ledger, no Kafka, no Redis. As many connections as the product has, a transaction for each batch;
//! the arrays are built while the clock runs.

use anyhow::{Context as _, ensure};
use sqlx::AssertSqlSafe;

use super::Work;
use crate::cli::bench::database::Database;
use crate::cli::bench::events::Event;
use crate::cli::bench::measured::{Clock, Measured};
use crate::cli::bench::stage::Stage;

const BY_HAND: &str = include_str!("../../../../sql/bench/by_hand.sql");

pub(super) async fn measure(
    stage: &Stage,
    database: &mut Database,
    work: &Work,
) -> anyhow::Result<Measured> {
    database.create_orders().await?;
    let statement = database.render(BY_HAND);
    let mut connections = Vec::new();
    for _ in 0..work.workers {
        connections.push(database.another().await?.connection);
    }
    database.checkpoint().await;
    let clock = Clock::start(stage.servers, std::process::id());
    let mut tasks = Vec::new();
    for (worker, mut connection) in connections.into_iter().enumerate() {
        let (work, statement) = (work.clone(), statement.clone());
        tasks.push(stage.spawn(async move {
            let events: Vec<&Event> = work.of_worker(worker).collect();
            let mut rows = 0;
            for batch in events.chunks(work.batch) {
                let ids: Vec<String> = batch.iter().map(|event| event.id.to_string()).collect();
                let payloads: Vec<&str> = batch.iter().map(|event| event.value.as_str()).collect();
                let query = sqlx::query(AssertSqlSafe(statement.clone()));
                let query = query.bind(ids).bind(payloads);
                let done = query.execute(&mut connection).await;
                rows += done.context("cannot insert a batch")?.rows_affected();
            }
            anyhow::Ok(rows)
        }));
    }
    let mut rows = 0;
    for task in tasks {
        rows += task.await.context("a connection ended without a word")??;
    }
    let measured = clock.stop(rows);
    ensure!(
        rows == work.events.len() as u64,
        "{rows} rows were inserted, not {}",
        work.events.len()
    );
    Ok(measured)
}
