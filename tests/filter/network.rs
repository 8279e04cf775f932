//! What a network does to a filter: lost answers, late answers, silence.

use std::time::{Duration, Instant};

use onceonly::filter::redis::RedisFilter;
use onceonly::filter::{Filter, Probe};

use crate::support::PATIENCE;
use crate::support::filter_suite::{ask, mark, mark_all, mark_and_wait, places, probe};
use crate::support::logs::Logs;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis_server::{RedisServer, run};
use crate::{Way, after, before, in_ways, open};

use Probe::{Claimed, ClaimedElsewhere, Proven, Unknown, Unproven};

in_ways! {
    a_late_answer_is_never_taken_for_that_of_another_batch: after, in_buckets;
    a_network_that_swallows_everything_is_left_alone_and_then_used_again: after, in_buckets;
    a_connection_that_a_failover_left_behind_is_replaced: after, in_buckets;
}

const TIMEOUT: Duration = Duration::from_millis(250);

/// A server, a proxy before it, and a filter behind that.
async fn through_a_proxy(way: Way, timeout: Duration) -> (RedisServer, Proxy, RedisFilter) {
    let server = RedisServer::start(&[]).await;
    let proxy = Proxy::start(server.address()).await;
    let url = format!("redis://{}", proxy.address());
    let filter = open(&url, "p", way, timeout);
    (server, proxy, filter)
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_with_the_connection_is_still_ours() {
    let (server, proxy, mut filter) = through_a_proxy(before(), PATIENCE).await;
    assert_eq!(probe(&mut filter, 99, &["x"]).await, [Claimed]);
    proxy.set(Fault::DropAnswers);
    let lost = async {
        proxy.answer_dropped().await;
        // The connection that lost an answer is closed.
        proxy.set(Fault::None);
    };
    let (probes, ()) = tokio::join!(probe(&mut filter, 99, &["a"]), lost);
    assert_eq!(probes, [Claimed]);
    assert_eq!(proxy.connections(), 2);
    let value: String = run(&mut server.admin().await, &["GET", "event:p:a"]).await;
    assert!(value.starts_with("c/t0p1c/0/7/"), "{value}");
}

#[tokio::test]
async fn a_claim_whose_answer_never_came_makes_no_duplicate_and_can_be_given_back() {
    let (server, proxy, mut filter) = through_a_proxy(before(), TIMEOUT).await;
    let mut admin = server.admin().await;
    while probe(&mut filter, 99, &["x"]).await == [Unknown] {}
    proxy.set(Fault::DropAnswers);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    proxy.answer_dropped().await;
    let claim: Option<String> = run(&mut admin, &["GET", "event:p:a"]).await;
    assert!(claim.is_some_and(|claim| claim.starts_with("c/")));

    proxy.set(Fault::None);
    let begun = Instant::now();
    loop {
        filter.unclaim(&places(), &[ask("a")]).await;
        let claim: Option<String> = run(&mut admin, &["GET", "event:p:a"]).await;
        if claim.is_none() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{claim:?} stays");
    }
}

#[tokio::test]
async fn the_next_attempt_after_a_lost_claim_takes_it_for_nothing_more_than_a_claim() {
    let (_server, proxy, mut filter) = through_a_proxy(before(), TIMEOUT).await;
    while probe(&mut filter, 99, &["x"]).await == [Unknown] {}
    proxy.set(Fault::DropAnswers);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    proxy.answer_dropped().await;
    proxy.set(Fault::None);
    let begun = Instant::now();
    loop {
        match probe(&mut filter, 99, &["a"]).await[..] {
            [Unknown] => assert!(begun.elapsed() < PATIENCE),
            [found] => break assert_eq!(found, ClaimedElsewhere),
            _ => panic!("one answer each"),
        }
    }
}

async fn a_late_answer_is_never_taken_for_that_of_another_batch(way: Way) {
    let (_server, proxy, mut filter) = through_a_proxy(way, TIMEOUT).await;
    let (old, new) = (mark(ask("old"), false), mark(ask("new"), false));
    let mut direct = filter.clone();
    mark_and_wait(&mut direct, &[10, 10], &[old]).await;
    mark_and_wait(&mut direct, &[20, 20], &[new]).await;
    let begun = Instant::now();
    while probe(&mut filter, 15, &["old", "new"]).await != [Proven, Unproven] {
        assert!(begun.elapsed() < PATIENCE);
    }
    proxy.set(Fault::Delay(TIMEOUT * 2));
    assert_eq!(probe(&mut filter, 15, &["old"]).await, [Unknown]);
    proxy.set(Fault::None);
    // The answer about `old` comes while this one is waited for.
    let begun = Instant::now();
    loop {
        match probe(&mut filter, 15, &["new"]).await[..] {
            [Unknown] => assert!(begun.elapsed() < PATIENCE),
            [found] => break assert_eq!(found, Unproven),
            _ => panic!("one answer each"),
        }
    }
}

#[tokio::test]
async fn a_claim_that_arrives_late_takes_nothing_from_a_mark() {
    let (server, proxy, mut filter) = through_a_proxy(before(), TIMEOUT).await;
    while probe(&mut filter, 99, &["x"]).await == [Unknown] {}
    proxy.set(Fault::BlackHole);
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    // Postgres decided, and another worker marked it.
    let mut other = open(&server.url(), "p", after(), PATIENCE);
    mark_all(&mut other, &["a"], false).await;
    let held = proxy.request_bytes();
    proxy.set(Fault::None);
    let begun = Instant::now();
    while proxy.request_bytes() == held || probe(&mut filter, 99, &["b"]).await == [Unknown] {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(probe(&mut other, 99, &["a"]).await, [Proven]);
}

async fn a_network_that_swallows_everything_is_left_alone_and_then_used_again(way: Way) {
    let logs = Logs::keep();
    let (_server, proxy, mut filter) = through_a_proxy(way, TIMEOUT).await;
    while probe(&mut filter, 99, &["a"]).await != [Proven] {
        mark_all(&mut filter, &["a"], false).await;
    }
    proxy.set(Fault::BlackHole);
    for _ in 0..3 {
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    }
    let trouble = filter.health().expect_err("it is left alone").to_string();
    assert!(trouble.contains("no answer within 250ms"), "{trouble}");
    let (before, begun) = (proxy.connections(), Instant::now());
    while begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
        tokio::task::yield_now().await;
    }
    let made = proxy.connections() - before;
    assert!((1..=3).contains(&made), "{made} connections in a second");
    proxy.set(Fault::None);
    let begun = Instant::now();
    while probe(&mut filter, 99, &["a"]).await != [Proven] {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(logs.with("").len(), 2, "{:?}", logs.with(""));
}

#[tokio::test]
async fn a_connection_being_made_holds_a_batch_up_no_longer_than_an_answer() {
    let server = RedisServer::start(&[]).await;
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Fault::BlackHole);
    let url = format!("redis://{}", proxy.address());
    let timeout = Duration::from_millis(50);
    let mut filter = open(&url, "p", after(), timeout);
    let begun = Instant::now();
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    // Making one is given a second.
    assert!(
        begun.elapsed() < Duration::from_millis(700),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn clones_share_a_connection_and_what_is_known_of_the_server() {
    let logs = Logs::keep();
    let (mut server, proxy, mut one) = through_a_proxy(before(), PATIENCE).await;
    let mut two = one.clone();
    assert_eq!(probe(&mut one, 99, &["a"]).await, [Claimed]);
    assert_eq!(probe(&mut two, 99, &["a"]).await, [ClaimedElsewhere]);
    assert_eq!(proxy.connections(), 1);
    server.kill();
    while one.health().is_ok() {
        assert_eq!(probe(&mut one, 99, &["a"]).await, [Unknown]);
    }
    two.health().expect_err("the other one knows");
    assert_eq!(logs.with("").len(), 1, "{:?}", logs.with(""));
}

async fn a_connection_that_a_failover_left_behind_is_replaced(way: Way) {
    let (_server, proxy, mut filter) = through_a_proxy(way, TIMEOUT).await;
    while probe(&mut filter, 99, &["a"]).await != [Proven] {
        mark_all(&mut filter, &["a"], false).await;
    }
    proxy.abandon();
    for _ in 0..3 {
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    }
    let begun = Instant::now();
    while probe(&mut filter, 99, &["a"]).await != [Proven] {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_server_before_7_is_asked_in_two_steps() {
    let server = RedisServer::start(&[]).await;
    let proxy = Proxy::start(server.address()).await;
    proxy.set(Fault::Replace("redis_version:7", "redis_version:6"));
    let url = format!("redis://{}", proxy.address());
    let mut ours = open(&url, "p", before(), PATIENCE);
    let mut theirs = ours.clone();
    // What the server is, the first claim learns.
    probe(&mut ours, 99, &["x"]).await;
    let mut admin = server.admin().await;
    let _: () = run(&mut admin, &["CONFIG", "RESETSTAT"]).await;

    assert_eq!(probe(&mut theirs, 99, &["theirs"]).await, [Claimed]);
    let _: () = run(&mut admin, &["SET", "event:p:marked", "d/t0p1c/0/10"]).await;
    let _: () = run(&mut admin, &["SET", "event:p:late", "d/t0p1c/0/100"]).await;
    let _: () = run(&mut admin, &["LPUSH", "event:p:list", "x"]).await;
    let ids = ["ours", "theirs", "marked", "late", "list", "last"];
    let probes = probe(&mut ours, 99, &ids).await;
    let expected = [
        Claimed,
        ClaimedElsewhere,
        Proven,
        Unproven,
        Unknown,
        Claimed,
    ];
    assert_eq!(probes, expected);
    let stats: String = run(&mut admin, &["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_get:calls=7,"), "{stats}");

    proxy.set(Fault::DropAnswers);
    let lost = async {
        proxy.answer_dropped().await;
        proxy.set(Fault::None);
    };
    let (probes, ()) = tokio::join!(probe(&mut ours, 99, &["a"]), lost);
    assert_eq!(probes, [Claimed], "its own claim, by its value");
}
