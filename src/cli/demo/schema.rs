//! The demo's own schema in Postgres: onceonly's tables beside a table of effects.

use anyhow::Context as _;
use onceonly::outcome::{Outcome, Tally};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::plan::Plan;
use super::verdict::{Comparison, Difference};
use crate::cli::stack;

const TABLES: &str = include_str!("../../../sql/demo/tables.sql");
const APPLY: &str = include_str!("../../../sql/demo/apply.sql");
const PRODUCED: &str = include_str!("../../../sql/demo/produced.sql");
const POSITIONS: &str = include_str!("../../../sql/demo/positions.sql");
const OUTCOMES: &str = include_str!("../../../sql/demo/outcomes.sql");
const COMPARE: &str = include_str!("../../../sql/demo/compare.sql");
const DIFFERENCES: &str = include_str!("../../../sql/demo/differences.sql");
const DROP: &str = include_str!("../../../sql/demo/drop.sql");

/// What the statements call the schema.
const PLACEHOLDER: &str = "demo_schema";

/// How many ids that differ are shown.
const DIFFERENCES_SHOWN: i64 = 5;

/// Where a partition stands.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    /// The partition.
    pub(super) partition: i32,
    /// What its owner calls itself: host, process and more, with slashes between.
    pub(super) owner_name: Option<String>,
    /// The next offset to consume.
    pub(super) next_offset: i64,
    /// Why it stands still.
    pub(super) stopped: Option<String>,
}

impl Standing {
    /// Whether a process has the partition.
    pub(super) fn is_of(&self, process: u32) -> bool {
        let name = self.owner_name.as_deref().unwrap_or_default();
        name.split('/').nth(1) == Some(process.to_string().as_str())
    }
}

/// The name of a schema that is the demo's alone, and a connection.
pub(super) struct Schema {
    name: String,
    connection: PgConnection,
}

impl Schema {
    /// Connects. The schema itself is made by `onceonly migrate`, its further tables by
    /// [`Schema::create_tables`].
    pub(super) async fn connect(url: &str, name: &str) -> anyhow::Result<Self> {
        let limits = [
            ("statement_timeout", "30s"),
            ("lock_timeout", "20s"),
            ("client_min_messages", "warning"),
        ];
        let connection = stack::connect_postgres(url, "onceonly demo", &limits).await?;
        Ok(Self {
            name: name.to_owned(),
            connection,
        })
    }

    /// Creates the tables of the demo beside onceonly's.
    pub(super) async fn create_tables(&mut self) -> anyhow::Result<()> {
        let tables = self.render(TABLES);
        sqlx::raw_sql(AssertSqlSafe(tables))
            .execute(&mut self.connection)
            .await
            .context("cannot create the demo's tables")?;
        Ok(())
    }

    /// The statement that the workers run, for their configuration.
    pub(super) fn handler_statement(&self) -> String {
        self.render(APPLY)
    }

    /// Writes down which ids the plan has.
    pub(super) async fn record_produced(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let failed = "cannot write down the ids that are produced";
        let mut lines = String::with_capacity(plan.distinct as usize * 16);
        for id in plan.ids() {
            lines.push_str(&id);
            lines.push('\n');
        }
        let statement = self.render(PRODUCED);
        let mut copy = self
            .connection
            .copy_in_raw(&statement)
            .await
            .context(failed)?;
        copy.send(lines.into_bytes()).await.context(failed)?;
        copy.finish().await.context(failed)?;
        Ok(())
    }

    /// Where the partitions stand that were claimed so far.
    pub(super) async fn standings(&mut self) -> anyhow::Result<Vec<Standing>> {
        let statement = self.render(POSITIONS);
        let rows = sqlx::query(AssertSqlSafe(statement))
            .fetch_all(&mut self.connection)
            .await;
        let rows = rows.context("cannot read the positions")?;
        let standing = |row: &PgRow| {
            Ok(Standing {
                partition: row.try_get("partition")?,
                owner_name: row.try_get("owner_name")?,
                next_offset: row.try_get("next_offset")?,
                stopped: row.try_get("stopped")?,
            })
        };
        let standings: Result<_, sqlx::Error> = rows.iter().map(standing).collect();
        standings.context("cannot read the positions")
    }

    /// What became of the records.
    pub(super) async fn outcomes(&mut self) -> anyhow::Result<Tally> {
        let statement = self.render(OUTCOMES);
        let row = sqlx::query(AssertSqlSafe(statement))
            .fetch_one(&mut self.connection)
            .await;
        let row = row.context("cannot read the outcomes")?;
        let mut counts = [0; Outcome::ALL.len()];
        for (count, outcome) in counts.iter_mut().zip(Outcome::ALL) {
            let sum: i64 = row
                .try_get(outcome.name())
                .context("cannot read the outcomes")?;
            *count = sum.unsigned_abs();
        }
        Ok(Tally::from_counts(counts))
    }

    /// Compares the effects with what was produced.
    pub(super) async fn compare(&mut self) -> anyhow::Result<Comparison> {
        let failed = "cannot compare the effects with what was produced";
        let statement = self.render(COMPARE);
        let row = sqlx::query(AssertSqlSafe(statement))
            .fetch_one(&mut self.connection)
            .await
            .context(failed)?;
        let count = |column: &str| {
            let count: i64 = row.try_get(column).context(failed)?;
            anyhow::Ok(count.unsigned_abs())
        };
        let statement = self.render(DIFFERENCES);
        let rows = sqlx::query(AssertSqlSafe(statement))
            .bind(DIFFERENCES_SHOWN)
            .fetch_all(&mut self.connection)
            .await
            .context(failed)?;
        let difference = |row: &PgRow| {
            Ok(Difference {
                event_id: row.try_get("event_id")?,
                produced: row.try_get("produced")?,
                times: row.try_get("times")?,
            })
        };
        let differences: Result<_, sqlx::Error> = rows.iter().map(difference).collect();
        Ok(Comparison {
            produced: count("produced")?,
            effects: count("effects")?,
            missing: count("missing")?,
            repeated: count("repeated")?,
            extra: count("extra")?,
            differences: differences.context(failed)?,
        })
    }

    /// Drops the schema with everything in it, where it exists.
    pub(super) async fn drop(mut self) -> anyhow::Result<()> {
        let statement = self.render(DROP);
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut self.connection)
            .await
            .with_context(|| {
                format!(
                    "cannot drop the demo's schema; drop it by hand: drop schema {} cascade",
                    self.name
                )
            })?;
        // It is gone either way.
        let _ = self.connection.close().await;
        Ok(())
    }

    fn render(&self, statement: &str) -> String {
        statement.replace(PLACEHOLDER, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use onceonly::ledger::postgres::{PostgresSettings, migrate};
    use uuid::Uuid;

    use super::*;

    /// A schema as the demo has it, dropped by [`Schema::drop`].
    async fn schema(plan: &Plan) -> Schema {
        let url = std::env::var("DATABASE_URL").expect(
            "DATABASE_URL is not set; run `make stack-up`, then `eval \"$(compose/stack env)\"`",
        );
        let name = format!("demo_test_{}", &Uuid::new_v4().simple().to_string()[..16]);
        let mut schema = Schema::connect(&url, &name).await.unwrap();
        let mut settings = PostgresSettings::new(url);
        settings.schema = name;
        migrate(&settings).await.unwrap();
        schema.create_tables().await.unwrap();
        schema.record_produced(plan).await.unwrap();
        schema
    }

    async fn execute(schema: &mut Schema, statement: &str) -> u64 {
        let statement = schema.render(statement);
        let done = sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut schema.connection)
            .await;
        done.unwrap().rows_affected()
    }

    /// What the workers do where all goes well.
    async fn apply_all(schema: &mut Schema) {
        let statement =
            "insert into demo_schema.effect select event_id, 1, 1 from demo_schema.produced";
        assert_eq!(execute(schema, statement).await, 700);
    }

    fn difference(event_id: &str, produced: bool, times: i64) -> Difference {
        Difference {
            event_id: event_id.to_owned(),
            produced,
            times,
        }
    }

    #[tokio::test]
    async fn every_id_once_is_exactly_once() {
        let mut schema = schema(&Plan::new(1_000, 8, 1)).await;
        apply_all(&mut schema).await;
        let comparison = schema.compare().await.unwrap();
        assert_eq!((comparison.produced, comparison.effects), (700, 700));
        assert!(comparison.is_exactly_once(), "{comparison:?}");
        schema.drop().await.unwrap();
    }

    #[tokio::test]
    async fn an_effect_that_is_missing_repeated_or_extra_is_found_by_its_id() {
        let mut schema = schema(&Plan::new(1_000, 8, 1)).await;
        apply_all(&mut schema).await;
        for statement in [
            "delete from demo_schema.effect where event_id = 'order-00000003'",
            "insert into demo_schema.effect values ('order-00000005', 1, 1)",
            "insert into demo_schema.effect values ('order-99999999', 1, 1)",
        ] {
            assert_eq!(execute(&mut schema, statement).await, 1);
        }
        let comparison = schema.compare().await.unwrap();
        let expected = Comparison {
            produced: 700,
            effects: 701,
            missing: 1,
            repeated: 1,
            extra: 1,
            differences: vec![
                difference("order-00000003", true, 0),
                difference("order-00000005", true, 2),
                difference("order-99999999", false, 1),
            ],
        };
        assert_eq!(comparison, expected);
        assert!(!comparison.is_exactly_once());
        schema.drop().await.unwrap();
    }

    #[tokio::test]
    async fn one_effect_lost_and_another_doubled_do_not_cancel_out() {
        let mut schema = schema(&Plan::new(1_000, 8, 1)).await;
        apply_all(&mut schema).await;
        let statement = "update demo_schema.effect set event_id = 'order-00000001' where event_id = 'order-00000002'";
        assert_eq!(execute(&mut schema, statement).await, 1);
        let comparison = schema.compare().await.unwrap();
        assert_eq!(comparison.effects, comparison.produced, "the counts agree");
        assert_eq!(
            (comparison.missing, comparison.repeated, comparison.extra),
            (1, 1, 0)
        );
        assert!(!comparison.is_exactly_once());
        schema.drop().await.unwrap();
    }

    #[tokio::test]
    async fn positions_and_outcomes_are_read_from_the_rows_of_all_partitions() {
        let mut schema = schema(&Plan::new(1_000, 8, 1)).await;
        assert!(schema.standings().await.unwrap().is_empty());
        assert_eq!(schema.outcomes().await.unwrap(), Tally::default());
        execute(
            &mut schema,
            "insert into demo_schema.pipeline
                (name, consumer_group, identity, scope, retention_ms, handler_kind, handler_hash)
            values ('demo', 'demo', 'key', 'pipeline', 1, 'sql', '');
            insert into demo_schema.position
                (pipeline_id, topic, partition, owner_name, next_offset, high_water, applied,
                duplicate_batch, duplicate_position, duplicate_recent, duplicate_redis,
                duplicate_ledger, duplicate_waiting, duplicate_dead, retrying, dead, skipped)
            select id, 'demo', p, 'host/12' || p || '/x', 7 + p, 9, 1 + p, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
            from demo_schema.pipeline, generate_series(0, 1) p",
        )
        .await;
        let standings = schema.standings().await.unwrap();
        let read: Vec<_> = standings
            .iter()
            .map(|s| (s.partition, s.next_offset, s.is_of(121)))
            .collect();
        assert_eq!(read, [(0, 7, false), (1, 8, true)]);
        assert_eq!(
            schema.outcomes().await.unwrap().counts(),
            [3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]
        );
        schema.drop().await.unwrap();
    }

    #[tokio::test]
    async fn a_schema_is_gone_after_its_drop() {
        let schema = schema(&Plan::new(1_000, 8, 1)).await;
        let (url, name) = (std::env::var("DATABASE_URL").unwrap(), schema.name.clone());
        schema.drop().await.unwrap();
        let mut later = Schema::connect(&url, &name).await.unwrap();
        let error = later.compare().await.unwrap_err();
        assert!(format!("{error:#}").contains("does not exist"), "{error:#}");
    }

    #[tokio::test]
    async fn a_postgres_that_is_not_there_is_told_with_advice_and_without_its_password() {
        let url = "postgres://me:secret@127.0.0.1:1/app";
        let Err(error) = Schema::connect(url, "demo").await else {
            panic!("connected to port 1")
        };
        let sentence = format!("{error:#}");
        assert!(
            sentence.starts_with("there is no Postgres at 127.0.0.1:1/app: run `make stack-up`"),
            "{sentence}"
        );
        assert!(!sentence.contains("secret"), "{sentence}");
    }
}
