//! Postgres fails in every way there is: the members wait, say so, and go on by themselves.

use std::time::{Duration, Instant};

use crate::process::Process;
use crate::scene::{Scene, eventually};
use crate::support::proxy::{Fault, Proxy};

const MISSING: &str = "Postgres is not answering";

/// A pipeline whose members reach Postgres through a proxy.
async fn scene() -> (Scene, Proxy) {
    let mut scene = Scene::set(4).await;
    let proxy = Proxy::start(scene.database.address()).await;
    scene.postgres = scene.database.url_at(&proxy.address().to_string());
    (scene, proxy)
}

/// Waits until the port says that Postgres is missing.
async fn missed(member: &Process) {
    eventually("the member is not ready", async || {
        member
            .get("/ready")
            .is_some_and(|(status, body)| status == 503 && body.contains(MISSING))
    })
    .await;
}

async fn ready(member: &Process) {
    eventually("the member is ready", async || {
        member.status("/ready") == 200
    })
    .await;
}

/// The process lives and is not ready for as long as given: a condition that has to stay.
async fn waits(member: &Process, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        assert_eq!(member.status("/live"), 200);
        assert_eq!(member.status("/ready"), 503);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The end of every test here: all applied, and none of it blamed on an event.
async fn ends_well(scene: &Scene, member: &Process) {
    let outcomes = scene.until_consumed().await;
    scene.assert_effects_once().await;
    assert_eq!(outcomes["dead"] + outcomes["retrying"], 0, "{outcomes:?}");
    ready(member).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_absent_at_start_is_waited_for() {
    let (mut scene, proxy) = scene().await;
    proxy.set(Fault::Cut);
    let member = scene.member();
    scene.produce_with_repeats("absent", 1_000);
    missed(&member).await;
    waits(&member, Duration::from_secs(2)).await;
    assert_eq!(member.said(MISSING), 1, "said once: {}", member.log());
    proxy.set(Fault::None);
    ends_well(&scene, &member).await;
    assert_eq!(member.warnings(), 1, "{}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_gone_for_a_while_is_waited_for_under_load() {
    let (mut scene, proxy) = scene().await;
    let member = scene.member();
    let load = scene.load("load");
    scene.until_consumed_at_least(500).await;
    proxy.set(Fault::Cut);
    missed(&member).await;
    waits(&member, Duration::from_secs(6)).await;
    let lines = member.log().lines().count();
    proxy.set(Fault::None);
    scene.end(load).await;
    ends_well(&scene, &member).await;
    assert_eq!(member.said(MISSING), 1, "said once: {}", member.log());
    assert!(lines < 30, "an outage is no flood: {}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_falls_silent_is_missed_and_waited_for() {
    let (mut scene, proxy) = scene().await;
    let member = scene.member();
    let load = scene.load("load");
    scene.until_consumed_at_least(500).await;
    proxy.set(Fault::BlackHole);
    missed(&member).await;
    waits(&member, Duration::from_secs(3)).await;
    proxy.set(Fault::None);
    scene.end(load).await;
    ends_well(&scene, &member).await;
    assert_eq!(member.said(MISSING), 1, "said once: {}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_terminated_again_and_again_cost_nothing() {
    const TERMINATE: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
        where datname = current_database() and pid <> pg_backend_pid()";
    let (mut scene, _proxy) = scene().await;
    let member = scene.member();
    let load = scene.load("load");
    scene.until_consumed_at_least(500).await;
    let (begun, mut terminated) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(6) {
        terminated += scene.database.value::<i64>(TERMINATE).await;
        tokio::time::sleep(Duration::from_millis(rand::random_range(20..200))).await;
    }
    assert!(terminated > 20, "{terminated} connections were terminated");
    scene.end(load).await;
    ends_well(&scene, &member).await;
}

/// Commits of one event take a while, so that something can be done to them.
const SLOW_COMMIT: &str = "
    create function slow_commit() returns trigger language plpgsql as
        $$ begin perform pg_sleep(1.5); return null; end $$;
    create constraint trigger slow_commit after insert on onceonly.event
        deferrable initially deferred
        for each row when (new.event_id = 'slow') execute function slow_commit();";

/// The backend that commits the slow event.
const COMMITTING: &str = "select coalesce(max(pid), 0) from pg_stat_activity
    where datname = current_database() and wait_event = 'PgSleep'";

async fn committing(scene: &Scene) -> i32 {
    let mut pid = 0;
    eventually("the slow event is being committed", async || {
        pid = scene.database.value(COMMITTING).await;
        pid != 0
    })
    .await;
    pid
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_was_lost_is_found_and_not_repeated() {
    let (mut scene, proxy) = scene().await;
    scene.database.run(SLOW_COMMIT).await;
    let member = scene.member();
    scene.produce_with_repeats("first", 300);
    scene.until_consumed().await;
    scene.produce(["a", "slow", "b"].map(str::to_owned));
    committing(&scene).await;
    proxy.set(Fault::DropAnswers);
    let slow = "select count(*) from onceonly.event where event_id = 'slow'";
    eventually("it is committed", async || {
        scene.database.value::<i64>(slow).await == 1
    })
    .await;
    proxy.set(Fault::None);
    scene.produce_with_repeats("last", 300);
    ends_well(&scene, &member).await;
    assert_eq!(
        member.said("a commit whose answer was lost is found in Postgres"),
        1,
        "{}",
        member.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_lost_is_made_again() {
    let (mut scene, proxy) = scene().await;
    scene.database.run(SLOW_COMMIT).await;
    let member = scene.member();
    scene.produce_with_repeats("first", 300);
    scene.until_consumed().await;
    scene.produce(["a", "slow", "b"].map(str::to_owned));
    let pid = committing(&scene).await;
    proxy.set(Fault::DropAnswers);
    let terminate = format!("select pg_terminate_backend({pid}, 10000)");
    assert!(scene.database.value::<bool>(&terminate).await);
    proxy.set(Fault::None);
    scene.produce_with_repeats("last", 300);
    ends_well(&scene, &member).await;
    assert_eq!(member.said("is found in Postgres"), 0, "{}", member.log());
}
