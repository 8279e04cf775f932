//! `onceonly dead-letters`: events that failed for good.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Global;

mod list;
mod show;

/// Look at events that failed for good
#[derive(Debug, Args)]
pub(crate) struct DeadLetters {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::List),
    Show(show::Show),
}

impl DeadLetters {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::List(command) => command.run(global).await,
            Action::Show(command) => command.run(global).await,
        }
    }
}
