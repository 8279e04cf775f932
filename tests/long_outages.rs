//! Outages that last, and the orders of marks that the short tests leave out.

#![allow(dead_code)] // the short tests' scenes, of which this uses a part

mod support;

#[path = "outages/process.rs"]
mod process;
#[path = "outages/redis_faults.rs"]
mod redis_faults;
#[path = "outages/scene.rs"]
mod scene;

use std::time::{Duration, Instant};

use scene::{Scene, eventually};
use support::proxy::{Fault, Proxy};

#[tokio::test(flavor = "multi_thread")]
async fn redis_gone_in_the_middle_loses_and_repeats_nothing_with_marks_after() {
    redis_faults::gone_in_the_middle(redis_faults::AFTER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_come_late_belong_to_nobody_with_marks_before() {
    redis_faults::answering_late(redis_faults::BEFORE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_come_late_belong_to_nobody_with_marks_in_buckets() {
    redis_faults::answering_late(redis_faults::IN_BUCKETS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_takes_no_claims_and_nothing_else_changes_with_marks_before() {
    redis_faults::full(redis_faults::BEFORE).await;
}

/// Longer than a worker's loop may be silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_lives_through_six_minutes_without_postgres() {
    let mut scene = Scene::set(4).await;
    let proxy = Proxy::start(scene.database.address()).await;
    scene.postgres = scene.database.url_at(&proxy.address().to_string());
    let member = scene.member();
    let load = scene.load("load");
    scene.until_consumed_at_least(500).await;
    proxy.set(Fault::Cut);
    scene.end(load).await;
    eventually("it is missed", async || member.status("/ready") == 503).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(360) {
        assert_eq!(
            (member.status("/live"), member.status("/ready")),
            (200, 503)
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(member.log().lines().count() < 40, "{}", member.log());
    proxy.set(Fault::None);
    scene.until_consumed().await;
    scene.assert_effects_once().await;
    eventually("it is ready", async || member.status("/ready") == 200).await;
}

/// Connections that a network forgot are given up, and others made.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_vanished_without_a_word_are_made_anew() {
    let mut scene = Scene::set(4).await;
    let proxy = Proxy::start(scene.database.address()).await;
    scene.postgres = scene.database.url_at(&proxy.address().to_string());
    let member = scene.member();
    let load = scene.load("load");
    scene.until_consumed_at_least(500).await;
    proxy.abandon();
    // The server has not heard of it either: its sessions hold the positions' rows.
    scene.end(load).await;
    scene.until_consumed_within(Duration::from_secs(240)).await;
    scene.assert_effects_once().await;
    eventually("it is ready", async || member.status("/ready") == 200).await;
}

/// A batch that its rate holds back for longer than a worker's loop may be silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_lives_while_its_rate_holds_a_batch_back() {
    let mut scene = Scene::set(1).await;
    scene.more = "[limits]\nevents_per_second = 1\nworkers = 1\n".to_owned();
    scene.produce_with_repeats("event", 330);
    let member = scene.member();
    eventually("it reads", async || member.status("/ready") == 200).await;
    while scene.consumed().await < scene.records() {
        assert_eq!(member.status("/live"), 200, "{}", member.log());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    scene.assert_effects_once().await;
}
