//! Effects by SQL: statements that run once for each batch, over a relation `batch` of its new events.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, Either, Executor, PgConnection, Row, SqlSafeStr, Statement};

use tokio::time::timeout;

use super::{Handler, NewEvents};
use crate::error::{Class, Error};
use crate::event::Event;
use crate::ledger::Failure;
use crate::ledger::postgres::{ANSWER_TIMEOUT, Sql, answered};

mod copy;
mod screen;
mod statement;

const SET_PATH: &str = include_str!("../../sql/handler/set_path.sql");
const VISIBLE_BATCH: &str = include_str!("../../sql/handler/visible_batch.sql");
const CREATE_BATCH: &str = include_str!("../../sql/handler/create_batch.sql");
const SESSION: &str = include_str!("../../sql/handler/session.sql");
const COPY_BATCH: &str = include_str!("../../sql/handler/copy_batch.sql");
const COPY_EVENT: &str = include_str!("../../sql/handler/copy_event.sql");
const EVENT_COLUMNS: &str = include_str!("../../sql/handler/event_columns.sql");

/// How much longer than its own limit a server may be silent.
const GRACE: Duration = Duration::from_secs(10);

/// What a record's value is, and the type of `batch.payload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// JSON, as `jsonb`.
    Json,
    /// UTF-8, as `text`.
    Text,
    /// Anything, as `bytea`.
    Bytes,
}

impl PayloadKind {
    fn column_type(self) -> &'static str {
        match self {
            Self::Json => "jsonb",
            Self::Text => "text",
            Self::Bytes => "bytea",
        }
    }

    /// The column of the default sink.
    fn event_column(self) -> &'static str {
        match self {
            Self::Json => "payload",
            Self::Text => "payload_text",
            Self::Bytes => "payload_bytes",
        }
    }
}

/// What a SQL handler does.
#[derive(Clone, Debug)]
pub struct SqlSettings {
    /// Statements, run in this order. None: events land in `onceonly.event`.
    pub statements: Vec<String>,
    /// What values are.
    pub payload: PayloadKind,
    /// Larger events are dead letters: key, headers and value together.
    pub max_event_bytes: usize,
    /// The schema of onceonly's own tables.
    pub schema: String,
}

/// Where events go.
enum Sink {
    /// Into `onceonly.event`, by this copy; the other statement fails where that cannot work.
    Event { copy: Arc<str>, check: Arc<str> },
    /// Into `batch`, which these read.
    Statements(Vec<Arc<str>>),
}

/// Runs statements over the relation `batch`, or copies events into `onceonly.event`.
pub struct SqlHandler {
    sink: Sink,
    create_batch: Arc<str>,
    session_query: Arc<str>,
    payload: PayloadKind,
    max_event_bytes: usize,
    /// The server's number of the type `onceonly.header`.
    header_type: AtomicU32,
    /// How long the server lets a statement run; 0 is for ever.
    statement_timeout_ms: AtomicU64,
    /// That of the user, as a new session has it.
    search_path: Mutex<Arc<str>>,
}

impl SqlHandler {
    /// Refuses statements that could not run as part of a batch.
    pub fn new(settings: SqlSettings) -> Result<Self, Error> {
        let sql = Sql::new(&settings.schema)?;
        for (number, text) in (1..).zip(&settings.statements) {
            statement::check(number, text)?;
        }
        let sink = match settings.statements.is_empty() {
            true => Sink::Event {
                copy: sql
                    .render(COPY_EVENT)
                    .replace(
                        ", payload\n",
                        &format!(", {}\n", settings.payload.event_column()),
                    )
                    .into(),
                check: sql.render(EVENT_COLUMNS).into(),
            },
            false => Sink::Statements(settings.statements.into_iter().map(Arc::from).collect()),
        };
        let create_batch = sql.render(CREATE_BATCH);
        let payload_column = format!("payload {}", settings.payload.column_type());
        Ok(Self {
            sink,
            create_batch: create_batch
                .replace("payload jsonb", &payload_column)
                .into(),
            session_query: sql.render(SESSION).into(),
            payload: settings.payload,
            max_event_bytes: settings.max_event_bytes,
            header_type: AtomicU32::new(0),
            statement_timeout_ms: AtomicU64::new(0),
            search_path: Mutex::default(),
        })
    }

    /// What [`Handler::handle`] copies into Postgres: to measure the cost of encoding.
    #[doc(hidden)]
    pub fn packed_rows(&self, events: &NewEvents<'_>) -> Vec<u8> {
        let header_type = self.header_type.load(Ordering::Relaxed);
        copy::rows(events, self.payload, header_type)
    }

    /// A hash of what the handler does, for the pipeline's record: another text, another hash.
    pub fn text_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.payload.column_type().as_bytes());
        let texts = match &self.sink {
            Sink::Event { copy, .. } => std::slice::from_ref(copy),
            Sink::Statements(texts) => texts,
        };
        for statement in texts {
            hasher.update(&(statement.len() as u64).to_le_bytes());
            hasher.update(statement.as_bytes());
        }
        hasher.finalize().to_hex().as_str().to_owned()
    }

    fn search_path(&self) -> MutexGuard<'_, Arc<str>> {
        self.search_path
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A little longer than the server lets a statement run.
    fn answer_timeout(&self) -> Option<Duration> {
        match self.statement_timeout_ms.load(Ordering::Relaxed) {
            0 => None,
            limit_ms => Some(Duration::from_millis(limit_ms) + GRACE),
        }
    }

    async fn refuse_visible_batch(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let found = sqlx::query(VISIBLE_BATCH).fetch_optional(connection).await;
        let Some(row) =
            found.map_err(|error| Error::postgres("look for tables named batch", error))?
        else {
            return Ok(());
        };
        let schema: String = row.try_get("schema").unwrap_or_default();
        Err(Error::fatal(format!(
            "there is a table {schema}.batch in the search path, and `batch` is the name under \
             which a handler's statements read their events: rename the table, or take its schema \
             out of the search path of this user (alter role … set search_path)"
        )))
    }

    async fn prepare_session(&self, connection: &mut PgConnection) -> Result<(), Error> {
        match &self.sink {
            Sink::Event { check, .. } => {
                self.learn_session(connection).await?;
                let checked = connection.prepare(AssertSqlSafe(check.clone()).into_sql_str());
                let checked = checked.await.map(drop);
                checked.map_err(|error| Error::postgres("look at the table onceonly.event", error))
            }
            Sink::Statements(texts) => self.prepare_statements(connection, texts).await,
        }
    }

    async fn prepare_statements(
        &self,
        connection: &mut PgConnection,
        texts: &[Arc<str>],
    ) -> Result<(), Error> {
        self.refuse_visible_batch(connection).await?;
        self.learn_session(connection).await?;
        sqlx::raw_sql(AssertSqlSafe(self.create_batch.clone()))
            .execute(&mut *connection)
            .await
            .map_err(|error| Error::postgres("create the temporary table batch", error))?;
        for (number, text) in (1..).zip(texts) {
            let statement = AssertSqlSafe(text.clone()).into_sql_str();
            let prepared = connection.prepare(statement).await;
            let prepared = prepared.map_err(|error| statement::explain(number, text, error))?;
            let parameters = match prepared.parameters() {
                Some(Either::Left(types)) => types.len(),
                Some(Either::Right(count)) => count,
                None => 0,
            };
            if parameters > 0 {
                return Err(statement::with_parameters(number, text));
            }
        }
        Ok(())
    }

    async fn learn_session(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let lost = |error| Error::postgres("look up the type of headers", error);
        let query = sqlx::query(AssertSqlSafe(self.session_query.clone()));
        let row = query.fetch_one(connection).await.map_err(lost)?;
        let timeout_ms: i64 = row.try_get("statement_timeout_ms").map_err(lost)?;
        self.statement_timeout_ms
            .store(timeout_ms.unsigned_abs(), Ordering::Relaxed);
        let found: Option<Oid> = row.try_get("header_type").map_err(lost)?;
        let Some(Oid(number)) = found else {
            return Err(Error::fatal(
                "the type onceonly.header is missing: run `onceonly migrate`",
            ));
        };
        self.header_type.store(number, Ordering::Relaxed);
        let path: String = row.try_get("search_path").map_err(lost)?;
        *self.search_path() = path.into();
        Ok(())
    }
}

impl fmt::Debug for SqlHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statements = match &self.sink {
            Sink::Event { .. } => 0,
            Sink::Statements(texts) => texts.len(),
        };
        f.debug_struct("SqlHandler")
            .field("statements", &statements)
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}

impl Handler<PgConnection> for SqlHandler {
    fn name(&self) -> &str {
        "sql"
    }

    fn screen(&self, event: &Event<'_>) -> Option<Failure> {
        screen::screen(event, self.payload, self.max_event_bytes)
    }

    async fn prepare(&self, connection: &mut PgConnection) -> Result<(), Error> {
        answered(
            ANSWER_TIMEOUT,
            "prepare the handler",
            self.prepare_session(connection),
        )
        .await
    }

    async fn handle(
        &self,
        transaction: &mut PgConnection,
        events: &NewEvents<'_>,
    ) -> Result<(), Error> {
        let limit = self.answer_timeout();
        let header_type = self.header_type.load(Ordering::Relaxed);
        let (copy, texts) = match &self.sink {
            Sink::Event { copy, .. } => (&**copy, &[][..]),
            Sink::Statements(texts) => (COPY_BATCH, &texts[..]),
        };
        let copied = copy::copy_events(transaction, copy, events, self.payload, header_type);
        within(limit, copied).await?;
        let path = Arc::clone(&self.search_path());
        for (number, text) in (1..).zip(texts) {
            within(limit, set_path(transaction, &path)).await?;
            within(limit, execute(transaction, number, text)).await?;
        }
        Ok(())
    }
}

async fn set_path(transaction: &mut PgConnection, path: &str) -> Result<(), Error> {
    let set = sqlx::query(SET_PATH).bind(path).execute(transaction).await;
    set.map(drop)
        .map_err(|error| Error::postgres("set the search path", error))
}

async fn execute(
    transaction: &mut PgConnection,
    number: usize,
    text: &Arc<str>,
) -> Result<(), Error> {
    // Planned afresh for what the batch holds; the simple protocol takes one round trip.
    let executed = sqlx::raw_sql(AssertSqlSafe(text.clone())).execute(transaction);
    let result = executed.await.map_err(|error| {
        let error = Error::postgres(format!("handler statement {number}"), error);
        match error.class() {
            Class::Fatal => error.context(statement::shortened(text)),
            Class::Transient | Class::Rejected => error,
        }
    });
    result.map(drop)
}

/// Gives a silent server up. The transaction cannot go on after that: its rollback finds the
/// connection lost, or ends what was cut off.
async fn within<T>(
    limit: Option<Duration>,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(limit) = limit else {
        return answer.await;
    };
    timeout(limit, answer).await.unwrap_or_else(|_| {
        let silence = format!("no answer within {} s", limit.as_secs());
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, silence);
        Err(Error::postgres("run the handler", sqlx::Error::Io(error)))
    })
}
