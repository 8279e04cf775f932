//! The end of a transaction: what a handler may not do to it, and answers that got lost.

use std::time::Duration;

use onceonly::error::{Class, Error};
use onceonly::ledger::postgres::PostgresLedger;
use onceonly::ledger::{CommitError, Fate, Ledger};
use onceonly::outcome::{Outcome, Tally};
use sqlx::{AssertSqlSafe, Row};

use crate::support::database::Database;
use crate::support::ledger_suite::{advance, at, fates, open};
use crate::support::proxy::{Fault, Proxy};

/// A batch up to the handler, whose statements are then run on its connection; the answer to
/// `count`.
async fn count_after(ledger: &mut PostgresLedger, statements: &str) -> Result<(), Error> {
    ledger.begin().await?;
    assert!(advance(ledger, 0, 1, 10, 20).await);
    assert_eq!(fates(ledger, &[1]).await, [Fate::New]);
    let connection = ledger.connection()?;
    // A handler that swallows its errors.
    _ = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(connection)
        .await;
    let mut tally = Tally::default();
    tally.add(Outcome::Applied);
    ledger.count(&[(&at(0), tally, 0)]).await
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_is_found_and_nothing_is_counted() {
    for statements in [
        "commit",
        "rollback",
        "commit; begin",
        "rollback; begin",
        "commit and chain",
    ] {
        let database = Database::with_pipeline("orders").await;
        let mut ledger = database.ledger("orders").await;
        open(&mut ledger).await;
        let error = count_after(&mut ledger, statements).await.unwrap_err();
        assert_eq!(error.class(), Class::Fatal, "{statements}");
        assert!(
            error
                .to_string()
                .starts_with("the handler ended the transaction"),
            "{error}"
        );
        ledger.rollback().await.unwrap();
        let applied = "select sum(applied)::bigint from onceonly.position";
        assert_eq!(database.value::<i64>(applied).await, 0, "{statements}");
    }
}

#[tokio::test]
async fn a_handler_that_swallows_an_error_is_found() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    let error = count_after(&mut ledger, "select 1/0").await.unwrap_err();
    assert_eq!((error.class(), error.code()), (Class::Fatal, Some("25P02")));
    assert!(
        error
            .to_string()
            .starts_with("the handler went on after a statement"),
        "{error}"
    );
    // Not counting does not get around it either: a commit would roll back without a word.
    let Err(CommitError::Failed(error)) = ledger.commit().await else {
        panic!("an aborted transaction was said to be committed");
    };
    assert_eq!(error.code(), Some("25P02"), "{error}");
    ledger.rollback().await.unwrap();
    count_after(&mut ledger, "savepoint s; select 1")
        .await
        .unwrap();
    ledger.commit().await.unwrap();
}

#[tokio::test]
async fn an_error_behind_a_savepoint_is_the_handlers_own_affair() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    ledger.begin().await.unwrap();
    for statement in ["savepoint s", "select 1/0", "rollback to s"] {
        _ = sqlx::raw_sql(statement)
            .execute(ledger.connection().unwrap())
            .await;
    }
    ledger
        .count(&[(&at(0), Tally::default(), 0)])
        .await
        .unwrap();
    ledger.commit().await.unwrap();
}

#[tokio::test]
async fn a_commit_that_the_server_refuses_is_certain_to_have_failed() {
    let database = Database::with_pipeline("orders").await;
    database
        .run("create table paid (id int primary key deferrable initially deferred); insert into paid values (1)")
        .await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    count_after(&mut ledger, "insert into paid values (1)")
        .await
        .unwrap();
    let Err(CommitError::Failed(error)) = ledger.commit().await else {
        panic!("a commit against a deferred constraint");
    };
    assert_eq!(
        (error.class(), error.code()),
        (Class::Rejected, Some("23505"))
    );
    ledger.rollback().await.unwrap();
    count_after(&mut ledger, "insert into paid values (2)")
        .await
        .unwrap();
    ledger.commit().await.unwrap();
}

/// A ledger whose connection goes through a proxy, with a batch ready to commit.
async fn ready(database: &Database) -> (Proxy, PostgresLedger) {
    let proxy = Proxy::start(database.address()).await;
    let mut settings = database.settings();
    settings.url = database.url_at(&proxy.address().to_string());
    let mut ledger = PostgresLedger::new(settings, "orders");
    ledger.connect().await.unwrap();
    open(&mut ledger).await;
    count_after(&mut ledger, "select 1").await.unwrap();
    (proxy, ledger)
}

async fn settled_position(ledger: &mut PostgresLedger) -> i64 {
    ledger.connect().await.unwrap();
    ledger.begin().await.unwrap();
    let rows = ledger.lock_positions(&[at(0)]).await.unwrap();
    ledger.rollback().await.unwrap();
    assert_eq!(rows[0].epoch, 1);
    rows[0].next_offset
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_is_settled_by_reading_again() {
    let database = Database::with_pipeline("orders").await;
    let (proxy, mut ledger) = ready(&database).await;
    proxy.set(Fault::DropAnswers);
    let (answer, ()) = tokio::join!(ledger.commit(), async {
        proxy.answer_dropped().await;
        proxy.set(Fault::None);
    });
    let Err(CommitError::Unknown(error)) = answer else {
        panic!("an answer that nobody got: {answer:?}");
    };
    assert!(error.is_disconnect());
    assert!(
        ledger.begin().await.unwrap_err().is_disconnect(),
        "the connection is over"
    );
    assert_eq!(settled_position(&mut ledger).await, 20, "it had committed");
}

#[tokio::test]
async fn a_commit_that_never_arrived_is_settled_by_reading_again() {
    let database = Database::with_pipeline("orders").await;
    let (proxy, mut ledger) = ready(&database).await;
    proxy.set(Fault::Cut);
    let Err(CommitError::Unknown(error)) = ledger.commit().await else {
        panic!("a commit over a cut connection");
    };
    assert!(error.is_disconnect());
    proxy.set(Fault::None);
    assert_eq!(
        settled_position(&mut ledger).await,
        10,
        "it had not committed"
    );
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_the_commit_unsettled() {
    let database = Database::with_pipeline("orders").await;
    let (proxy, mut ledger) = ready(&database).await;
    proxy.set(Fault::BlackHole);
    tokio::time::pause();
    let Err(CommitError::Unknown(error)) = ledger.commit().await else {
        panic!("a commit into the dark");
    };
    tokio::time::resume();
    assert!(
        error.is_disconnect() && error.to_string().contains("no answer within"),
        "{error}"
    );
}

#[tokio::test]
async fn a_terminated_backend_leaves_the_commit_unsettled() {
    let database = Database::with_pipeline("orders").await;
    let mut ledger = database.ledger("orders").await;
    open(&mut ledger).await;
    count_after(&mut ledger, "select 1").await.unwrap();
    let row = sqlx::query("select pg_backend_pid()");
    let row = row.fetch_one(ledger.connection().unwrap()).await.unwrap();
    let pid: i32 = row.get(0);
    database
        .run(&format!("select pg_terminate_backend({pid}, 10000)"))
        .await;
    assert!(matches!(
        ledger.commit().await,
        Err(CommitError::Unknown(_))
    ));
    assert_eq!(settled_position(&mut ledger).await, 10);
}

#[tokio::test]
async fn an_owner_that_stands_still_in_its_transaction_is_ended_by_the_server() {
    let database = Database::with_pipeline("orders").await;
    let mut settings = database.settings();
    settings.idle_in_transaction_timeout = Duration::from_millis(100);
    let mut stopped = PostgresLedger::new(settings, "orders");
    stopped.connect().await.unwrap();
    open(&mut stopped).await;
    stopped.begin().await.unwrap();
    assert!(advance(&mut stopped, 0, 1, 10, 20).await);
    // The successor waits for the row that the other holds.
    let mut successor = database.ledger("orders").await;
    successor.begin().await.unwrap();
    let rows = successor.lock_positions(&[at(0)]).await.unwrap();
    successor.rollback().await.unwrap();
    assert_eq!(rows[0].next_offset, 10);
    let error = stopped.count(&[]).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    assert!(error.is_disconnect(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_vanished_in_a_statement_holds_nothing_up() {
    let database = Database::with_pipeline("orders").await;
    let mut owner = database.ledger("orders").await;
    open(&mut owner).await;
    let vanishing = tokio::spawn(async move {
        owner.begin().await.unwrap();
        assert!(advance(&mut owner, 0, 1, 10, 20).await);
        let connection = owner.connection().unwrap();
        sqlx::raw_sql("select pg_sleep(600)")
            .execute(connection)
            .await
    });
    crate::locks::someone_holds(&database, "position").await;
    vanishing.abort();
    let mut successor = database.ledger("orders").await;
    successor.begin().await.unwrap();
    let rows = successor.lock_positions(&[at(0)]).await.unwrap();
    assert_eq!(rows[0].next_offset, 10);
    successor.rollback().await.unwrap();
}
