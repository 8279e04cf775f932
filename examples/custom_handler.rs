//! A handler in Rust: payments, whose balances are kept per account.
//!
//! ```sql
//! create table payment (id text primary key, account text not null, cents bigint not null);
//! create table balance (account text primary key, cents bigint not null);
//! ```
//!
//! ```sh
//! onceonly migrate --config payments.toml
//! cargo run --example custom_handler -- payments.toml
//! ```
//!
//! The file is that of any pipeline; its `[handler]` section is not used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use onceonly::config::Config;
use onceonly::error::Error;
use onceonly::event::Event;
use onceonly::handler::{Handler, NewEvents};
use onceonly::ledger::Failure;
use onceonly::member::Member;
use serde::Deserialize;
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

const INSERT_PAYMENTS: &str = "
    insert into payment (id, account, cents)
    select * from unnest($1::text[], $2::text[], $3::bigint[])";

/// The accounts come sorted, so that two batches lock them in the same order.
const ADD_TO_BALANCES: &str = "
    insert into balance (account, cents)
    select * from unnest($1::text[], $2::bigint[])
    on conflict (account) do update set cents = balance.cents + excluded.cents";

#[derive(Deserialize)]
struct Payment<'a> {
    account: &'a str,
    cents: i64,
}

fn parse<'a>(event: &Event<'a>) -> serde_json::Result<Payment<'a>> {
    serde_json::from_slice(event.payload().unwrap_or_default())
}

struct Payments;

impl Handler for Payments {
    /// Goes into the pipeline's fingerprint.
    fn name(&self) -> &str {
        "payments"
    }

    /// What can never be read is a dead letter at once; its neighbours are not tried in vain.
    fn screen(&self, event: &Event<'_>) -> Option<Failure> {
        let error = parse(event).err()?;
        Some(Failure {
            code: "invalid-payment".to_owned(),
            message: format!("the value is no payment: {error}"),
        })
    }

    /// All or none, in the transaction that also records the events as applied: no network calls
    /// here, since a transaction that waits holds its locks, and a call cannot be rolled back.
    async fn handle(
        &self,
        transaction: &mut PgConnection,
        events: &NewEvents<'_>,
    ) -> Result<(), Error> {
        let (mut ids, mut accounts, mut cents) = (Vec::new(), Vec::new(), Vec::new());
        let mut balances = BTreeMap::new();
        for new in events.iter() {
            let payment = parse(&new.event)
                .map_err(|error| Error::rejected(format!("event {:?}: {error}", new.id)))?;
            *balances.entry(payment.account).or_insert(0) += payment.cents;
            ids.push(new.id);
            accounts.push(payment.account);
            cents.push(payment.cents);
        }
        sqlx::query(INSERT_PAYMENTS)
            .bind(ids)
            .bind(accounts)
            .bind(cents)
            .execute(&mut *transaction)
            .await
            .map_err(|error| Error::postgres("store payments", error))?;
        let (accounts, changes): (Vec<&str>, Vec<i64>) = balances.into_iter().unzip();
        sqlx::query(ADD_TO_BALANCES)
            .bind(accounts)
            .bind(changes)
            .execute(transaction)
            .await
            .map_err(|error| Error::postgres("add to balances", error))?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("custom_handler: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let file = std::env::args_os().nth(1).map(PathBuf::from);
    let config = Config::load(file.as_deref()).map_err(|error| Error::fatal(error.to_string()))?;
    let end = CancellationToken::new();
    let interrupted = end.clone();
    tokio::spawn(async move {
        // Ctrl-C drains what is in work, commits it and leaves the group.
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.cancel();
        }
    });
    Member::join(&config, Payments)?.run(end).await
}
