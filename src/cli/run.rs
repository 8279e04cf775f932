//! `onceonly run`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use onceonly::config::{Config, PayloadKind};
use onceonly::handler::Handler as _;
use onceonly::handler::sql::{PayloadKind as SqlPayload, SqlHandler, SqlSettings};
use onceonly::http::operator::Operator;
use onceonly::ledger::postgres::Fingerprint;
use onceonly::member::{self, Member};
use onceonly::shutdown::Shutdown;
use onceonly::telemetry::Exporter;

use super::{Global, Usage};

/// Consume events as one member of the group, until SIGTERM or Ctrl-C
#[derive(Debug, Args)]
pub(crate) struct Run {}

impl Run {
    pub(crate) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let config = global.configuration()?;
        if let Some(sentence) = config.unsupported().into_iter().next() {
            return Err(Usage(sentence).into());
        }
        let exporter = Exporter::install()?;
        let shutdown = Shutdown::watch(config.shutdown.timeout)?;
        let member = Member::join(&config, handler(&config)?)?;
        let operator = Operator {
            state: Arc::new(member.watch(shutdown.token())),
            heartbeats: member.health().heartbeats.clone(),
            exporter,
        };
        let server = operator.start(config.http.listen)?;
        let unfinished = shutdown.unfinished("the events in hand");
        let result = member.run(shutdown.token()).await;
        drop(unfinished);
        shutdown.finish();
        server.close();
        result?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What the database records of a pipeline, as this configuration has it.
pub(crate) fn fingerprint(config: &Config) -> anyhow::Result<Fingerprint> {
    if let Some(sentence) = config.unsupported().into_iter().next() {
        return Err(Usage(sentence).into());
    }
    let handler = handler(config)?;
    Ok(member::fingerprint(config, handler.name(), &handler.text()))
}

fn handler(config: &Config) -> anyhow::Result<SqlHandler> {
    let settings = SqlSettings {
        statements: config.handler.statements.clone(),
        payload: match config.handler.payload {
            PayloadKind::Json => SqlPayload::Json,
            PayloadKind::Text => SqlPayload::Text,
            PayloadKind::Bytes => SqlPayload::Bytes,
        },
        max_event_bytes: config.limits.max_event_bytes,
        schema: config.postgres.schema.clone(),
    };
    Ok(SqlHandler::new(settings)?)
}
