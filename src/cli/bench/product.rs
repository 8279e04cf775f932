//! The product itself: a process of `onceonly run` over a topic that holds everything already.
//!
//! The clock runs from the beginning of the first batch's transaction, which is what its position's
//! `updated_at` says, to the moment in which the transaction is seen committed that moved the last
//! partition to its end. Starting, joining the group, connecting and the wait for the first record
//! are left out, as they are for the baselines: their connections are open before their clocks
//! start, and the bare consumer's clock starts with its first record. Processor time is counted from
//! the claim of the partitions on, so that the first records are paid for.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::time::sleep;

use super::database::{Database, Standing};
use super::events::PARTITIONS;
use super::measured::{Clock, Measured};
use super::stage::Stage;
use super::usage::peak_rss_bytes;
use crate::cli::worker::{Program, Worker};

const PIPELINE: &str = include_str!("pipeline.toml");

/// How long to wait between two looks at the positions.
const GLANCE: Duration = Duration::from_millis(20);

/// The same until the first batch is committed: the next one of its worker hides when that began.
const FIRST_GLANCE: Duration = Duration::from_millis(5);

/// So long nothing may happen before the measurement gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the product is to do.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Names pipeline and group.
    pub(super) pipeline: String,
    /// What it reads.
    pub(super) topic: String,
    /// How many records that has.
    pub(super) records: u64,
    /// Whether it has Redis.
    pub(super) redis: bool,
    /// Further variables of its configuration.
    pub(super) variables: Vec<(&'static str, String)>,
}

impl Line {
    /// This program with the configuration.
    pub(super) fn program(&self, stage: &Stage) -> anyhow::Result<Program> {
        let path = stage.folder.join("pipeline.toml");
        std::fs::write(&path, PIPELINE)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut variables = vec![
            ("ONCEONLY_CONFIG", path.display().to_string()),
            ("ONCEONLY_PIPELINE", self.pipeline.clone()),
            ("ONCEONLY_KAFKA__BROKERS", stage.brokers.clone()),
            ("ONCEONLY_KAFKA__TOPICS", self.topic.clone()),
            ("ONCEONLY_POSTGRES__URL", stage.postgres_url.clone()),
            ("ONCEONLY_POSTGRES__SCHEMA", stage.schema.clone()),
        ];
        if self.redis {
            variables.push(("ONCEONLY_REDIS__URL", stage.redis_url.clone()));
        }
        variables.extend(self.variables.iter().cloned());
        Program::new(variables)
    }

    /// Runs it until every record is consumed, and lets it leave.
    pub(super) async fn measure(
        &self,
        stage: &mut Stage,
        database: &mut Database,
    ) -> anyhow::Result<Measured> {
        let before = database.standing().await?;
        let worker = Worker::start(&self.program(stage)?, &self.pipeline, &stage.folder)?;
        let process = worker.process().context("the product ended at once")?;
        stage.worker = Some(worker);
        let mut watch = Watch::new(self.records, before.consumed);
        let is_claimed = |standing: &Standing| standing.claims > before.claims;
        watch
            .until(stage, database, FIRST_GLANCE, is_claimed)
            .await?;
        let clock = Clock::start(stage.servers, process);
        let has_begun = |standing: &Standing| standing.since.is_some();
        let first = watch
            .until(stage, database, FIRST_GLANCE, has_begun)
            .await?;
        let clock = clock.begun_at(Instant::now() - first.since.unwrap_or_default());
        let is_done = |standing: &Standing| standing.consumed.unsigned_abs() >= self.records;
        watch.until(stage, database, GLANCE, is_done).await?;
        let mut measured = clock.stop(self.records);
        measured.peak_rss_bytes = peak_rss_bytes(process);
        leave(stage).await?;
        Ok(measured)
    }
}

impl Line {
    /// Goes back to the beginning of the topic.
    pub(super) async fn rewind(&self, stage: &Stage) -> anyhow::Result<()> {
        let partitions: Vec<String> = (0..PARTITIONS)
            .map(|partition| format!("{partition}:earliest"))
            .collect();
        let partitions = partitions.join(",");
        let arguments = ["set", "--topic", &self.topic, "--partitions", &partitions];
        self.program(stage)?.complete("position", &arguments).await
    }
}

/// Lets the product finish; an error if it does not end well.
pub(super) async fn leave(stage: &mut Stage) -> anyhow::Result<()> {
    let Some(worker) = stage.worker.take() else {
        return Ok(());
    };
    let tail = worker.tail();
    let status = worker.leave().await;
    ensure!(
        status.is_some_and(|status| status.success()),
        "the product did not end well ({})\n{tail}",
        status.map_or_else(|| "killed".to_owned(), |status| status.to_string())
    );
    Ok(())
}

/// Watches the product get on.
pub(super) struct Watch {
    records: u64,
    consumed: i64,
    moved: Instant,
}

impl Watch {
    pub(super) fn new(records: u64, consumed: i64) -> Self {
        Self {
            records,
            consumed,
            moved: Instant::now(),
        }
    }

    /// Looks until something holds; fails if the product ended, or nothing has moved for long.
    pub(super) async fn until(
        &mut self,
        stage: &mut Stage,
        database: &mut Database,
        pause: Duration,
        holds: impl Fn(&Standing) -> bool,
    ) -> anyhow::Result<Standing> {
        loop {
            let standing = database.standing().await?;
            if holds(&standing) {
                return Ok(standing);
            }
            if standing.consumed != self.consumed {
                (self.consumed, self.moved) = (standing.consumed, Instant::now());
            }
            ensure!(
                self.moved.elapsed() < PATIENCE,
                "nothing was consumed for {} s, at {} of {} records",
                PATIENCE.as_secs(),
                self.consumed,
                self.records
            );
            if let Some(worker) = &mut stage.worker {
                worker.check()?;
            }
            sleep(pause).await;
        }
    }
}
