//! What every ledger must hold, in memory or in Postgres.

use std::time::Duration;

use onceonly::event::{Batch, Incoming, TopicPartition};
use onceonly::identity::{EventKey, Found, Ids};
use onceonly::ledger::{
    Claim, Entry, Failure, Fate, Ledger, Move, Parked, Position, Settled, Take, Verdict,
};
use onceonly::outcome::{Layer, Outcome, Tally};
use uuid::Uuid;

/// A database for ledgers of one pipeline, empty at first.
pub trait Store {
    /// The ledger under test.
    type Ledger: Ledger + 'static;

    /// A connected ledger.
    fn ledger(&self) -> impl Future<Output = Self::Ledger>;

    /// The counters of a partition's row: outcomes, and conflicts.
    fn counted(&self, at: &TopicPartition) -> impl Future<Output = (Tally, u64)>;
}

/// Partition `partition` of the topic that every test uses.
pub fn at(partition: i32) -> TopicPartition {
    TopicPartition::new("orders", partition)
}

/// The key of a small number.
pub fn key(number: u128) -> EventKey {
    EventKey(Uuid::from_u128(number))
}

/// Records of partition 0 with ids that are numbers; their offsets are the numbers.
pub fn records(numbers: &[u128]) -> (Batch, Ids) {
    let (mut batch, mut ids) = (Batch::new(), Ids::default());
    let slot = batch.slice(&at(0), 1);
    for &number in numbers {
        let record = Incoming {
            offset: number as i64,
            payload: Some(b"{}"),
            ..Incoming::default()
        };
        batch.push(slot, record, std::iter::empty());
        ids.push(&number.to_string(), key(number), Found::Id);
    }
    (batch, ids)
}

/// The entries of all records, with one body hash.
pub fn entries<'a>(batch: &'a Batch, ids: &Ids, body_hash: Option<i64>) -> Vec<Entry<'a>> {
    let entry = |index| Entry {
        key: ids.key(index),
        event: batch.event(index),
        body_hash,
    };
    (0..batch.len()).map(entry).collect()
}

async fn claim(ledger: &mut impl Ledger, numbers: &[u128], body_hash: Option<i64>) -> Vec<Claim> {
    let (batch, ids) = records(numbers);
    let entries = entries(&batch, &ids, body_hash);
    ledger.claim(&entries).await.expect("an answer to each id")
}

/// What ids meet.
pub async fn fates(ledger: &mut impl Ledger, numbers: &[u128]) -> Vec<Fate> {
    let claims = claim(ledger, numbers, None).await;
    claims.into_iter().map(|claim| claim.fate).collect()
}

fn take(partition: i32, next_offset: i64) -> Take {
    Take {
        at: at(partition),
        next_offset,
        topic_id: None,
        cluster_id: None,
        stopped: None,
    }
}

/// Inserts rows for partitions 0 and 1 at offset 10 and claims them; the epochs are 1.
pub async fn open(ledger: &mut impl Ledger) {
    ledger.begin().await.unwrap();
    ledger
        .insert_positions("orders", &[(0, 10), (1, 10)])
        .await
        .unwrap();
    ledger.lock_positions(&[at(0), at(1)]).await.unwrap();
    let takes = [take(0, 10), take(1, 10)];
    assert_eq!(
        ledger.take(Uuid::from_u128(1), &takes).await.unwrap(),
        [1, 1]
    );
    ledger.commit().await.unwrap();
}

/// Moves a partition within the open transaction; the answer says whether it was moved.
pub async fn advance(
    ledger: &mut impl Ledger,
    partition: i32,
    epoch: i64,
    from: i64,
    to: i64,
) -> bool {
    let at = at(partition);
    let moves = [Move {
        at: &at,
        epoch,
        from,
        to,
        event_time_ms: Some(1_700_000_000_000),
    }];
    ledger.advance(&moves).await.unwrap().is_empty()
}

async fn rows(ledger: &mut impl Ledger) -> Vec<Position> {
    ledger.begin().await.unwrap();
    let rows = ledger.lock_positions(&[at(0), at(1), at(2)]).await.unwrap();
    ledger.rollback().await.unwrap();
    rows
}

async fn next_offsets(ledger: &mut impl Ledger) -> Vec<(i64, i64)> {
    let rows = rows(ledger).await;
    rows.iter()
        .map(|row| (row.next_offset, row.high_water))
        .collect()
}

/// Parks ids in a transaction of their own that claims them.
pub async fn park(ledger: &mut impl Ledger, numbers: &[u128], verdict: Verdict) {
    let (batch, ids) = records(numbers);
    let failure = Failure {
        code: "23514".to_owned(),
        message: "too \0 bad".to_owned(),
    };
    let parked = |index| Parked {
        event: batch.event(index),
        id: ids.text(index),
        key: ids.key(index),
        failure: &failure,
        verdict,
    };
    let parked: Vec<Parked<'_>> = (0..batch.len()).map(parked).collect();
    ledger.begin().await.unwrap();
    let entries = entries(&batch, &ids, None);
    let claims = ledger.claim(&entries).await.unwrap();
    assert!(
        claims.iter().all(|claim| claim.fate == Fate::New),
        "{claims:?}"
    );
    ledger.park(&parked).await.unwrap();
    ledger.commit().await.unwrap();
}

/// Of two that decide where a topic starts, the first one counts.
pub async fn the_first_claimers_start_counts(store: &impl Store) {
    let (mut first, mut second) = (store.ledger().await, store.ledger().await);
    assert!(!first.knows_topic("orders").await.unwrap());
    first.begin().await.unwrap();
    first
        .insert_positions("orders", &[(0, 10), (1, 20)])
        .await
        .unwrap();
    first.commit().await.unwrap();
    second.begin().await.unwrap();
    second
        .insert_positions("orders", &[(0, 77), (1, 77), (2, 77)])
        .await
        .unwrap();
    second.commit().await.unwrap();
    assert!(second.knows_topic("orders").await.unwrap());
    assert!(!second.knows_topic("order").await.unwrap());
    let rows = rows(&mut first).await;
    let starts: Vec<_> = rows
        .iter()
        .map(|row| (row.next_offset, row.epoch))
        .collect();
    assert_eq!(starts, [(10, 0), (20, 0), (77, 0)]);
    assert_eq!((rows[0].horizon, rows[0].stopped.as_deref()), (0, None));
}

/// A claim records what it is given and raises the epoch.
pub async fn a_claim_raises_the_epoch(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    let take = Take {
        topic_id: Some(Uuid::from_u128(5)),
        cluster_id: Some("c".into()),
        stopped: Some("why".to_owned()),
        ..take(1, 4)
    };
    assert_eq!(ledger.take(Uuid::from_u128(2), &[take]).await.unwrap(), [2]);
    ledger.commit().await.unwrap();
    let rows = rows(&mut ledger).await;
    let row = &rows[1];
    assert_eq!((row.epoch, row.next_offset, row.high_water), (2, 4, 10));
    assert_eq!(row.topic_id, Some(Uuid::from_u128(5)));
    assert_eq!(
        (row.cluster_id.as_deref(), row.stopped.as_deref()),
        (Some("c"), Some("why"))
    );
    assert_eq!(rows[0].epoch, 1);
    let standings = ledger.standings().await.unwrap();
    assert_eq!(standings.len(), 2);
    assert_eq!((&standings[1].at, standings[1].epoch), (&at(1), 2));
    assert_eq!((standings[1].next_offset, standings[1].high_water), (4, 10));
    assert_eq!(standings[1].topic_id, Some(Uuid::from_u128(5)));
}

/// A stale epoch, a stale place and a missing row are fenced; the others move.
pub async fn advance_moves_only_from_where_the_owner_stands(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    assert!(!advance(&mut ledger, 0, 0, 10, 20).await, "an older epoch");
    assert!(
        !advance(&mut ledger, 0, 2, 10, 20).await,
        "an epoch that is not yet"
    );
    assert!(!advance(&mut ledger, 0, 1, 9, 20).await, "another place");
    assert!(!advance(&mut ledger, 2, 1, 10, 20).await, "no row");
    let (zero, one, two) = (at(0), at(1), at(2));
    let to_20 = |at, from| Move {
        at,
        epoch: 1,
        from,
        to: 20,
        event_time_ms: None,
    };
    let moves = [to_20(&zero, 11), to_20(&one, 10), to_20(&two, 10)];
    assert_eq!(ledger.advance(&moves).await.unwrap(), [0, 2]);
    ledger.commit().await.unwrap();
    assert_eq!(next_offsets(&mut ledger).await, [(10, 10), (20, 20)]);
}

/// A rewind lowers the position, not the furthest one ever committed.
pub async fn a_rewind_does_not_lower_the_high_water(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    assert!(advance(&mut ledger, 0, 1, 10, 50).await);
    ledger.commit().await.unwrap();
    ledger.begin().await.unwrap();
    ledger
        .take(Uuid::from_u128(1), &[take(0, 20)])
        .await
        .unwrap();
    ledger.commit().await.unwrap();
    ledger.begin().await.unwrap();
    assert!(advance(&mut ledger, 0, 2, 20, 30).await);
    ledger.commit().await.unwrap();
    assert_eq!(next_offsets(&mut ledger).await[0], (30, 50));
}

/// What is rolled back did not happen.
pub async fn a_rollback_leaves_nothing(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    assert!(advance(&mut ledger, 0, 1, 10, 20).await);
    assert_eq!(fates(&mut ledger, &[1, 2]).await, [Fate::New, Fate::New]);
    ledger.rollback().await.unwrap();
    assert_eq!(next_offsets(&mut ledger).await[0], (10, 10));
    ledger.begin().await.unwrap();
    assert_eq!(fates(&mut ledger, &[1, 2]).await, [Fate::New, Fate::New]);
    ledger.rollback().await.unwrap();
}

/// A known id answers with what became of it, among ids that are new.
pub async fn a_known_id_tells_its_fate(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    assert_eq!(fates(&mut ledger, &[2]).await, [Fate::New]);
    ledger.commit().await.unwrap();
    park(
        &mut ledger,
        &[4],
        Verdict::RetryAfter(Duration::from_secs(3600)),
    )
    .await;
    park(&mut ledger, &[6], Verdict::Dead).await;
    ledger.begin().await.unwrap();
    assert_eq!(
        fates(&mut ledger, &[1, 2, 3, 4, 5, 6]).await,
        [
            Fate::New,
            Fate::Applied,
            Fate::New,
            Fate::Waiting,
            Fate::New,
            Fate::Dead
        ]
    );
    assert_eq!(fates(&mut ledger, &[]).await, []);
    ledger.rollback().await.unwrap();
}

/// Another body is a conflict only where both were hashed.
pub async fn another_body_is_a_conflict(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    claim(&mut ledger, &[1, 2], Some(7)).await;
    claim(&mut ledger, &[3], None).await;
    ledger.commit().await.unwrap();
    ledger.begin().await.unwrap();
    let conflicts = async |ledger: &mut _, body_hash| -> Vec<bool> {
        let claims = claim(ledger, &[1, 2, 3], body_hash).await;
        claims.iter().map(|claim| claim.conflict).collect()
    };
    assert_eq!(conflicts(&mut ledger, Some(8)).await, [true, true, false]);
    assert_eq!(conflicts(&mut ledger, Some(7)).await, [false, false, false]);
    assert_eq!(conflicts(&mut ledger, None).await, [false, false, false]);

    // Asked without claiming: in any order, any number of times, unknown or of this transaction.
    claim(&mut ledger, &[4], Some(7)).await;
    let (batch, ids) = records(&[4, 1, 5, 1, 3]);
    let mut asked = entries(&batch, &ids, Some(8));
    asked[1].body_hash = Some(7);
    let found = ledger.conflicts(&asked).await.unwrap();
    assert_eq!(found, [true, false, false, true, false]);
    ledger.rollback().await.unwrap();
}

/// Ids out of order, or one twice, would let workers wait for each other in a circle.
pub async fn ids_out_of_order_are_refused(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    for numbers in [[2, 1], [1, 1]] {
        ledger.begin().await.unwrap();
        let (batch, ids) = records(&numbers);
        let entries = entries(&batch, &ids, None);
        assert!(ledger.claim(&entries).await.is_err(), "{numbers:?}");
        ledger.rollback().await.unwrap();
    }
}

/// Of two that bring the same id at once, the second learns how the first one ended.
pub async fn a_racing_claim_learns_how_the_other_ended<S: Store>(store: &S) {
    let (mut first, mut second) = (store.ledger().await, store.ledger().await);
    open(&mut first).await;
    for (commits, number, fate) in [(true, 1, Fate::Applied), (false, 2, Fate::New)] {
        first.begin().await.unwrap();
        assert_eq!(fates(&mut first, &[number]).await, [Fate::New]);
        let waiting = tokio::spawn(async move {
            second.begin().await.unwrap();
            let met = fates(&mut second, &[number]).await;
            second.rollback().await.unwrap();
            (second, met)
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished(), "the second must wait for the first");
        match commits {
            true => drop(first.commit().await.unwrap()),
            false => first.rollback().await.unwrap(),
        }
        let met;
        (second, met) = waiting.await.unwrap();
        assert_eq!(met, [fate]);
    }
}

/// An event that waited is the event that came.
pub async fn a_waiting_event_comes_back_as_it_came(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    let headers = [("a", Some(&b"1"[..])), ("b", None), ("a", Some(&b""[..]))];
    let (mut batch, mut ids) = (Batch::new(), Ids::default());
    let slot = batch.slice(&at(1), 1);
    let full = Incoming {
        offset: 5,
        timestamp_ms: Some(1_700_000_000_123),
        key: Some(b"\0k"),
        payload: Some(b"\xff"),
    };
    batch.push(slot, full, headers.into_iter());
    let bare = Incoming {
        offset: 6,
        ..Incoming::default()
    };
    batch.push(slot, bare, std::iter::empty());
    ids.push("five", key(5), Found::Id);
    ids.push("six", key(6), Found::Id);
    let failure = Failure {
        code: "22P02".to_owned(),
        message: "no".to_owned(),
    };
    let parked = [0, 1].map(|index| Parked {
        event: batch.event(index),
        id: ids.text(index),
        key: ids.key(index),
        failure: &failure,
        verdict: Verdict::RetryAfter(Duration::ZERO),
    });
    ledger.begin().await.unwrap();
    ledger.claim(&entries(&batch, &ids, None)).await.unwrap();
    ledger.park(&parked).await.unwrap();
    ledger.commit().await.unwrap();
    ledger.begin().await.unwrap();
    let due = ledger.due(10).await.unwrap();
    ledger.rollback().await.unwrap();
    assert_eq!((due.batch.len(), due.attempts), (2, vec![1, 1]));
    for (index, number) in [5, 6].into_iter().enumerate() {
        assert_eq!(due.ids.key(index), key(number));
        let (then, now) = (batch.event(index), due.batch.event(index));
        assert_eq!((now.at(), now.offset()), (then.at(), then.offset()));
        assert_eq!(now.timestamp_ms(), then.timestamp_ms());
        assert_eq!((now.key(), now.payload()), (then.key(), then.payload()));
        assert!(now.headers().eq(then.headers()));
    }
    assert_eq!((due.ids.text(0), due.ids.text(1)), ("five", "six"));
}

/// What is not due is not given out, and no more than asked for is.
pub async fn only_due_events_are_given_out(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    park(
        &mut ledger,
        &[1],
        Verdict::RetryAfter(Duration::from_secs(3600)),
    )
    .await;
    park(&mut ledger, &[2, 3, 4], Verdict::RetryAfter(Duration::ZERO)).await;
    park(&mut ledger, &[5], Verdict::Dead).await;
    ledger.begin().await.unwrap();
    assert_eq!(ledger.due(2).await.unwrap().batch.len(), 2);
    let due = ledger.due(10).await.unwrap();
    let keys: Vec<_> = (0..due.ids.len()).map(|index| due.ids.key(index)).collect();
    assert_eq!(keys, [key(2), key(3), key(4)]);
    ledger.rollback().await.unwrap();
}

/// A result changes its row only from the attempt that it belongs to, so each attempt has one end.
pub async fn each_attempt_is_settled_once(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    park(&mut ledger, &[1, 2, 3], Verdict::RetryAfter(Duration::ZERO)).await;
    let failure = Failure {
        code: "23505".to_owned(),
        message: "again \0".to_owned(),
    };
    let result = |number, attempt, failed: Option<Verdict>| Settled {
        key: key(number),
        attempt,
        failed: failed.map(|verdict| (&failure, verdict)),
    };
    let retry = Some(Verdict::RetryAfter(Duration::ZERO));
    let results = [
        result(1, 1, None),
        result(2, 1, retry),
        result(3, 1, Some(Verdict::Dead)),
    ];
    ledger.begin().await.unwrap();
    assert_eq!(ledger.settle(&results).await.unwrap(), 3);
    ledger.commit().await.unwrap();
    ledger.begin().await.unwrap();
    assert_eq!(
        ledger.settle(&results).await.unwrap(),
        0,
        "a second end of the same attempts"
    );
    let due = ledger.due(10).await.unwrap();
    assert_eq!(
        (due.ids.len(), due.ids.key(0), due.attempts),
        (1, key(2), vec![2])
    );
    let met = fates(&mut ledger, &[1, 2, 3]).await;
    assert_eq!(met, [Fate::Applied, Fate::Waiting, Fate::Dead]);
    for stale in [None, retry, Some(Verdict::Dead)] {
        let late = [result(2, 1, stale)];
        assert_eq!(
            ledger.settle(&late).await.unwrap(),
            0,
            "an end of the attempt before"
        );
    }
    assert_eq!(ledger.settle(&[result(2, 2, None)]).await.unwrap(), 1);
    assert_eq!(fates(&mut ledger, &[2]).await, [Fate::Applied]);
    ledger.commit().await.unwrap();
}

/// Outcomes add up over transactions, each in its own counter.
pub async fn outcomes_add_up(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    let mut tally = Tally::default();
    for (count, outcome) in (1..).zip(Outcome::ALL) {
        for _ in 0..count {
            tally.add(outcome);
        }
    }
    let (zero, one) = (at(0), at(1));
    for round in [0, 1] {
        ledger.begin().await.unwrap();
        assert!(advance(&mut ledger, 0, 1, 10 + round, 11 + round).await);
        let tallies = [(&zero, tally, 3), (&one, Tally::default(), 0)];
        ledger.count(&tallies).await.unwrap();
        ledger.commit().await.unwrap();
    }
    ledger.begin().await.unwrap();
    ledger.count(&[(&zero, tally, 3)]).await.unwrap();
    ledger.rollback().await.unwrap();
    let (counted, conflicts) = store.counted(&zero).await;
    for (count, outcome) in (1..).zip(Outcome::ALL) {
        assert_eq!(counted.get(outcome), 2 * count, "{}", outcome.name());
    }
    assert_eq!(conflicts, 6);
    assert_eq!(counted.get(Outcome::Duplicate(Layer::Dead)), 16);
    assert_eq!(store.counted(&one).await, (Tally::default(), 0));
}

/// Only the owner stops a partition.
pub async fn only_the_owner_stops_a_partition(store: &impl Store) {
    let mut ledger = store.ledger().await;
    open(&mut ledger).await;
    ledger.stop(&at(0), 0, "an older owner").await.unwrap();
    assert_eq!(rows(&mut ledger).await[0].stopped, None);
    ledger
        .stop(&at(0), 1, "100 dead letters in a row")
        .await
        .unwrap();
    let rows = rows(&mut ledger).await;
    assert_eq!(
        rows[0].stopped.as_deref(),
        Some("100 dead letters in a row")
    );
    assert_eq!(rows[1].stopped, None);
}

/// The namespace of marks changes with the transaction.
pub async fn the_namespace_of_marks_changes_with_the_transaction(store: &impl Store) {
    let mut ledger = store.ledger().await;
    let before = ledger.mark_namespace().await.unwrap();
    ledger.begin().await.unwrap();
    assert_eq!(ledger.bump_mark_namespace().await.unwrap(), before + 1);
    ledger.rollback().await.unwrap();
    assert_eq!(ledger.mark_namespace().await.unwrap(), before);
    ledger.begin().await.unwrap();
    ledger.bump_mark_namespace().await.unwrap();
    ledger.commit().await.unwrap();
    assert_eq!(ledger.mark_namespace().await.unwrap(), before + 1);
}

/// Declares a test for each part of the suite; `$store` is an expression that makes a store.
#[macro_export]
macro_rules! ledger_suite {
    ($store:expr) => {
        $crate::ledger_suite!(@ $store;
            the_first_claimers_start_counts
            a_claim_raises_the_epoch
            advance_moves_only_from_where_the_owner_stands
            a_rewind_does_not_lower_the_high_water
            a_rollback_leaves_nothing
            a_known_id_tells_its_fate
            another_body_is_a_conflict
            ids_out_of_order_are_refused
            a_racing_claim_learns_how_the_other_ended
            a_waiting_event_comes_back_as_it_came
            only_due_events_are_given_out
            each_attempt_is_settled_once
            outcomes_add_up
            only_the_owner_stops_a_partition
            the_namespace_of_marks_changes_with_the_transaction
        );
    };
    (@ $store:expr; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                $crate::support::ledger_suite::$name(&$store).await;
            }
        )*
    };
}
