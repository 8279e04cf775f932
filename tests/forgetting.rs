//! Ids are forgotten by a running member, in the pipeline's own time, on real services.

mod support;

use std::time::Duration;

use onceonly::config::Config;
use onceonly::member::Member;
use support::line::{Line, Record, handler};
use tokio_util::sync::CancellationToken;

fn config(line: &Line) -> Config {
    let more = "[dedup]\nretention = \"2s\"\ngenerations = 2\n";
    line.config(false, more)
}

const REMEMBERED: &str = "select exists (select from onceonly.ledger)";
const FORGOTTEN: &str = "select not exists (select from onceonly.ledger)";

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_forgotten_after_the_retention_and_their_horizon_is_known() {
    let line = Line::new(1, 1).await;
    let config = config(&line);
    line.send(0, &[Record::new("a", "{}"), Record::new("b", "{}")]);
    line.run_until(
        &config,
        "forgotten",
        &format!("{FORGOTTEN} and exists (select from onceonly.position where next_offset = 2)"),
    )
    .await;
    assert_eq!(line.effects().await, ["a", "b"]);
    let horizon = "select horizon from onceonly.position";
    assert_eq!(line.database.value::<i64>(horizon).await, 2);
    // Four slices of a second at most: two in the retention, one being filled, one being dropped;
    // a keeper that came late to it has just the one that is being filled.
    let generations = "select count(*) from onceonly.generation";
    let kept: i64 = line.database.value(generations).await;
    assert!((1..=4).contains(&kept), "{kept} generations");
    line.send(0, &[Record::new("a", "{}")]);
    line.consume(&config, 3).await;
    assert_eq!(
        line.effects().await,
        ["a", "a", "b"],
        "a forgotten id is new"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_was_down_beyond_the_retention_knows_the_duplicates_of_its_backlog() {
    let line = Line::new(1, 1).await;
    let config = config(&line);
    line.send(0, &[Record::new("a", "{}")]);
    let rotated = "select exists (select from onceonly.generation where generation = 1 and event_time \
                   is not null) and exists (select from onceonly.position where next_offset = 1)";
    line.run_until(&config, "rotated", rotated).await;
    line.send(0, &[Record::new("a", "{}")]);
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert!(line.database.value::<bool>(REMEMBERED).await);
    line.consume(&config, 2).await;
    assert_eq!(line.effects().await, ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_members_one_keeps_the_ledgers_memory_and_the_other_takes_over() {
    let line = Line::new(1, 2).await;
    let config = config(&line);
    line.send(0, &[Record::new("a", "{}")]);
    let mut running = Vec::new();
    for _ in 0..2 {
        let member = Member::join(&config, handler(&config)).expect("a member");
        let end = CancellationToken::new();
        running.push((end.clone(), tokio::spawn(member.run(end))));
    }
    let keepers = "select count(*) = 1 from pg_locks l join pg_stat_activity a using (pid) \
                   where l.locktype = 'advisory' and a.datname = current_database()";
    line.until("one keeper", keepers).await;
    line.until(
        "forgotten",
        &format!("{FORGOTTEN} and exists (select from onceonly.event)"),
    )
    .await;
    for (end, member) in running {
        let generation = "select generation from onceonly.pipeline";
        let before: i32 = line.database.value(generation).await;
        let grown = format!("select generation > {before} + 1 from onceonly.pipeline");
        line.until("it goes on", &grown).await;
        end.cancel();
        member.await.expect("no panic").expect("a clean end");
    }
}
