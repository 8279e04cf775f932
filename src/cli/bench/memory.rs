//! How much memory the product takes while Postgres does not get on.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::time::sleep;

use super::database::{Database, Standing};
use super::measured::{Clock, Measured};
use super::product::{Line, Watch, leave};
use super::stage::Stage;
use super::usage::peak_rss_bytes;
use crate::cli::worker::Worker;

/// What the peak must not exceed.
pub(super) const LIMIT_BYTES: f64 = 200e6;

/// Postgres stalls once this part of the records is consumed.
const STALL_BEHIND: u64 = 10;

const GLANCE: Duration = Duration::from_millis(5);

/// Has the product consume a topic while no position can be moved for a time: its transactions wait
/// for a lock until they give up, as they would for a server that hangs, and try again.
pub(super) async fn measure(
    stage: &mut Stage,
    database: &mut Database,
    line: &Line,
    stall: Duration,
) -> anyhow::Result<Measured> {
    let mut blocker = database.another().await?;
    let worker = Worker::start(&line.program(stage)?, &line.pipeline, &stage.folder)?;
    let process = worker.process().context("the product ended at once")?;
    stage.worker = Some(worker);
    let clock = Clock::start(stage.servers, process);
    let mut watch = Watch::new(line.records, 0);
    let part = (line.records / STALL_BEHIND).max(1) as i64;
    let has_begun = |standing: &Standing| standing.consumed >= part;
    watch.until(stage, database, GLANCE, has_begun).await?;
    blocker.stall().await?;
    let stalled = database.standing().await?.consumed;
    ensure!(
        stalled.unsigned_abs() < line.records,
        "all was consumed before Postgres stalled; take more --events"
    );
    sleep(stall).await;
    let after = database.standing().await?.consumed;
    ensure!(
        after == stalled,
        "{} events were consumed while Postgres stalled",
        after - stalled
    );
    // Its transaction ends with the connection.
    drop(blocker);
    let is_done = |standing: &Standing| standing.consumed.unsigned_abs() >= line.records;
    watch.until(stage, database, GLANCE, is_done).await?;
    let mut measured = clock.stop(line.records);
    measured.peak_rss_bytes = peak_rss_bytes(process);
    leave(stage).await?;
    Ok(measured)
}
