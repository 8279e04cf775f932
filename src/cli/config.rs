//! `onceonly config check` and `config example`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use onceonly::config::{ConfigError, EXAMPLE, Guarantee};
use serde::Serialize;

use super::{Global, output};

/// Check a configuration and say what it promises, or print an example
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check the configuration and say in plain words what it promises; touches no server
    Check {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print an example with comments, whose every value is the default
    Example,
}

impl Config {
    pub(crate) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Check { json: false } => check(global),
            Action::Check { json: true } => check_json(global),
            Action::Example => {
                output::print(EXAMPLE)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

fn check(global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.configuration()?;
    let guarantee = Guarantee::of(&config);
    let mut table = output::table();
    table.add_row(["pipeline", &config.pipeline]);
    for (label, sentence) in [
        ("effects in Postgres", &guarantee.effects_in_postgres),
        ("effects outside", &guarantee.effects_outside),
        ("identity", &guarantee.identity),
        ("window", &guarantee.window),
        ("Redis", &guarantee.redis),
        ("start", &guarantee.start),
    ] {
        table.add_row([label, sentence]);
    }
    for warning in &guarantee.warnings {
        table.add_row(["warning", warning]);
    }
    for sentence in &guarantee.unsupported {
        table.add_row(["not yet", sentence]);
    }
    output::print(&format!(
        "The configuration is valid.\n\n{}\n",
        table.trim_fmt()
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Report {
    valid: bool,
    problems: Vec<String>,
    #[serde(flatten)]
    guarantee: Option<Guarantee>,
    config: Option<onceonly::config::Config>,
}

fn check_json(global: &Global) -> anyhow::Result<ExitCode> {
    match global.configuration() {
        Ok(config) => {
            output::print_json(&Report {
                valid: true,
                problems: Vec::new(),
                guarantee: Some(Guarantee::of(&config)),
                config: Some(config.resolved()),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            let problems = match error.downcast_ref() {
                Some(ConfigError::Invalid(problems)) => problems.clone(),
                _ => vec![super::sentence(&error)],
            };
            output::print_json(&Report {
                valid: false,
                problems,
                guarantee: None,
                config: None,
            })?;
            Ok(ExitCode::from(super::exit_code(&error)))
        }
    }
}
