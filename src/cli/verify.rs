//! `onceonly verify`.

use std::process::ExitCode;

use clap::Args;
use onceonly::place::LogPlaces;
use onceonly::verify::{self, Progress as Far, Request, VerifyError};

use super::progress::Progress;
use super::{Global, Usage, output};

mod text;

/// Compare a range of the log with the ledger, the failed events and the effects
///
/// Every record below the pipeline's position must be applied, waiting for another attempt, a dead
/// letter, or passed over by the configuration. What is not is a finding: missing, or contradictory
/// where what is known of an id excludes itself. Exit code 1: there is a finding, or nothing could
/// be compared.
///
/// With --effects the effects are compared too: an id that is applied must have one, any other
/// none, and an effect whose id is unknown, or one more than its event has, is extra. Under
/// identity.scope = "topic" the query must list those of the topic alone; ids that are null are
/// left out.
///
/// It may run beside the pipeline. It writes nothing, joins no group and commits no offset.
/// Records before the horizon are not compared: their ids may be forgotten.
///
/// Places are written: earliest, latest, an offset, a time such as 2026-01-31T09:00:00Z, or a time
/// ago such as -24h; for each partition 0:100,1:250, where those not named keep the default. Ends
/// are exclusive.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The topic; all of the pipeline's if none is named
    #[arg(long)]
    topic: Option<String>,
    /// Only these partitions, such as 0,3
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(i32).range(0..)
    )]
    partitions: Vec<i32>,
    /// Where to begin; by default where the log and the ledger's memory do
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    from: Option<LogPlaces>,
    /// Where to end; by default, and at most, at the position
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    to: Option<LogPlaces>,
    /// A query of one column, the event's id, with a row for each effect
    #[arg(long, value_name = "SQL")]
    effects: Option<String>,
    /// List at most so many findings; all are counted
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        let request = Request {
            topic: self.topic,
            partitions: self.partitions.into_iter().collect(),
            from: self.from,
            to: self.to,
            effects: self.effects,
            limit: self.limit as usize,
        };
        let mut progress = Progress::new();
        let compared = verify::verify(&config, &request, |far| show(&mut progress, far)).await;
        progress.end();
        let report = compared.map_err(|error| match error {
            VerifyError::Usage(sentence) => anyhow::Error::new(Usage(sentence)),
            VerifyError::Failed(error) => anyhow::Error::new(error),
        })?;
        match self.json {
            true => output::print_json(&report)?,
            false => output::print(&text::text(&report))?,
        }
        Ok(match report.is_clean() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn show(progress: &mut Progress, far: Far) {
    match far {
        Far::Begun(offsets) => progress.begin(offsets),
        Far::Read(offsets) => progress.set(offsets, "offsets compared"),
        Far::Effects => {
            progress.end();
            progress.say("comparing effects");
        }
        Far::BeforeHorizon => {
            progress.end();
            progress
                .say("reading what lies before the horizon, for the first copies of missing ids");
        }
    }
}
