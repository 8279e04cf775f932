//! Migrations and fingerprints.

use std::time::Duration;

use onceonly::error::Class;
use onceonly::ledger::Ledger;
use onceonly::ledger::postgres::{
    Difference, Fingerprint, SCHEMA_VERSION_KNOWN, adopt, migrate, register,
};
use sqlx::Row;

use crate::support::database::{Database, fingerprint};

const VERSIONS: &str = "select count(*) from onceonly._sqlx_migrations";

#[tokio::test]
async fn migrating_twice_changes_nothing() {
    let database = Database::migrated().await;
    migrate(&database.settings()).await.unwrap();
    assert_eq!(database.value::<i64>(VERSIONS).await, SCHEMA_VERSION_KNOWN);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_may_migrate_at_once() {
    let database = Database::empty().await;
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let settings = database.settings();
        starts.spawn(async move { migrate(&settings).await });
    }
    while let Some(result) = starts.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(database.value::<i64>(VERSIONS).await, SCHEMA_VERSION_KNOWN);
}

#[tokio::test]
async fn two_schemas_live_side_by_side_in_one_database() {
    let database = Database::with_pipeline("orders").await;
    let mut settings = database.settings();
    settings.schema = "demo_1".to_owned();
    migrate(&settings).await.unwrap();
    register(&settings, &fingerprint("orders")).await.unwrap();
    let tables = "select count(*) from pg_tables where schemaname = 'demo_1' and tablename like 'ledger\\_%'";
    assert_eq!(database.value::<i64>(tables).await, 1);
    assert_eq!(
        database
            .value::<i64>("select count(*) from demo_1.pipeline")
            .await,
        1
    );
}

#[tokio::test]
async fn a_newer_schema_is_refused_by_migrate_and_by_a_connection() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    database
        .run("insert into onceonly._sqlx_migrations values (9999, 'later', now(), true, '', 0)")
        .await;
    let expected = format!(
        "schema \"onceonly\" has version 9999, and this program knows {SCHEMA_VERSION_KNOWN}: a \
         newer onceonly migrated it; run that one"
    );
    let error = migrate(&database.settings()).await.unwrap_err();
    assert_eq!(
        (error.class(), error.to_string()),
        (Class::Fatal, expected.clone())
    );
    let error = ledger.connect().await.unwrap_err();
    assert_eq!((error.class(), error.to_string()), (Class::Fatal, expected));
}

#[tokio::test]
async fn a_missing_or_older_schema_says_to_migrate() {
    let database = Database::empty().await;
    let error = register(&database.settings(), &fingerprint("orders"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    assert!(
        error.to_string().contains("run `onceonly migrate`"),
        "{error}"
    );
    migrate(&database.settings()).await.unwrap();
    database
        .run("delete from onceonly._sqlx_migrations where version > 2")
        .await;
    let error = register(&database.settings(), &fingerprint("orders"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("has version 2"), "{error}");
    assert!(
        error.to_string().contains("run `onceonly migrate`"),
        "{error}"
    );
}

#[tokio::test]
async fn a_role_that_owns_nothing_can_run() {
    let database = Database::migrated().await;
    let role = format!("role_{}", uuid::Uuid::new_v4().simple());
    database
        .run(&format!(
            "create role {role} login password 'secret';
             grant usage on schema onceonly to {role};
             grant select, insert, update, delete on all tables in schema onceonly to {role}"
        ))
        .await;
    let mut settings = database.settings();
    let url = settings.url.clone();
    let (_, address) = url.split_once('@').unwrap();
    settings.url = format!("postgres://{role}:secret@{address}");
    let result = run_as(settings).await;
    database
        .run(&format!("drop owned by {role}; drop role {role}"))
        .await;
    result.unwrap();
}

async fn run_as(
    settings: onceonly::ledger::postgres::PostgresSettings,
) -> Result<(), onceonly::error::Error> {
    register(&settings, &fingerprint("orders")).await?;
    let mut ledger = onceonly::ledger::postgres::PostgresLedger::new(settings, "orders");
    ledger.connect().await?;
    crate::support::ledger_suite::open(&mut ledger).await;
    ledger.begin().await?;
    crate::support::ledger_suite::fates(&mut ledger, &[1]).await;
    ledger.commit().await.expect("a commit");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_at_once_register_one_pipeline_with_one_ledger() {
    let database = Database::migrated().await;
    let mut starts = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (settings, name) = (database.settings(), format!("p{}", number % 2));
        starts.spawn(async move { (number, register(&settings, &fingerprint(&name)).await) });
    }
    while let Some(result) = starts.join_next().await {
        let (number, registered) = result.unwrap();
        assert_eq!(registered.unwrap().generation, 0, "start {number}");
    }
    assert_eq!(
        database
            .value::<i64>("select count(*) from onceonly.pipeline")
            .await,
        2
    );
    assert_eq!(
        database
            .value::<i64>("select count(*) from onceonly.generation")
            .await,
        2
    );
    assert_eq!(
        database
            .value::<i64>("select count(*) from onceonly.ledger")
            .await,
        0
    );
}

#[tokio::test]
async fn a_changed_fingerprint_is_refused_with_the_field_and_both_values() {
    let database = Database::with_pipeline("orders").await;
    type Change = fn(&mut Fingerprint);
    let changes: [(&str, &str, &str, Change); 6] = [
        ("cluster", "cluster-1", "cluster-2", |f| {
            f.cluster = Some("cluster-2".to_owned())
        }),
        ("kafka.group", "orders", "other", |f| {
            f.consumer_group = "other".to_owned()
        }),
        ("identity.from", "header:event-id", "key", |f| {
            f.identity = "key".to_owned()
        }),
        ("identity.scope", "pipeline", "topic", |f| {
            f.scope = "topic".to_owned()
        }),
        ("handler.kind", "sql", "webhook", |f| {
            f.handler_kind = "webhook".to_owned()
        }),
        ("dedup.retention", "7days", "1h", |f| {
            f.retention = Duration::from_secs(3600)
        }),
    ];
    for (field, recorded, configured, change) in changes {
        let mut changed = fingerprint("orders");
        change(&mut changed);
        let error = register(&database.settings(), &changed).await.unwrap_err();
        assert_eq!(error.class(), Class::Fatal);
        let text = error.to_string();
        for part in [field, recorded, configured, "onceonly pipeline adopt"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
}

#[tokio::test]
async fn what_a_deploy_may_change_is_recorded() {
    let database = Database::with_pipeline("orders").await;
    let before = database.register("orders").await;
    let mut deployed = fingerprint("orders");
    deployed.handler_hash = "2".to_owned();
    deployed.retention *= 2;
    deployed.cluster = None;
    assert_eq!(
        register(&database.settings(), &deployed).await.unwrap(),
        before
    );
    let rows = database
        .rows("select handler_hash, retention_ms, cluster from onceonly.pipeline")
        .await;
    assert_eq!(rows[0].get::<&str, _>("handler_hash"), "2");
    assert_eq!(rows[0].get::<i64, _>("retention_ms"), 14 * 24 * 3_600_000);
    assert_eq!(
        rows[0].get::<&str, _>("cluster"),
        "cluster-1",
        "unknown is not compared"
    );
}

#[tokio::test]
async fn adopting_accepts_records_and_changes_the_namespace_of_marks() {
    let database = Database::with_pipeline("orders").await;
    let before = database.register("orders").await;
    let mut changed = fingerprint("orders");
    changed.identity = "key".to_owned();
    let differences = adopt(&database.settings(), &changed).await.unwrap();
    let expected = Difference {
        field: "identity.from",
        recorded: "header:event-id".to_owned(),
        configured: "key".to_owned(),
    };
    assert_eq!(differences, [expected]);
    let after = register(&database.settings(), &changed).await.unwrap();
    assert_eq!(after.mark_namespace, before.mark_namespace + 1);
    let audit = "select action || ' ' || (detail -> 0 ->> 'configured') from onceonly.audit";
    assert_eq!(database.value::<String>(audit).await, "pipeline adopt key");
    assert_eq!(adopt(&database.settings(), &changed).await.unwrap(), []);
    let unknown = adopt(&database.settings(), &fingerprint("nobody"))
        .await
        .unwrap_err();
    assert!(unknown.to_string().contains("was never run"), "{unknown}");
}

#[tokio::test]
async fn the_ledgers_view_shows_where_each_id_came_from() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    crate::support::ledger_suite::open(&mut ledger).await;
    ledger.begin().await.unwrap();
    crate::support::ledger_suite::fates(&mut ledger, &[41]).await;
    ledger.commit().await.unwrap();
    database.register("other").await;
    let rows = database
        .rows("select kafka_topic, kafka_partition, kafka_offset, generation, event_key = '00000000-0000-0000-0000-000000000029' as same, applied_at > now() - interval '1 minute' as now from onceonly.ledger")
        .await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<&str, _>("kafka_topic"), "orders");
    assert_eq!(
        (
            rows[0].get::<i32, _>("kafka_partition"),
            rows[0].get::<i64, _>("kafka_offset")
        ),
        (0, 41)
    );
    assert!(rows[0].get::<bool, _>("same") && rows[0].get::<bool, _>("now"));
}
