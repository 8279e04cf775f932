//! `onceonly bench`: what this machine can do, and how much of it the product does.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum as _};

use super::output;
use super::progress::Progress;
use super::signals::Signals;

mod baseline;
mod database;
mod duplicates;
mod events;
mod finding;
mod latency;
mod machine;
mod measured;
mod memory;
mod product;
mod report;
mod rounds;
mod scenario;
mod spread;
mod stage;
mod usage;

use report::Report;
use rounds::Plan;
use scenario::Scenario;
use stage::Stage;

/// Measure how many events a second this machine takes, and compare that with its limits
///
/// Runs the consumer as a process of its own, with default settings, over a topic that is filled
/// beforehand, and in turn with it what it is made of: bare copies into Postgres, a bare consumer,
/// bare marks in Redis, and the usual way of a transaction for each event. Uses Kafka, Redis and
/// Postgres at KAFKA_BROKERS, REDIS_URL and DATABASE_URL, else the addresses of compose/stack, with
/// topics, keys and a schema of its own, which it takes away at the end. Every event's effect is
/// checked. Build with --release, and leave the machine alone meanwhile.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// What to measure; may be repeated. Default: everything
    #[arg(long = "scenario", value_name = "NAME", value_enum)]
    scenarios: Vec<Scenario>,
    /// Events of each run
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(1_000..=2_000_000))]
    events: u32,
    /// How often each pair is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How many seconds Postgres stalls in the scenario memory
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    stall: u32,
    /// Kafka's addresses; default: KAFKA_BROKERS, else compose/stack
    #[arg(long, value_name = "HOST:PORT")]
    brokers: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Write the JSON object to a file as well
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Bench {
    /// Measures and reports. Whatever happens, it takes away what it made. That a goal is missed is
    /// a result and no failure; a wrong effect is one.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new()?;
        let plan = Plan {
            scenarios: self.scenarios(),
            events: self.events,
            rounds: self.rounds,
            stall: Duration::from_secs(self.stall.into()),
        };
        let mut stage = Stage::new(self.brokers.clone())?;
        let mut progress = Progress::new();
        let measured = tokio::select! {
            measured = rounds::measure(&mut stage, &plan, &mut progress) => {
                measured.map_err(|error| stage.with_log(error))
            }
            name = signals.next() => Err(anyhow::anyhow!("interrupted by {name}")),
        };
        progress.end();
        let cleared = stage.clear().await;
        if let (Err(_), Err(error)) = (&measured, &cleared) {
            eprintln!("error: {error:#}");
        }
        self.print(&measured?)?;
        cleared?;
        Ok(ExitCode::SUCCESS)
    }

    /// Each once, in the order of their list.
    fn scenarios(&self) -> Vec<Scenario> {
        let all = Scenario::value_variants().iter().copied();
        all.filter(|scenario| self.scenarios.is_empty() || self.scenarios.contains(scenario))
            .collect()
    }

    fn print(&self, report: &Report) -> anyhow::Result<()> {
        if let Some(path) = &self.output {
            let json = serde_json::to_string_pretty(&report.json())?;
            std::fs::write(path, json + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        match self.json {
            true => output::print_json(&report.json()),
            false => output::print(&format!("\n{}", report.text())),
        }
    }
}
