//! What happens in the demo, from first to last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use indicatif::HumanCount;

use super::plan::Plan;
use super::produce;
use super::report::Report;
use super::schema::{Schema, Standing};
use super::stage::Stage;
use crate::cli::kafka::Kafka;
use crate::cli::produce::Producing;
use crate::cli::progress::Progress;
use crate::cli::worker::{Program, Worker};

const PIPELINE: &str = include_str!("pipeline.toml");

/// How often the demo looks.
const GLANCE: Duration = Duration::from_millis(40);

/// So long nothing may happen before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(60);

const TOO_FEW: &str = "there was no middle in which to kill a worker; take more --events";

/// A worker is killed when so many of a hundred records are consumed.
const KILL_AT_PERCENT: u64 = 35;

/// A worker that has so many records or more before it is at work.
const UNREAD_MIN: i64 = 100;

/// The embedded Kafka waits for a missing member as long as its session, at every rebalance.
const EMBEDDED_SESSION_MS: u64 = 3_000;

/// The whole story. Everything that it starts or makes is noted on the stage.
pub(super) async fn tell(
    stage: &mut Stage,
    plan: &Arc<Plan>,
    progress: &mut Progress,
    begun: Instant,
) -> anyhow::Result<Report> {
    stage.check_redis().await?;
    let mut schema = stage.connect_postgres().await?;
    start_kafka(stage, plan, progress).await?;
    let program = program(stage, plan, &schema)?;
    program.complete("migrate", &[]).await?;
    schema.create_tables().await?;
    schema.record_produced(plan).await?;

    start_workers(stage, &program, progress)?;
    await_members(stage, &mut schema, plan).await?;
    let mut producing = start_producer(stage, plan, progress)?;
    progress.begin(plan.produced());
    let (consumed, unread) = kill_in_the_middle(stage, &mut schema, plan, progress).await?;
    progress.say(&format!(
        "Killed worker 1 (SIGKILL) after {} records, with {} before it.\n\
         Starting it again.",
        HumanCount(consumed),
        HumanCount(unread)
    ));
    let again = Worker::start(&program, "worker 1", &stage.folder)?;
    stage.workers.insert(0, again);
    producing.finish().await?;
    await_end(stage, &mut schema, plan, progress).await?;
    progress.end();

    progress.say("All is consumed; comparing the effects with what was produced.");
    stage.end_workers().await;
    Ok(Report {
        produced: producing.delivered(),
        outcomes: schema.outcomes().await?,
        comparison: schema.compare().await?,
        restarts: 1,
        took: begun.elapsed(),
    })
}

async fn start_kafka(stage: &mut Stage, plan: &Plan, progress: &Progress) -> anyhow::Result<()> {
    let kafka = match &stage.brokers {
        None => {
            progress.say("Starting an embedded Kafka, and a schema in Postgres.");
            Kafka::embedded(&Stage::bare_program()?, &stage.name, plan.partitions).await?
        }
        Some(brokers) => {
            progress.say(&format!(
                "Creating topic {} at {brokers}, and a schema in Postgres.",
                stage.name
            ));
            Kafka::cluster(brokers, &stage.name, plan.partitions).await?
        }
    };
    stage.kafka = Some(kafka);
    Ok(())
}

/// This program with the demo's configuration.
fn program(stage: &Stage, plan: &Plan, schema: &Schema) -> anyhow::Result<Program> {
    let path = stage.folder.join("pipeline.toml");
    std::fs::write(&path, PIPELINE).with_context(|| format!("cannot write {}", path.display()))?;
    // Small enough that there is a middle to be killed in.
    let batch = (plan.produced() / 100).clamp(20, 1_000);
    let mut variables = vec![
        ("ONCEONLY_CONFIG", path.display().to_string()),
        ("ONCEONLY_PIPELINE", stage.name.clone()),
        ("ONCEONLY_KAFKA__BROKERS", brokers(stage)?.to_owned()),
        ("ONCEONLY_KAFKA__TOPICS", stage.name.clone()),
        ("ONCEONLY_REDIS__URL", stage.redis_url.clone()),
        ("ONCEONLY_POSTGRES__URL", stage.postgres_url.clone()),
        ("ONCEONLY_POSTGRES__SCHEMA", stage.schema.clone()),
        ("ONCEONLY_DEDUP__MARK", stage.mark.to_owned()),
        ("ONCEONLY_HANDLER__STATEMENTS", schema.handler_statement()),
        ("ONCEONLY_BATCH__MAX_EVENTS", batch.to_string()),
    ];
    if stage.brokers.is_none() {
        let properties = [
            (
                "ONCEONLY_KAFKA__PROPERTIES__SESSION_TIMEOUT_MS",
                EMBEDDED_SESSION_MS.to_string(),
            ),
            // The embedded Kafka lets an empty fetch sleep, whatever comes meanwhile.
            (
                "ONCEONLY_KAFKA__PROPERTIES__FETCH_WAIT_MAX_MS",
                "10".to_owned(),
            ),
        ];
        variables.extend(properties);
    }
    Program::new(variables)
}

fn brokers(stage: &Stage) -> anyhow::Result<&str> {
    Ok(stage
        .kafka
        .as_ref()
        .context("no Kafka was started")?
        .brokers())
}

fn start_workers(stage: &mut Stage, program: &Program, progress: &Progress) -> anyhow::Result<()> {
    progress.say("Starting two workers, which join a consumer group.");
    for name in ["worker 1", "worker 2"] {
        let worker = Worker::start(program, name, &stage.folder)?;
        stage.workers.push(worker);
    }
    Ok(())
}

/// Waits until both workers have partitions, so that both have work from the first record on.
async fn await_members(stage: &mut Stage, schema: &mut Schema, plan: &Plan) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let standings = glance(stage, schema).await?;
        let shares: Vec<usize> = processes(stage)
            .map(|process| {
                standings
                    .iter()
                    .filter(|standing| standing.is_of(process))
                    .count()
            })
            .collect();
        if shares.iter().all(|share| *share > 0)
            && shares.iter().sum::<usize>() == usize::from(plan.partitions)
        {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the workers did not share the {} partitions within {} s, but have {shares:?}",
            plan.partitions,
            PATIENCE.as_secs(),
        );
    }
}

/// The workers' processes.
fn processes(stage: &Stage) -> impl Iterator<Item = u32> {
    stage.workers.iter().filter_map(Worker::process)
}

fn start_producer(
    stage: &Stage,
    plan: &Arc<Plan>,
    progress: &Progress,
) -> anyhow::Result<Producing> {
    let [records, distinct, duplicates, adjacent, distant, elsewhere] = [
        plan.records.len() as u32,
        plan.distinct,
        plan.duplicates(),
        plan.adjacent,
        plan.distant,
        plan.elsewhere,
    ]
    .map(|count| HumanCount(count.into()).to_string());
    progress.say(&format!(
        "Producing {records} records of {distinct} events on {} partitions; {duplicates} are\n\
         duplicates: {adjacent} adjacent, {distant} far apart, {elsewhere} in another partition.",
        plan.partitions
    ));
    Producing::start(
        brokers(stage)?,
        &stage.name,
        plan.produced(),
        produce::records(Arc::clone(plan)),
    )
}

/// Kills worker 1 once a part is done and both workers have work before them. Returns how many
/// records were consumed by then, and how many the victim had before it.
async fn kill_in_the_middle(
    stage: &mut Stage,
    schema: &mut Schema,
    plan: &Plan,
    progress: &Progress,
) -> anyhow::Result<(u64, u64)> {
    let mut watch = Watch::new(plan);
    loop {
        let standings = glance(stage, schema).await?;
        let consumed = watch.see(&standings)?;
        progress.set(consumed, "two workers");
        let is_middle = consumed * 100 >= plan.produced() * KILL_AT_PERCENT;
        if is_middle && processes(stage).all(|process| watch.is_at_work(&standings, process)) {
            break;
        }
        ensure!(consumed < plan.produced(), TOO_FEW);
    }
    let mut victim = stage.workers.remove(0);
    let process = victim.process().unwrap_or_default();
    victim.kill().await?;
    let standings = schema.standings().await?;
    let unread = watch.unread(&standings, process);
    ensure!(unread > 0, TOO_FEW);
    Ok((watch.see(&standings)?, unread.unsigned_abs()))
}

/// Waits until every record is consumed.
async fn await_end(
    stage: &mut Stage,
    schema: &mut Schema,
    plan: &Plan,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut watch = Watch::new(plan);
    loop {
        let standings = glance(stage, schema).await?;
        let consumed = watch.see(&standings)?;
        let has_owner = |standing: &Standing| processes(stage).any(|p| standing.is_of(p));
        let words = match standings
            .iter()
            .filter(|standing| !has_owner(standing))
            .count()
        {
            0 => "two workers".to_owned(),
            orphans => format!("{orphans} partitions wait"),
        };
        progress.set(consumed, &words);
        if consumed == plan.produced() {
            return Ok(());
        }
    }
}

/// Where the partitions stand a moment later; fails if a process has ended or a partition stopped.
async fn glance(stage: &mut Stage, schema: &mut Schema) -> anyhow::Result<Vec<Standing>> {
    tokio::time::sleep(GLANCE).await;
    stage.check()?;
    let standings = schema.standings().await?;
    for standing in &standings {
        if let Some(reason) = &standing.stopped {
            bail!("partition {} was stopped: {reason}", standing.partition);
        }
    }
    Ok(standings)
}

/// Watches the workers get on.
struct Watch {
    ends: Vec<i64>,
    consumed: u64,
    moved: Instant,
}

impl Watch {
    fn new(plan: &Plan) -> Self {
        Self {
            ends: plan.ends(),
            consumed: 0,
            moved: Instant::now(),
        }
    }

    /// How many records are consumed; fails if that has not changed for long.
    fn see(&mut self, standings: &[Standing]) -> anyhow::Result<u64> {
        let consumed: i64 = standings.iter().map(|standing| standing.next_offset).sum();
        let consumed = consumed.unsigned_abs();
        if consumed != self.consumed {
            (self.consumed, self.moved) = (consumed, Instant::now());
        }
        let produced: i64 = self.ends.iter().sum();
        ensure!(
            self.idle() < PATIENCE,
            "nothing was consumed for {} s, at {consumed} of {produced} records",
            PATIENCE.as_secs()
        );
        Ok(consumed)
    }

    /// How long nothing has moved.
    fn idle(&self) -> Duration {
        self.moved.elapsed()
    }

    /// How many records a process has before it.
    fn unread(&self, standings: &[Standing], process: u32) -> i64 {
        let own = standings.iter().filter(|standing| standing.is_of(process));
        own.map(|standing| self.end(standing.partition) - standing.next_offset)
            .sum()
    }

    /// Whether a process has begun with its partitions and is not near their end.
    fn is_at_work(&self, standings: &[Standing], process: u32) -> bool {
        let has_begun = |standing: &Standing| standing.is_of(process) && standing.next_offset > 0;
        standings.iter().any(has_begun) && self.unread(standings, process) >= UNREAD_MIN
    }

    fn end(&self, partition: i32) -> i64 {
        let end = usize::try_from(partition)
            .ok()
            .and_then(|at| self.ends.get(at));
        end.copied().unwrap_or_default()
    }
}
