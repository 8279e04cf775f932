//! `onceonly pipeline adopt`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use onceonly::ledger::postgres::report::Observer;
use onceonly::ledger::postgres::{Difference, adopt};
use onceonly::member::postgres_settings;
use serde::Serialize;

use super::confirm::{Answer, confirm};
use super::{Global, output, run};

/// Accept a changed pipeline
#[derive(Debug, Args)]
pub(crate) struct Pipeline {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Adopt(Adopt),
}

impl Pipeline {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Adopt(adopt) => adopt.run(global).await,
        }
    }
}

/// Accept the configuration's group, identity, scope, retention and handler over the recorded ones
///
/// `onceonly run` refuses a pipeline whose fingerprint differs from the recorded one, so that two
/// services cannot suppress each other's events, and a changed identity does not apply a topic
/// again unnoticed. This accepts the difference, and records who did it in the table audit.
#[derive(Debug, Args)]
struct Adopt {
    /// Accept without asking
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Adopted<'a> {
    pipeline: &'a str,
    /// What was changed.
    changed: Vec<Difference>,
}

impl Adopt {
    async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        let configured = run::fingerprint(&config)?;
        let settings = postgres_settings(&config, "onceonly pipeline adopt");
        let mut observer = Observer::connect(&settings, &config.pipeline).await?;
        let recorded = observer.fingerprint().await?;
        drop(observer);
        let differences = recorded.differences(&configured);
        let mut changed = Vec::new();
        if !differences.is_empty() {
            eprint!("{}", consequences(&config.pipeline, &differences));
            if confirm("They replace what is recorded.", self.yes)? == Answer::No {
                eprintln!("nothing was changed");
                return Ok(ExitCode::FAILURE);
            }
            changed = adopt(&settings, &configured).await?;
        }
        if self.json {
            output::print_json(&Adopted {
                pipeline: &config.pipeline,
                changed,
            })?;
        } else {
            output::print(&told(&config.pipeline, &changed))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn consequences(pipeline: &str, differences: &[Difference]) -> String {
    let mut text = format!("pipeline {pipeline} would change:\n");
    for difference in differences {
        let Difference {
            field,
            recorded,
            configured,
        } = difference;
        text.push_str(&format!("  {field}: {recorded} -> {configured}\n"));
        text.push_str(&format!("    {}\n", consequence(field)));
    }
    text
}

/// What accepting a field's change means.
fn consequence(field: &str) -> &'static str {
    match field {
        "identity.from" | "identity.scope" => {
            "events that are read again have other ids, and are applied again"
        }
        "kafka.group" => "positions stay; another group may still be running under the old name",
        "dedup.retention" => "ids older than that may be forgotten",
        "handler.kind" => "the ids applied by the old handler stay applied",
        _ => "marks in Redis are forgotten; positions are compared when they are claimed",
    }
}

fn told(pipeline: &str, changed: &[Difference]) -> String {
    if changed.is_empty() {
        return format!("pipeline {pipeline} is as it is recorded; there is nothing to adopt\n");
    }
    let mut table = output::table();
    table.set_header(["field", "was", "is"]);
    for difference in changed {
        let Difference {
            field,
            recorded,
            configured,
        } = difference;
        table.add_row([field, recorded.as_str(), configured]);
    }
    format!("pipeline {pipeline} was changed:\n\n{}\n", table.trim_fmt())
}
