//! What a Redis does to a filter that waits a short time for it: absent, killed, frozen, full, …

use std::time::{Duration, Instant};

use onceonly::filter::redis::RedisFilter;
use onceonly::filter::{Filter, MarkOrder, Probe};

use crate::support::PATIENCE;
use crate::support::filter_suite::{ask, mark, mark_all, places, probe, receipt};
use crate::support::logs::{Logs, Metrics};
use crate::support::redis_server::{RedisServer, run};
use crate::{Way, after, before, in_ways, open};

use Probe::{Claimed, Proven, Unknown};

in_ways! {
    a_redis_absent_at_the_start_is_used_once_it_is_there: after, in_buckets;
    a_redis_killed_in_the_middle_is_used_again_when_it_is_back: after, before, in_buckets;
    a_frozen_redis_slows_only_the_trials_of_the_breaker: after, before, in_buckets;
    marks_for_a_frozen_redis_cost_no_time_and_little_memory: after, in_buckets;
    a_connection_that_was_killed_costs_not_even_an_answer: after, before, in_buckets;
    a_connection_closed_for_idleness_costs_not_even_an_answer: after, in_buckets;
    a_replica_proves_what_it_knows_and_its_marks_are_dropped_until_it_is_promoted: after, in_buckets;
    a_full_redis_proves_what_it_knows_and_drops_new_marks_until_there_is_room: after, in_buckets;
    a_redis_that_evicts_is_warned_of_once_and_forgets_at_worst: after, in_buckets;
    a_flushed_redis_forgets_and_learns_again: after, before, in_buckets;
    a_wrong_password_is_said_once_and_not_told: after, in_buckets;
    a_user_who_may_not_look_is_told_once: after, in_buckets;
}

/// Short enough to wait for several times, long enough for a busy machine to answer in.
const TIMEOUT: Duration = Duration::from_millis(250);

const NO_ANSWER: &str = "WARN Redis does not answer";
const ANSWERS: &str = "INFO Redis answers again";
const NO_MARKS: &str = "WARN Redis takes no marks";
const MARKS: &str = "INFO Redis takes marks again";

/// What is found where nothing is known.
fn nothing(way: Way) -> Probe {
    if way == before() { Claimed } else { Unknown }
}

/// Probes until the answer is the expected one.
async fn until(filter: &mut RedisFilter, id: &str, expected: Probe) {
    let begun = Instant::now();
    loop {
        let found = probe(filter, 99, &[id]).await;
        if found == [expected] {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{found:?}, not {expected:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Marks until the mark is found.
async fn until_marked(filter: &mut RedisFilter, id: &str) {
    let begun = Instant::now();
    while probe(filter, 99, &[id]).await != [Proven] {
        assert!(begun.elapsed() < PATIENCE, "no mark is written");
        mark_all(filter, &[id], true).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Probes until the filter leaves the server alone.
async fn until_open(filter: &mut RedisFilter) -> String {
    let begun = Instant::now();
    loop {
        assert_eq!(probe(filter, 99, &["a"]).await, [Unknown]);
        match filter.health() {
            Err(trouble) => return trouble.to_string(),
            Ok(()) => assert!(begun.elapsed() < PATIENCE, "it goes on asking"),
        }
    }
}

async fn a_redis_absent_at_the_start_is_used_once_it_is_there(way: Way) {
    let (logs, metrics) = (Logs::keep(), Metrics::keep());
    let mut server = RedisServer::absent(&[]);
    let mut filter = open(&server.url(), "p", way, TIMEOUT);
    filter.health().expect("nothing is known against it yet");
    let trouble = until_open(&mut filter).await;
    assert!(trouble.contains("refused"), "{trouble}");
    assert!(filter.state().answers_open);
    mark_all(&mut filter, &["a", "b"], false).await;
    assert_eq!(metrics.counter("onceonly_marks_dropped_total"), 2);

    server.up().await;
    until_marked(&mut filter, "a").await;
    filter.health().expect("it is well");
    assert!(!filter.state().answers_open);
    assert!(metrics.counter("onceonly_redis_errors_total connect") >= 3);
    assert_eq!(logs.with("").len(), 2, "{:?}", logs.with(""));
    assert_eq!(
        (logs.with(NO_ANSWER).len(), logs.with(ANSWERS).len()),
        (1, 1)
    );
}

async fn a_redis_killed_in_the_middle_is_used_again_when_it_is_back(way: Way) {
    let logs = Logs::keep();
    let mut server = RedisServer::start(&[]).await;
    let mut filter = open(&server.url(), "p", way, TIMEOUT);
    until_marked(&mut filter, "a").await;
    server.kill();
    until_open(&mut filter).await;
    server.up().await;
    // It came back empty.
    until(&mut filter, "a", nothing(way)).await;
    until_marked(&mut filter, "a").await;
    assert_eq!(
        (logs.with(NO_ANSWER).len(), logs.with(ANSWERS).len()),
        (1, 1)
    );
}

async fn a_frozen_redis_slows_only_the_trials_of_the_breaker(way: Way) {
    let server = RedisServer::start(&[]).await;
    let mut filter = open(&server.url(), "p", way, TIMEOUT);
    until_marked(&mut filter, "a").await;
    server.freeze();
    let begun = Instant::now();
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    assert!(begun.elapsed() >= TIMEOUT);
    until_open(&mut filter).await;

    let (mut slow, mut probes, begun) = (0, 0, Instant::now());
    while begun.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
        slow += u32::from(asked.elapsed() >= TIMEOUT);
        probes += 1;
        tokio::task::yield_now().await;
    }
    // Pauses of at least 50, 100, 200, 400, 800 ms after trials of 250 ms.
    assert!(
        (1..=5).contains(&slow),
        "{slow} of {probes} probes were slow"
    );
    server.thaw();
    until(&mut filter, "a", Proven).await;
}

async fn marks_for_a_frozen_redis_cost_no_time_and_little_memory(way: Way) {
    let metrics = Metrics::keep();
    let server = RedisServer::start(&[]).await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
    server.freeze();
    let ids: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let receipt = receipt();
    let marks: Vec<_> = ids.iter().map(|id| mark(ask(id), false)).collect();
    for marks in marks.chunks(5000) {
        filter.mark(&receipt, &places(), &[10, 10], marks).await;
        tokio::task::yield_now().await;
    }
    // 32,000 wait, and some are under way.
    let dropped = metrics.counter("onceonly_marks_dropped_total");
    assert!((50_000..=68_000).contains(&dropped), "{dropped}");

    let begun = Instant::now();
    filter.flush(Duration::from_millis(50)).await;
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    server.thaw();
    filter.flush(PATIENCE).await;
    assert_eq!(probe(&mut filter, 99, &["0"]).await, [Proven]);
}

async fn a_connection_that_was_killed_costs_not_even_an_answer(way: Way) {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
    for _ in 0..3 {
        let killed: u32 = run(&mut admin, &["CLIENT", "KILL", "TYPE", "normal"]).await;
        assert_eq!(killed, 1);
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Proven]);
    }
    filter.health().expect("it is well");
}

async fn a_connection_closed_for_idleness_costs_not_even_an_answer(way: Way) {
    let server = RedisServer::start(&["--timeout", "1"]).await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
    let begun = Instant::now();
    loop {
        let clients: String = run(&mut server.admin().await, &["CLIENT", "LIST"]).await;
        if clients.lines().count() == 1 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{clients}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Proven]);
}

async fn a_replica_proves_what_it_knows_and_its_marks_are_dropped_until_it_is_promoted(way: Way) {
    let (logs, metrics) = (Logs::keep(), Metrics::keep());
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
    let before: u64 = connections(&server).await;
    let _: () = run(&mut admin, &["REPLICAOF", "127.0.0.1", "1"]).await;
    for _ in 0..50 {
        mark_all(&mut filter, &["b"], false).await;
        assert_eq!(probe(&mut filter, 99, &["a", "b"]).await, [Proven, Unknown]);
    }
    let trouble = filter.health().expect_err("it takes no marks").to_string();
    assert!(trouble.contains("READONLY"), "{trouble}");
    assert_eq!(metrics.counter("onceonly_marks_dropped_total"), 50);
    assert!(filter.state().writes_open && !filter.state().answers_open);
    let made = connections(&server).await - before - 1;
    let refused = metrics.counter("onceonly_redis_errors_total read-only");
    assert!((1..25).contains(&refused), "{refused} tries");
    assert_eq!(made, refused, "a new connection for each try");

    let _: () = run(&mut admin, &["REPLICAOF", "NO", "ONE"]).await;
    until_marked(&mut filter, "b").await;
    filter.health().expect("it is well");
    assert_eq!((logs.with(NO_MARKS).len(), logs.with(MARKS).len()), (1, 1));
    assert_eq!(logs.with(NO_ANSWER).len(), 0);
}

/// Connections that the server ever had, with the one that asks.
async fn connections(server: &RedisServer) -> u64 {
    let info: String = run(&mut server.admin().await, &["INFO", "stats"]).await;
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    count.expect("a count").parse().expect("a number")
}

#[tokio::test]
async fn claims_on_a_replica_are_unknown_until_it_is_promoted() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", before(), PATIENCE);
    until_marked(&mut filter, "a").await;
    let _: () = run(&mut admin, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let before = connections(&server).await;
    let trouble = until_open(&mut filter).await;
    assert!(trouble.contains("READONLY"), "{trouble}");
    for _ in 0..50 {
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Unknown]);
    }
    let made = connections(&server).await - before - 1;
    assert!((1..25).contains(&made), "{made} connections");
    let _: () = run(&mut admin, &["REPLICAOF", "NO", "ONE"]).await;
    until(&mut filter, "b", Claimed).await;
}

async fn a_full_redis_proves_what_it_knows_and_drops_new_marks_until_there_is_room(way: Way) {
    let (logs, metrics) = (Logs::keep(), Metrics::keep());
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
    let before = connections(&server).await;
    let _: () = run(&mut admin, &["CONFIG", "SET", "maxmemory", "1"]).await;
    for _ in 0..50 {
        mark_all(&mut filter, &["b"], false).await;
        assert_eq!(probe(&mut filter, 99, &["a", "b"]).await, [Proven, Unknown]);
    }
    let trouble = filter.health().expect_err("it takes no marks").to_string();
    assert!(trouble.contains("OOM"), "{trouble}");
    assert_eq!(metrics.counter("onceonly_marks_dropped_total"), 50);
    let refused = metrics.counter("onceonly_redis_errors_total full");
    assert!((3..25).contains(&refused), "{refused} tries");
    assert_eq!(
        connections(&server).await,
        before + 1,
        "no new connection but this one"
    );

    let _: () = run(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]).await;
    until_marked(&mut filter, "b").await;
    assert_eq!((logs.with(NO_MARKS).len(), logs.with(MARKS).len()), (1, 1));
    assert_eq!(logs.with("").len(), 2, "{:?}", logs.with(""));
}

async fn a_redis_that_evicts_is_warned_of_once_and_forgets_at_worst(way: Way) {
    let logs = Logs::keep();
    let options = ["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"];
    let server = RedisServer::start(&options).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    let ids: Vec<String> = (0..60_000).map(|n| format!("{n:064}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for ids in ids.chunks(5000) {
        mark_all(&mut filter, ids, false).await;
    }
    let probes = probe(&mut filter, 99, &ids).await;
    let count = |which| probes.iter().filter(|probe| **probe == which).count();
    let (proven, unknown) = (count(Proven), count(Unknown));
    assert_eq!(proven + unknown, ids.len());
    assert!(proven > 0 && unknown > 0, "{proven} and {unknown}");
    filter.health().expect("it is well");

    let _: u32 = run(&mut admin, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    probe(&mut filter, 99, &["a"]).await;
    assert_eq!(logs.with("may evict marks").len(), 1, "{:?}", logs.with(""));
}

async fn a_flushed_redis_forgets_and_learns_again(way: Way) {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
    let _: () = run(&mut admin, &["FLUSHALL"]).await;
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [nothing(way)]);
    mark_all(&mut filter, &["a"], true).await;
    assert_eq!(probe(&mut filter, 99, &["a"]).await, [Proven]);
}

#[tokio::test]
async fn claims_are_given_back_after_scripts_were_flushed() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut filter = open(&server.url(), "p", before(), PATIENCE);
    for _ in 0..2 {
        assert_eq!(probe(&mut filter, 99, &["a"]).await, [Claimed]);
        let _: () = run(&mut admin, &["SCRIPT", "FLUSH"]).await;
        filter.unclaim(&places(), &[ask("a")]).await;
    }
}

#[tokio::test]
async fn a_key_that_holds_no_text_concerns_its_own_id_alone() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let _: () = run(&mut admin, &["LPUSH", "event:p:list", "x"]).await;
    let ids = ["a", "list", "b"];
    let lookups: Vec<_> = ids.iter().map(|id| ask(id)).collect();
    let mut before = open(&server.url(), "p", before(), PATIENCE);
    for _ in 0..5 {
        let probes = probe(&mut before, 99, &ids).await;
        assert_eq!(probes, [Claimed, Unknown, Claimed]);
        before.unclaim(&places(), &lookups).await;
    }
    mark_all(&mut before, &["a", "b"], true).await;
    let mut after = open(&server.url(), "p", after(), PATIENCE);
    let probes = probe(&mut after, 99, &ids).await;
    assert_eq!(probes, [Proven, Unknown, Proven]);
    before.health().expect("it is well");
}

async fn a_wrong_password_is_said_once_and_not_told(way: Way) {
    let logs = Logs::keep();
    let server = RedisServer::start(&["--requirepass", "right"]).await;
    let url = |password: &str| format!("redis://:{password}@{}", server.address());
    let mut filter = open(&url("s3cret"), "p", way, PATIENCE);
    let trouble = until_open(&mut filter).await;
    probe(&mut filter, 99, &["a"]).await;
    assert!(
        trouble.to_lowercase().contains("authentication"),
        "{trouble}"
    );
    let lines = logs.with("");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0].contains("s3cret") && !trouble.contains("s3cret"));
    let mut filter = open(&url("right"), "p", way, PATIENCE);
    until_marked(&mut filter, "a").await;
}

async fn a_user_who_may_not_look_is_told_once(way: Way) {
    let logs = Logs::keep();
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let rights = ["ACL", "SETUSER", "writer", "on", ">pw", "~*", "+@write"];
    let _: () = run(&mut admin, &rights).await;
    let transactions = ["ACL", "SETUSER", "writer", "+multi", "+exec"];
    let _: () = run(&mut admin, &transactions).await;
    let url = format!("redis://writer:pw@{}", server.address());
    let mut filter = open(&url, "p", way, PATIENCE);
    let trouble = until_open(&mut filter).await;
    assert!(trouble.contains("NOPERM"), "{trouble}");
    assert_eq!(logs.with("").len(), 1, "{:?}", logs.with(""));
    let _: () = run(&mut admin, &["ACL", "SETUSER", "writer", "+@read"]).await;
    until_marked(&mut filter, "a").await;
}

#[tokio::test]
async fn a_url_that_cannot_be_read_is_refused_without_telling_its_password() {
    use onceonly::error::Class;
    use onceonly::filter::redis::{Layout, RedisSettings};
    for url in ["", "localhost", "http://x", "redis://:s3cret@host:port/x"] {
        let refused = RedisFilter::open(RedisSettings {
            url: url.to_owned(),
            timeout: TIMEOUT,
            ttl: TIMEOUT,
            pipeline: "p".to_owned(),
            mark: MarkOrder::After,
            layout: Layout::Keys,
        });
        let error = refused.err().expect(url);
        assert_eq!(error.class(), Class::Fatal);
        assert!(error.to_string().contains("redis.url"), "{error}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}
