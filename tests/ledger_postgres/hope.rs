//! Batches large enough to be claimed by a copy that hopes for new ids only.

use std::time::Duration;

use onceonly::ledger::postgres::{Absences, PostgresLedger};
use onceonly::ledger::{Fate, Ledger};
use tokio_util::sync::CancellationToken;

use crate::locks::someone_waits;
use crate::support::PATIENCE;
use crate::support::database::Database;
use crate::support::ledger_suite::{fates, open};
use crate::support::rotation::rotator;

fn ids(range: std::ops::Range<u128>) -> Vec<u128> {
    range.collect()
}

async fn committed(ledger: &mut impl Ledger, numbers: &[u128]) -> Vec<Fate> {
    ledger.begin().await.unwrap();
    let fates = fates(ledger, numbers).await;
    ledger.commit().await.unwrap();
    fates
}

/// Rows and the transactions that wrote them. A copy writes under a savepoint, so under a number of
/// its own.
async fn written(database: &Database) -> (i64, bool) {
    let rows = database
        .value("select count(*) from onceonly.ledger_1_0")
        .await;
    let copied = "select coalesce(bool_and(l.xmin <> p.xmin), false) \
                  from onceonly.ledger_1_0 l, (select max(xmin::text::bigint)::text::xid as xmin \
                  from onceonly.position) p";
    (rows, database.value(copied).await)
}

#[tokio::test]
async fn new_ids_are_copied_and_a_known_one_among_them_is_found() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let seen = committed(&mut ledger, &ids(0..100)).await;
    assert_eq!(seen, [Fate::New; 100]);
    assert_eq!(written(&database).await, (100, true));
    let seen = committed(&mut ledger, &ids(99..200)).await;
    assert_eq!(seen[0], Fate::Applied);
    assert_eq!(seen[1..], [Fate::New; 100]);
    assert_eq!(
        committed(&mut ledger, &ids(0..200)).await,
        [Fate::Applied; 200]
    );
    assert_eq!(written(&database).await.0, 200);
}

#[tokio::test]
async fn a_copy_in_vain_keeps_the_transaction_and_what_was_written_before() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    committed(&mut ledger, &ids(0..1)).await;
    database.run("create table effect (id int)").await;
    ledger.begin().await.unwrap();
    sqlx::query("insert into effect values (1)")
        .execute(ledger.connection().unwrap())
        .await
        .unwrap();
    let seen = fates(&mut ledger, &ids(0..100)).await;
    assert_eq!((seen[0], seen[99]), (Fate::Applied, Fate::New));
    ledger.commit().await.unwrap();
    let effects: i64 = database.value("select count(*) from effect").await;
    assert_eq!((effects, written(&database).await.0), (1, 100));
}

#[tokio::test]
async fn a_racing_copy_waits_and_takes_what_the_other_gave_up() {
    let database = Database::with_pipeline("orders").await;
    let mut first = database.ledger("orders").await;
    let mut second = database.ledger("orders").await;
    open(&mut first).await;
    for (commits, base, met_twice) in [(true, 0, Fate::Applied), (false, 1000, Fate::New)] {
        first.begin().await.unwrap();
        let seen = fates(&mut first, &ids(base..base + 100)).await;
        assert_eq!(seen, [Fate::New; 100]);
        let waiting = tokio::spawn(async move {
            let seen = committed(&mut second, &ids(base + 50..base + 150)).await;
            (second, seen)
        });
        someone_waits(&database).await;
        match commits {
            true => drop(first.commit().await.unwrap()),
            false => first.rollback().await.unwrap(),
        }
        let seen;
        (second, seen) = waiting.await.unwrap();
        assert_eq!(seen[..50], [met_twice; 50]);
        assert_eq!(seen[50..], [Fate::New; 50]);
    }
}

#[tokio::test]
async fn an_id_of_an_older_generation_is_found_before_the_copy() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    committed(&mut ledger, &ids(0..100)).await;
    let mut rotator = rotator(&database).await;
    rotator.rotate().await.unwrap();
    committed(&mut ledger, &ids(100..200)).await;
    rotator.rotate().await.unwrap();
    let seen = committed(&mut ledger, &ids(50..250)).await;
    assert_eq!(seen[..150], [Fate::Applied; 150]);
    assert_eq!(seen[150..], [Fate::New; 50]);
    let rows = "select count(*) from onceonly.ledger_1_2";
    assert_eq!(database.value::<i64>(rows).await, 50);
}

#[tokio::test]
async fn copies_in_vain_leave_less_than_one_dead_row_in_a_hundred() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    database
        .run("alter table onceonly.ledger_1_0 set (autovacuum_enabled = false)")
        .await;
    // The last id of each batch is known.
    committed(&mut ledger, &[u128::from(u64::MAX)]).await;
    for batch in 0..60 {
        let mut numbers = ids(batch * 1000..(batch + 1) * 1000 - 1);
        numbers.push(u128::from(u64::MAX));
        let seen = committed(&mut ledger, &numbers).await;
        assert_eq!(seen.last(), Some(&Fate::Applied));
    }
    // What a new connection may waste, and then a hundredth; without vacuum every row has its place.
    let places: i64 = database
        .value("select pg_relation_size('onceonly.ledger_1_0') / 8192 * 113")
        .await;
    let dead = places - written(&database).await.0;
    assert!(
        (1_000..10_000 + 600 + 113).contains(&dead),
        "{dead} dead rows"
    );
}

/// Filters of all closed generations.
async fn built(database: &Database, closed: &[i32]) -> Absences {
    let (absences, end) = (Absences::default(), CancellationToken::new());
    let keeping = absences
        .clone()
        .keep(database.settings(), "orders".to_owned(), end.clone());
    let keeping = tokio::spawn(keeping);
    let until = async {
        while absences.generations() != closed {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, until).await;
    waited.expect("filters of the closed generations");
    end.cancel();
    keeping.await.expect("no panic");
    absences
}

async fn connected(database: &Database, absences: &Absences) -> PostgresLedger {
    let ledger = PostgresLedger::new(database.settings(), "orders");
    let mut ledger = ledger.with_absences(absences);
    ledger.connect().await.unwrap();
    ledger
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_excludes_no_id_that_its_generation_holds() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let mut rotator = rotator(&database).await;
    for generation in 0..3 {
        committed(
            &mut ledger,
            &ids(1000 * generation..1000 * generation + 500),
        )
        .await;
        rotator.rotate().await.unwrap();
    }
    let absences = built(&database, &[0, 1, 2]).await;
    let mut ledger = connected(&database, &absences).await;
    for generation in 0..3 {
        let range = 1000 * generation..1000 * generation + 600;
        let seen = committed(&mut ledger, &ids(range)).await;
        assert_eq!(seen[..500], [Fate::Applied; 500]);
        assert_eq!(seen[500..], [Fate::New; 100]);
    }
    rotator.forget_oldest().await.unwrap();
    let seen = committed(&mut ledger, &ids(0..100)).await;
    assert_eq!(seen, [Fate::New; 100], "forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_another_history_excludes_nothing() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    committed(&mut ledger, &ids(0..100)).await;
    rotator(&database).await.rotate().await.unwrap();
    let absences = built(&database, &[0]).await;
    // The database went back to before the rotation, wrote another id, and rotated again.
    database
        .run(
            "insert into onceonly.ledger_1_0 (event_key, kafka_offset, applied_at, source) \
             values ('00000000-0000-0000-0000-0000000003e8', 1, now(), 1); \
             update onceonly.generation set born_at = now() where generation = 1",
        )
        .await;
    let mut ledger = connected(&database, &absences).await;
    let seen = committed(&mut ledger, &ids(1000..1100)).await;
    assert_eq!(seen[0], Fate::Applied);
    assert_eq!(seen[1..], [Fate::New; 99]);
}
