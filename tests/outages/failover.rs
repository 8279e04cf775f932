//! Postgres comes back with an older history, while Redis and Kafka still believe in the newer one.

use std::time::Instant;

use crate::process::Process;
use crate::redis_faults::PATIENT_MS;
use crate::scene::{Scene, eventually};
use crate::support::database::Database;
use crate::support::postgres_server::PostgresServer;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// Two partitions for each of two members.
const PARTITIONS: i32 = 4;

/// A pipeline over servers of its own, whose members reach Postgres through a proxy.
async fn scene(server: &PostgresServer, redis: &RedisServer) -> (Scene, Proxy) {
    let database = Database::migrated_at(&server.url("postgres")).await;
    let mut scene = Scene::over(database, PARTITIONS).await;
    let proxy = Proxy::start(server.address()).await;
    scene.postgres = scene.database.url_at(&proxy.address().to_string());
    scene.with_redis(&redis.url(), PATIENT_MS);
    (scene, proxy)
}

async fn ends_well(scene: &Scene, members: &[&Process]) {
    let outcomes = scene.until_consumed().await;
    scene.assert_effects_once().await;
    assert_eq!(outcomes["dead"] + outcomes["retrying"], 0, "{outcomes:?}");
    for member in members {
        eventually("the member is ready", async || {
            member.status("/ready") == 200
        })
        .await;
    }
}

/// How many records are committed in Kafka, over all partitions.
async fn committed_in_kafka(scene: &Scene) -> i64 {
    scene.committed().await.iter().map(|at| at.max(&0)).sum()
}

/// Waits until Kafka was told of a position that a server does not know.
async fn kafka_believes_more_than(scene: &Scene, consumed: u64) {
    eventually("Kafka has commits that Postgres loses", async || {
        committed_in_kafka(scene).await > consumed as i64
    })
    .await;
}

/// One member was there all the time. The other one claimed its partitions in the history that is
/// lost: their epochs are lost as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_that_lost_the_last_commits_gets_them_again_and_each_once() {
    let mut primary = PostgresServer::start().await;
    let redis = RedisServer::start(&[]).await;
    let (mut scene, proxy) = scene(&primary, &redis).await;
    let first = scene.member();
    let load = scene.load("load");
    scene.produce_with_repeats("known", 600);
    scene.until_consumed_at_least(1_000).await;
    let replica = primary.replica().await;
    scene.flows().await;
    replica.stop_receiving().await;

    let second = scene.member();
    eventually("the second member has claimed partitions", async || {
        second.metric("onceonly_partitions_owned") == Some(2.0)
    })
    .await;
    scene.produce_with_repeats("lost", 900);
    let so_far = scene.consumed().await;
    scene.until_consumed_at_least(so_far + 1_500).await;
    kafka_believes_more_than(&scene, so_far).await;
    let believed = scene.consumed().await;
    primary.crash();
    scene.database.moved_to(&replica.url("postgres"));
    let known = scene.consumed().await;
    assert!(known + 1_000 < believed, "{known} of {believed} are left");
    let struck = Instant::now();
    proxy.redirect(replica.address());
    replica.promote().await;
    scene
        .flows_again(struck, "a replica without the last commits is promoted")
        .await;

    // Everything that Redis has marks of, of both histories.
    scene.produce_with_repeats("known", 600);
    scene.produce_with_repeats("lost", 900);
    scene.end(load).await;
    ends_well(&scene, &[&first, &second]).await;
    let went_back = "Postgres has another position than this worker knew";
    assert!(first.said(went_back) >= 1, "{}", first.log());
    assert!(second.said("fenced:") >= 1, "{}", second.log());
}

/// Sessions end and what was in work is gone; what was committed is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_is_stopped_at_once_and_started_again_and_again_costs_nothing() {
    let mut server = PostgresServer::start().await;
    let redis = RedisServer::start(&[]).await;
    let (mut scene, _proxy) = scene(&server, &redis).await;
    let (first, second) = (scene.member(), scene.member());
    let load = scene.load("load");
    for round in 0..4 {
        scene.produce_with_repeats("again", 300);
        let consumed = scene.consumed().await;
        scene.until_consumed_at_least(consumed + 500).await;
        server.crash();
        server.up().await;
        let up = Instant::now();
        let fault = format!("Postgres is back after an immediate stop, round {round}");
        scene.flows_again(up, &fault).await;
    }
    scene.end(load).await;
    ends_well(&scene, &[&first, &second]).await;
}

/// What becomes of the database that the dump replaces.
enum Restored {
    /// Its tables are dropped for those of the dump.
    InPlace,
    /// It stays, and the dump goes into another database of the same server.
    Beside,
}

/// The members are stopped for it, as an operator does; their marks and Kafka's commits stay.
async fn restored(into: Restored) {
    let server = PostgresServer::start().await;
    let redis = RedisServer::start(&[]).await;
    let (mut scene, proxy) = scene(&server, &redis).await;
    let member = scene.member();
    scene.produce_with_repeats("known", 900);
    scene.until_consumed().await;
    let (dump, dumped) = (server.dump(scene.database.name()), scene.consumed().await);
    scene.produce_with_repeats("lost", 900);
    scene.produce_with_repeats("known", 300);
    scene.until_consumed().await;
    kafka_believes_more_than(&scene, dumped).await;
    member.leave().await;

    if let Restored::Beside = into {
        server.run("create database beside").await;
        scene.database.renamed("beside");
        scene.postgres = scene.database.url_at(&proxy.address().to_string());
    }
    server.restore(&dump, scene.database.name());
    assert_eq!(scene.consumed().await, dumped);
    let begun = Instant::now();
    let member = scene.member();
    scene
        .flows_again(begun, "a member is started over an older dump")
        .await;
    scene.produce_with_repeats("lost", 900);
    ends_well(&scene, &[&member]).await;
    assert_eq!(member.warnings(), 0, "{}", member.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_dump_restored_in_place_gets_what_it_lacks_again_and_each_once() {
    restored(Restored::InPlace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_dump_in_another_database_of_the_server_gets_what_it_lacks_and_each_once() {
    restored(Restored::Beside).await;
}
