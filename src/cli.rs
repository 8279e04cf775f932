//! The command line: one file for each command, one line for it in [`Command`] and one where it runs.
//!
//! Results go to standard output, logs and progress to standard error. Exit codes: 0 done, 1 failed,
//! 2 bad usage or configuration.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use onceonly::config::{Config as Configuration, ConfigError, Layers};
use onceonly::http::ListenError;

mod bench;
mod config;
mod confirm;
mod dead_letters;
mod demo;
mod kafka;
mod lifeline;
mod logs;
mod migrate;
mod mock_broker;
mod output;
mod pipeline;
mod position;
mod produce;
mod progress;
mod run;
mod signals;
mod stack;
mod status;
mod verify;
mod worker;

/// How long a command waits for each answer of Kafka.
pub(crate) const KAFKA_TIMEOUT: Duration = Duration::from_secs(5);

/// Gives every event of a Kafka topic exactly one effect in Postgres.
#[derive(Debug, Parser)]
#[command(name = "onceonly", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The pipeline's configuration, in TOML; `onceonly config example` prints one
    #[arg(long, global = true, value_name = "FILE", env = "ONCEONLY_CONFIG")]
    config: Option<PathBuf>,
    /// Set one key of the configuration, over file and variables, such as limits.workers=4
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// How logs are written to standard error
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "ONCEONLY_LOG_FORMAT"
    )]
    log_format: logs::Format,
}

impl Global {
    /// The configuration from file, variables and flags, each over the one before.
    pub(crate) fn configuration(&self) -> anyhow::Result<Configuration> {
        let read = || {
            let layers = match &self.config {
                Some(path) => Layers::new().file(path)?,
                None => Layers::new(),
            };
            let set = |layers: Layers, (key, value): &(String, String)| layers.set(key, value);
            self.set.iter().fold(layers.environment()?, set).config()
        };
        match (read(), &self.config) {
            (Err(error), None) => Err(error).context("no --config FILE was given"),
            (read, _) => Ok(read?),
        }
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write KEY=VALUE, such as limits.workers=4".into()),
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Status(status::Status),
    Verify(verify::Verify),
    DeadLetters(dead_letters::DeadLetters),
    Position(position::Position),
    Pipeline(pipeline::Pipeline),
    Migrate(migrate::Migrate),
    Config(config::Config),
    Demo(demo::Demo),
    Bench(bench::Bench),
    #[command(hide = true)]
    MockBroker(mock_broker::MockBroker),
    /// The same as run, until standard input ends
    #[command(hide = true)]
    DemoWorker(run::Run),
}

impl Command {
    async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(command) => command.run(global).await,
            Self::Status(command) => command.run(global).await,
            Self::Verify(command) => command.run(global).await,
            Self::DeadLetters(command) => command.run(global).await,
            Self::Position(command) => command.run(global).await,
            Self::Pipeline(command) => command.run(global).await,
            Self::Migrate(command) => command.run(global).await,
            Self::Config(command) => command.run(global),
            Self::Demo(command) => command.run().await,
            Self::Bench(command) => command.run().await,
            Self::MockBroker(command) => command.run(),
            Self::DemoWorker(command) => {
                lifeline::end_by_signal()?;
                command.run(global).await
            }
        }
    }
}

/// A command that was called in a way that makes no sense: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Runs the command that the process was called with.
pub(crate) fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    run(&global, command).unwrap_or_else(|error| {
        eprintln!("error: {}", sentence(&error));
        ExitCode::from(exit_code(&error))
    })
}

fn run(global: &Global, command: Command) -> anyhow::Result<ExitCode> {
    logs::start(global.log_format)?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(command.run(global))
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let is_usage = error.is::<ConfigError>() || error.is::<ListenError>() || error.is::<Usage>();
    if is_usage { 2 } else { 1 }
}

/// The chain of causes as one sentence, without those that the message before tells already: those
/// it holds, and what an error of Postgres was made of, which the driver words otherwise.
fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    let mut told = false;
    for cause in error.chain() {
        if told && cause.is::<sqlx::Error>() {
            break;
        }
        told |= cause.is::<onceonly::error::Error>();
        let cause = cause.to_string();
        if sentence.is_empty() {
            sentence = cause;
        } else if !sentence.contains(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

#[cfg(test)]
mod tests {
    use onceonly::error::Error;

    use super::*;

    #[test]
    fn a_cause_is_told_once_and_never_lost() {
        let lost = || sqlx::Error::Protocol("nonsense".into());
        let bare = anyhow::Error::new(lost()).context("cannot read the positions");
        assert_eq!(
            sentence(&bare),
            "cannot read the positions: encountered unexpected or invalid data: nonsense"
        );
        let ours = Error::fatal("the statement is wrong").caused_by(lost());
        let ours = anyhow::Error::new(ours).context("running");
        assert_eq!(sentence(&ours), "running: the statement is wrong");
    }
}
