//! How a ledger's connection is made, and its limits.

use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use super::statement::Sql;
use crate::error::Error;

/// How long a statement may run.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How much longer than a statement may run its answer is waited for.
const ANSWER_GRACE: Duration = Duration::from_secs(10);

/// How long the answer to a statement of a handler is waited for.
pub(crate) const ANSWER_TIMEOUT: Duration = STATEMENT_TIMEOUT.saturating_add(ANSWER_GRACE);

/// Where Postgres is, and what its sessions may take.
#[derive(Clone)]
pub struct PostgresSettings {
    /// `postgres://user:password@host:port/database`. Never shown: it may hold a password.
    pub url: String,
    /// The schema of onceonly's own tables.
    pub schema: String,
    /// Names this process in the positions it owns and in `pg_stat_activity`.
    pub member: String,
    /// How long to try to connect.
    pub connect_timeout: Duration,
    /// How long a statement waits for a lock.
    pub lock_timeout: Duration,
    /// How long a statement may run.
    pub statement_timeout: Duration,
    /// How long an open transaction may wait for its next statement before the server ends it.
    pub idle_in_transaction_timeout: Duration,
}

impl PostgresSettings {
    /// The defaults for a database.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "onceonly".to_owned(),
            member: "onceonly".to_owned(),
            connect_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(10),
            statement_timeout: STATEMENT_TIMEOUT,
            idle_in_transaction_timeout: Duration::from_secs(60),
        }
    }

    pub(super) fn sql(&self) -> Result<Sql, Error> {
        Sql::new(&self.schema)
    }

    /// A silent server is given up a little after it should have given up the statement itself.
    pub(super) fn answer_timeout(&self) -> Duration {
        self.statement_timeout + ANSWER_GRACE
    }

    pub(super) fn connect_options(&self) -> Result<PgConnectOptions, Error> {
        let options = PgConnectOptions::from_str(&self.url).map_err(|error| {
            Error::fatal(format!(
                "postgres.url is not an address of Postgres \
                 (postgres://user:password@host:port/database): {error}"
            ))
        })?;
        // A proxy refuses startup parameters that it does not know.
        Ok(options
            .application_name(&self.member)
            .extra_float_digits(None)
            .disable_statement_logging())
    }
}

impl std::fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresSettings")
            .field("schema", &self.schema)
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_address_is_refused_without_its_password() {
        let settings = PostgresSettings::new("postgres://me:secret@host:notaport/app");
        let error = settings.connect_options().unwrap_err().to_string();
        assert!(
            error.starts_with("postgres.url is not an address"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
