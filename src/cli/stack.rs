//! Where Kafka, Redis and Postgres are for commands without a configuration: as the environment
//! says, else where `compose/stack` has them.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::time::timeout;

/// The addresses of `compose/stack`.
const STACK_BROKERS: &str = "127.0.0.1:29092";
const STACK_REDIS: &str = "redis://127.0.0.1:26379";
const STACK_POSTGRES: &str = "postgres://onceonly:onceonly@127.0.0.1:25432/onceonly";

/// How long Redis may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to try to connect to Postgres.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Kafka's addresses.
pub(super) fn brokers() -> String {
    address("KAFKA_BROKERS", STACK_BROKERS)
}

/// Where Redis is.
pub(super) fn redis_url() -> String {
    address("REDIS_URL", STACK_REDIS)
}

/// Where Postgres is.
pub(super) fn postgres_url() -> String {
    address("DATABASE_URL", STACK_POSTGRES)
}

fn address(variable: &str, otherwise: &str) -> String {
    std::env::var(variable)
        .ok()
        .filter(|address| !address.is_empty())
        .unwrap_or_else(|| otherwise.to_owned())
}

/// Connects to Redis; fails with advice if it does not answer.
pub(super) async fn connect_redis(url: &str) -> anyhow::Result<redis::aio::MultiplexedConnection> {
    let advice = "there is no Redis: run `make stack-up`, or set REDIS_URL to another one";
    let client = redis::Client::open(url)
        .context("REDIS_URL is no address such as redis://localhost:6379")?;
    let ping = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("PING").exec_async(&mut connection).await?;
        Ok::<_, redis::RedisError>(connection)
    };
    timeout(ANSWER_TIMEOUT, ping)
        .await
        .context(advice)?
        .context(advice)
}

/// Connects to Postgres under a name that its operator sees; fails with advice if it does not
/// answer.
pub(super) async fn connect_postgres(
    url: &str,
    name: &str,
    options: &[(&str, &str)],
) -> anyhow::Result<PgConnection> {
    let options = PgConnectOptions::from_str(url)
        .context("DATABASE_URL is no address such as postgres://user:password@host:port/database")?
        .application_name(name)
        .options(options.iter().copied());
    let place = format!(
        "{}:{}/{}",
        options.get_host(),
        options.get_port(),
        options.get_database().unwrap_or_default()
    );
    let advice = || {
        format!(
            "there is no Postgres at {place}: run `make stack-up`, or set DATABASE_URL to another one"
        )
    };
    let connecting = options.disable_statement_logging();
    timeout(CONNECT_TIMEOUT, connecting.connect())
        .await
        .with_context(advice)?
        .with_context(advice)
}
