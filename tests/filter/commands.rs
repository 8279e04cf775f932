//! What Redis is asked: how often, and with which expiry.

use std::collections::BTreeMap;
use std::time::Duration;

use onceonly::filter::redis::{Layout, RedisFilter, RedisSettings};
use onceonly::filter::{Filter, MarkOrder, Probe};
use redis::aio::MultiplexedConnection;

use crate::support::filter_suite::{ask, mark_all, places, probe};
use crate::support::redis_server::{RedisServer, run};
use crate::support::{PATIENCE, service, unique};
use crate::{after, before, open};

/// How often each command ran since the counts were reset.
async fn commands(admin: &mut MultiplexedConnection) -> BTreeMap<String, u64> {
    let info: String = run(admin, &["INFO", "commandstats"]).await;
    info.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter_map(|(name, rest)| Some((name.to_owned(), rest.split(',').next()?.parse().ok()?)))
        .filter(|(name, _)| !name.starts_with("config") && name != "info")
        .collect()
}

fn counts(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let owned = expected.iter().map(|(name, n)| ((*name).to_owned(), *n));
    owned.collect()
}

#[tokio::test]
async fn a_thousand_ids_are_one_command_to_look_at_and_one_each_to_write() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let ids: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut after = open(&server.url(), "after", after(), PATIENCE);
    let mut before = open(&server.url(), "before", before(), PATIENCE);
    probe(&mut after, 99, &[""]).await;
    probe(&mut before, 99, &[""]).await;

    // What connecting took is not counted.
    let _: () = run(&mut admin, &["CONFIG", "RESETSTAT"]).await;
    let mut expect = async |expected: &[(&str, u64)]| {
        assert_eq!(commands(&mut admin).await, counts(expected));
        let _: () = run(&mut admin, &["CONFIG", "RESETSTAT"]).await;
    };

    probe(&mut after, 99, &ids).await;
    expect(&[("mget", 1)]).await;
    mark_all(&mut after, &ids, false).await;
    expect(&[("set", 1000)]).await;
    probe(&mut before, 99, &ids).await;
    expect(&[("set", 1000)]).await;
    let lookups: Vec<_> = ids.iter().map(|id| ask(id)).collect();
    before.unclaim(&places(), &lookups).await;
    expect(&[("eval", 1), ("get", 1000), ("del", 1000)]).await;
}

#[tokio::test]
async fn whatever_is_written_expires() {
    let url = service("REDIS_URL");
    let mut admin = crate::support::redis_server::admin(&url).await;
    let pipeline = unique("p");
    let mut worker = open(&url, &pipeline, before(), PATIENCE);
    let key = format!("event:{pipeline}:a");
    let mut expires = async || {
        let ttl: i64 = run(&mut admin, &["TTL", &key]).await;
        assert!((3500..=3600).contains(&ttl), "{ttl}");
    };
    assert_eq!(probe(&mut worker, 99, &["a"]).await, [Probe::Claimed]);
    expires().await;
    mark_all(&mut worker, &["a"], true).await;
    expires().await;
    let mut again = open(&url, &pipeline, after(), PATIENCE);
    mark_all(&mut again, &["a"], true).await;
    expires().await;
}

#[tokio::test]
async fn a_time_to_live_below_a_second_is_a_second() {
    let mut worker = RedisFilter::open(RedisSettings {
        url: service("REDIS_URL"),
        timeout: PATIENCE,
        ttl: Duration::from_millis(1),
        pipeline: unique("p"),
        mark: MarkOrder::Before,
        layout: Layout::Keys,
    })
    .expect("a URL of a Redis");
    // Redis refuses to set what expires at once.
    assert_eq!(probe(&mut worker, 99, &["a"]).await, [Probe::Claimed]);
}
