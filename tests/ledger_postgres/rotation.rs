//! Generations come and go under writers, and no id is applied twice.

use std::time::Duration;

use onceonly::error::Class;
use onceonly::ledger::postgres::Generations;
use onceonly::ledger::postgres::rotation::Rotator;
use onceonly::ledger::{Fate, Ledger, Verdict};
use sqlx::Connection;

use crate::locks::someone_waits;
use crate::support::PATIENCE;
use crate::support::database::Database;
use crate::support::ledger_suite::{advance, fates, open, park};
use crate::support::rotation::{rotate_under_writers, rotator};

#[tokio::test(flavor = "multi_thread")]
async fn rotations_under_writers_apply_no_id_twice() {
    rotate_under_writers(50).await;
}

/// Claims ids in a transaction of its own.
async fn committed(ledger: &mut impl Ledger, numbers: &[u128]) -> Vec<Fate> {
    ledger.begin().await.unwrap();
    let fates = fates(ledger, numbers).await;
    ledger.commit().await.unwrap();
    fates
}

#[tokio::test]
async fn ids_of_older_generations_are_known_until_theirs_is_dropped() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    assert_eq!(committed(&mut ledger, &[1, 2]).await, [Fate::New; 2]);
    let mut rotator = rotator(&database).await;
    rotator.rotate().await.unwrap();
    let seen = committed(&mut ledger, &[1, 3]).await;
    assert_eq!(seen, [Fate::Applied, Fate::New]);
    rotator.rotate().await.unwrap();
    let seen = committed(&mut ledger, &[2, 3, 4]).await;
    assert_eq!(seen, [Fate::Applied, Fate::Applied, Fate::New]);
    assert!(rotator.forget_oldest().await.unwrap());
    let seen = committed(&mut ledger, &[1, 3, 4]).await;
    assert_eq!(seen, [Fate::New, Fate::Applied, Fate::Applied]);
    let tables =
        "select count(*) from pg_tables where schemaname = 'onceonly' and tablename ~ '^ledger_'";
    assert_eq!(database.value::<i64>(tables).await, 2);
    let expected = Generations {
        oldest: 1,
        current: 2,
        next: None,
    };
    assert_eq!(rotator.generations().await.unwrap(), expected);
}

#[tokio::test]
async fn ids_that_wait_or_are_dead_outlive_their_generation() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    committed(&mut ledger, &[1]).await;
    let later = Verdict::RetryAfter(Duration::from_secs(3600));
    park(&mut ledger, &[2], later).await;
    park(&mut ledger, &[3], Verdict::Dead).await;
    let mut rotator = rotator(&database).await;
    for _ in 0..3 {
        rotator.rotate().await.unwrap();
        assert!(rotator.forget_oldest().await.unwrap());
    }
    assert!(!rotator.forget_oldest().await.unwrap(), "the current one");
    let seen = committed(&mut ledger, &[1, 2, 3]).await;
    assert_eq!(seen, [Fate::New, Fate::Waiting, Fate::Dead]);
}

#[tokio::test]
async fn the_horizon_is_where_the_oldest_generation_was_born() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let mut rotator = rotator(&database).await;
    let horizons = "select array_agg(horizon order by partition) from onceonly.position";
    for (from, to) in [(10, 20), (20, 30)] {
        ledger.begin().await.unwrap();
        assert!(advance(&mut ledger, 0, 1, from, to).await);
        ledger.commit().await.unwrap();
        rotator.rotate().await.unwrap();
    }
    assert_eq!(database.value::<Vec<i64>>(horizons).await, [0, 0]);
    rotator.forget_oldest().await.unwrap();
    assert_eq!(database.value::<Vec<i64>>(horizons).await, [20, 10]);
    rotator.forget_oldest().await.unwrap();
    assert_eq!(database.value::<Vec<i64>>(horizons).await, [30, 10]);
}

#[tokio::test]
async fn ids_that_a_partition_was_taken_back_over_are_kept_until_it_has_read_them_again() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    committed(&mut ledger, &[1]).await;
    let mut rotator = rotator(&database).await;
    ledger.begin().await.unwrap();
    assert!(advance(&mut ledger, 0, 1, 10, 20).await);
    ledger.commit().await.unwrap();
    rotator.rotate().await.unwrap();
    database
        .run("update onceonly.position set next_offset = 15 where partition = 0")
        .await;
    let error = rotator.forget_oldest().await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    assert!(error.to_string().contains("orders/0"), "{error}");
    assert_eq!(committed(&mut ledger, &[1]).await, [Fate::Applied]);
    let horizon = "select horizon from onceonly.position where partition = 0";
    assert_eq!(database.value::<i64>(horizon).await, 0);
    ledger.begin().await.unwrap();
    assert!(advance(&mut ledger, 0, 1, 15, 20).await);
    ledger.commit().await.unwrap();
    assert!(rotator.forget_oldest().await.unwrap());
    assert_eq!(committed(&mut ledger, &[1]).await, [Fate::New]);
}

#[tokio::test]
async fn whoever_may_use_a_generation_may_use_the_next() {
    let database = Database::with_pipeline("orders").await;
    let role = format!("role_{}", uuid::Uuid::new_v4().simple());
    database
        .run(&format!(
            "create role {role}; \
             grant select, insert on onceonly.ledger_1_0 to {role}; \
             grant select on onceonly.ledger_1_0 to public"
        ))
        .await;
    rotator(&database).await.rotate().await.unwrap();
    let rights = format!(
        "select has_table_privilege('{role}', 'onceonly.ledger_1_1', 'select, insert')::text || \
         has_table_privilege('{role}', 'onceonly.ledger_1_1', 'delete')::text || \
         (select relacl::text like '%{{=r/%' or relacl::text like '%,=r/%' from pg_class \
         where oid = 'onceonly.ledger_1_1'::regclass)::text"
    );
    let rights: String = database.value(&rights).await;
    database
        .run(&format!("drop owned by {role}; drop role {role}"))
        .await;
    assert_eq!(rights, "truefalsetrue");
}

#[tokio::test]
async fn a_rotation_waits_for_writers_from_before_it_and_can_be_resumed() {
    let database = Database::with_pipeline("orders").await;
    let (mut early, mut late) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut early).await;
    early.begin().await.unwrap();
    assert!(advance(&mut early, 0, 1, 10, 20).await);
    let settings = database.settings();
    let open = Rotator::open(&settings, "orders", Duration::ZERO).await;
    let mut impatient = open.unwrap().unwrap();
    let other = Rotator::open(&settings, "orders", PATIENCE).await;
    assert!(other.unwrap().is_none(), "two rotate at a time");
    let error = impatient.rotate().await.unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert!(error.to_string().contains("held back"), "{error}");
    let both = Generations {
        oldest: 0,
        current: 0,
        next: Some(1),
    };
    assert_eq!(impatient.generations().await.unwrap(), both);
    drop(impatient);
    // The early writer knows one generation, the late one both: they meet in the first.
    assert_eq!(fates(&mut early, &[1]).await, [Fate::New]);
    early.commit().await.unwrap();
    assert_eq!(
        committed(&mut late, &[1, 2]).await,
        [Fate::Applied, Fate::New]
    );
    let mut resumed = loop {
        // The server frees a lock when it notices that its session has gone.
        if let Some(rotator) = Rotator::open(&settings, "orders", PATIENCE).await.unwrap() {
            break rotator;
        }
    };
    resumed.rotate().await.unwrap();
    let next = Generations {
        oldest: 0,
        current: 1,
        next: None,
    };
    assert_eq!(resumed.generations().await.unwrap(), next);
    assert_eq!(
        committed(&mut early, &[1, 2, 3]).await,
        [Fate::Applied, Fate::Applied, Fate::New]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_both_generations_meets_one_of_the_next_only() {
    both_meets_next(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_of_both_generations_meets_one_of_the_next_only() {
    both_meets_next(100).await;
}

/// In batches of so many ids, which are numbered from 1000 on, from 2000 on, and so forth.
async fn both_meets_next(size: u128) {
    let ids = |number: u128| (0..size).map(move |id| 1000 * number + id);
    let batch = |numbers: &[u128]| -> Vec<u128> { numbers.iter().flat_map(|&n| ids(n)).collect() };
    let seen = |fates: &[Fate]| -> Vec<Fate> {
        let times = |&fate| std::iter::repeat_n(fate, size as usize);
        fates.iter().flat_map(times).collect()
    };
    let database = Database::with_pipeline("orders").await;
    let (mut early, mut both, mut next) = (
        database.ledger("orders").await,
        database.ledger("orders").await,
        database.ledger("orders").await,
    );
    open(&mut early).await;
    early.begin().await.unwrap();
    assert!(advance(&mut early, 0, 1, 10, 20).await);
    let mut rotating = rotator(&database).await;
    let rotating = tokio::spawn(async move { rotating.rotate().await.map(|()| rotating) });
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and query like '%as xmin%' and pid <> pg_backend_pid()";
    let waiting = async {
        while database.value::<i64>(waits).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.expect("a rotation that waits for the early writer");
    // This one is not waited for: it began after the step.
    both.begin().await.unwrap();
    let new = seen(&[Fate::New]);
    assert_eq!(fates(&mut both, &batch(&[1])).await, new);
    early.commit().await.unwrap();
    let mut rotator = rotating.await.unwrap().unwrap();
    assert_eq!(rotator.generations().await.unwrap().current, 1);
    assert_eq!(committed(&mut next, &batch(&[2])).await, new);
    let one_of_two = seen(&[Fate::Applied, Fate::New]);
    assert_eq!(fates(&mut both, &batch(&[2, 3])).await, one_of_two);
    both.commit().await.unwrap();
    let known = seen(&[Fate::Applied, Fate::Applied]);
    assert_eq!(committed(&mut next, &batch(&[1, 3])).await, known);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_began_while_the_step_was_being_committed_is_waited_for() {
    let database = Database::with_pipeline("orders").await;
    let mut writer = database.ledger("orders").await;
    open(&mut writer).await;
    let mut holder = database.connection().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("select from onceonly.pipeline for update")
        .execute(&mut *held)
        .await
        .unwrap();
    let settings = database.settings();
    let rotator = Rotator::open(&settings, "orders", Duration::ZERO).await;
    let mut rotator = rotator.unwrap().unwrap();
    let rotating = tokio::spawn(async move { rotator.rotate().await });
    someone_waits(&database).await;
    // Its number is higher than that of the step, which it does not see.
    writer.begin().await.unwrap();
    assert!(advance(&mut writer, 0, 1, 10, 20).await);
    held.rollback().await.unwrap();
    let error = rotating.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("held back"), "{error}");
    let step = "select next_generation from onceonly.pipeline";
    assert_eq!(database.value::<Option<i32>>(step).await, Some(1));
}
