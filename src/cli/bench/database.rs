//! The schema of its own that a measurement works in.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use sqlx::postgres::PgRow;
use sqlx::postgres::types::Oid;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::events::{Event, Sum};
use crate::cli::stack;

const STANDING: &str = include_str!("../../../sql/bench/standing.sql");
const SUM: &str = include_str!("../../../sql/bench/sum.sql");
const ROWS: &str = include_str!("../../../sql/bench/rows.sql");
const ORDERS: &str = include_str!("../../../sql/bench/orders.sql");
const USER_STATEMENT: &str = include_str!("../../../sql/bench/user_statement.sql");
const SUM_ORDERS: &str = include_str!("../../../sql/bench/sum_orders.sql");
const INSERT_ROW: &str = include_str!("../../../sql/bench/insert_row.sql");
const OFFSETS: &str = include_str!("../../../sql/bench/offsets.sql");
const STALL: &str = include_str!("../../../sql/bench/stall.sql");
const DROP_ROWS: &str = include_str!("../../../sql/bench/drop_rows.sql");
const HEADER_TYPE: &str = include_str!("../../../sql/bench/header_type.sql");
const CHECKPOINT: &str = include_str!("../../../sql/bench/checkpoint.sql");
const DROP_SCHEMA: &str = include_str!("../../../sql/bench/drop_schema.sql");
const SERVER: &str = include_str!("../../../sql/bench/server.sql");

/// What the statements call the schema.
const PLACEHOLDER: &str = "bench_schema";

/// How far a pipeline is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    /// How often partitions were claimed.
    pub(super) claims: i64,
    /// The partitions' next offsets, added.
    pub(super) consumed: i64,
    /// Since the transaction began that moved a partition from offset 0; later ones that moved the
    /// same partition hide it.
    pub(super) since: Option<Duration>,
}

/// What there is of effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Rows, with how many different ids.
    pub(super) effects: u64,
    /// Different ids.
    pub(super) ids: u64,
    /// As in [`Sum`].
    pub(super) id_sum: u128,
    /// Rows whose payload belongs to another id.
    pub(super) strange: u64,
}

impl Found {
    /// Fails unless every event has exactly one effect, and no other has one.
    pub(super) fn check(&self, expected: Sum) -> anyhow::Result<()> {
        let Self {
            effects,
            ids,
            id_sum,
            strange,
        } = *self;
        let is_right = expected.count > 0
            && (effects, ids, strange) == (expected.count, expected.count, 0)
            && id_sum == expected.ids;
        ensure!(
            is_right,
            "the effects are wrong, so nothing that was measured counts: {effects} effects for {} \
             events; {} ids too few, {} effects that repeat an id, {strange} with another event's \
             payload; the sum of the ids is {id_sum}, and must be {}",
            expected.count,
            expected.count.saturating_sub(ids),
            effects.saturating_sub(ids),
            expected.ids,
        );
        Ok(())
    }
}

/// What of the server decides its speed.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The process that serves this connection.
    pub(super) backend: u32,
    /// Its version.
    pub(super) version: String,
    /// Names of settings with their values.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// A connection, and the name of the schema.
pub(super) struct Database {
    url: String,
    schema: String,
    /// The connection.
    pub(super) connection: PgConnection,
}

impl Database {
    /// Connects. The schema is made by `onceonly migrate`.
    pub(super) async fn connect(url: &str, schema: &str) -> anyhow::Result<Self> {
        // Statements over millions of rows take minutes.
        let limits = [
            ("statement_timeout", "30min"),
            ("lock_timeout", "20s"),
            ("client_min_messages", "warning"),
        ];
        Ok(Self {
            url: url.to_owned(),
            schema: schema.to_owned(),
            connection: stack::connect_postgres(url, "onceonly bench", &limits).await?,
        })
    }

    /// Another connection of the same kind.
    pub(super) async fn another(&self) -> anyhow::Result<Self> {
        Self::connect(&self.url, &self.schema).await
    }

    /// A statement with the schema's name.
    pub(super) fn render(&self, statement: &str) -> String {
        statement.replace(PLACEHOLDER, &self.schema)
    }

    /// Runs statements without parameters.
    pub(super) async fn execute(&mut self, statements: &str, doing: &str) -> anyhow::Result<()> {
        let text = self.render(statements);
        let done = self
            .connection
            .execute(sqlx::raw_sql(AssertSqlSafe(text)))
            .await;
        done.map(drop).with_context(|| format!("cannot {doing}"))
    }

    async fn row(&mut self, statement: &str, doing: &str) -> anyhow::Result<PgRow> {
        let text = self.render(statement);
        let row = sqlx::query(AssertSqlSafe(text))
            .fetch_one(&mut self.connection)
            .await;
        row.with_context(|| format!("cannot {doing}"))
    }

    /// How far the pipeline is; an error where a partition was stopped.
    pub(super) async fn standing(&mut self) -> anyhow::Result<Standing> {
        let row = self.row(STANDING, "read the positions").await?;
        if let Some(reason) = row.try_get::<Option<String>, _>("stopped")? {
            bail!("a partition was stopped: {reason}");
        }
        let since: Option<f64> = row.try_get("seconds_since")?;
        Ok(Standing {
            claims: row.try_get("claims")?,
            consumed: row.try_get("consumed")?,
            since: since.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
        })
    }

    /// Adds up the effects in the default sink.
    pub(super) async fn effects(&mut self) -> anyhow::Result<Found> {
        self.sum(SUM).await
    }

    /// Adds up the effects of [`Database::user_statement`].
    pub(super) async fn orders(&mut self) -> anyhow::Result<Found> {
        self.sum(SUM_ORDERS).await
    }

    async fn sum(&mut self, statement: &str) -> anyhow::Result<Found> {
        let row = self.row(statement, "add up the effects").await?;
        let count = |column: &str| row.try_get(column).map(i64::unsigned_abs);
        let id_sum: String = row.try_get("id_sum")?;
        Ok(Found {
            effects: count("effects")?,
            ids: count("ids")?,
            id_sum: id_sum.parse().context("cannot add up the ids")?,
            strange: count("strange")?,
        })
    }

    /// A statement such as a user's, for the product's configuration.
    pub(super) fn user_statement(&self) -> String {
        self.render(USER_STATEMENT)
    }

    /// An empty table for it.
    pub(super) async fn create_orders(&mut self) -> anyhow::Result<()> {
        self.execute(ORDERS, "create the table of orders").await
    }

    /// An empty table for a baseline.
    pub(super) async fn create_rows(&mut self) -> anyhow::Result<()> {
        self.drop_rows().await?;
        self.execute(ROWS, "create a baseline's table").await
    }

    /// Takes it away.
    pub(super) async fn drop_rows(&mut self) -> anyhow::Result<()> {
        self.execute(DROP_ROWS, "drop a baseline's table").await
    }

    /// Inserts an event into it, in a transaction of its own. Returns how many effects that was.
    pub(super) async fn insert_row(&mut self, event: &Event, topic: &str) -> anyhow::Result<u64> {
        let statement = self.render(INSERT_ROW);
        let done = sqlx::query(AssertSqlSafe(statement))
            .bind(event.id)
            .bind(event.id.to_string())
            .bind(topic)
            .bind(i32::from(event.partition))
            .bind(event.offset)
            .bind(event.key.as_bytes())
            .bind(&event.value)
            .execute(&mut self.connection)
            .await;
        Ok(done.context("cannot insert a row")?.rows_affected())
    }

    /// The next offset of each partition.
    pub(super) async fn offsets(&mut self) -> anyhow::Result<Vec<(i32, i64)>> {
        let statement = self.render(OFFSETS);
        let rows = sqlx::query_as(AssertSqlSafe(statement))
            .fetch_all(&mut self.connection)
            .await;
        rows.context("cannot read the positions")
    }

    /// From now on nobody moves a position, as long as this connection lives.
    pub(super) async fn stall(&mut self) -> anyhow::Result<()> {
        self.execute(STALL, "lock the positions").await
    }

    /// The number of the type of headers.
    pub(super) async fn header_type(&mut self) -> anyhow::Result<u32> {
        let row = self.row(HEADER_TYPE, "look up the type of headers").await?;
        let Oid(number) = row
            .try_get("header_type")
            .context("the type of headers is missing")?;
        Ok(number)
    }

    /// Has everything measured begin behind a checkpoint, where the role may ask for one.
    pub(super) async fn checkpoint(&mut self) {
        if let Err(error) = self.execute(CHECKPOINT, "checkpoint").await {
            tracing::debug!("measuring without a checkpoint: {error:#}");
        }
    }

    /// Drops the schema with all that is in it.
    pub(super) async fn drop_schema(&mut self) -> anyhow::Result<()> {
        self.execute(DROP_SCHEMA, "drop the schema, drop it by hand")
            .await
            .with_context(|| format!("schema {}", self.schema))
    }

    /// What of the server decides its speed.
    pub(super) async fn server(&mut self) -> anyhow::Result<Server> {
        let row = self.row(SERVER, "read the server's settings").await?;
        let mut settings = Vec::new();
        for name in [
            "fsync",
            "full_page_writes",
            "synchronous_commit",
            "shared_buffers",
            "max_wal_size",
        ] {
            settings.push((name, row.try_get(name)?));
        }
        let backend: i32 = row.try_get("backend")?;
        Ok(Server {
            backend: backend.unsigned_abs(),
            version: row.try_get("version")?,
            settings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of effects such as the product has, with those of the first events in it.
    async fn effects(events: u32) -> Database {
        let schema = format!("bench_test_{}", uuid::Uuid::new_v4().simple());
        let mut database = Database::connect(&stack::postgres_url(), &schema)
            .await
            .unwrap();
        let table = "create schema bench_schema;
            create table bench_schema.event (event_id text, payload jsonb)";
        database.execute(table, "create a table").await.unwrap();
        for number in 0..events {
            let Event { id, value, .. } = Event::new(number);
            let insert = format!("insert into bench_schema.event values ('{id}', '{value}')");
            database.execute(&insert, "insert").await.unwrap();
        }
        database
    }

    /// What is said after a statement has changed the effects of ten events.
    async fn verdict(change: &str) -> Result<(), String> {
        let mut database = effects(10).await;
        database
            .execute(change, "change the effects")
            .await
            .unwrap();
        let verdict = database.effects().await.unwrap().check(Sum::of(0..10));
        database.drop_schema().await.unwrap();
        verdict.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn each_event_once_is_right() {
        assert_eq!(verdict("select").await, Ok(()));
    }

    #[tokio::test]
    async fn an_effect_that_is_missing_repeated_another_or_not_its_own_is_an_error() {
        let [first, second, other] = [0, 1, 10].map(|number| Event::new(number).id);
        let cases = [
            (
                format!("delete from bench_schema.event where event_id = '{first}'"),
                "9 effects for 10 events; 1 ids too few, 0 effects that repeat an id, 0 with",
            ),
            (
                format!(
                    "insert into bench_schema.event select * from bench_schema.event
                    where event_id = '{first}'"
                ),
                "11 effects for 10 events; 0 ids too few, 1 effects that repeat an id, 0 with",
            ),
            (
                // One is missing and another repeated: the counts agree.
                format!(
                    "update bench_schema.event
                    set (event_id, payload) = (select event_id, payload from bench_schema.event
                        where event_id = '{first}')
                    where event_id = '{second}'"
                ),
                "10 effects for 10 events; 1 ids too few, 1 effects that repeat an id, 0 with",
            ),
            (
                format!(
                    "update bench_schema.event
                    set event_id = '{other}', payload = jsonb_build_object('id', '{other}')
                    where event_id = '{second}'"
                ),
                "10 effects for 10 events; 0 ids too few, 0 effects that repeat an id, 0 with",
            ),
            (
                format!(
                    "update bench_schema.event set payload = jsonb_build_object('id', '{first}')
                    where event_id = '{second}'"
                ),
                "10 effects for 10 events; 0 ids too few, 0 effects that repeat an id, 1 with",
            ),
            (
                "delete from bench_schema.event".to_owned(),
                "0 effects for 10 events; 10 ids too few, 0 effects that repeat an id, 0 with",
            ),
        ];
        for (change, sentence) in cases {
            let said = verdict(&change).await.unwrap_err();
            assert!(said.contains(sentence), "{change}: {said}");
        }
    }
}
