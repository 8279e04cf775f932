//! Logs on standard error, as text or JSON.

use onceonly::telemetry::{LogError, start_logs};

use super::Usage;

pub(crate) use onceonly::telemetry::LogFormat as Format;

/// Starts to write logs; a filter in the environment that cannot be read is bad usage.
pub(crate) fn start(format: Format) -> anyhow::Result<()> {
    start_logs(format).map_err(|error| match error {
        LogError::Filter { .. } => Usage(error.to_string()).into(),
        LogError::Started(_) => error.into(),
    })
}
