//! What holds when several workers want the same rows at once.

use std::time::{Duration, Instant};

use onceonly::error::Class;
use onceonly::identity::EventKey;
use onceonly::ledger::postgres::{PostgresLedger, Sql};
use onceonly::ledger::{Entry, Fate, Ledger, Move, Settled, Verdict};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::PATIENCE;
use crate::support::database::Database;
use crate::support::ledger_suite::{advance, at, entries, fates, key, open, park, records};

const CLAIM: &str = include_str!("../../sql/ledger/claim.sql");

/// Waits until a session of the database waits for a lock.
pub async fn someone_waits(database: &Database) {
    let waits = async {
        let query = "select count(*) from pg_locks l join pg_database d on d.datname = current_database() \
                     join pg_stat_activity a on a.pid = l.pid and a.datid = d.oid where not l.granted";
        while database.value::<i64>(query).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waits)
        .await
        .expect("a session that waits");
}

/// Waits until an open transaction sleeps with a table in hand.
pub async fn someone_holds(database: &Database, table: &str) {
    let holds = async {
        let query = format!(
            "select count(*) from pg_locks l join pg_stat_activity a on a.pid = l.pid \
             where l.relation = 'onceonly.{table}'::regclass and a.wait_event = 'PgSleep'"
        );
        while database.value::<i64>(&query).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, holds)
        .await
        .expect("a session that holds the table");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_waits_for_the_owners_batch_and_then_fences_it() {
    let database = Database::with_pipeline("orders").await;
    let (mut owner, mut successor) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut owner).await;
    owner.begin().await.unwrap();
    assert!(advance(&mut owner, 0, 1, 10, 20).await);
    let claiming = tokio::spawn(async move {
        successor.begin().await.unwrap();
        let rows = successor.lock_positions(&[at(0)]).await.unwrap();
        let take = onceonly::ledger::Take {
            at: at(0),
            next_offset: rows[0].next_offset,
            topic_id: None,
            cluster_id: None,
            stopped: None,
        };
        successor.take(Uuid::new_v4(), &[take]).await.unwrap();
        successor.commit().await.unwrap();
        rows[0].next_offset
    });
    someone_waits(&database).await;
    owner.commit().await.unwrap();
    assert_eq!(
        claiming.await.unwrap(),
        20,
        "the successor sees the batch that it waited for"
    );
    owner.begin().await.unwrap();
    assert!(
        !advance(&mut owner, 0, 1, 20, 30).await,
        "the owner is fenced"
    );
    owner.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advance_that_waited_sees_the_epoch_of_now() {
    let database = Database::with_pipeline("orders").await;
    let (mut successor, mut owner) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut owner).await;
    successor.begin().await.unwrap();
    successor.lock_positions(&[at(0)]).await.unwrap();
    let take = onceonly::ledger::Take {
        at: at(0),
        next_offset: 10,
        topic_id: None,
        cluster_id: None,
        stopped: None,
    };
    successor.take(Uuid::new_v4(), &[take]).await.unwrap();
    let advancing = tokio::spawn(async move {
        owner.begin().await.unwrap();
        // Began before the successor commits; the place is the same, only the epoch is not.
        advance(&mut owner, 0, 1, 10, 20).await
    });
    someone_waits(&database).await;
    successor.commit().await.unwrap();
    assert!(!advancing.await.unwrap(), "the owner is fenced");
}

#[tokio::test]
async fn a_row_that_is_held_for_too_long_is_worth_another_try() {
    let database = Database::with_pipeline("orders").await;
    let mut zombie = database.ledger("orders").await;
    open(&mut zombie).await;
    zombie.begin().await.unwrap();
    assert!(advance(&mut zombie, 0, 1, 10, 20).await);
    let mut settings = database.settings();
    settings.lock_timeout = Duration::from_millis(50);
    let mut successor = PostgresLedger::new(settings, "orders");
    successor.connect().await.unwrap();
    successor.begin().await.unwrap();
    let error = successor.lock_positions(&[at(0)]).await.unwrap_err();
    assert_eq!(
        (error.class(), error.code()),
        (Class::Transient, Some("55P03"))
    );
    assert!(!error.is_suspect() && !error.is_disconnect());
    successor.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_are_locked_in_one_order_whatever_the_order_of_the_moves() {
    let database = Database::with_pipeline("orders").await;
    let (mut holder, mut mover) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    holder.begin().await.unwrap();
    let starts = [(1, 0), (5, 0), (9, 0)];
    holder.insert_positions("orders", &starts).await.unwrap();
    holder.commit().await.unwrap();
    // Among many rows the plan takes those of the moves in their order, unless told otherwise.
    database
        .run(
            "insert into onceonly.position (pipeline_id, topic, partition, next_offset, high_water)
             select 1, 'many', n, 0, 0 from generate_series(0, 5000) n",
        )
        .await;
    database.run("analyze onceonly.position").await;
    holder.begin().await.unwrap();
    holder.lock_positions(&[at(5)]).await.unwrap();
    let moving = tokio::spawn(async move {
        let partitions = [at(9), at(5), at(1)];
        let moves = partitions.each_ref().map(|at| Move {
            at,
            epoch: 0,
            from: 0,
            to: 1,
            event_time_ms: None,
        });
        mover.begin().await.unwrap();
        mover.advance(&moves).await.unwrap()
    });
    someone_waits(&database).await;
    let free = "select string_agg(partition::text, ' ' order by partition) from (
                    select partition from onceonly.position where topic = 'orders'
                    for update skip locked
                ) free";
    let free: String = database.value(free).await;
    assert_eq!(
        free, "9",
        "the mover has the first, waits for the second, wants the third"
    );
    holder.commit().await.unwrap();
    assert!(moving.await.unwrap().is_empty());
}

async fn claim_raw(connection: &mut PgConnection, keys: &[Uuid]) -> sqlx::Result<()> {
    let sql = Sql::new("onceonly").unwrap().with_generation(1, 0);
    sqlx::raw_sql("begin").execute(&mut *connection).await?;
    let claimed = sqlx::query(sqlx::AssertSqlSafe(sql.render(CLAIM)))
        .bind(keys)
        .bind(vec![0_i64; keys.len()])
        .bind(vec![1_i32; keys.len()])
        .bind(vec![None::<i64>; keys.len()])
        .execute(&mut *connection)
        .await;
    sqlx::raw_sql("rollback").execute(&mut *connection).await?;
    claimed.map(drop)
}

/// So many that statements overlap on any machine.
const STORM_IDS: u128 = 8_000;
const STORM_WORKERS: usize = 4;

/// The control of the next test: it shows that the storm is one.
#[tokio::test(flavor = "multi_thread")]
async fn unsorted_ids_deadlock() {
    let database = Database::with_pipeline("orders").await;
    let (found, mut deadlocks) = tokio::sync::mpsc::channel(1);
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..STORM_WORKERS {
        let (mut connection, found) = (database.connection().await, found.clone());
        let mut keys: Vec<_> = (0..STORM_IDS).map(Uuid::from_u128).collect();
        if worker % 2 == 1 {
            keys.reverse();
        }
        workers.spawn(async move {
            loop {
                let error = claim_raw(&mut connection, &keys).await.err();
                let code = error.as_ref().and_then(|e| e.as_database_error()?.code());
                if code.as_deref() == Some("40P01") {
                    _ = found.send(()).await;
                }
            }
        });
    }
    let deadlock = tokio::time::timeout(PATIENCE * 2, deadlocks.recv()).await;
    assert_eq!(deadlock, Ok(Some(())));
}

#[tokio::test(flavor = "multi_thread")]
async fn sorted_ids_never_deadlock() {
    let database = Database::with_pipeline("orders").await;
    open(&mut database.ledger("orders").await).await;
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..STORM_WORKERS as u128 {
        let mut ledger = database.ledger("orders").await;
        workers.spawn(async move {
            for round in 0..4 {
                // Overlapping in part, each with gaps of its own.
                let has = |number: &u128| !(number + worker + round).is_multiple_of(7);
                let numbers: Vec<u128> = (0..STORM_IDS).filter(has).collect();
                let (batch, ids) = records(&numbers);
                let entries: Vec<Entry<'_>> = entries(&batch, &ids, None);
                ledger.begin().await.unwrap();
                ledger.claim(&entries).await.expect("no deadlock");
                ledger.rollback().await.unwrap();
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
}

#[tokio::test]
async fn a_deadlock_is_worth_another_try() {
    let database = Database::with_pipeline("orders").await;
    let (mut first, mut second) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut first).await;
    first.begin().await.unwrap();
    second.begin().await.unwrap();
    fates(&mut first, &[1]).await;
    fates(&mut second, &[2]).await;
    let claim = async |ledger: &mut PostgresLedger, number| {
        let (batch, ids) = records(&[number]);
        let answer = ledger.claim(&entries(&batch, &ids, None)).await;
        if answer.is_err() {
            // The other one goes on once this one has given up.
            ledger.rollback().await.unwrap();
        }
        answer
    };
    let answers: [_; 2] = tokio::join!(claim(&mut first, 2), claim(&mut second, 1)).into();
    let errors: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].class(), errors[0].code()),
        (Class::Transient, Some("40P01"))
    );
    assert!(!errors[0].is_suspect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_racing_claim_waits_and_takes_what_the_other_gave_up() {
    let database = Database::with_pipeline("orders").await;
    let (mut first, mut second) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut first).await;
    for (commits, numbers, expected) in [
        (true, [1, 2], [Fate::Applied, Fate::New]),
        (false, [3, 4], [Fate::New, Fate::New]),
    ] {
        first.begin().await.unwrap();
        assert_eq!(fates(&mut first, &numbers[..1]).await, [Fate::New]);
        let waiting = tokio::spawn(async move {
            second.begin().await.unwrap();
            let met = fates(&mut second, &numbers).await;
            second.commit().await.unwrap();
            (second, met)
        });
        someone_waits(&database).await;
        match commits {
            true => drop(first.commit().await.unwrap()),
            false => first.rollback().await.unwrap(),
        }
        let met;
        (second, met) = waiting.await.unwrap();
        assert_eq!(met, expected);
    }
}

#[tokio::test]
async fn a_waiting_event_is_in_one_workers_hand() {
    let database = Database::with_pipeline("orders").await;
    let (mut first, mut second) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut first).await;
    park(&mut first, &[1, 2, 3], Verdict::RetryAfter(Duration::ZERO)).await;
    first.begin().await.unwrap();
    second.begin().await.unwrap();
    let keys = async |ledger: &mut PostgresLedger, limit| -> Vec<EventKey> {
        let due = ledger.due(limit).await.unwrap();
        (0..due.ids.len()).map(|index| due.ids.key(index)).collect()
    };
    assert_eq!(keys(&mut first, 2).await, [key(1), key(2)]);
    assert_eq!(
        keys(&mut second, 2).await,
        [key(3)],
        "what the first has is passed over"
    );
    first.rollback().await.unwrap();
    second.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_ends_of_one_attempt_one_counts() {
    let database = Database::with_pipeline("orders").await;
    let (mut first, mut second) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut first).await;
    park(&mut first, &[1], Verdict::RetryAfter(Duration::ZERO)).await;
    let applied = || {
        [Settled {
            key: key(1),
            attempt: 1,
            failed: None,
        }]
    };
    first.begin().await.unwrap();
    assert_eq!(first.settle(&applied()).await.unwrap(), 1);
    let losing = tokio::spawn(async move {
        second.begin().await.unwrap();
        let changed = second.settle(&applied()).await.unwrap();
        second.rollback().await.unwrap();
        changed
    });
    someone_waits(&database).await;
    first.commit().await.unwrap();
    assert_eq!(losing.await.unwrap(), 0);
}

#[tokio::test]
async fn the_databases_default_isolation_does_not_matter() {
    let database = Database::with_pipeline("orders").await;
    let name: String = database.value("select current_database()::text").await;
    database
        .run(&format!(
            "alter database {name} set default_transaction_isolation = 'serializable';
             alter database {name} set default_transaction_read_only = on"
        ))
        .await;
    let (mut first, mut second) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut first).await;
    second.begin().await.unwrap();
    second.lock_positions(&[at(1)]).await.unwrap();
    first.begin().await.unwrap();
    fates(&mut first, &[1]).await;
    first.commit().await.unwrap();
    assert_eq!(
        fates(&mut second, &[1]).await,
        [Fate::Applied],
        "no serialization failure"
    );
    second.rollback().await.unwrap();
}

/// Postgres lets a process wait for its client's rows for ever, whatever its statement_timeout.
#[tokio::test(flavor = "multi_thread")]
async fn positions_held_by_a_client_frozen_in_the_middle_of_a_copy_are_set_free() {
    let database = Database::with_pipeline("orders").await;
    let mut settings = database.settings();
    settings.lock_timeout = Duration::from_millis(100);
    settings.statement_timeout = Duration::from_secs(1);
    let mut frozen = PostgresLedger::new(settings.clone(), "orders");
    frozen.connect().await.unwrap();
    open(&mut frozen).await;
    frozen.begin().await.unwrap();
    assert!(advance(&mut frozen, 0, 1, 10, 20).await);
    let connection = frozen.connection().unwrap();
    sqlx::raw_sql("create temporary table batch (id text)")
        .execute(&mut *connection)
        .await
        .unwrap();
    let begun = Instant::now();
    let mut copy = connection
        .copy_in_raw("copy batch from stdin")
        .await
        .unwrap();

    let mut successor = PostgresLedger::new(settings, "orders");
    successor.connect().await.unwrap();
    let rows = loop {
        successor.begin().await.unwrap();
        match successor.lock_positions(&[at(0)]).await {
            Ok(rows) => break rows,
            Err(error) => assert_eq!(error.code(), Some("55P03"), "{error}"),
        }
        assert!(begun.elapsed() < PATIENCE, "the positions stay locked");
        successor.rollback().await.unwrap();
    };
    assert_eq!(
        rows[0].next_offset, 10,
        "nothing of the frozen batch counts"
    );
    assert!(
        begun.elapsed() >= Duration::from_secs(1),
        "as long as a statement may take it is let alone"
    );
    assert!(copy.send(&b"late\n"[..]).await.is_err() || copy.finish().await.is_err());
}
