//! Kafka goes and comes back: members wait, say so, and go on by themselves.

use std::time::{Duration, Instant};

use crate::process::Process;
use crate::scene::{Scene, eventually};
use crate::support;
use crate::support::proxy::{Fault, Proxy};

const MISSING: &str = "no Kafka broker can be reached";

/// A pipeline whose members reach Kafka through a proxy only, whatever the broker advertises.
async fn scene() -> (Scene, Proxy) {
    let mut scene = Scene::set(4).await;
    let proxy = Proxy::before_broker(support::brokers()).await;
    scene.brokers = proxy.address().to_string();
    (scene, proxy)
}

async fn missed(member: &Process) {
    eventually("the member is not ready", async || {
        member
            .get("/ready")
            .is_some_and(|(status, body)| status == 503 && body.contains(MISSING))
    })
    .await;
    assert_eq!(member.status("/live"), 200);
}

async fn waits(member: &Process, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        assert_eq!(member.status("/live"), 200);
        assert_eq!(member.status("/ready"), 503);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn ends_well(scene: &Scene, member: &Process) {
    let outcomes = scene.until_consumed().await;
    scene.assert_effects_once().await;
    assert_eq!(outcomes["dead"] + outcomes["retrying"], 0, "{outcomes:?}");
    eventually("the member is ready", async || {
        member.status("/ready") == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_absent_at_start_is_waited_for() {
    let (mut scene, proxy) = scene().await;
    proxy.set(Fault::Cut);
    let member = scene.member();
    scene.produce_with_repeats("absent", 1_000);
    missed(&member).await;
    waits(&member, Duration::from_secs(2)).await;
    assert_eq!(scene.consumed().await, 0);
    proxy.set(Fault::None);
    ends_well(&scene, &member).await;
    assert!(member.warnings() <= 3, "{}", member.log());
}

async fn gone_for_a_while(fault: Fault) {
    let (mut scene, proxy) = scene().await;
    let member = scene.member();
    let load = scene.load("load");
    scene.until_consumed_at_least(500).await;
    proxy.set(fault);
    missed(&member).await;
    waits(&member, Duration::from_secs(4)).await;
    let lines = member.log().lines().count();
    proxy.set(Fault::None);
    scene.end(load).await;
    scene.produce_with_repeats("after", 500);
    ends_well(&scene, &member).await;
    assert_eq!(member.said(MISSING), 1, "said once: {}", member.log());
    assert!(lines < 40, "an outage is no flood: {}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_gone_for_a_while_loses_and_repeats_nothing() {
    gone_for_a_while(Fault::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_that_falls_silent_is_missed_and_read_on() {
    gone_for_a_while(Fault::BlackHole).await;
}
