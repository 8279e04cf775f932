//! A Redis of a test's own, to break.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use super::{PATIENCE, free_port};

/// A `redis-server` on a free port with its data in a folder of its own; both end with the handle.
pub struct RedisServer {
    port: u16,
    folder: TempDir,
    options: Vec<String>,
    process: Option<Child>,
}

impl RedisServer {
    /// Starts a server with further options, such as `["--maxmemory", "3mb"]`, and waits until it
    /// answers.
    pub async fn start(options: &[&str]) -> Self {
        let mut server = Self::absent(options);
        server.up().await;
        server
    }

    /// A server that does not run yet.
    pub fn absent(options: &[&str]) -> Self {
        Self {
            port: free_port(),
            folder: TempDir::with_prefix("onceonly-redis-").expect("a temporary folder"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            process: None,
        }
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address as a client wants it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Starts it, empty, and waits until it answers.
    pub async fn up(&mut self) {
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &self.port.to_string()])
            .arg("--dir")
            .arg::<&Path>(self.folder.path())
            .args(&self.options)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server on PATH; `compose/stack up redis` installs it");
        self.process = Some(process);
        let begun = Instant::now();
        while std::net::TcpStream::connect(self.address()).is_err() {
            let exited = self.process.as_mut().map(Child::try_wait);
            assert!(
                matches!(exited, Some(Ok(None))) && begun.elapsed() < PATIENCE,
                "redis-server does not come up: {exited:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a process to kill");
            process.wait().expect("an exit");
        }
    }

    /// Stops it without closing anything (`SIGSTOP`).
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("a running server");
        let sent = Command::new("kill")
            .args([signal, &process.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()));
    }

    /// A connection to look behind the filter's back with.
    pub async fn admin(&self) -> MultiplexedConnection {
        admin(&self.url()).await
    }
}

/// A connection to look behind the filter's back with.
pub async fn admin(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    redis::Client::open(url)
        .expect("a URL of a Redis")
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("a connection to Redis")
}

/// Runs one command, such as `["CONFIG", "SET", "maxmemory", "1mb"]`.
pub async fn run<T: redis::FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &[&str],
) -> T {
    redis::cmd(command[0])
        .arg(&command[1..])
        .query_async(connection)
        .await
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
