//! `onceonly migrate`.

use std::process::ExitCode;

use clap::Args;
use onceonly::ledger::postgres::migrate;
use onceonly::member::postgres_settings;

use super::{Global, output};

/// Create or update onceonly's own tables; safe to run again, and by several at once
#[derive(Debug, Args)]
pub(crate) struct Migrate {}

impl Migrate {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        migrate(&postgres_settings(&config, "onceonly migrate")).await?;
        output::print(&format!(
            "schema {} is up to date\n",
            config.postgres.schema
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
