//! What only a real Postgres can do to a ledger: locks, lost answers, refusals.

mod support;

#[path = "ledger_postgres/commit.rs"]
mod commit;
#[path = "ledger_postgres/hope.rs"]
mod hope;
#[path = "ledger_postgres/locks.rs"]
mod locks;
#[path = "ledger_postgres/operator.rs"]
mod operator;
#[path = "ledger_postgres/refusals.rs"]
mod refusals;
#[path = "ledger_postgres/rotation.rs"]
mod rotation;
#[path = "ledger_postgres/schema.rs"]
mod schema;
