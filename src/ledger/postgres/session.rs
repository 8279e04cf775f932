//! One connection that was looked at before it is used.

use std::future::IntoFuture;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions, PgConnection, Postgres, Row};
use tokio::time::timeout;

use super::absence::{Absences, Births};
use super::hope::Hope;
use super::migrate::check_version;
use super::nodelay;
use super::settings::PostgresSettings;
use super::statement::{Generations, Sql};
use crate::error::Error;

const FACTS: &str = include_str!("../../../sql/session/facts.sql");
const BACKEND: &str = include_str!("../../../sql/session/backend.sql");
const BACKEND_IN_TRANSACTION: &str =
    include_str!("../../../sql/session/backend_in_transaction.sql");
const CONFIGURE: &str = include_str!("../../../sql/session/configure.sql");
const FIND: &str = include_str!("../../../sql/pipeline/find.sql");

const SERVER_VERSION_MIN: i32 = 140_000;

/// A connection of a pipeline.
pub(super) struct Session {
    pub(super) connection: PgConnection,
    pub(super) sql: Sql,
    pub(super) pipeline_id: i32,
    /// The generations that the open transaction's ids are claimed in, once it has read them.
    pub(super) generations: Option<Generations>,
    /// When the open transaction began, by the server's clock: microseconds since 2000, as a
    /// `timestamptz` is sent.
    pub(super) began_at_us: i64,
    /// Filters of closed generations.
    pub(super) absences: Absences,
    /// Which of them this connection's history can believe.
    pub(super) births: Births,
    /// Whether a claim may hope that every id is new.
    pub(super) hope: Hope,
    /// Names the history that the pipeline's positions belong to.
    pub(super) history: String,
    pub(super) answer_timeout: Duration,
}

impl Session {
    /// Connects. `trusted` says that this server was looked at before: then a standby means a
    /// failover in progress, which time will mend.
    pub(super) async fn open(
        settings: &PostgresSettings,
        pipeline: &str,
        trusted: bool,
    ) -> Result<Self, Error> {
        let looked_at = Self::look(settings, pipeline, trusted);
        answered(settings.answer_timeout(), "look at the server", looked_at).await
    }

    async fn look(
        settings: &PostgresSettings,
        pipeline: &str,
        trusted: bool,
    ) -> Result<Self, Error> {
        let sql = settings.sql()?;
        let mut connection = connect_fit(settings, &sql, trusted).await?;
        configure(&mut connection, settings).await?;
        let row = find_pipeline(&mut connection, &sql, pipeline).await?;
        let (id, generation) = (get(&row, "id")?, get(&row, "generation")?);
        Ok(Self {
            connection,
            sql: sql.with_generation(id, generation),
            pipeline_id: id,
            generations: None,
            began_at_us: 0,
            absences: Absences::default(),
            births: Births::default(),
            hope: Hope::default(),
            history: get(&row, "history")?,
            answer_timeout: settings.answer_timeout(),
        })
    }

    /// Has statements use the generations of a row that was read in the open transaction.
    pub(super) fn use_generations(&mut self, row: &PgRow) -> Result<Generations, Error> {
        let generations = Generations {
            oldest: get(row, "oldest_generation")?,
            current: get(row, "generation")?,
            next: get(row, "next_generation")?,
        };
        self.generations = Some(generations);
        self.sql = (self.sql.clone()).with_generations(self.pipeline_id, generations);
        Ok(generations)
    }

    /// A statement with the pipeline as its first parameter.
    pub(super) fn query(&self, statement: &str) -> Query<'static, Postgres, PgArguments> {
        self.sql.query(statement).bind(self.pipeline_id)
    }

    pub(super) async fn fetch_all(
        &mut self,
        doing: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Error> {
        let answer = query.fetch_all(&mut self.connection);
        within(self.answer_timeout, doing, answer).await
    }

    pub(super) async fn fetch_one(
        &mut self,
        doing: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<PgRow, Error> {
        let answer = query.fetch_one(&mut self.connection);
        within(self.answer_timeout, doing, answer).await
    }

    pub(super) async fn execute(
        &mut self,
        doing: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64, Error> {
        let answer = query.execute(&mut self.connection);
        let result = within(self.answer_timeout, doing, answer).await?;
        Ok(result.rows_affected())
    }

    /// Statements in the simple protocol, for what cannot be prepared.
    pub(super) async fn raw(
        &mut self,
        doing: &str,
        statements: &'static str,
    ) -> Result<Vec<PgRow>, Error> {
        let answer = sqlx::raw_sql(statements).fetch_all(&mut self.connection);
        within(self.answer_timeout, doing, answer).await
    }
}

/// A value of a row whose shape a statement of ours fixes.
pub(super) fn get<'r, T>(row: &'r PgRow, column: &str) -> Result<T, Error>
where
    T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    row.try_get(column)
        .map_err(|error| Error::fatal(format!("column {column} of an answer: {error}")))
}

/// Gives a silent connection up: a server that vanished closes nothing. Whoever gets this error
/// drops the connection, so that nothing of a statement that was cut off is met again.
pub(crate) async fn answered<T>(
    limit: Duration,
    doing: &str,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, answer).await.unwrap_or_else(|_| {
        let silence = format!("no answer within {} s", limit.as_secs());
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, silence);
        Err(Error::postgres(doing, sqlx::Error::Io(error)))
    })
}

pub(super) async fn within<T>(
    limit: Duration,
    doing: &str,
    answer: impl IntoFuture<Output = sqlx::Result<T>>,
) -> Result<T, Error> {
    let answer = async { answer.await.map_err(|error| Error::postgres(doing, error)) };
    answered(limit, doing, answer).await
}

async fn connect(settings: &PostgresSettings) -> Result<PgConnection, Error> {
    let options = settings.connect_options()?;
    let connected = timeout(settings.connect_timeout, options.connect()).await;
    match connected {
        Ok(connected) => {
            let connection = connected.map_err(|error| connect_error(&options, error))?;
            if options.get_socket().is_none() {
                nodelay::send_at_once(options.get_port());
            }
            Ok(connection)
        }
        Err(_) => Err(Error::transient(format!(
            "{}: no answer within {} s",
            connecting(&options),
            settings.connect_timeout.as_secs()
        ))),
    }
}

/// Connects to a server that is fit for a pipeline, with a schema of this program's version.
pub(super) async fn connect_fit(
    settings: &PostgresSettings,
    sql: &Sql,
    trusted: bool,
) -> Result<PgConnection, Error> {
    let mut connection = connect(settings).await?;
    // Before any prepared statement: through such a proxy it would meet another session's.
    if !trusted {
        refuse_transaction_pooling(settings, &mut connection).await?;
    }
    refuse_unfit(&mut connection, trusted).await?;
    check_version(&mut connection, sql, &settings.schema).await?;
    Ok(connection)
}

fn connecting(options: &PgConnectOptions) -> String {
    let user = options.get_username();
    format!(
        "connect to Postgres at {}:{}, database {:?}, as user {user:?}",
        options.get_host(),
        options.get_port(),
        options.get_database().unwrap_or(user),
    )
}

pub(super) fn connect_error(options: &PgConnectOptions, error: sqlx::Error) -> Error {
    Error::postgres(connecting(options), error)
}

async fn simple_row(
    connection: &mut PgConnection,
    statements: &'static str,
) -> Result<PgRow, Error> {
    let rows = sqlx::raw_sql(statements)
        .fetch_all(connection)
        .await
        .map_err(|error| Error::postgres("look at the server", error))?;
    let row = rows.into_iter().next();
    row.ok_or_else(|| Error::fatal("look at the server: it answered without a row"))
}

async fn refuse_unfit(connection: &mut PgConnection, trusted: bool) -> Result<(), Error> {
    let row = simple_row(connection, FACTS).await?;
    if get::<String>(&row, "role")? == "standby" {
        let text = "this server is a standby, which takes no writes: postgres.url must name the \
                    primary";
        return Err(match trusted {
            true => Error::transient(format!("{text}; is a failover in progress?")),
            false => Error::fatal(text),
        });
    }
    let version: String = get(&row, "server_version")?;
    if version.parse::<i32>().unwrap_or_default() < SERVER_VERSION_MIN {
        return Err(Error::fatal(format!(
            "this server's version is {version}, and the oldest supported one is \
             {SERVER_VERSION_MIN} (Postgres 14)"
        )));
    }
    let encoding: String = get(&row, "server_encoding")?;
    if encoding != "UTF8" {
        return Err(Error::fatal(format!(
            "this database's encoding is {encoding}, which cannot hold every event: create the \
             database with encoding UTF8"
        )));
    }
    Ok(())
}

/// A transaction-pooling proxy lends server processes by the transaction: what we set on one, and
/// our temporary table, would be met by others. Such a proxy is known by a session's process being
/// met again inside another session's transaction, or the session's having changed meanwhile.
async fn refuse_transaction_pooling(
    settings: &PostgresSettings,
    connection: &mut PgConnection,
) -> Result<(), Error> {
    let ours: String = get(&simple_row(connection, BACKEND).await?, "backend_pid")?;
    let mut other = connect(settings).await?;
    let row = simple_row(&mut other, BACKEND_IN_TRANSACTION).await?;
    let theirs: String = get(&row, "backend_pid")?;
    // With one process in the proxy's pool the second question would wait for the other's end.
    let shared = ours == theirs
        || ours != get::<String>(&simple_row(connection, BACKEND).await?, "backend_pid")?;
    if shared {
        return Err(Error::fatal(
            "postgres.url leads to a proxy that pools transactions (PgBouncer's pool_mode = \
             transaction, or the like): a worker needs a session of its own; name the server \
             itself, or a pool of mode session",
        ));
    }
    Ok(())
}

async fn configure(
    connection: &mut PgConnection,
    settings: &PostgresSettings,
) -> Result<(), Error> {
    let ms = |duration: Duration| duration.as_millis().to_string();
    sqlx::query(CONFIGURE)
        .bind(ms(settings.lock_timeout))
        .bind(ms(settings.statement_timeout))
        .bind(ms(settings.idle_in_transaction_timeout))
        .execute(connection)
        .await
        .map_err(|error| Error::postgres("set the session's limits", error))?;
    Ok(())
}

async fn find_pipeline(
    connection: &mut PgConnection,
    sql: &Sql,
    pipeline: &str,
) -> Result<PgRow, Error> {
    let found = sql
        .query(FIND)
        .bind(pipeline)
        .fetch_optional(connection)
        .await
        .map_err(|error| Error::postgres("find the pipeline", error))?;
    found.ok_or_else(|| {
        Error::fatal(format!(
            "pipeline {pipeline:?} is not in the database: it was never run with this one \
             (`onceonly run` registers it), or the database was restored or emptied; or is another \
             database, schema or name meant?"
        ))
    })
}
