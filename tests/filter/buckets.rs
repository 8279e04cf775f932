//! Ids in hashes by time: when marks die, and what lost hashes and wrong clocks do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use onceonly::error::Class;
use onceonly::filter::redis::{Layout, RedisFilter, RedisSettings};
use onceonly::filter::{MarkOrder, Probe};
use redis::aio::MultiplexedConnection;

use crate::support::filter_suite::{Store, key, mark_all, probe};
use crate::support::redis_server::{RedisServer, admin, run};
use crate::support::{PATIENCE, service, unique};
use crate::{in_buckets, open};

use Probe::{Proven, Unknown, Unproven};

/// The filters' time to live, in seconds.
const TTL_S: u64 = 3600;
/// The hashes of a slice.
const SHARDS: usize = 32;
/// The beginning of a slice.
const BEGIN_S: u64 = 472_222 * TTL_S;

/// A clock that stands until it is set.
#[derive(Clone)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn at(now_s: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now_s)))
    }

    fn set(&self, now_s: u64) {
        self.0.store(now_s, Ordering::SeqCst);
    }

    fn worker(&self, url: &str, pipeline: &str) -> RedisFilter {
        let clock = self.clone();
        open(url, pipeline, in_buckets(), PATIENCE)
            .with_clock(move || UNIX_EPOCH + Duration::from_secs(clock.0.load(Ordering::SeqCst)))
    }
}

/// A Redis in which it is always the same time.
pub struct InBuckets(String);

impl InBuckets {
    pub fn open() -> Self {
        Self(service("REDIS_URL"))
    }
}

impl Store for InBuckets {
    type Filter = RedisFilter;

    const ORDERS: &[MarkOrder] = &[MarkOrder::After];

    fn worker(&self, pipeline: &str, order: MarkOrder) -> RedisFilter {
        assert_eq!(order, MarkOrder::After);
        Clock::at(BEGIN_S).worker(&self.0, pipeline)
    }

    async fn get(&self, pipeline: &str, id: &str) -> Option<String> {
        let value: Option<Vec<u8>> = redis::cmd("HGET")
            .arg(shard_key(pipeline, BEGIN_S, id))
            .arg(key(id).0.as_bytes())
            .query_async(&mut admin(&self.0).await)
            .await
            .expect("an answer");
        value.map(|value| unpacked(&value))
    }

    async fn put(&self, pipeline: &str, id: &str, value: &str) {
        put(&mut admin(&self.0).await, pipeline, BEGIN_S, id, value).await;
    }
}

async fn put(
    admin: &mut MultiplexedConnection,
    pipeline: &str,
    begin_s: u64,
    id: &str,
    value: &str,
) {
    let key_of_shard = shard_key(pipeline, begin_s, id);
    let value = packed(value).unwrap_or_else(|| value.as_bytes().to_vec());
    let _: () = redis::pipe()
        .hset(&key_of_shard, key(id).0.as_bytes(), value)
        .expire(&key_of_shard, 600)
        .query_async(admin)
        .await
        .expect("an answer");
}

/// Members of different versions share marks: where they stand is a promise.
fn shard_key(pipeline: &str, begin_s: u64, id: &str) -> String {
    let (high, low) = key(id).0.as_u64_pair();
    let product = u128::from(high ^ low.rotate_left(32)) * 0x9e37_79b9_7f4a_7c15;
    let mixed = (product >> 64) as u64 ^ product as u64;
    let shard = (mixed >> 32) as u32 % SHARDS as u32;
    format!("marks:{pipeline}:{begin_s}+{TTL_S}:{shard:02x}")
}

/// `d/<topic>/<partition>/<next offset>` as it stands in a hash, for numbers below 256.
fn packed(mark: &str) -> Option<Vec<u8>> {
    let mut parts = mark.strip_prefix("d/")?.split('/');
    let mut value = parts.next()?.as_bytes().to_vec();
    let (partition, offset): (u8, u8) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let partition: &[u8] = if partition == 0 { &[] } else { &[partition] };
    value.extend_from_slice(partition);
    value.push(offset);
    value.push((partition.len() << 4 | 1) as u8);
    Some(value)
}

fn unpacked(value: &[u8]) -> String {
    let (topic, numbers) = value.split_at(b"t0p1c".len());
    let (partition, offset) = match numbers {
        [offset, 0x01] => (0, offset),
        [partition, offset, 0x11] => (*partition, offset),
        _ => panic!("{value:?}"),
    };
    format!("d/{}/{partition}/{offset}", String::from_utf8_lossy(topic))
}

/// A thousand ids or more: every hash has some.
fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

fn text(ids: &[String]) -> Vec<&str> {
    ids.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn a_mark_lives_for_at_least_the_ttl_and_dies_with_its_slice() {
    let clock = Clock::at(BEGIN_S);
    let mut worker = clock.worker(&service("REDIS_URL"), &unique("p"));
    mark_all(&mut worker, &["first"], false).await;
    clock.set(BEGIN_S + TTL_S - 1);
    mark_all(&mut worker, &["last"], false).await;
    for now_s in [BEGIN_S, BEGIN_S + TTL_S, BEGIN_S + 2 * TTL_S - 1] {
        clock.set(now_s);
        let probes = probe(&mut worker, 99, &["first", "last"]).await;
        assert_eq!(probes, [Proven, Proven], "{}", now_s - BEGIN_S);
    }
    clock.set(BEGIN_S + 2 * TTL_S);
    let probes = probe(&mut worker, 99, &["first", "last"]).await;
    assert_eq!(probes, [Unknown, Unknown]);
}

#[tokio::test]
async fn whoever_enters_a_slice_frees_the_one_that_nobody_reads_any_more() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let clock = Clock::at(BEGIN_S);
    let mut worker = clock.worker(&server.url(), "p");
    let ids = ids(2000);
    let mut hashes = async || -> usize { run(&mut admin, &["DBSIZE"]).await };
    mark_all(&mut worker, &text(&ids), false).await;
    assert_eq!(hashes().await, SHARDS);
    clock.set(BEGIN_S + TTL_S);
    mark_all(&mut worker, &["a"], false).await;
    assert_eq!(hashes().await, SHARDS + 1, "it is still read");
    clock.set(BEGIN_S + 2 * TTL_S);
    mark_all(&mut worker, &["a"], false).await;
    assert_eq!(hashes().await, 2);
    let stats: String = run(&mut admin, &["INFO", "stats"]).await;
    assert!(stats.contains("\r\nexpired_keys:0\r\n"), "{stats}");
    // By one command for each slice entered, whose work is done behind the server's back.
    let stats: String = run(&mut admin, &["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_unlink:calls=3,"), "{stats}");
}

/// When each hash expires, in milliseconds since 1970.
async fn expiries(admin: &mut MultiplexedConnection) -> BTreeMap<String, u64> {
    let mut expiries = BTreeMap::new();
    let keys: Vec<String> = run(admin, &["KEYS", "marks:*"]).await;
    for key in keys {
        let expiry: i64 = run(admin, &["PEXPIRETIME", &key]).await;
        expiries.insert(key, expiry.try_into().expect("an expiry"));
    }
    expiries
}

#[tokio::test]
async fn hashes_that_nobody_frees_expire_one_after_the_other() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let mut worker = Clock::at(BEGIN_S + 600).worker(&server.url(), "p");
    let ids = ids(2000);
    let time: (u64, u64) = run(&mut admin, &["TIME"]).await;
    mark_all(&mut worker, &text(&ids), false).await;
    let expiries = expiries(&mut admin).await;
    assert_eq!(expiries.len(), SHARDS);
    let expiries: Vec<u64> = expiries.into_values().collect();
    // Ten minutes of the slice are over.
    let (read_s, last_s) = (2 * TTL_S - 600, 2 * TTL_S + TTL_S / 4 - 600);
    let first = expiries[0] / 1000 - time.0;
    assert!((read_s..read_s + 60).contains(&first), "{first}");
    let last = expiries[SHARDS - 1] / 1000 - time.0;
    assert!((last_s - 60..last_s + 60).contains(&last), "{last}");
    for (n, pair) in expiries.windows(2).enumerate() {
        assert!(pair[1] >= pair[0] + 20_000, "shard {n}: {pair:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_told_to_expire_is_not_written() {
    let server = RedisServer::start(&[]).await;
    let mut admin = server.admin().await;
    let rights = [
        "ACL", "SETUSER", "u", "on", ">pw", "~*", "+@all", "-pexpire",
    ];
    let _: () = run(&mut admin, &rights).await;
    let url = format!("redis://u:pw@{}", server.address());
    let mut worker = open(&url, "p", in_buckets(), PATIENCE);
    mark_all(&mut worker, &["a"], false).await;
    let hashes: usize = run(&mut admin, &["DBSIZE"]).await;
    assert_eq!(hashes, 0);
    let _: () = run(&mut admin, &["ACL", "SETUSER", "u", "+pexpire"]).await;
    mark_all(&mut worker, &["a"], false).await;
    assert_eq!(probe(&mut worker, 99, &["a"]).await, [Proven]);
}

#[tokio::test]
async fn a_lost_hash_is_unknown_and_the_others_prove_what_they_did() {
    let url = service("REDIS_URL");
    let mut admin = admin(&url).await;
    let pipeline = unique("p");
    let mut worker = Clock::at(BEGIN_S).worker(&url, &pipeline);
    let ids = ids(1000);
    let ids = text(&ids);
    mark_all(&mut worker, &ids, false).await;
    let lost = shard_key(&pipeline, BEGIN_S, "7");
    let held: usize = run(&mut admin, &["HLEN", &lost]).await;
    let deleted: usize = run(&mut admin, &["DEL", &lost]).await;
    assert!(held > 1 && deleted == 1, "{held} ids, {deleted} hashes");
    let mut unknown = 0;
    for (id, found) in ids.iter().zip(probe(&mut worker, 99, &ids).await) {
        let is_lost = shard_key(&pipeline, BEGIN_S, id) == lost;
        assert_eq!(found, if is_lost { Unknown } else { Proven }, "{id}");
        unknown += usize::from(is_lost);
    }
    assert_eq!(unknown, held);
    mark_all(&mut worker, &["7"], false).await;
    assert_eq!(probe(&mut worker, 99, &["7"]).await, [Proven]);
}

#[tokio::test]
async fn a_hash_that_is_none_concerns_its_own_ids_alone() {
    let url = service("REDIS_URL");
    let mut admin = admin(&url).await;
    let pipeline = unique("p");
    let mut worker = Clock::at(BEGIN_S).worker(&url, &pipeline);
    let spoilt = shard_key(&pipeline, BEGIN_S, "7");
    let _: () = run(&mut admin, &["SET", &spoilt, "x", "EX", "600"]).await;
    let ids = ids(1000);
    let ids = text(&ids);
    mark_all(&mut worker, &ids, false).await;
    for (id, found) in ids.iter().zip(probe(&mut worker, 99, &ids).await) {
        let is_spoilt = shard_key(&pipeline, BEGIN_S, id) == spoilt;
        assert_eq!(found, if is_spoilt { Unknown } else { Proven }, "{id}");
    }
}

#[tokio::test]
async fn a_mark_that_postgres_lost_proves_nothing_until_it_is_written_again() {
    let url = service("REDIS_URL");
    let mut admin = admin(&url).await;
    for slice_s in [BEGIN_S, BEGIN_S - TTL_S] {
        let pipeline = unique("p");
        let mut worker = Clock::at(BEGIN_S).worker(&url, &pipeline);
        put(&mut admin, &pipeline, slice_s, "a", "d/t0p1c/0/100").await;
        assert_eq!(probe(&mut worker, 50, &["a"]).await, [Unproven]);
        mark_all(&mut worker, &["a"], true).await;
        assert_eq!(probe(&mut worker, 50, &["a"]).await, [Proven]);
        assert_eq!(probe(&mut worker, 9, &["a"]).await, [Unproven]);
    }
}

#[tokio::test]
async fn of_two_marks_the_one_that_proves_more_counts() {
    let url = service("REDIS_URL");
    let mut admin = admin(&url).await;
    let pipeline = unique("p");
    let mut worker = Clock::at(BEGIN_S).worker(&url, &pipeline);
    let (proven, unproven) = ("d/t0p1c/0/10", "d/t0p1c/0/100");
    for (id, previous, current) in [("a", proven, unproven), ("b", unproven, proven)] {
        put(&mut admin, &pipeline, BEGIN_S - TTL_S, id, previous).await;
        put(&mut admin, &pipeline, BEGIN_S, id, current).await;
    }
    assert_eq!(probe(&mut worker, 50, &["a", "b"]).await, [Proven, Proven]);
}

#[tokio::test]
async fn clocks_that_differ_hide_marks_and_make_none_up() {
    let url = service("REDIS_URL");
    let pipeline = unique("p");
    let (right, fast) = (Clock::at(BEGIN_S + 5), Clock::at(BEGIN_S + 5 + TTL_S));
    let (mut ours, mut theirs) = (right.worker(&url, &pipeline), fast.worker(&url, &pipeline));
    mark_all(&mut theirs, &["theirs"], false).await;
    mark_all(&mut ours, &["ours"], false).await;
    let both = ["ours", "theirs", "nobody's"];
    assert_eq!(
        probe(&mut ours, 99, &both).await,
        [Proven, Unknown, Unknown]
    );
    assert_eq!(
        probe(&mut theirs, 99, &both).await,
        [Proven, Proven, Unknown]
    );
    assert_eq!(
        probe(&mut theirs, 9, &both).await,
        [Unproven, Unproven, Unknown]
    );

    // So fast that it frees what others still read.
    fast.set(BEGIN_S + 5 + 2 * TTL_S);
    mark_all(&mut theirs, &["theirs"], false).await;
    assert_eq!(probe(&mut ours, 99, &both).await, [Unknown; 3]);
    mark_all(&mut ours, &["ours"], false).await;

    // Set right, it frees nothing that is read, and both agree.
    fast.set(BEGIN_S + 6);
    mark_all(&mut theirs, &["theirs"], false).await;
    for worker in [&mut ours, &mut theirs] {
        assert_eq!(probe(worker, 99, &both).await, [Proven, Proven, Unknown]);
    }
}

#[tokio::test]
async fn a_clock_near_1970_is_a_clock() {
    for now in [UNIX_EPOCH - Duration::from_secs(9), UNIX_EPOCH] {
        let filter = open(&service("REDIS_URL"), &unique("p"), in_buckets(), PATIENCE);
        let mut worker = filter.with_clock(move || now);
        mark_all(&mut worker, &["a"], false).await;
        let probes = probe(&mut worker, 99, &["a", "b"]).await;
        assert_eq!(probes, [Proven, Unknown]);
    }
}

#[tokio::test]
async fn another_ttl_finds_nothing_of_what_was_marked() {
    let url = service("REDIS_URL");
    let pipeline = unique("p");
    let worker = |ttl_s: u64| {
        RedisFilter::open(settings(&url, &pipeline, ttl_s, MarkOrder::After))
            .expect("a URL of a Redis")
            .with_clock(|| UNIX_EPOCH + Duration::from_secs(BEGIN_S))
    };
    mark_all(&mut worker(TTL_S), &["a"], false).await;
    assert_eq!(probe(&mut worker(TTL_S), 99, &["a"]).await, [Proven]);
    // Their slices begin at the same second.
    assert_eq!(probe(&mut worker(TTL_S / 2), 99, &["a"]).await, [Unknown]);
}

fn settings(url: &str, pipeline: &str, ttl_s: u64, mark: MarkOrder) -> RedisSettings {
    RedisSettings {
        url: url.to_owned(),
        timeout: PATIENCE,
        ttl: Duration::from_secs(ttl_s),
        pipeline: pipeline.to_owned(),
        mark,
        layout: Layout::Buckets,
    }
}

#[tokio::test]
async fn there_are_no_claims() {
    let settings = settings("redis://localhost", "p", TTL_S, MarkOrder::Before);
    let error = RedisFilter::open(settings).err().expect("a refusal");
    assert_eq!(error.class(), Class::Fatal);
    assert!(error.to_string().contains("redis.layout"), "{error}");
}

#[tokio::test]
async fn absurd_times_to_live_are_an_expiry_all_the_same() {
    let url = service("REDIS_URL");
    for ttl_s in [0, 1, u64::MAX] {
        let pipeline = unique("p");
        let settings = settings(&url, &pipeline, ttl_s, MarkOrder::After);
        let mut worker = RedisFilter::open(settings).expect("a URL of a Redis");
        mark_all(&mut worker, &["a"], false).await;
        let pattern = format!("marks:{pipeline}:*");
        let keys: Vec<String> = run(&mut admin(&url).await, &["KEYS", &pattern]).await;
        assert_eq!(keys.len(), 1, "{ttl_s}");
        let life_ms: i64 = run(&mut admin(&url).await, &["PTTL", &keys[0]]).await;
        assert!(life_ms > 0, "{ttl_s}: {life_ms}");
    }
}
