//! A Postgres of a test's own, to break, and asynchronous replicas of it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tempfile::TempDir;

use super::{PATIENCE, free_port};

/// A server on a free port with its data in a folder of its own; both end with the handle.
pub struct PostgresServer {
    port: u16,
    folder: TempDir,
    process: Option<Child>,
}

impl PostgresServer {
    /// Makes a cluster, starts it and waits until it answers.
    pub async fn start() -> Self {
        let mut server = Self::absent();
        let data = server.data();
        server.tool("initdb", |command| {
            command
                .args(["-U", "onceonly", "--auth=trust", "--encoding=UTF8"])
                .args(["--locale=C.UTF-8", "--no-sync", "-D"])
                .arg(&data);
        });
        server.up().await;
        server
    }

    /// Makes a copy that streams every commit some time after it was made, and waits until it
    /// answers.
    pub async fn replica(&self) -> Self {
        let mut replica = Self::absent();
        let (data, port) = (replica.data(), self.port.to_string());
        replica.tool("pg_basebackup", |command| {
            command
                .args(["-h", "127.0.0.1", "-p", &port, "-U", "onceonly", "-R"])
                .args([
                    "--checkpoint=fast",
                    "--wal-method=stream",
                    "--no-sync",
                    "-D",
                ])
                .arg(&data);
        });
        replica.up().await;
        replica
    }

    fn absent() -> Self {
        let folder = TempDir::with_prefix("onceonly-postgres-").expect("a temporary folder");
        if is_root() {
            let owned = Command::new("chown")
                .arg("postgres:")
                .arg(folder.path())
                .status();
            assert!(owned.is_ok_and(|status| status.success()));
        }
        Self {
            port: free_port(),
            folder,
            process: None,
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs one of Postgres's programs to its end, and returns what it wrote.
    fn tool(&self, program: &str, arguments: impl FnOnce(&mut Command)) -> Vec<u8> {
        let mut command = program_of_postgres(program, self.folder.path());
        arguments(&mut command);
        let output = command.output().expect("a program of Postgres");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {complaint}");
        output.stdout
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address of a database, as a client wants it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://onceonly:onceonly@{}/{database}", self.address())
    }

    /// Starts it and waits until it answers.
    pub async fn up(&mut self) {
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log");
        let process = program_of_postgres("postgres", self.folder.path())
            .args(["-c", "listen_addresses=127.0.0.1", "-c"])
            .args(["unix_socket_directories=", "-c", "max_connections=50"])
            .args(["-p", &self.port.to_string(), "-D"])
            .arg(self.data())
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .expect("a server");
        self.process = Some(process);
        let begun = Instant::now();
        while self.try_value("select true").await != Some(true) {
            let exited = self.process.as_mut().map(Child::try_wait);
            assert!(
                matches!(exited, Some(Ok(None))) && begun.elapsed() < PATIENCE,
                "Postgres does not come up: {exited:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it at once, without a checkpoint, and every session with it: what was committed comes
    /// back from its log when it starts.
    pub fn crash(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let sent = Command::new("kill")
            .args(["-s", "QUIT", &process.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()));
        process.wait().expect("an exit");
    }

    /// Has a replica receive nothing more; what it has received already it keeps.
    pub async fn stop_receiving(&self) {
        self.run("alter system set primary_conninfo = ''").await;
        self.run("select pg_reload_conf()").await;
        self.until("select count(*) = 0 from pg_stat_wal_receiver")
            .await;
    }

    /// Makes a replica the primary.
    pub async fn promote(&self) {
        self.run("select pg_promote()").await;
        self.until("select not pg_is_in_recovery()").await;
    }

    /// What `pg_dump` writes of a database.
    pub fn dump(&self, database: &str) -> Vec<u8> {
        let url = self.url(database);
        self.tool("pg_dump", |command| {
            command.args(["--format=custom", "-d", &url]);
        })
    }

    /// Puts a dump into a database, in place of what is there.
    pub fn restore(&self, dump: &[u8], database: &str) {
        let file = self.folder.path().join("dump");
        std::fs::write(&file, dump).expect("a dump written");
        let url = self.url(database);
        self.tool("pg_restore", |command| {
            command
                .args(["--clean", "--if-exists", "--exit-on-error", "-d", &url])
                .arg(&file);
        });
    }

    /// Runs a statement.
    pub async fn run(&self, statement: &str) {
        let mut connection = self.options().connect().await.expect("a connection");
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
        connection.close().await.expect("a closed connection");
    }

    async fn until(&self, condition: &str) {
        let begun = Instant::now();
        while self.try_value(condition).await != Some(true) {
            assert!(begun.elapsed() < PATIENCE, "never came true: {condition}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn try_value(&self, query: &str) -> Option<bool> {
        let mut connection = self.options().connect().await.ok()?;
        let value = sqlx::query_scalar(AssertSqlSafe(query.to_owned()))
            .fetch_one(&mut connection)
            .await;
        value.ok()
    }

    fn options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.url("postgres")).expect("an address")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.crash();
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|of| of.uid() == 0)
}

/// Postgres refuses to run as root: then it runs as the user of its package, and `setpriv` becomes
/// the program, so that the process is the one we know.
fn program_of_postgres(program: &str, folder: &Path) -> Command {
    let path = bin().join(program);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--init-groups"])
            .arg(path);
        command
    } else {
        Command::new(path)
    };
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// The programs of the newest version there is.
fn bin() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter();
    let newest = versions
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .expect(
            "Postgres's programs in /usr/lib/postgresql; `compose/stack up postgres` installs them",
        );
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"))
}
