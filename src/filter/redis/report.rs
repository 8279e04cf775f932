//! How a Redis answers, for commands.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::session;
use crate::error::Error;

/// The least time that an answer gets before the server counts as silent.
const ANSWER_LIMIT_MIN: Duration = Duration::from_secs(1);

/// How a Redis answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisReport {
    /// The server's version; empty where it does not tell.
    pub version: String,
    /// How long it took to answer a ping.
    pub ping: Duration,
    /// The policy by which it drops keys before they expire, if it may.
    pub evicts_by: Option<String>,
}

/// Connects and pings once. `answer_timeout` is that of the pipeline: an answer that takes longer
/// is reported with the time that it took, within a second.
///
/// Transient where the server does not answer or refuses, fatal where the URL cannot be read.
pub async fn report(url: &str, answer_timeout: Duration) -> Result<RedisReport, Error> {
    // The URL may hold a password and is not repeated.
    let client = session::client(url)
        .map_err(|error| Error::fatal(format!("redis.url is no address of a Redis ({error})")))?;
    let connected = session::connect(&client, answer_timeout).await;
    let (mut connection, server) =
        connected.map_err(|error| Error::transient(error.to_string()))?;
    let limit = answer_timeout.max(ANSWER_LIMIT_MIN);
    let begun = Instant::now();
    let ping = ::redis::cmd("PING");
    match timeout(limit, ping.query_async::<()>(&mut connection)).await {
        Ok(Ok(())) => Ok(RedisReport {
            version: server.version,
            ping: begun.elapsed(),
            evicts_by: server.evicts_by,
        }),
        Ok(Err(error)) => Err(Error::transient(error.to_string())),
        Err(_) => Err(Error::transient(format!("no answer within {limit:?}"))),
    }
}
