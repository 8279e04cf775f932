//! A Postgres database of a test's own.

use std::str::FromStr;

use onceonly::ledger::Ledger;
use onceonly::ledger::postgres::{
    Fingerprint, PostgresLedger, PostgresSettings, Registered, migrate, register,
};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::service;

/// Created by the test, dropped with it.
pub struct Database {
    server: PgConnectOptions,
    name: String,
    /// Whether the server outlives the test.
    is_shared: bool,
}

impl Database {
    /// An empty database.
    pub async fn empty() -> Self {
        Self::with_options("").await
    }

    /// An empty database, created with further options.
    pub async fn with_options(options: &str) -> Self {
        Self::create(&service("DATABASE_URL"), options, true).await
    }

    /// A database with onceonly's tables on a server of the test's own, with which it ends.
    pub async fn migrated_at(server_url: &str) -> Self {
        let database = Self::create(server_url, "", false).await;
        migrate(&database.settings())
            .await
            .expect("a migrated schema");
        database
    }

    /// From now on the database of this name is meant.
    pub fn renamed(&mut self, name: &str) {
        self.name = name.to_owned();
    }

    async fn create(server_url: &str, options: &str, is_shared: bool) -> Self {
        let server = PgConnectOptions::from_str(server_url).expect("the address of a server");
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        execute(&server, &format!("create database {name} {options}")).await;
        Self {
            server,
            name,
            is_shared,
        }
    }

    /// From now on the database of this name on another server is meant.
    pub fn moved_to(&mut self, server_url: &str) {
        self.server = PgConnectOptions::from_str(server_url).expect("the address of a server");
    }

    /// A database with onceonly's tables.
    pub async fn migrated() -> Self {
        let database = Self::empty().await;
        migrate(&database.settings())
            .await
            .expect("a migrated schema");
        database
    }

    /// A database in which a pipeline is registered.
    pub async fn with_pipeline(pipeline: &str) -> Self {
        let database = Self::migrated().await;
        database.register(pipeline).await;
        database
    }

    /// Registers a pipeline.
    pub async fn register(&self, pipeline: &str) -> Registered {
        register(&self.settings(), &fingerprint(pipeline))
            .await
            .expect("a registered pipeline")
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How to connect.
    pub fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }

    /// The address, through another host and port where given.
    pub fn url_at(&self, address: &str) -> String {
        let url = self.server.to_url_lossy();
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        format!("postgres://{user}:{password}@{address}/{}", self.name)
    }

    /// The server's `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.server.get_host(), self.server.get_port())
    }

    /// The address.
    pub fn url(&self) -> String {
        self.url_at(&self.address())
    }

    /// Settings with the defaults.
    pub fn settings(&self) -> PostgresSettings {
        PostgresSettings::new(self.url())
    }

    /// A connected ledger.
    pub async fn ledger(&self, pipeline: &str) -> PostgresLedger {
        let mut ledger = PostgresLedger::new(self.settings(), pipeline);
        ledger.connect().await.expect("a connection");
        ledger
    }

    /// A connection that knows nothing of onceonly.
    pub async fn connection(&self) -> PgConnection {
        self.options().connect().await.expect("a connection")
    }

    /// Runs statements.
    pub async fn run(&self, statements: &str) {
        execute(&self.options(), statements).await;
    }

    /// The rows of a query.
    pub async fn rows(&self, query: &str) -> Vec<PgRow> {
        let mut connection = self.connection().await;
        sqlx::query(AssertSqlSafe(query.to_owned()))
            .fetch_all(&mut connection)
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// The only value of a query.
    pub async fn value<T>(&self, query: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        use sqlx::Row;
        let rows = self.rows(query).await;
        assert_eq!(rows.len(), 1, "{query}");
        rows[0].get(0)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.is_shared {
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(execute(
                &server,
                &format!("drop database if exists {name} with (force)"),
            ));
        });
        // A server that drops a database waits for every session, also for one that a task of this
        // runtime is about to open: the runtime must go on meanwhile.
        let wait = || _ = dropped.join();
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            _ => wait(),
        }
    }
}

async fn execute(options: &PgConnectOptions, statements: &str) {
    let mut connection = options.connect().await.expect("a connection");
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(&mut connection)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
    connection.close().await.expect("a closed connection");
}

/// A fingerprint like any other.
pub fn fingerprint(pipeline: &str) -> Fingerprint {
    Fingerprint {
        pipeline: pipeline.to_owned(),
        cluster: Some("cluster-1".to_owned()),
        consumer_group: pipeline.to_owned(),
        identity: "header:event-id".to_owned(),
        scope: "pipeline".to_owned(),
        retention: std::time::Duration::from_secs(7 * 24 * 3600),
        handler_kind: "sql".to_owned(),
        handler_hash: "1".to_owned(),
    }
}
