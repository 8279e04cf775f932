//! Events that fail at first, for good, or with the backend that has them: neighbours go on.

use std::time::Duration;

use sqlx::Row;

use crate::scene::{Scene, eventually};

const EFFECT: &str = "create table effect (event_id text not null)";
const INSERT: &str = "insert into effect select event_id from batch";

/// A pipeline with statements of its own over the table `effect`.
async fn scene(partitions: i32, statements: &[&str], retry: &str) -> Scene {
    let mut scene = Scene::set(partitions).await;
    scene.database.run(EFFECT).await;
    let quoted: Vec<_> = statements.iter().map(|text| format!("{text:?}")).collect();
    scene.more += &format!(
        "[handler]\nstatements = [{}]\n[retry]\n{retry}\n",
        quoted.join(", ")
    );
    scene
}

async fn dead(scene: &Scene) -> Vec<(String, i32, String)> {
    let query = "select event_id, attempts, errors -> 0 ->> 'message' as message \
                 from onceonly.dead_letter order by event_id";
    let rows = scene.database.rows(query).await;
    rows.iter()
        .map(|r| (r.get(0), r.get(1), r.get(2)))
        .collect()
}

async fn waiting(scene: &Scene) -> i64 {
    let query = "select count(*) from onceonly.waiting";
    scene.database.value(query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_kills_its_backend_is_found_and_dead_after_its_last_attempt() {
    let kill = "select pg_terminate_backend(pg_backend_pid()) from batch where event_id = 'killer'";
    let retry = "max_attempts = 2\nbase = \"100ms\"\ncap = \"200ms\"";
    let mut scene = scene(2, &[INSERT, kill], retry).await;
    scene.produce((0..5).map(|n| format!("before-{n}")));
    scene.produce(["killer".to_owned()]);
    scene.produce((0..5).map(|n| format!("after-{n}")));
    let _member = scene.member();
    let outcomes = scene.until_consumed().await;
    assert_eq!(
        (outcomes["applied"], outcomes["retrying"]),
        (10, 1),
        "{outcomes:?}"
    );
    eventually("it is dead", async || dead(&scene).await.len() == 1).await;
    let dead = dead(&scene).await;
    assert_eq!((&*dead[0].0, dead[0].1), ("killer", 2), "{dead:?}");
    assert_eq!(waiting(&scene).await, 0);
    scene.assert_effects_once_in("effect", &["killer"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_takes_too_long_is_found_and_its_neighbours_are_applied() {
    let limit = "select set_config('statement_timeout', '300', true)";
    let sleep = "select pg_sleep(30) from batch where event_id = 'sleeper'";
    let mut scene = scene(2, &[limit, INSERT, sleep], "max_attempts = 1").await;
    scene.produce((0..5).map(|n| format!("before-{n}")));
    scene.produce(["sleeper".to_owned()]);
    scene.produce((0..5).map(|n| format!("after-{n}")));
    let member = scene.member();
    let outcomes = scene.until_consumed().await;
    assert_eq!(
        (outcomes["applied"], outcomes["dead"]),
        (10, 1),
        "{outcomes:?}"
    );
    scene.assert_effects_once_in("effect", &["sleeper"]).await;
    let dead = dead(&scene).await;
    assert_eq!((dead.len(), &*dead[0].0), (1, "sleeper"), "{dead:?}");
    assert!(dead[0].2.contains("statement timeout"), "{dead:?}");
    assert_eq!(
        member.status("/ready"),
        200,
        "Postgres was there all the time"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_failures_stops_and_the_others_flow() {
    let mut scene = scene(2, &[INSERT], "max_attempts = 1\nmax_dead_in_a_row = 20").await;
    scene
        .database
        .run("alter table effect add check (event_id not like 'bad-%')")
        .await;
    for n in 0..60 {
        scene.produce_body(0, &format!("bad-{n}"), "{}");
    }
    scene.flush();
    let member = scene.member();
    eventually("the partition is stopped", async || {
        member
            .get("/ready")
            .is_some_and(|(status, body)| status == 503 && body.contains("retry.max_dead_in_a_row"))
    })
    .await;
    for n in 0..200 {
        scene.produce_body(1, &format!("good-{n}"), "{}");
    }
    scene.flush();
    eventually("the other partition flows", async || {
        scene.outcomes().await["applied"] == 200
    })
    .await;
    let outcomes = scene.outcomes().await;
    assert_eq!(outcomes["dead"], 20, "{outcomes:?}");
    assert_eq!(outcomes.values().sum::<u64>(), 220, "{outcomes:?}");
    assert_eq!(member.status("/live"), 200);
    assert_eq!(member.said("partition stopped"), 1, "said once");
    member.leave().await;
    // A person mended the cause: the rest is applied, what is dead stays dead.
    scene
        .database
        .run("alter table effect drop constraint effect_event_id_check")
        .await;
    let member = scene.member();
    let outcomes = scene.until_consumed().await;
    assert_eq!(
        (outcomes["applied"], outcomes["dead"]),
        (240, 20),
        "{outcomes:?}"
    );
    let dead: Vec<_> = dead(&scene).await.into_iter().map(|(id, ..)| id).collect();
    let without: Vec<&str> = dead.iter().map(String::as_str).collect();
    scene.assert_effects_once_in("effect", &without).await;
    eventually("the member is ready", async || {
        member.status("/ready") == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_fails_at_first_waits_and_is_applied_later() {
    let retry = "max_attempts = 50\nbase = \"200ms\"\ncap = \"400ms\"\njitter = \"none\"";
    let mut scene = scene(2, &[INSERT], retry).await;
    scene
        .database
        .run(
            "create table customer (name text primary key);
             create function known(id text) returns boolean language sql
                 as $$ select id not like 'order-%' or exists (select from customer) $$;
             alter table effect add check (known(event_id));",
        )
        .await;
    scene.produce((0..20).map(|n| format!("other-{n}")));
    scene.produce((0..5).map(|n| format!("order-{n}")));
    let member = scene.member();
    let outcomes = scene.until_consumed().await;
    assert_eq!(
        (outcomes["applied"], outcomes["retrying"]),
        (20, 5),
        "{outcomes:?}"
    );
    // Again while they wait: in another memory than the one that parked them, too.
    scene.produce((0..5).map(|n| format!("order-{n}")));
    let outcomes = scene.until_consumed().await;
    assert_eq!(outcomes["duplicate_waiting"], 5, "{outcomes:?}");
    scene
        .database
        .run("insert into customer values ('c')")
        .await;
    eventually("none waits", async || waiting(&scene).await == 0).await;
    scene.assert_effects_once_in("effect", &[]).await;
    eventually("later attempts are counted", async || {
        member.metric("onceonly_retries_total{result=\"applied\"}") == Some(5.0)
    })
    .await;
    // Once applied they are duplicates like any other.
    scene.produce((0..5).map(|n| format!("order-{n}")));
    let outcomes = scene.until_consumed().await;
    let known = outcomes["duplicate_ledger"] + outcomes["duplicate_recent"];
    assert_eq!(known, 5, "{outcomes:?}");
    scene.assert_effects_once_in("effect", &[]).await;
    assert_eq!(dead(&scene).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_event_that_comes_again_is_a_duplicate_and_never_applied() {
    let mut scene = scene(2, &[INSERT], "max_attempts = 1").await;
    scene
        .database
        .run("alter table effect add constraint bad check (event_id not like 'bad-%')")
        .await;
    scene.produce((0..20).map(|n| format!("good-{n}")));
    scene.produce((0..3).map(|n| format!("bad-{n}")));
    let member = scene.member();
    let outcomes = scene.until_consumed().await;
    assert_eq!(
        (outcomes["applied"], outcomes["dead"]),
        (20, 3),
        "{outcomes:?}"
    );
    scene
        .database
        .run("alter table effect drop constraint bad")
        .await;
    scene.produce((0..3).map(|n| format!("bad-{n}")));
    member.leave().await;
    let _member = scene.member();
    scene.produce((0..3).map(|n| format!("bad-{n}")));
    let outcomes = scene.until_consumed_within(Duration::from_secs(30)).await;
    assert_eq!(outcomes["duplicate_dead"], 6, "{outcomes:?}");
    scene
        .assert_effects_once_in("effect", &["bad-0", "bad-1", "bad-2"])
        .await;
}
