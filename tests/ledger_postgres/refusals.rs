//! Servers that must not be used, and those that will come back.

use std::time::Duration;

use onceonly::error::Class;
use onceonly::ledger::Ledger;
use onceonly::ledger::postgres::{PostgresLedger, PostgresSettings};

use crate::support::database::Database;
use crate::support::pooler::TransactionPooler;
use crate::support::proxy::{Fault, Proxy};

async fn refused(settings: PostgresSettings) -> (Class, String) {
    let mut ledger = PostgresLedger::new(settings, "orders");
    let error = ledger.connect().await.expect_err("a refusal");
    (error.class(), error.to_string())
}

fn at_url(database: &Database, url: &str) -> PostgresSettings {
    let mut settings = database.settings();
    settings.url = url.to_owned();
    settings
}

/// A server whose facts differ from the real one's.
async fn telling(
    database: &Database,
    fact: &'static str,
    other: &'static str,
) -> (Proxy, PostgresSettings) {
    let proxy = Proxy::start(database.address()).await;
    proxy.set(Fault::Replace(fact, other));
    let url = database.url_at(&proxy.address().to_string());
    (proxy, at_url(database, &url))
}

#[tokio::test]
async fn a_standby_is_refused_at_first_and_waited_for_later() {
    let database = Database::with_pipeline("orders").await;
    let (proxy, settings) = telling(&database, "primary", "standby").await;
    let (class, text) = refused(settings.clone()).await;
    assert_eq!(class, Class::Fatal);
    assert!(text.contains("is a standby"), "{text}");
    proxy.set(Fault::None);
    let mut ledger = PostgresLedger::new(settings, "orders");
    ledger.connect().await.unwrap();
    proxy.set(Fault::Replace("primary", "standby"));
    let error = ledger.connect().await.unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error}");
    proxy.set(Fault::None);
    ledger.connect().await.unwrap();
}

#[tokio::test]
async fn an_old_server_is_refused() {
    let database = Database::with_pipeline("orders").await;
    let version: String = database
        .value("select current_setting('server_version_num')")
        .await;
    let version: &'static str = Box::leak(version.into_boxed_str());
    let (_proxy, settings) = telling(&database, version, "130020").await;
    let (class, text) = refused(settings).await;
    assert_eq!(class, Class::Fatal);
    assert!(
        text.contains("130020") && text.contains("Postgres 14"),
        "{text}"
    );
}

#[tokio::test]
async fn a_database_that_cannot_hold_every_text_is_refused() {
    let options = "encoding 'SQL_ASCII' locale 'C' template template0";
    let database = Database::with_options(options).await;
    onceonly::ledger::postgres::migrate(&database.settings())
        .await
        .unwrap();
    let (class, text) = refused(database.settings()).await;
    assert_eq!(class, Class::Fatal);
    assert!(
        text.contains("SQL_ASCII") && text.contains("UTF8"),
        "{text}"
    );
}

#[tokio::test]
async fn a_transaction_pooling_proxy_is_refused() {
    let database = Database::with_pipeline("orders").await;
    let pooler = TransactionPooler::start(database.address()).await;
    let url = database.url_at(&pooler.address().to_string());
    let (class, text) = refused(at_url(&database, &url)).await;
    assert_eq!(class, Class::Fatal);
    assert!(text.contains("pools transactions"), "{text}");
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_worth_another_try() {
    let database = Database::with_pipeline("orders").await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (class, text) = refused(at_url(&database, &database.url_at(&address))).await;
    assert_eq!(class, Class::Transient);
    let expected = format!("connect to Postgres at {address}, database \"test_");
    assert!(text.starts_with(&expected), "{text}");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let database = Database::with_pipeline("orders").await;
    let proxy = Proxy::start(database.address()).await;
    proxy.set(Fault::BlackHole);
    let url = database.url_at(&proxy.address().to_string());
    let mut settings = at_url(&database, &url);
    settings.connect_timeout = Duration::from_millis(200);
    let (class, text) = refused(settings).await;
    assert_eq!(class, Class::Transient);
    assert!(text.contains("no answer within"), "{text}");
}

#[tokio::test]
async fn an_unknown_database_or_user_stops_without_showing_the_password() {
    let database = Database::with_pipeline("orders").await;
    let address = database.address();
    let nowhere = database.url().replace("/test_", "/nowhere_");
    let (class, text) = refused(at_url(&database, &nowhere)).await;
    assert_eq!(class, Class::Fatal);
    for part in [
        &*address,
        "database \"nowhere_",
        "user \"onceonly\"",
        "does not exist",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    let stranger = format!("postgres://stranger:hunter2@{address}/postgres");
    let (class, text) = refused(at_url(&database, &stranger)).await;
    assert_eq!(class, Class::Fatal);
    assert!(
        text.contains("user \"stranger\"") && !text.contains("hunter2"),
        "{text}"
    );
}

#[tokio::test]
async fn a_pipeline_that_the_database_lost_is_not_run() {
    let database = Database::migrated().await;
    let (class, text) = refused(database.settings()).await;
    assert_eq!(class, Class::Fatal);
    assert!(
        text.starts_with("pipeline \"orders\" is not in the database"),
        "{text}"
    );
}
