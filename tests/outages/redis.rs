//! Redis fails in every way there is: it costs speed at most, and is said once.

use std::time::Duration;

use crate::redis_faults::{
    AFTER, BEFORE, EVENTS, IN_BUCKETS, Marks, PATIENT_MS, answering_late, ends_well, flows, full,
    gone_in_the_middle, open,
};
use crate::scene::{Scene, eventually};
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis_server::{RedisServer, run};

#[tokio::test(flavor = "multi_thread")]
async fn redis_absent_at_start_costs_nothing_but_speed_and_is_used_once_there() {
    let mut redis = RedisServer::absent(&[]);
    let mut scene = Scene::set(4).await;
    scene.with_redis(&redis.url(), PATIENT_MS);
    let member = scene.member();
    scene.produce_with_repeats("absent", EVENTS);
    flows(&scene).await;
    assert_eq!(member.said("Redis does not answer"), 1, "said once");
    eventually("the breaker is shown", async || open(&member, "answers")).await;
    redis.up().await;
    let mut share = 0;
    eventually("Redis is used", async || {
        share += 1;
        scene.produce_with_repeats(&format!("there-{share}"), 200);
        flows(&scene).await;
        member.said("Redis answers again") == 1
    })
    .await;
    scene.produce_with_repeats("marked", EVENTS);
    ends_well(&scene, &member).await;
    let keys: i64 = run(&mut redis.admin().await, &["DBSIZE"]).await;
    assert!(keys > 0, "marks were written");
    assert_eq!(member.warnings(), 1, "{}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_gone_in_the_middle_loses_and_repeats_nothing_with_marks_before() {
    gone_in_the_middle(BEFORE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_gone_in_the_middle_loses_and_repeats_nothing_with_marks_in_buckets() {
    gone_in_the_middle(IN_BUCKETS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_slower_than_its_timeout_does_not_slow_the_line() {
    let redis = RedisServer::start(&[]).await;
    let proxy = Proxy::start(redis.address()).await;
    let mut scene = Scene::set(4).await;
    scene.with_redis(&format!("redis://{}", proxy.address()), PATIENT_MS);
    let member = scene.member();
    scene.produce_with_repeats("fast", EVENTS);
    flows(&scene).await;
    proxy.set(Fault::Delay(Duration::from_millis(1_000)));
    scene.produce_with_repeats("slow", 2 * EVENTS);
    flows(&scene).await;
    eventually("the breaker is shown", async || open(&member, "answers")).await;
    assert_eq!(member.said("Redis does not answer"), 1, "said once");
    proxy.set(Fault::None);
    let load = scene.load("load");
    eventually("it is used again", async || {
        member.said("Redis answers again") == 1
    })
    .await;
    scene.end(load).await;
    ends_well(&scene, &member).await;
    assert_eq!(member.warnings(), 1, "{}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_come_late_belong_to_nobody() {
    answering_late(AFTER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_takes_no_marks_and_nothing_else_changes() {
    full(AFTER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_takes_no_marks_in_buckets_and_nothing_else_changes() {
    full(IN_BUCKETS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicting_redis_forgets_and_postgres_remembers() {
    evicting(AFTER, 12_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_buckets_forgets_and_postgres_remembers() {
    evicting(IN_BUCKETS, 30_000).await;
}

async fn evicting(marks: Marks, events: usize) {
    let redis =
        RedisServer::start(&["--maxmemory", "2mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let mut scene = Scene::set(4).await;
    scene.with_redis(&redis.url(), PATIENT_MS);
    marks.configure(&mut scene);
    let member = scene.member();
    scene.produce_with_repeats("first", events);
    flows(&scene).await;
    // Another process has an empty memory of its own: Redis is asked, and does not know all.
    member.leave().await;
    let member = scene.member();
    scene.produce_with_repeats("first", events);
    ends_well(&scene, &member).await;
    let info: String = run(&mut redis.admin().await, &["INFO", "stats"]).await;
    assert!(
        !info.contains("evicted_keys:0\r"),
        "nothing was evicted: {info}"
    );
    assert_eq!(member.said("Redis may evict marks"), 1, "said once");
    assert_eq!(member.warnings(), 1, "{}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_redis_makes_no_event_new() {
    flushed(AFTER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_flushed_of_buckets_makes_no_event_new() {
    flushed(IN_BUCKETS).await;
}

async fn flushed(marks: Marks) {
    let redis = RedisServer::start(&[]).await;
    let mut scene = Scene::set(4).await;
    scene.with_redis(&redis.url(), PATIENT_MS);
    marks.configure(&mut scene);
    scene.produce_with_repeats("flushed", 4_000);
    let member = scene.member();
    flows(&scene).await;
    member.leave().await;
    let mut admin = redis.admin().await;
    let _: () = run(&mut admin, &["FLUSHALL"]).await;
    let member = scene.member();
    scene.produce_with_repeats("flushed", 4_000);
    let begun = scene.consumed().await;
    while scene.consumed().await < begun + 3_000 {
        let _: () = run(&mut admin, &["FLUSHALL"]).await;
    }
    ends_well(&scene, &member).await;
    assert_eq!(member.warnings(), 0, "{}", member.log());
}
