//! Several members as processes: one freezes, all are replaced.

use std::collections::VecDeque;
use std::time::Duration;

use crate::process::Process;
use crate::scene::{Scene, eventually};

const STOPPED: Duration = Duration::from_secs(20);

/// Transactions that a member's frozen process has open.
async fn is_in_transaction(scene: &Scene, member: &Process) -> bool {
    let query = format!(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and application_name like '%/{}/%' and xact_start is not null",
        member.id()
    );
    scene.database.value::<i64>(&query).await > 0
}

/// How many partitions a member owns, by the rows in Postgres.
async fn owned(scene: &Scene, member: &Process) -> i64 {
    let query = format!(
        "select count(*) from onceonly.position where owner_name like '%/{}/%'",
        member.id()
    );
    scene.database.value(&query).await
}

async fn both_own(scene: &Scene, a: &Process, b: &Process) {
    eventually("both members own partitions", async || {
        owned(scene, a).await == 2 && owned(scene, b).await == 2
    })
    .await;
}

/// The zombie wakes with a batch in its hands that another member has applied meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_frozen_beyond_its_session_changes_nothing_when_it_wakes() {
    let mut scene = Scene::set(4).await;
    // Batches wait for the rate before they begin: that is where most freezes hit.
    scene.more += "[limits]\nevents_per_second = 800\n";
    let (zombie, heir) = (scene.member(), scene.member());
    let load = scene.load("load");
    both_own(&scene, &zombie, &heir).await;
    let applied = scene.consumed().await;
    scene.until_consumed_at_least(applied + 300).await;
    loop {
        zombie.signal("STOP");
        if !is_in_transaction(&scene, &zombie).await {
            break;
        }
        zombie.signal("CONT");
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    eventually("the heir owns everything", async || {
        owned(&scene, &heir).await == 4
    })
    .await;
    let applied = scene.consumed().await;
    scene.until_consumed_at_least(applied + 300).await;
    zombie.signal("CONT");
    both_own(&scene, &zombie, &heir).await;
    scene.end(load).await;
    scene.until_consumed().await;
    scene.assert_effects_once().await;
    // It noticed before it began with the batch, or was fenced when it did.
    let noticed = zombie.said("batch given up") + zombie.said("fenced:");
    assert!(
        noticed >= 1,
        "the zombie had nothing in its hands: {}",
        zombie.log()
    );
    zombie.leave().await;
    heir.leave().await;
}

/// Replaces so many members, one after the other.
pub async fn rolling_restart(replacements: usize) {
    let mut scene = Scene::set(4).await;
    scene.more += "[shutdown]\ntimeout = \"20s\"\n";
    let mut members = VecDeque::from([scene.member(), scene.member()]);
    let load = scene.load("load");
    scene.until_consumed_at_least(300).await;
    for _ in 0..replacements {
        members.push_back(scene.member());
        let mut old = members.pop_front().expect("three members");
        old.signal("TERM");
        let status = old.ended(STOPPED).await;
        assert_eq!(status.code(), Some(0), "{}", old.log());
        let applied = scene.consumed().await;
        scene.until_consumed_at_least(applied + 200).await;
    }
    scene.end(load).await;
    scene.until_consumed().await;
    scene.assert_effects_once().await;
    for member in members {
        member.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_replaced_one_after_the_other_under_load_lose_and_repeat_nothing() {
    rolling_restart(3).await;
}
