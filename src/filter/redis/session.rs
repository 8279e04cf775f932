//! Makes a connection, and learns what the server behind it is like.

use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use ::redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, Pipeline, RedisResult, Value,
    from_redis_value_ref,
};

use super::failure::{Failure, Kind};
use super::keys::ClaimStyle;

/// A connection takes several round trips (TCP, TLS, authentication, a look at the server) and is
/// made beside the line, which never waits for it longer than for an answer.
const CONNECT_ROUND_TRIPS: u32 = 5;
const CONNECT_LIMIT_MIN: Duration = Duration::from_secs(1);

/// A server that vanished without a word is noticed even on an idle connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// Requests that may wait to be written.
const REQUESTS_QUEUED: usize = 64;

/// What a server says of itself, where it says it.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) version: String,
    /// The policy by which it drops keys before they expire, if it may.
    pub(super) evicts_by: Option<String>,
}

impl Server {
    pub(super) fn claim_style(&self) -> ClaimStyle {
        let major = self.version.split('.').next().unwrap_or_default();
        match major.parse() {
            Ok(0..7) => ClaimStyle::SetThenGet,
            _ => ClaimStyle::SetGet,
        }
    }
}

/// Reads an address; connects to nothing.
pub(super) fn client(url: &str) -> RedisResult<Client> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(UNACKNOWLEDGED_MAX);
    Client::open(url.into_connection_info()?.set_tcp_settings(tcp))
}

/// Connects, authenticates and looks at the server. `timeout` is that of one round trip.
pub(super) async fn connect(
    client: &Client,
    timeout: Duration,
) -> Result<(MultiplexedConnection, Server), Failure> {
    let limit = (timeout * CONNECT_ROUND_TRIPS).max(CONNECT_LIMIT_MIN);
    // Requests are bounded by whoever waits for them, over several of them at once.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(REQUESTS_QUEUED);
    let connecting = async {
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| Failure::connect(&error))?;
        let server = look_at(&mut connection).await?;
        Ok((connection, server))
    };
    let late = |_| Failure::new(Kind::Connect, format!("no connection within {limit:?}"));
    tokio::time::timeout(limit, connecting)
        .await
        .map_err(late)?
}

async fn look_at(connection: &mut MultiplexedConnection) -> Result<Server, Failure> {
    let mut infos = Pipeline::new();
    infos.cmd("INFO").arg("server").cmd("INFO").arg("memory");
    let replies = connection
        .req_packed_commands(&infos, 0, infos.len())
        .await
        .map_err(|error| Failure::connect(&error))?;
    // A server may refuse to tell: then nothing is known of it, and it works all the same.
    let text = |reply: &Value| from_redis_value_ref::<String>(reply).unwrap_or_default();
    Ok(read_info(&replies.iter().map(text).collect::<String>()))
}

fn read_info(info: &str) -> Server {
    let field = |name: &str| {
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(field, _)| *field == name)
            .map(|(_, value)| value.trim())
    };
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
    Server {
        version: field("redis_version").unwrap_or_default().to_owned(),
        evicts_by: policy.filter(|_| bounded).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str, maxmemory: &str, policy: &str) -> Server {
        read_info(&format!(
            "# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n\
             # Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"
        ))
    }

    #[test]
    fn only_a_bounded_memory_evicts() {
        let evicts = |maxmemory, policy| info("7.0.15", maxmemory, policy).evicts_by;
        assert_eq!(
            evicts("1000", "allkeys-lru").as_deref(),
            Some("allkeys-lru")
        );
        assert_eq!(
            evicts("1000", "volatile-ttl").as_deref(),
            Some("volatile-ttl")
        );
        assert_eq!(evicts("0", "allkeys-lru"), None);
        assert_eq!(evicts("1000", "noeviction"), None);
    }

    #[test]
    fn servers_before_7_claim_in_two_steps() {
        let style = |version| info(version, "0", "noeviction").claim_style();
        assert_eq!(style("6.2.14"), ClaimStyle::SetThenGet);
        assert_eq!(style("7.0.0"), ClaimStyle::SetGet);
        assert_eq!(style("10.1.0"), ClaimStyle::SetGet);
        assert_eq!(read_info("").claim_style(), ClaimStyle::SetGet);
    }
}
