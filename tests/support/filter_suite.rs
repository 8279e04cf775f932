//! What every filter has to hold, whatever it stores its marks in.

use onceonly::filter::{Filter, Lookup, Mark, MarkOrder, Place, Probe, Proofs, Receipt};
use onceonly::identity::EventKey;
use onceonly::ledger::Ledger;
use onceonly::ledger::memory::{MemoryDatabase, NoFaults};
use uuid::Uuid;

use super::{PATIENCE, unique};

use MarkOrder::{After, Before};
use Probe::{Claimed, ClaimedElsewhere, Proven, Unknown, Unproven};

/// What stores the marks.
pub trait Store {
    /// The filter under test.
    type Filter: Filter;

    /// When it can mark.
    const ORDERS: &[MarkOrder] = &[After, Before];

    /// A worker's filter on the store.
    fn worker(&self, pipeline: &str, order: MarkOrder) -> Self::Filter;

    /// What stands for an id, as text.
    fn get(&self, pipeline: &str, id: &str) -> impl Future<Output = Option<String>>;

    /// Puts a mark written as text for an id, or anything that is none.
    fn put(&self, pipeline: &str, id: &str, value: &str) -> impl Future<Output = ()>;
}

/// Partitions 0 and 1 of one topic.
pub fn places() -> Vec<Place> {
    (0..2)
        .map(|partition| Place {
            topic: "t0p1c".to_owned(),
            partition,
        })
        .collect()
}

/// Both places were committed up to here.
pub struct Reached(pub i64);

impl Proofs for Reached {
    fn high_water(&self, topic: &str, partition: i32) -> Option<i64> {
        (topic == "t0p1c" && (0..2).contains(&partition)).then_some(self.0)
    }
}

/// Asks for an id on behalf of offset 7 of partition 0.
pub fn ask(id: &str) -> Lookup<'_> {
    Lookup {
        scope: None,
        id: Some(id),
        key: key(id),
        place: 0,
        offset: 7,
    }
}

/// Stands for the ledger's key.
pub fn key(id: &str) -> EventKey {
    let hash = blake3::hash(id.as_bytes());
    EventKey(Uuid::from_slice(&hash.as_bytes()[..16]).expect("16 bytes"))
}

/// A mark for what was asked.
pub fn mark<'a>(lookup: Lookup<'a>, overwrite: bool) -> Mark<'a> {
    let Lookup {
        scope,
        id,
        key,
        place,
        ..
    } = lookup;
    Mark {
        scope,
        id,
        key,
        place,
        overwrite,
    }
}

/// What a commit gives.
pub fn receipt() -> Receipt {
    MemoryDatabase::new().ledger(NoFaults).vouch()
}

/// Probes ids where both places were committed up to `reached`.
pub async fn probe(filter: &mut impl Filter, reached: i64, ids: &[&str]) -> Vec<Probe> {
    let lookups: Vec<_> = ids.iter().map(|id| ask(id)).collect();
    filter.probe(&places(), &lookups, &Reached(reached)).await
}

/// Marks ids as applied by the transaction that committed offset 10 of each partition.
pub async fn mark_all(filter: &mut impl Filter, ids: &[&str], overwrite: bool) {
    let marks: Vec<_> = ids.iter().map(|id| mark(ask(id), overwrite)).collect();
    mark_and_wait(filter, &[10, 10], &marks).await;
}

/// Marks and waits until the marks are written.
pub async fn mark_and_wait(filter: &mut impl Filter, committed: &[i64], marks: &[Mark<'_>]) {
    filter.mark(&receipt(), &places(), committed, marks).await;
    filter.flush(PATIENCE).await;
}

pub async fn an_id_is_proven_only_once_its_position_is_reached<S: Store>(store: S) {
    for &order in S::ORDERS {
        let mut worker = store.worker(&unique("p"), order);
        let first = if order == After { Unknown } else { Claimed };
        assert_eq!(probe(&mut worker, 99, &["a"]).await, [first]);
        mark_all(&mut worker, &["a"], order == Before).await;
        assert_eq!(probe(&mut worker, 9, &["a"]).await, [Unproven]);
        assert_eq!(probe(&mut worker, 10, &["a"]).await, [Proven]);
    }
}

pub async fn a_mark_names_the_place_and_position_of_its_record<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    let (mut a, mut b) = (mark(ask("a"), false), mark(ask("b"), false));
    (a.place, b.place) = (0, 1);
    mark_and_wait(&mut worker, &[10, 20], &[a, b]).await;
    let value = async |id: &str| store.get(&pipeline, id).await;
    assert_eq!(value("a").await.as_deref(), Some("d/t0p1c/0/10"));
    assert_eq!(value("b").await.as_deref(), Some("d/t0p1c/1/20"));
    assert_eq!(
        probe(&mut worker, 15, &["a", "b"]).await,
        [Proven, Unproven]
    );
}

pub async fn a_mark_of_a_place_never_read_proves_nothing<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    for value in ["d/t0p1c/2/1", "d/other/0/1"] {
        store.put(&pipeline, "a", value).await;
        assert_eq!(probe(&mut worker, 99, &["a"]).await, [Unproven], "{value}");
    }
}

pub async fn a_value_that_cannot_be_read_proves_nothing_and_is_mended<S: Store>(store: S) {
    for &order in S::ORDERS {
        let pipeline = unique("p");
        let mut worker = store.worker(&pipeline, order);
        for value in ["", "1", "d", "d/t0p1c/0/0", "d/t0p1c/0/x", "\u{0}"] {
            store.put(&pipeline, "a", value).await;
            let found = probe(&mut worker, 99, &["a"]).await;
            assert_eq!(found, [Unproven], "{value:?}");
            mark_all(&mut worker, &["a"], true).await;
            assert_eq!(probe(&mut worker, 99, &["a"]).await, [Proven]);
        }
    }
}

pub async fn a_mark_is_written_over_another_where_told<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    store.put(&pipeline, "a", "d/t0p1c/0/50").await;
    mark_all(&mut worker, &["a"], true).await;
    let mark = store.get(&pipeline, "a").await;
    assert_eq!(mark.as_deref(), Some("d/t0p1c/0/10"));
}

pub async fn a_mark_stays_where_no_other_is_told_to_replace_it<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    store.put(&pipeline, "a", "d/t0p1c/0/5").await;
    mark_all(&mut worker, &["a"], false).await;
    let mark = store.get(&pipeline, "a").await;
    assert_eq!(mark.as_deref(), Some("d/t0p1c/0/5"));
}

pub async fn a_claim_is_elsewhere_for_every_other_attempt<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut first = store.worker(&pipeline, Before);
    let mut second = store.worker(&pipeline, Before);
    let mut reader = store.worker(&pipeline, After);
    assert_eq!(probe(&mut first, 99, &["a"]).await, [Claimed]);
    assert_eq!(probe(&mut second, 99, &["a"]).await, [ClaimedElsewhere]);
    assert_eq!(probe(&mut reader, 99, &["a"]).await, [ClaimedElsewhere]);
    // A later attempt at the same record is another attempt too, and no duplicate.
    assert_eq!(probe(&mut first, 99, &["a"]).await, [ClaimedElsewhere]);
    let claim = store.get(&pipeline, "a").await;
    let claim = claim.expect("a claim");
    assert!(claim.starts_with("c/t0p1c/0/7/"), "{claim}");
}

pub async fn of_an_id_twice_in_a_batch_one_record_has_the_claim<S: Store>(store: S) {
    let mut worker = store.worker(&unique("p"), Before);
    let second = Lookup {
        offset: 8,
        ..ask("a")
    };
    let probes = worker
        .probe(&places(), &[ask("a"), second], &Reached(99))
        .await;
    assert_eq!(probes, [Claimed, ClaimedElsewhere]);
}

pub async fn an_attempt_gives_back_its_own_claims_only<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut ours = store.worker(&pipeline, Before);
    let mut theirs = store.worker(&pipeline, Before);
    let ids = ["mine", "theirs", "marked", "garbage"];
    let lookups: Vec<_> = ids.iter().map(|id| ask(id)).collect();
    assert_eq!(probe(&mut theirs, 99, &["theirs"]).await, [Claimed]);
    store.put(&pipeline, "garbage", "1").await;
    assert_eq!(
        probe(&mut ours, 99, &ids).await,
        [Claimed, ClaimedElsewhere, Claimed, Unproven]
    );
    mark_all(&mut ours, &["marked"], true).await;
    ours.unclaim(&places(), &lookups).await;
    let mut reader = store.worker(&pipeline, After);
    assert_eq!(
        probe(&mut reader, 99, &ids).await,
        [Unknown, ClaimedElsewhere, Proven, Unproven]
    );
}

pub async fn a_claim_given_back_can_be_claimed_again<S: Store>(store: S) {
    let mut worker = store.worker(&unique("p"), Before);
    for _ in 0..3 {
        assert_eq!(probe(&mut worker, 99, &["a"]).await, [Claimed]);
        worker.unclaim(&places(), &[ask("a")]).await;
    }
}

pub async fn an_older_attempt_cannot_give_back_the_claim_of_a_newer_one<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut old = store.worker(&pipeline, Before);
    let mut new = store.worker(&pipeline, Before);
    assert_eq!(probe(&mut old, 99, &["a"]).await, [Claimed]);
    old.unclaim(&places(), &[ask("a")]).await;
    // The same record, by the worker that took its partition over.
    assert_eq!(probe(&mut new, 99, &["a"]).await, [Claimed]);
    old.unclaim(&places(), &[ask("a")]).await;
    assert_eq!(probe(&mut old, 99, &["a"]).await, [ClaimedElsewhere]);
}

pub async fn a_worker_that_only_reads_claims_nothing<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    probe(&mut worker, 99, &["a"]).await;
    assert_eq!(store.get(&pipeline, "a").await, None);
}

pub async fn pipelines_namespaces_and_topics_share_no_ids<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    mark_all(&mut worker, &["a"], false).await;

    let mut other = store.worker(&unique("p"), After);
    assert_eq!(probe(&mut other, 99, &["a"]).await, [Unknown]);

    let of_topic = |scope| Lookup {
        scope: Some(scope),
        key: key(&format!("a of {scope}")),
        ..ask("a")
    };
    mark_and_wait(&mut worker, &[10, 10], &[mark(of_topic("x"), false)]).await;
    let lookups = [ask("a"), of_topic("x"), of_topic("y")];
    let probes = worker.probe(&places(), &lookups, &Reached(99)).await;
    assert_eq!(probes, [Proven, Proven, Unknown]);

    worker.set_namespace(1);
    assert_eq!(probe(&mut worker, 99, &["a"]).await, [Unknown]);
    mark_all(&mut worker, &["b"], false).await;
    worker.set_namespace(0);
    assert_eq!(probe(&mut worker, 99, &["a", "b"]).await, [Proven, Unknown]);
}

pub async fn an_id_that_reads_like_a_place_is_another_event<S: Store>(store: S) {
    let mut worker = store.worker(&unique("p"), After);
    let place = Lookup {
        id: None,
        key: key("the place"),
        ..ask("orders/0/5")
    };
    let text = place.key.to_string();
    mark_and_wait(&mut worker, &[10, 10], &[mark(place, false)]).await;
    let lookups = [place, ask("orders/0/5"), ask(""), ask(&text)];
    let probes = worker.probe(&places(), &lookups, &Reached(99)).await;
    assert_eq!(probes, [Proven, Unknown, Unknown, Unknown]);
}

pub async fn ids_of_any_length_and_bytes_are_told_apart<S: Store>(store: S) {
    let long = "x".repeat(100_000);
    let longer = format!("{long}y");
    let ids = ["", " ", "\r\n", "a\u{0}b", "ключ", "{a}", "*", &long];
    let others = ["\u{0}", "\n", "\r\n ", "a", "ключи", "a}", "?", &longer];
    let mut worker = store.worker(&unique("p"), After);
    mark_all(&mut worker, &ids, false).await;
    assert_eq!(probe(&mut worker, 99, &ids).await, [Proven; 8]);
    assert_eq!(probe(&mut worker, 99, &others).await, [Unknown; 8]);
}

pub async fn a_batch_of_thousands_is_answered_in_order<S: Store>(store: S) {
    for &order in S::ORDERS {
        let mut worker = store.worker(&unique("p"), order);
        let ids: Vec<String> = (0..4321).map(|n| n.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let odd: Vec<&str> = ids.iter().copied().skip(1).step_by(2).collect();
        mark_all(&mut worker, &odd, false).await;
        let even = if order == After { Unknown } else { Claimed };
        for (n, probe) in probe(&mut worker, 99, &ids).await.into_iter().enumerate() {
            assert_eq!(probe, if n % 2 == 1 { Proven } else { even }, "{n}");
        }
    }
}

pub async fn nothing_asked_is_nothing_answered<S: Store>(store: S) {
    for &order in S::ORDERS {
        let mut worker = store.worker(&unique("p"), order);
        assert_eq!(probe(&mut worker, 99, &[]).await, []);
        mark_all(&mut worker, &[], false).await;
        worker.unclaim(&places(), &[]).await;
    }
}

pub async fn a_place_out_of_range_marks_and_proves_nothing<S: Store>(store: S) {
    let pipeline = unique("p");
    let mut worker = store.worker(&pipeline, After);
    let mut stray = mark(ask("a"), true);
    stray.place = 9;
    mark_and_wait(&mut worker, &[10, 10], &[stray, mark(ask("b"), true)]).await;
    assert_eq!(probe(&mut worker, 99, &["a", "b"]).await, [Unknown, Proven]);
}
