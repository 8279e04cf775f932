//! `onceonly demo`: the whole story in one command.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::output;
use super::progress::Progress;
use super::signals::Signals;

mod plan;
mod produce;
mod report;
mod schema;
mod stage;
mod story;
mod verdict;

use plan::Plan;
use stage::Stage;

/// Partitions of the demo's topic, unless an embedded Kafka needs more.
const PARTITIONS: u16 = 8;

/// Records that one partition of the embedded Kafka surely keeps: it drops the oldest beyond 5 MiB.
const EMBEDDED_RECORDS_MAX: u32 = 15_000;

/// Show 100,000 events, 30 % of them duplicates, take effect once each
///
/// Sends events to Kafka, lets two workers apply them to Postgres, kills one of them in the middle,
/// starts it again, and compares the effects with what was sent. Uses REDIS_URL and DATABASE_URL,
/// else the addresses of compose/stack, in a schema of its own, which it drops at the end.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How many records to send
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2_000..=1_000_000))]
    events: u32,
    /// Another seed gives other records
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// When Redis learns of an event: after its commit, or also before the work
    #[arg(long, value_enum, default_value_t)]
    mark: Mark,
    /// Use a real Kafka instead of an embedded one; without addresses KAFKA_BROKERS, else compose/stack
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = "", require_equals = false)]
    brokers: Option<String>,
    /// Keep schema, topic and logs, and say where they are
    #[arg(long)]
    keep: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Mark {
    /// Only after the commit
    #[default]
    After,
    /// A claim before the work, the mark after the commit
    Before,
}

impl Mark {
    /// As in `dedup.mark`.
    fn key(self) -> &'static str {
        match self {
            Self::After => "after",
            Self::Before => "before",
        }
    }
}

impl Demo {
    /// Runs the demo; exit code 1 unless every event had exactly one effect. Whatever happens, it
    /// takes away what it made.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let begun = Instant::now();
        let mut signals = Signals::new()?;
        let mut stage = Stage::new(self.mark.key(), self.brokers.as_deref())?;
        let mut progress = Progress::new();
        let partitions = partitions(self.events, self.brokers.is_none());
        let plan = Arc::new(Plan::new(self.events, partitions, self.seed));
        let told = tokio::select! {
            told = story::tell(&mut stage, &plan, &mut progress, begun) => {
                told.map_err(|error| stage.with_logs(error))
            }
            name = signals.next() => Err(anyhow::anyhow!("interrupted by {name}")),
        };
        progress.end();
        let cleared = if self.keep {
            stage.keep().await
        } else {
            stage.clear().await
        };
        if let (Err(_), Err(error)) = (&told, &cleared) {
            eprintln!("error: {error:#}");
        }
        let report = told?;
        match self.json {
            true => output::print_json(&report.json())?,
            false => output::print(&format!("\n{}", report.text()))?,
        }
        cleared?;
        Ok(if report.is_exactly_once() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// The topic's partitions.
fn partitions(records: u32, embedded: bool) -> u16 {
    match embedded {
        true => PARTITIONS.max(records.div_ceil(EMBEDDED_RECORDS_MAX) as u16),
        false => PARTITIONS,
    }
}
