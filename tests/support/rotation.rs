//! Rotations under writers whose ids overlap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onceonly::event::{Batch, Incoming, TopicPartition};
use onceonly::identity::{EventKey, Found, Ids};
use onceonly::ledger::postgres::PostgresLedger;
use onceonly::ledger::postgres::rotation::Rotator;
use onceonly::ledger::{Entry, Fate, Ledger};
use uuid::Uuid;

use super::PATIENCE;
use super::database::Database;

const WRITERS: u64 = 16;
/// Ids that are in use at a time, and how far they move with each rotation: an id is met for four
/// rotations.
const IDS: u64 = 200;
const IDS_PER_ROTATION: u64 = 50;
const GENERATIONS: i32 = 8;

/// A connection that rotates.
pub async fn rotator(database: &Database) -> Rotator {
    let rotator = Rotator::open(&database.settings(), "orders", PATIENCE).await;
    rotator.expect("a connection").expect("the rotation's lock")
}

async fn write(ledger: &mut PostgresLedger, numbers: &[u64]) -> Result<(), onceonly::error::Error> {
    let (mut batch, mut ids) = (Batch::new(), Ids::default());
    let slot = batch.slice(&TopicPartition::new("orders", 0), 1);
    for &number in numbers {
        let record = Incoming {
            offset: number as i64,
            ..Incoming::default()
        };
        batch.push(slot, record, std::iter::empty());
        let key = EventKey(Uuid::from_u128(number.into()));
        ids.push(&number.to_string(), key, Found::Id);
    }
    let entry = |index| Entry {
        key: ids.key(index),
        event: batch.event(index),
        body_hash: None,
    };
    let entries: Vec<Entry<'_>> = (0..batch.len()).map(entry).collect();
    ledger.begin().await?;
    // The step is read with the first id; then others get their turn.
    let first = ledger.claim(&entries[..1]).await?;
    tokio::task::yield_now().await;
    let rest = ledger.claim(&entries[1..]).await?;
    let fates = first.iter().chain(&rest).map(|claim| claim.fate);
    let new = fates.zip(numbers).filter(|(fate, _)| *fate == Fate::New);
    let new: Vec<i64> = new.map(|(_, number)| *number as i64).collect();
    sqlx::query("insert into effect select unnest($1::bigint[])")
        .bind(new)
        .execute(ledger.connection()?)
        .await
        .expect("effects");
    ledger.commit().await.expect("a commit");
    Ok(())
}

/// Runs `rotations`, each forgetting what is older than eight generations, and asserts that every
/// id was applied once.
pub async fn rotate_under_writers(rotations: u64) {
    let database = Database::with_pipeline("orders").await;
    database
        .run(
            "create table effect (id bigint not null); \
             insert into onceonly.position (pipeline_id, topic, partition, next_offset, high_water) \
             values (1, 'orders', 0, 0, 0)",
        )
        .await;
    let (done, rotated) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (done, rotated) = (Arc::clone(&done), Arc::clone(&rotated));
        let mut ledger = database.ledger("orders").await;
        writers.push(tokio::spawn(async move {
            let mut batches = 0;
            while !done.load(Ordering::SeqCst) {
                let base = rotated.load(Ordering::SeqCst) * IDS_PER_ROTATION;
                // Every writer steps through the ids otherwise.
                let stride = 1 + (writer + batches) % 3;
                let numbers: Vec<u64> = (0..IDS)
                    .filter(|id| (id + writer) % stride == 0)
                    .map(|id| base + id)
                    .collect();
                write(&mut ledger, &numbers).await.expect("claimed ids");
                batches += 1;
            }
            batches
        }));
    }
    let mut rotator = rotator(&database).await;
    for _ in 0..rotations {
        rotator.rotate().await.expect("a rotation");
        let generations = rotator.generations().await.unwrap();
        if generations.current - generations.oldest >= GENERATIONS {
            assert!(rotator.forget_oldest().await.expect("a generation less"));
        }
        rotated.fetch_add(1, Ordering::SeqCst);
    }
    done.store(true, Ordering::SeqCst);
    for writer in writers {
        assert!(writer.await.expect("a writer without an error") > 0);
    }
    let twice = "select count(*) from (select from effect group by id having count(*) > 1) t";
    assert_eq!(database.value::<i64>(twice).await, 0);
    let distinct: i64 = database
        .value("select count(distinct id) from effect")
        .await;
    assert!(distinct >= IDS as i64, "{distinct} ids applied");
    let kept = "select count(*) from onceonly.generation";
    assert!(database.value::<i64>(kept).await <= i64::from(GENERATIONS) + 1);
}
