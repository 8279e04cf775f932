//! Creates and brings up to date onceonly's own tables.

use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row, SqlSafeStr};

use super::session::connect_error;
use super::settings::PostgresSettings;
use super::statement::Sql;
use crate::error::Error;

const MIGRATIONS: [(i64, &str, &str); 7] = [
    (
        1,
        "pipeline",
        include_str!("../../../sql/migrations/0001_pipeline.sql"),
    ),
    (
        2,
        "ledger",
        include_str!("../../../sql/migrations/0002_ledger.sql"),
    ),
    (
        3,
        "failed events",
        include_str!("../../../sql/migrations/0003_failed_events.sql"),
    ),
    (
        4,
        "event",
        include_str!("../../../sql/migrations/0004_event.sql"),
    ),
    (
        5,
        "rotation",
        include_str!("../../../sql/migrations/0005_rotation.sql"),
    ),
    (
        6,
        "forgetting",
        include_str!("../../../sql/migrations/0006_forgetting.sql"),
    ),
    (
        7,
        "start",
        include_str!("../../../sql/migrations/0007_start.sql"),
    ),
];

const SCHEMA_EXISTS: &str = include_str!("../../../sql/session/schema_exists.sql");
const SCHEMA_VERSION: &str = include_str!("../../../sql/session/schema_version.sql");

/// The version of the schema that this program works with.
pub const SCHEMA_VERSION_KNOWN: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// Applies what is missing; does nothing where the schema is up to date.
///
/// Several may run at once: one works, the others wait and find nothing to do. A schema that is
/// newer than this program is refused. Needs the right to create in the database (or in the schema,
/// where that exists), and whoever migrates owns the tables.
pub async fn migrate(settings: &PostgresSettings) -> Result<(), Error> {
    let sql = settings.sql()?;
    let options = settings.connect_options()?;
    let mut connection = options
        .connect()
        .await
        .map_err(|error| connect_error(&options, error))?;
    let applied = apply(&mut connection, &sql, &settings.schema).await;
    // An advisory lock of a failed run ends with its connection.
    let closed = connection.close().await;
    applied?;
    closed.map_err(|error| Error::postgres("migrate", error))
}

async fn apply(connection: &mut PgConnection, sql: &Sql, schema: &str) -> Result<(), Error> {
    let exists: bool = sqlx::query(SCHEMA_EXISTS)
        .bind(schema)
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| Error::postgres("migrate: look for the schema", error))?;
    let migrations = MIGRATIONS.map(|(version, name, text)| {
        let text = AssertSqlSafe(sql.render(text)).into_sql_str();
        Migration::new(
            version,
            Cow::Borrowed(name),
            MigrationType::Simple,
            text,
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.to_vec());
    migrator.dangerous_set_table_name(format!("{}._sqlx_migrations", sql.schema()));
    if !exists {
        migrator.create_schema(sql.schema());
    }
    migrator
        .run_direct(None, connection, false)
        .await
        .map_err(|error| migrate_error(schema, error))
}

fn migrate_error(schema: &str, error: MigrateError) -> Error {
    match error {
        MigrateError::VersionMissing(version) => newer_schema(schema, version),
        MigrateError::VersionMismatch(version) => Error::fatal(format!(
            "schema {schema:?}: migration {version} was applied with another text than this \
             program's; was it made by a build that was never released? Use that build, or \
             another postgres.schema"
        )),
        MigrateError::Execute(error) => Error::postgres("migrate", error),
        MigrateError::ExecuteMigration(error, version) => {
            Error::postgres(format!("migrate: migration {version}"), error)
        }
        other => Error::fatal(format!("migrate: {other}")),
    }
}

fn newer_schema(schema: &str, version: i64) -> Error {
    Error::fatal(format!(
        "schema {schema:?} has version {version}, and this program knows \
         {SCHEMA_VERSION_KNOWN}: a newer onceonly migrated it; run that one"
    ))
}

/// Refuses a schema that is missing, older or newer than this program's.
pub(super) async fn check_version(
    connection: &mut PgConnection,
    sql: &Sql,
    schema: &str,
) -> Result<(), Error> {
    let row = match sql.query(SCHEMA_VERSION).fetch_one(connection).await {
        Ok(row) => row,
        Err(sqlx::Error::Database(answer))
            if matches!(answer.code().as_deref(), Some("42P01" | "3F000")) =>
        {
            return Err(Error::fatal(format!(
                "schema {schema:?} has no tables of onceonly yet: run `onceonly migrate`"
            )));
        }
        Err(error) => return Err(Error::postgres("read the schema's version", error)),
    };
    let version: Option<i64> = row
        .try_get(0)
        .map_err(|error| Error::postgres("read the schema's version", error))?;
    match version.unwrap_or_default() {
        SCHEMA_VERSION_KNOWN => Ok(()),
        version if version > SCHEMA_VERSION_KNOWN => Err(newer_schema(schema, version)),
        version => Err(Error::fatal(format!(
            "schema {schema:?} has version {version}, and this program needs \
             {SCHEMA_VERSION_KNOWN}: run `onceonly migrate`"
        ))),
    }
}
