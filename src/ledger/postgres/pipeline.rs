//! A pipeline's fingerprint: what must not change under ids that are already known.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection};

use super::session::{answered, connect_fit, get};
use super::settings::PostgresSettings;
use super::statement::Sql;
use crate::error::Error;

const INSERT: &str = include_str!("../../../sql/pipeline/insert.sql");
const LOCK: &str = include_str!("../../../sql/pipeline/lock.sql");
const ADD_GENERATION: &str = include_str!("../../../sql/pipeline/add_generation.sql");
const SET_FINGERPRINT: &str = include_str!("../../../sql/pipeline/set_fingerprint.sql");
const AUDIT: &str = include_str!("../../../sql/pipeline/audit.sql");

/// What makes a pipeline the same pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The pipeline's name.
    pub pipeline: String,
    /// The Kafka cluster's id; `None` where no broker told, and then it is not compared.
    pub cluster: Option<String>,
    /// The consumer group.
    pub consumer_group: String,
    /// Where ids come from, as the configuration writes it.
    pub identity: String,
    /// `pipeline` or `topic`.
    pub scope: String,
    /// How long ids are remembered. Only a shorter one is a difference.
    pub retention: Duration,
    /// The kind of handler: `sql`, `webhook`, or a Rust handler's declared name.
    pub handler_kind: String,
    /// A hash of the handler's text; recorded, never compared.
    pub handler_hash: String,
}

impl Fingerprint {
    /// What a configured fingerprint has otherwise than this recorded one, of what is compared.
    pub fn differences(&self, configured: &Self) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut note = |field, recorded: &str, configured: &str| {
            if recorded != configured {
                differences.push(Difference {
                    field,
                    recorded: recorded.to_owned(),
                    configured: configured.to_owned(),
                });
            }
        };
        if let (Some(recorded), Some(configured)) = (&self.cluster, &configured.cluster) {
            note("cluster", recorded, configured);
        }
        note(
            "kafka.group",
            &self.consumer_group,
            &configured.consumer_group,
        );
        note("identity.from", &self.identity, &configured.identity);
        note("identity.scope", &self.scope, &configured.scope);
        note("handler.kind", &self.handler_kind, &configured.handler_kind);
        let [recorded, wanted] = [self.retention, configured.retention].map(milliseconds);
        if wanted < recorded {
            note("dedup.retention", &written(recorded), &written(wanted));
        }
        differences
    }
}

/// A pipeline whose fingerprint is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its number in every table.
    pub pipeline_id: i32,
    /// The ledger's current generation.
    pub generation: i32,
    /// The namespace of its marks.
    pub mark_namespace: i32,
}

/// Records a pipeline's fingerprint, or compares it with the one recorded.
///
/// A difference is fatal and names the field. A longer retention and another text of the handler
/// are recorded.
pub async fn register(
    settings: &PostgresSettings,
    fingerprint: &Fingerprint,
) -> Result<Registered, Error> {
    let recorded = change(settings, fingerprint, Change::Register).await?;
    Ok(recorded.registered)
}

/// Accepts a changed fingerprint. Returns each field's old and new value.
///
/// Marks made under another cluster, identity or scope prove nothing any more.
pub async fn adopt(
    settings: &PostgresSettings,
    fingerprint: &Fingerprint,
) -> Result<Vec<Difference>, Error> {
    let recorded = change(settings, fingerprint, Change::Adopt).await?;
    Ok(recorded.differences)
}

/// A field of the fingerprint that changed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// The field, as the configuration names it.
    pub field: &'static str,
    /// The value in the database.
    pub recorded: String,
    /// The value in the configuration.
    pub configured: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Register,
    Adopt,
}

struct Recorded {
    registered: Registered,
    differences: Vec<Difference>,
}

async fn change(
    settings: &PostgresSettings,
    fingerprint: &Fingerprint,
    change: Change,
) -> Result<Recorded, Error> {
    let changed = connect_and_change(settings, fingerprint, change);
    answered(settings.answer_timeout(), "register the pipeline", changed).await
}

async fn connect_and_change(
    settings: &PostgresSettings,
    fingerprint: &Fingerprint,
    change: Change,
) -> Result<Recorded, Error> {
    let sql = settings.sql()?;
    let mut connection = connect_fit(settings, &sql, false).await?;
    // Dropped without a commit, the connection takes the transaction with it.
    let mut transaction = connection
        .begin()
        .await
        .map_err(|error| Error::postgres("register the pipeline", error))?;
    let recorded = record(&mut transaction, &sql, settings, fingerprint, change).await?;
    transaction
        .commit()
        .await
        .map_err(|error| Error::postgres("register the pipeline", error))?;
    Ok(recorded)
}

async fn record(
    connection: &mut PgConnection,
    sql: &Sql,
    settings: &PostgresSettings,
    fingerprint: &Fingerprint,
    change: Change,
) -> Result<Recorded, Error> {
    let postgres = |error| Error::postgres("register the pipeline", error);
    if change == Change::Register {
        insert(connection, sql, fingerprint).await?;
    }
    let row = sql.query(LOCK).bind(&fingerprint.pipeline);
    let row = row
        .fetch_optional(&mut *connection)
        .await
        .map_err(postgres)?;
    let Some(row) = row else {
        return Err(Error::fatal(format!(
            "pipeline {:?} was never run: there is nothing to adopt",
            fingerprint.pipeline
        )));
    };
    let pipeline_id: i32 = get(&row, "id")?;
    let differences = recorded(&row)?.differences(fingerprint);
    if change == Change::Register
        && let Some(first) = differences.first()
    {
        return Err(refusal(&fingerprint.pipeline, first));
    }
    let retention_ms: i64 = get(&row, "retention_ms")?;
    let accepted = retention_ms.max(milliseconds(fingerprint.retention));
    if change == Change::Register && accepted > retention_ms {
        tracing::info!(
            pipeline = fingerprint.pipeline,
            "the retention of ids grew; ids that were already forgotten stay unknown"
        );
    }
    let mark_namespace = set(connection, sql, pipeline_id, fingerprint, &differences).await?;
    if !differences.is_empty() {
        let detail = serde_json::to_string(&differences).unwrap_or_default();
        let audit = sql.query(AUDIT).bind(pipeline_id).bind("pipeline adopt");
        let audit = audit.bind(&settings.member).bind(detail);
        audit.execute(&mut *connection).await.map_err(postgres)?;
    }
    let mut generation: i32 = get(&row, "generation")?;
    if !get::<bool>(&row, "has_ledger")? {
        let row = sql.query(ADD_GENERATION).bind(pipeline_id);
        let row = row.fetch_one(&mut *connection).await.map_err(postgres)?;
        generation = get(&row, "add_generation")?;
    }
    let registered = Registered {
        pipeline_id,
        generation,
        mark_namespace,
    };
    Ok(Recorded {
        registered,
        differences,
    })
}

async fn insert(
    connection: &mut PgConnection,
    sql: &Sql,
    fingerprint: &Fingerprint,
) -> Result<(), Error> {
    sql.query(INSERT)
        .bind(&fingerprint.pipeline)
        .bind(&fingerprint.cluster)
        .bind(&fingerprint.consumer_group)
        .bind(&fingerprint.identity)
        .bind(&fingerprint.scope)
        .bind(milliseconds(fingerprint.retention))
        .bind(&fingerprint.handler_kind)
        .bind(&fingerprint.handler_hash)
        .execute(connection)
        .await
        .map_err(|error| Error::postgres("register the pipeline", error))?;
    Ok(())
}

async fn set(
    connection: &mut PgConnection,
    sql: &Sql,
    pipeline_id: i32,
    fingerprint: &Fingerprint,
    differences: &[Difference],
) -> Result<i32, Error> {
    let ids_changed = differences
        .iter()
        .any(|d| matches!(d.field, "cluster" | "identity.from" | "identity.scope"));
    let row = sql
        .query(SET_FINGERPRINT)
        .bind(pipeline_id)
        .bind(&fingerprint.cluster)
        .bind(&fingerprint.consumer_group)
        .bind(&fingerprint.identity)
        .bind(&fingerprint.scope)
        .bind(milliseconds(fingerprint.retention))
        .bind(&fingerprint.handler_kind)
        .bind(&fingerprint.handler_hash)
        .bind(i32::from(ids_changed))
        .fetch_one(connection)
        .await
        .map_err(|error| Error::postgres("register the pipeline", error))?;
    get(&row, "mark_namespace")
}

/// A fingerprint as it is recorded.
pub(super) fn recorded(row: &PgRow) -> Result<Fingerprint, Error> {
    let retention_ms: i64 = get(row, "retention_ms")?;
    Ok(Fingerprint {
        pipeline: get(row, "name")?,
        cluster: get(row, "cluster")?,
        consumer_group: get(row, "consumer_group")?,
        identity: get(row, "identity")?,
        scope: get(row, "scope")?,
        retention: Duration::from_millis(retention_ms.unsigned_abs()),
        handler_kind: get(row, "handler_kind")?,
        handler_hash: get(row, "handler_hash")?,
    })
}

fn refusal(pipeline: &str, difference: &Difference) -> Error {
    let Difference {
        field,
        recorded,
        configured,
    } = difference;
    Error::fatal(format!(
        "pipeline {pipeline:?} is recorded in the database with {field} = {recorded:?}, and now \
         has {configured:?}: another service of the same name, or a changed configuration? Name \
         the pipeline otherwise, or accept the change with `onceonly pipeline adopt`"
    ))
}

/// At least one: the table knows no retention of nothing.
fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis())
        .unwrap_or(i64::MAX)
        .max(1)
}

fn written(milliseconds: i64) -> String {
    let duration = Duration::from_millis(milliseconds.unsigned_abs());
    humantime::format_duration(duration).to_string()
}
