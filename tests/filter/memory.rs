//! The faults that a simulation orders from the filter in memory.

use onceonly::filter::memory::MemoryFilter;
use onceonly::filter::{Filter, MarkOrder, Probe};

use crate::support::filter_suite::{ask, mark_all, places, probe};

#[tokio::test]
async fn a_failed_probe_claims_nothing() {
    let mut filter = MemoryFilter::new("p", MarkOrder::Before);
    filter.fail_probes(1);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Probe::Unknown]);
    assert_eq!(filter.get(&filter.key_of(&ask("a"))), None);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Probe::Claimed]);
}

#[tokio::test]
async fn a_lost_answer_leaves_a_claim_that_can_be_given_back() {
    let mut filter = MemoryFilter::new("p", MarkOrder::Before);
    filter.lose_answers(1);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Probe::Unknown]);
    assert!(filter.get(&filter.key_of(&ask("a"))).is_some());
    filter.unclaim(&places(), &[ask("a")]).await;
    assert_eq!(filter.get(&filter.key_of(&ask("a"))), None);
}

#[tokio::test]
async fn lost_marks_and_lost_returns_change_nothing() {
    let mut filter = MemoryFilter::new("p", MarkOrder::Before);
    filter.lose_marks(1);
    mark_all(&mut filter, &["a"], true).await;
    assert_eq!(filter.get(&filter.key_of(&ask("a"))), None);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Probe::Claimed]);
    filter.lose_unclaims(1);
    filter.unclaim(&places(), &[ask("a")]).await;
    assert!(filter.get(&filter.key_of(&ask("a"))).is_some());
}

#[tokio::test]
async fn workers_share_what_is_marked_and_what_is_forgotten() {
    let mut one = MemoryFilter::new("p", MarkOrder::After);
    let mut two = one.clone();
    mark_all(&mut one, &["a", "b"], false).await;
    let both = probe(&mut two, 99, &["a", "b"]).await;
    assert_eq!(both, [Probe::Proven, Probe::Proven]);
    one.forget(|key| key.ends_with(b":a"));
    let rest = probe(&mut two, 99, &["a", "b"]).await;
    assert_eq!(rest, [Probe::Unknown, Probe::Proven]);
}

#[tokio::test]
async fn what_was_forgotten_comes_back_in_the_place_of_what_is_there() {
    let mut filter = MemoryFilter::new("p", MarkOrder::After);
    mark_all(&mut filter, &["a", "b"], false).await;
    let old = filter.get(&filter.key_of(&ask("a")));
    filter.forget(|key| key.ends_with(b":a"));
    filter.put(&filter.key_of(&ask("a")), b"newer");
    filter.recall();
    assert_eq!(filter.get(&filter.key_of(&ask("a"))), old);
    let both = probe(&mut filter, 99, &["a", "b"]).await;
    assert_eq!(both, [Probe::Proven, Probe::Proven]);
}

#[tokio::test]
async fn a_store_that_always_overwrites_does_so_where_it_is_not_told_to() {
    for (mut filter, left) in [
        (
            MemoryFilter::new("p", MarkOrder::After),
            &b"d/t0p1c/0/5"[..],
        ),
        (
            MemoryFilter::new("p", MarkOrder::After).that_always_overwrites(),
            b"d/t0p1c/0/10",
        ),
    ] {
        let key = filter.key_of(&ask("a"));
        filter.put(&key, b"d/t0p1c/0/5");
        mark_all(&mut filter, &["a"], false).await;
        assert_eq!(filter.get(&key).as_deref(), Some(left));
    }
}
