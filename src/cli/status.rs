//! `onceonly status`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use onceonly::config::Config;
use onceonly::error::Error;
use onceonly::filter::redis::{self, RedisReport};
use onceonly::ledger::postgres::Fingerprint;
use onceonly::ledger::postgres::report::{Observer, PositionReport, Sizes};
use onceonly::member::{kafka_settings, postgres_settings};
use onceonly::retention::Generation;
use onceonly::source::kafka::{KafkaLog, LogView};

use super::{Global, KAFKA_TIMEOUT, output, run};

mod partition;
mod report;
mod text;

use report::Report;

/// Show how a pipeline fares: partitions, lag, failed events, ledger, Redis
///
/// Exit code 1: Postgres cannot be asked, a partition is stopped, or `onceonly run` would refuse
/// the configuration because the pipeline is recorded otherwise. A Kafka or Redis that does not
/// answer is shown and is no failure of the pipeline: it waits for the one and works without the
/// other.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show the outcomes and the horizon of each partition too
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What Postgres keeps of the pipeline.
struct Kept {
    fingerprint: Fingerprint,
    positions: Vec<PositionReport>,
    sizes: Sizes,
    generations: Vec<Generation>,
}

/// What was found.
struct Found {
    postgres: Result<Kept, Error>,
    kafka: Result<LogView, Error>,
    /// `None`: the pipeline uses none.
    redis: Option<Result<RedisReport, Error>>,
    redis_timeout: Duration,
    /// As the configuration has it, where this version can run it.
    configured: Option<Fingerprint>,
}

impl Status {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        let found = look(&config).await;
        let report = Report::new(&config, global.config.as_deref(), &found);
        if self.json {
            output::print_json(&report)?;
        } else {
            output::print(&text::text(&report, self.verbose))?;
        }
        if report.problems.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        for problem in &report.problems {
            eprintln!("error: {problem}");
        }
        Ok(ExitCode::FAILURE)
    }
}

async fn look(config: &Config) -> Found {
    let postgres_and_kafka = async {
        let postgres = kept(config).await;
        let kafka = log(config, postgres.as_ref().ok()).await;
        (postgres, kafka)
    };
    let ((postgres, kafka), redis) = tokio::join!(postgres_and_kafka, ping(config));
    Found {
        postgres,
        kafka,
        redis,
        redis_timeout: config.redis.as_ref().map_or(Duration::ZERO, |r| r.timeout),
        configured: run::fingerprint(config).ok(),
    }
}

async fn kept(config: &Config) -> Result<Kept, Error> {
    let settings = postgres_settings(config, "onceonly status");
    let mut observer = Observer::connect(&settings, &config.pipeline).await?;
    Ok(Kept {
        fingerprint: observer.fingerprint().await?,
        positions: observer.positions().await?,
        sizes: observer.sizes().await?,
        generations: observer.generations().await?,
    })
}

async fn log(config: &Config, kept: Option<&Kept>) -> Result<LogView, Error> {
    let settings = kafka_settings(config, "onceonly-status")?;
    let mut topics: Vec<String> = kept
        .iter()
        .flat_map(|kept| &kept.positions)
        .map(|position| position.topic.to_string())
        .collect();
    topics.dedup();
    KafkaLog::open(&settings, KAFKA_TIMEOUT)?.look(topics).await
}

async fn ping(config: &Config) -> Option<Result<RedisReport, Error>> {
    let redis = config.redis.as_ref()?;
    Some(redis::report(redis.url.expose(), redis.timeout).await)
}
