//! Logs on standard error, as text or JSON.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use super::Usage;

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Starts to write logs. What is written is chosen by `ONCEONLY_LOG`, or else `RUST_LOG`, such as
/// `debug` or `info,onceonly::source=debug`; without either, `info` and above.
pub(crate) fn start(format: Format) -> anyhow::Result<()> {
    let filter = ["ONCEONLY_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| Some((name, std::env::var(name).ok()?)))
        .filter(|(_, filter)| !filter.is_empty());
    let filter = match filter {
        Some((name, filter)) => EnvFilter::try_new(&filter).map_err(|error| {
            Usage(format!(
                "{name} is `{filter}`, which is no filter such as `debug`: {error}"
            ))
        })?,
        None => EnvFilter::new("info"),
    };
    let is_colored = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_colored);
    match format {
        Format::Text => logs.init(),
        Format::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}
