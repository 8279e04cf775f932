//! `onceonly position set`.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use onceonly::event::TopicPartition;
use onceonly::ledger::postgres::report::Observer;
use onceonly::ledger::postgres::{PositionSet, position_set};
use onceonly::member::{kafka_settings, postgres_settings};
use onceonly::place::{LogPlace, LogPlaces};
use onceonly::source::kafka::KafkaLog;
use serde::Serialize;

use super::confirm::{Answer, confirm};
use super::{Global, KAFKA_TIMEOUT, Usage, output};

mod plan;

use plan::{Change, plan};

/// Decide where partitions go on
#[derive(Debug, Args)]
pub(crate) struct Position {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Set(Set),
}

impl Position {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Set(set) => set.run(global).await,
        }
    }
}

/// Set where partitions go on; a running member does so within seconds
///
/// The way past a position that a member refused. Whoever owns the partition is fenced and claims
/// it again. Forward, records are passed over and never applied: that is asked about, unless the
/// log does not hold them any more. Backward, records are read again, and ids that are known stay
/// duplicates. Places outside of the log are refused. What was set is recorded in the table audit.
///
/// Places are written: earliest, latest, an offset, a time such as 2026-01-31T09:00:00Z, or a time
/// ago such as -24h.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["partition", "partitions"])))]
struct Set {
    /// The topic
    #[arg(long)]
    topic: String,
    /// One partition
    #[arg(long, requires = "to", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Where it goes on
    #[arg(
        long,
        value_name = "PLACE",
        requires = "partition",
        allow_hyphen_values = true
    )]
    to: Option<LogPlace>,
    /// Several partitions and where each goes on, such as 0:100,1:earliest
    #[arg(long, value_name = "PARTITION:PLACE,…", conflicts_with = "to")]
    partitions: Option<LogPlaces>,
    /// Go back even behind the horizon: ids before it are forgotten, and their events are applied
    /// again
    #[arg(long)]
    behind_horizon: bool,
    /// Pass over records without asking
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    pipeline: &'a str,
    positions: &'a [PositionSet],
}

impl Set {
    async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        let places = self.places()?;
        let postgres = postgres_settings(&config, "onceonly position set");
        let mut observer = Observer::connect(&postgres, &config.pipeline).await?;
        let rows = observer.positions().await?;
        drop(observer);
        let rows = plan::chosen(&config.pipeline, &self.topic, &places, rows)?;
        let kafka = KafkaLog::open(
            &kafka_settings(&config, "onceonly-position-set")?,
            KAFKA_TIMEOUT,
        )?;
        let changes = plan(&kafka, &self.topic, &places, &rows).await?;
        drop(kafka);
        self.refuse_forgotten(&changes)?;
        for change in &changes {
            eprintln!("{change}");
        }
        if changes.iter().any(|change| change.passed_over() > 0)
            && confirm("Records that are passed over are never applied.", self.yes)? == Answer::No
        {
            eprintln!("nothing was changed");
            return Ok(ExitCode::FAILURE);
        }
        let mut done = Vec::new();
        let mut failed = Ok(());
        for change in &changes {
            let at = TopicPartition::new(self.topic.as_str(), change.partition);
            match position_set(&postgres, &config.pipeline, &at, change.to, change.log()).await {
                Ok(set) => done.push(set),
                Err(error) => {
                    failed = Err(anyhow::Error::new(error).context(format!(
                        "partition {at} was not set, nor any behind it; {} were",
                        done.len()
                    )));
                    break;
                }
            }
        }
        self.print(&config.pipeline, &done)?;
        failed.map(|()| ExitCode::SUCCESS)
    }

    /// Each partition with its place.
    fn places(&self) -> anyhow::Result<Vec<(i32, LogPlace)>> {
        match (&self.partitions, self.partition.zip(self.to)) {
            (Some(LogPlaces::Each(places)), _) => Ok(places.clone().into_iter().collect()),
            (Some(LogPlaces::All(place)), _) => Err(Usage(format!(
                "--partitions {place} names no partition: write 0:{place}, or --partition 0 --to \
                 {place}"
            ))
            .into()),
            (None, Some(one)) => Ok(vec![one]),
            (None, None) => Err(Usage("name a partition with --partition".to_owned()).into()),
        }
    }

    fn refuse_forgotten(&self, changes: &[Change]) -> anyhow::Result<()> {
        match changes.iter().find(|change| change.to < change.horizon) {
            Some(change) if !self.behind_horizon => anyhow::bail!(
                "{}/{}: {} lies behind the horizon {}: ids of records before it may be forgotten, \
                 and their events would be applied again. Nothing was changed; go back to {} at \
                 most, or add --behind-horizon",
                self.topic,
                change.partition,
                change.to,
                change.horizon,
                change.horizon,
            ),
            _ => Ok(()),
        }
    }

    fn print(&self, pipeline: &str, positions: &[PositionSet]) -> anyhow::Result<()> {
        if self.json {
            return output::print_json(&Report {
                pipeline,
                positions,
            });
        }
        if positions.is_empty() {
            return Ok(());
        }
        let mut table = output::table();
        table.set_header(["partition", "was", "is", "was stopped"]);
        for set in positions {
            table.add_row([
                format!("{}/{}", set.topic, set.partition),
                set.before.to_string(),
                set.after.to_string(),
                match set.stopped_before {
                    Some(_) => "yes".to_owned(),
                    None => "no".to_owned(),
                },
            ]);
        }
        output::print(&format!("{}\n", table.trim_fmt()))
    }
}
