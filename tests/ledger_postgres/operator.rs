//! What commands read and change.

use onceonly::ledger::Verdict;
use onceonly::ledger::postgres::report::{DeadLetterFilter, Observer};
use onceonly::ledger::postgres::{Log, position_set};
use onceonly::ledger::{Ledger, Move};
use onceonly::outcome::{Outcome, Tally};

use crate::support::database::Database;
use crate::support::ledger_suite::{advance, at, open, park};

#[tokio::test]
async fn setting_a_position_fences_the_owner_and_is_recorded() {
    let database = Database::with_pipeline("orders").await;
    let mut owner = database.ledger("orders").await;
    open(&mut owner).await;
    owner.stop(&at(0), 1, "the log begins at 50").await.unwrap();
    let before = owner.mark_namespace().await.unwrap();

    let set = position_set(&database.settings(), "orders", &at(0), 50, Log::Same)
        .await
        .unwrap();
    assert_eq!((set.before, set.after, set.epoch), (10, 50, 2));
    assert_eq!(set.stopped_before.as_deref(), Some("the log begins at 50"));
    assert_eq!(owner.mark_namespace().await.unwrap(), before + 1, "forward");
    owner.begin().await.unwrap();
    assert!(
        !advance(&mut owner, 0, 1, 10, 20).await,
        "the owner is fenced"
    );
    assert!(
        advance(&mut owner, 1, 1, 10, 20).await,
        "of this partition only"
    );
    owner.rollback().await.unwrap();
    owner.begin().await.unwrap();
    let row = owner.lock_positions(&[at(0)]).await.unwrap().remove(0);
    owner.rollback().await.unwrap();
    assert_eq!(
        (row.next_offset, row.high_water, row.stopped),
        (50, 50, None)
    );

    let set = position_set(&database.settings(), "orders", &at(0), 20, Log::Same)
        .await
        .unwrap();
    assert_eq!((set.before, set.after, set.epoch), (50, 20, 3));
    assert_eq!(
        owner.mark_namespace().await.unwrap(),
        before + 1,
        "backward"
    );

    database
        .run("update onceonly.position set horizon = 15")
        .await;
    let set = position_set(&database.settings(), "orders", &at(0), 3, Log::Another)
        .await
        .unwrap();
    assert_eq!((set.before, set.after, set.epoch), (20, 3, 4));
    let row = "select high_water || ' ' || horizon from onceonly.position where partition = 0";
    assert_eq!(
        database.value::<String>(row).await,
        "3 0",
        "how far another log was read says nothing of this one"
    );
    assert_eq!(
        owner.mark_namespace().await.unwrap(),
        before + 2,
        "another log"
    );
    let audit = "select string_agg(concat_ws(' ', action, detail ->> 'before', detail ->> 'after'), ', ' order by id) from onceonly.audit";
    assert_eq!(
        database.value::<String>(audit).await,
        "position set 10 50, position set 50 20, position set 20 3"
    );
}

#[tokio::test]
async fn a_position_that_is_none_is_not_set() {
    let database = Database::with_pipeline("orders").await;
    let settings = database.settings();
    let error = position_set(&settings, "orders", &at(0), 5, Log::Same)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no position for partition orders/0"),
        "{error}"
    );
    let error = position_set(&settings, "orders", &at(0), -1, Log::Same)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("-1 is no offset"), "{error}");
    assert_eq!(
        database
            .value::<i64>("select count(*) from onceonly.audit")
            .await,
        0
    );
}

#[tokio::test]
async fn the_report_shows_positions_and_sizes() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let mut tally = Tally::default();
    tally.add(Outcome::Applied);
    ledger.begin().await.unwrap();
    assert!(advance(&mut ledger, 0, 1, 10, 11).await);
    ledger.count(&[(&at(0), tally, 2)]).await.unwrap();
    ledger.commit().await.unwrap();
    park(
        &mut ledger,
        &[1],
        Verdict::RetryAfter(std::time::Duration::from_secs(60)),
    )
    .await;
    park(&mut ledger, &[2, 3], Verdict::Dead).await;

    let mut observer = Observer::connect(&database.settings(), "orders")
        .await
        .unwrap();
    let positions = observer.positions().await.unwrap();
    assert_eq!(positions.len(), 2);
    let first = &positions[0];
    assert_eq!(
        (&*first.topic, first.partition, first.epoch),
        ("orders", 0, 1)
    );
    assert_eq!(
        (first.next_offset, first.high_water, first.horizon),
        (11, 11, 0)
    );
    assert_eq!((first.tally, first.conflicts), (tally, 2));
    assert_eq!(first.owner_name.as_deref(), Some("onceonly"));
    assert_eq!(
        first.event_time.map(|time| time.as_millisecond()),
        Some(1_700_000_000_000)
    );
    assert_eq!(positions[1].event_time, None);
    let sizes = observer.sizes().await.unwrap();
    assert_eq!(
        (
            sizes.waiting,
            sizes.dead,
            sizes.discarded,
            sizes.generations
        ),
        (1, 2, 0, 1)
    );
    assert!(sizes.ledger_bytes > 0 && sizes.next_due.is_some());
}

#[tokio::test]
async fn times_that_no_table_holds_do_not_stop_a_batch() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let zero = at(0);
    for (offset, time) in (10..).zip([
        i64::MAX,
        i64::MIN,
        9_224_318_015_999_999 - 86_400_000,
        -210_866_803_200_000,
    ]) {
        ledger.begin().await.unwrap();
        let moves = [Move {
            at: &zero,
            epoch: 1,
            from: offset,
            to: offset + 1,
            event_time_ms: Some(time),
        }];
        assert!(ledger.advance(&moves).await.unwrap().is_empty(), "{time}");
        ledger.commit().await.unwrap();
        let mut observer = Observer::connect(&database.settings(), "orders")
            .await
            .unwrap();
        observer.positions().await.unwrap();
    }
}

#[tokio::test]
async fn an_absurd_time_counts_as_the_one_before() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let zero = at(0);
    let real_ms = 1_700_000_000_000;
    let seen = "select (extract(epoch from event_time) * 1000)::bigint from onceonly.position \
                where partition = 0";
    let far_ms = jiff::Timestamp::now().as_millisecond() + 2 * 86_400_000;
    for (offset, time) in (10..).zip([Some(real_ms), None, Some(-1), Some(0), Some(far_ms)]) {
        ledger.begin().await.unwrap();
        let moves = [Move {
            at: &zero,
            epoch: 1,
            from: offset,
            to: offset + 1,
            event_time_ms: time,
        }];
        assert!(ledger.advance(&moves).await.unwrap().is_empty());
        ledger.commit().await.unwrap();
        assert_eq!(database.value::<i64>(seen).await, real_ms, "{time:?}");
    }
}

#[tokio::test]
async fn dead_letters_are_found_by_id_error_topic_and_time() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    park(&mut ledger, &[1, 2, 3], Verdict::Dead).await;
    database
        .run("update onceonly.dead_letter set state = 'discarded' where event_id = '3'")
        .await;
    let mut observer = Observer::connect(&database.settings(), "orders")
        .await
        .unwrap();
    let all = DeadLetterFilter {
        limit: 10,
        ..DeadLetterFilter::default()
    };
    let letters = observer.dead_letters(&all).await.unwrap();
    assert_eq!(letters.len(), 2);
    let first = letters
        .iter()
        .find(|letter| letter.event_id == "1")
        .unwrap();
    assert_eq!(
        (first.attempts, first.offset, first.payload_bytes),
        (1, 1, Some(2))
    );
    assert_eq!(first.errors.len(), 1);
    assert_eq!(
        (first.errors[0].attempt, &*first.errors[0].code),
        (1, "23514")
    );
    assert_eq!(
        first.errors[0].message, "too \u{fffd} bad",
        "a NUL is replaced"
    );

    let some = |text: &str| Some(text.to_owned());
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    for (filter, count) in [
        (
            DeadLetterFilter {
                id: some("2"),
                ..all.clone()
            },
            1,
        ),
        (
            DeadLetterFilter {
                id: some("9"),
                ..all.clone()
            },
            0,
        ),
        (
            DeadLetterFilter {
                error: some("23514"),
                ..all.clone()
            },
            2,
        ),
        (
            DeadLetterFilter {
                error: some("TOO"),
                ..all.clone()
            },
            2,
        ),
        (
            DeadLetterFilter {
                error: some("%"),
                ..all.clone()
            },
            0,
        ),
        (
            DeadLetterFilter {
                topic: some("orders"),
                ..all.clone()
            },
            2,
        ),
        (
            DeadLetterFilter {
                topic: some("order"),
                ..all.clone()
            },
            0,
        ),
        (
            DeadLetterFilter {
                since: Some(later),
                ..all.clone()
            },
            0,
        ),
        (
            DeadLetterFilter {
                limit: 1,
                ..all.clone()
            },
            1,
        ),
    ] {
        let found = observer.dead_letters(&filter).await.unwrap();
        assert_eq!(found.len(), count, "{filter:?}");
    }
    let content = observer.dead_letter("3").await.unwrap();
    assert_eq!((content.len(), &*content[0].letter.state), (1, "discarded"));
    assert_eq!(
        (content[0].payload.as_deref(), content[0].key.as_deref()),
        (Some(&b"{}"[..]), None)
    );
}

#[tokio::test]
async fn the_first_errors_and_the_latest_are_kept() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let soon = Verdict::RetryAfter(std::time::Duration::ZERO);
    park(&mut ledger, &[1], soon).await;
    for attempt in 1..=30 {
        let failure = onceonly::ledger::Failure {
            code: format!("c{}", attempt + 1),
            message: "x".repeat(5_000),
        };
        let verdict = if attempt == 30 { Verdict::Dead } else { soon };
        let settled = [onceonly::ledger::Settled {
            key: crate::support::ledger_suite::key(1),
            attempt,
            failed: Some((&failure, verdict)),
        }];
        ledger.begin().await.unwrap();
        assert_eq!(ledger.settle(&settled).await.unwrap(), 1);
        ledger.commit().await.unwrap();
    }
    let mut observer = Observer::connect(&database.settings(), "orders")
        .await
        .unwrap();
    let letter = observer.dead_letter("1").await.unwrap().remove(0).letter;
    let kept: Vec<u32> = letter.errors.iter().map(|error| error.attempt).collect();
    let expected: Vec<u32> = std::iter::once(1).chain(13..=31).collect();
    assert_eq!((letter.attempts, kept), (31, expected));
    assert_eq!(letter.errors[1].message.len(), 2_000);
}
