//! Errors and their class: whether to try again, to blame the event, or to stop.

use std::error::Error as StdError;
use std::fmt;

/// What an error asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The surroundings failed: try again, nothing moves.
    Transient,
    /// The event failed: its neighbours go on without it.
    Rejected,
    /// Nothing will mend it but a person: stop, say why, move nothing.
    Fatal,
}

/// An error with its class and a sentence for a person.
///
/// The message says what is wrong, of what (file, key, event, offset), and what to do.
#[derive(Debug)]
pub struct Error {
    class: Class,
    message: String,
    code: Option<String>,
    suspect: bool,
    disconnected: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of a class.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            class,
            message,
            code: None,
            suspect: false,
            disconnected: false,
            source: None,
        }
    }

    /// The surroundings failed.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::new(Class::Transient, message)
    }

    /// The event failed.
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::new(Class::Rejected, message)
    }

    /// Nothing will mend it but a person.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::new(Class::Fatal, message)
    }

    /// The connection is gone, or as good as that: nothing learned over it is believed any more.
    pub fn lost_connection(message: impl Into<String>) -> Self {
        let mut error = Self::transient(message);
        error.disconnected = true;
        error
    }

    /// Keeps the cause.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts what was being done before the message.
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }

    /// Classifies an error of the Postgres driver: by SQLSTATE where the server answered, as a
    /// lost connection where it did not.
    pub fn postgres(doing: impl fmt::Display, source: sqlx::Error) -> Self {
        let mut error = match &source {
            sqlx::Error::Database(answer) => {
                let code = answer.code().unwrap_or_default().into_owned();
                let class = match is_refused_by_policy(answer.as_ref()) {
                    true => Class::Rejected,
                    false => class_of_sqlstate(&code),
                };
                let mut error = Self::new(class, format!("{doing}: {}", told(answer.as_ref())));
                error.suspect = code == "57014" || is_disconnect(&code);
                error.disconnected = is_disconnect(&code);
                error.code = Some(code);
                error
            }
            sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => {
                Self::fatal(format!("{doing}: {source}"))
            }
            sqlx::Error::Encode(_) | sqlx::Error::ColumnDecode { .. } => {
                Self::fatal(format!("{doing}: {source}"))
            }
            _ => {
                let mut error = Self::transient(format!("{doing}: connection lost: {source}"));
                (error.suspect, error.disconnected) = (true, true);
                error
            }
        };
        error.source = Some(Box::new(source));
        error
    }

    /// What the error asks for.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The SQLSTATE, where Postgres gave one.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Whether the connection is gone: nothing learned over it is believed any more.
    pub fn is_disconnect(&self) -> bool {
        self.disconnected
    }

    /// Whether an event may be the cause of a transient error: a backend lost, or a statement that
    /// ran out of time, while the handler had the connection.
    ///
    /// Lock timeouts, deadlocks, serialization failures, exhausted resources and shutdowns never
    /// cast suspicion on an event.
    pub fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// Turns a transient error that keeps coming back into the event's own fault.
    pub fn blame_event(mut self) -> Self {
        self.class = Class::Rejected;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// What the server said, with its detail and hint. (The driver's own text adds a line of the
/// server's source code.)
fn told(answer: &dyn sqlx::error::DatabaseError) -> String {
    let mut text = answer.message().to_owned();
    if let Some(answer) = answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        for (label, more) in [("detail", answer.detail()), ("hint", answer.hint())] {
            if let Some(more) = more {
                text.push_str(&format!(" ({label}: {more})"));
            }
        }
    }
    text
}

/// What a SQLSTATE asks for (Postgres documentation, appendix A).
///
/// Missing objects, permissions and syntax are a person's; what time may mend is transient; the rest
/// is the event's, codes that users raise in functions and triggers included: one event must not
/// stop its neighbours, and where all fail, `retry.max_dead_in_a_row` stops the partition.
pub fn class_of_sqlstate(code: &str) -> Class {
    match code {
        // A statement that ran out of time, or was cancelled by a person.
        "57014" => Class::Transient,
        // Read-only: a standby that is being promoted, or a failover in progress.
        "25006" => Class::Transient,
        // An idle transaction was ended: the process was stopped for longer than the limit.
        "25P03" | "25P04" => Class::Transient,
        // A lock that was not to be had in time, an object in use.
        "55P03" | "55006" => Class::Transient,
        // A cached plan that no longer fits a table which was altered: preparing again mends it.
        "0A000" => Class::Fatal,
        _ => match code.get(..2).unwrap_or_default() {
            // Connection, transaction rollback, resources, operator intervention, system error.
            "08" | "40" | "53" | "57" | "58" => Class::Transient,
            // No such database, schema, table, column, function or right; a transaction or a
            // prepared statement in a state that nobody meant; a broken server.
            "0A" | "25" | "26" | "28" | "2B" | "2D" | "34" | "3D" | "3F" | "42" | "F0" | "HV"
            | "XX" => Class::Fatal,
            _ => Class::Rejected,
        },
    }
}

/// A row that a row-level-security policy refuses has the code of a missing right, though it is
/// this event's row that is refused.
fn is_refused_by_policy(answer: &dyn sqlx::error::DatabaseError) -> bool {
    answer
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .is_some_and(|answer| {
            answer.code() == "42501" && answer.routine() == Some("ExecWithCheckOptions")
        })
}

/// Whether the server's answer means that this connection is over.
fn is_disconnect(code: &str) -> bool {
    code.starts_with("08")
        || matches!(
            code,
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_follows_the_sqlstate() {
        let classes = [
            ("22P02", Class::Rejected),
            ("22P05", Class::Rejected),
            ("22021", Class::Rejected),
            ("23505", Class::Rejected),
            ("23514", Class::Rejected),
            ("21000", Class::Rejected),
            ("P0001", Class::Rejected),
            ("54001", Class::Rejected),
            ("40001", Class::Transient),
            ("40P01", Class::Transient),
            ("55P03", Class::Transient),
            ("53300", Class::Transient),
            ("57P01", Class::Transient),
            ("57014", Class::Transient),
            ("08006", Class::Transient),
            ("25006", Class::Transient),
            ("45000", Class::Rejected),
            ("UE001", Class::Rejected),
            ("38000", Class::Rejected),
            ("27000", Class::Rejected),
            ("55000", Class::Rejected),
            ("42P01", Class::Fatal),
            ("42501", Class::Fatal),
            ("42601", Class::Fatal),
            ("28P01", Class::Fatal),
            ("3D000", Class::Fatal),
            ("25P02", Class::Fatal),
            ("XX000", Class::Fatal),
        ];
        for (code, class) in classes {
            assert_eq!(class_of_sqlstate(code), class, "{code}");
        }
    }

    #[test]
    fn context_reads_from_the_outside_in() {
        let error = Error::rejected("value too long").context("statement 2");
        assert_eq!(error.to_string(), "statement 2: value too long");
    }
}
