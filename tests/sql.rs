//! Every statement in `sql/` fits the migrated schema.

mod support;

use std::path::{Path, PathBuf};

use onceonly::handler::Handler;
use onceonly::handler::sql::{PayloadKind, SqlHandler, SqlSettings};
use onceonly::ledger::postgres::Sql;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};

use support::database::Database;

/// Several statements in one file, which only the simple protocol takes; every test of a ledger
/// runs them.
const TRANSACTION_CONTROL: [&str; 4] = [
    "ledger/give_up.sql",
    "session/backend_in_transaction.sql",
    "session/begin.sql",
    "session/commit.sql",
];

fn statements(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder sql") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(statements(&path));
        } else if path.extension().is_some_and(|extension| extension == "sql") {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let database = Database::migrated().await;
    let registered = database.register("orders").await;
    let sql = Sql::new("onceonly")
        .unwrap()
        .with_generation(registered.pipeline_id, registered.generation);
    let mut connection = database.connection().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    let seen = std::fs::read_to_string(root.join("verify/create_seen.sql")).unwrap();
    let created = sqlx::raw_sql(AssertSqlSafe(seen)).execute(&mut connection);
    created.await.expect("the temporary table of `verify`");
    let mut prepared = 0;
    for path in statements(&root) {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        // The default sinks read a temporary table; their handlers prepare them below. Those of
        // demo and bench are run by their tests, in schemas of their own.
        let elsewhere = ["migrations/", "handler/event_", "demo/", "bench/"];
        let elsewhere = elsewhere.iter().any(|prefix| name.starts_with(prefix));
        if elsewhere || TRANSACTION_CONTROL.contains(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let result = connection
            .prepare(AssertSqlSafe(sql.render(&text)).into_sql_str())
            .await;
        assert!(result.is_ok(), "{name}: {}", result.err().unwrap());
        prepared += 1;
    }
    assert!(prepared > 30, "only {prepared} statements found");
    for payload in [PayloadKind::Json, PayloadKind::Text, PayloadKind::Bytes] {
        let handler = SqlHandler::new(SqlSettings {
            statements: Vec::new(),
            payload,
            max_event_bytes: 1,
            schema: "onceonly".to_owned(),
        });
        let mut connection = database.connection().await;
        let prepared = handler.unwrap().prepare(&mut connection).await;
        assert!(prepared.is_ok(), "{payload:?}: {}", prepared.unwrap_err());
    }
}
