//! What can be wrong with a Redis, and with whom.

use std::fmt;
use std::sync::Arc;

use ::redis::{RedisError, ServerError};

/// The kind of a failure: the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No connection could be made.
    Connect,
    /// No answer in time.
    Timeout,
    /// The connection broke.
    Disconnected,
    /// It answers that it is not ready: loading its data, waiting for its primary.
    NotReady,
    /// A replica, or a primary that was demoted.
    ReadOnly,
    /// It has reached `maxmemory` and evicts nothing.
    Full,
    /// Any other refusal: no permission, no replica to write to, a disk that is full.
    Refused,
}

impl Kind {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::NotReady => "not-ready",
            Self::ReadOnly => "read-only",
            Self::Full => "full",
            Self::Refused => "refused",
        }
    }
}

/// A failure and a sentence about it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    message: Arc<str>,
}

impl Failure {
    pub(super) fn new(kind: Kind, message: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(super) fn connect(error: &RedisError) -> Self {
        Self::new(Kind::Connect, error.to_string())
    }

    /// A request that got no answer, because of the connection.
    pub(super) fn request(error: &RedisError) -> Self {
        Self::new(Kind::Disconnected, error.to_string())
    }

    /// What an error in an answer says about the server; `None` if it concerns the key alone, which
    /// holds something that is not text.
    pub(super) fn answer(error: &ServerError) -> Option<Self> {
        let kind = match error.code() {
            "WRONGTYPE" => return None,
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "NOAUTH" => {
                Kind::NotReady
            }
            "READONLY" => Kind::ReadOnly,
            "OOM" => Kind::Full,
            _ => Kind::Refused,
        };
        let details = error.details().unwrap_or_default();
        Some(Self::new(kind, format!("{} {details}", error.code())))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use ::redis::{Value, parse_redis_value};

    use super::*;
    use crate::telemetry::REDIS_ERROR;

    #[test]
    fn the_label_of_errors_has_every_kind() {
        let kinds = [
            Kind::Connect,
            Kind::Timeout,
            Kind::Disconnected,
            Kind::NotReady,
            Kind::ReadOnly,
            Kind::Full,
            Kind::Refused,
        ];
        assert_eq!(REDIS_ERROR.values, kinds.map(Kind::label));
    }

    fn kind_of(answer: &str) -> Option<Kind> {
        let line = format!("-{answer}\r\n");
        match parse_redis_value(line.as_bytes()).unwrap() {
            Value::ServerError(error) => Failure::answer(&error).map(|failure| failure.kind),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_tells_what_is_wrong_with_the_server() {
        let kinds = [
            (
                "LOADING Redis is loading the dataset in memory",
                Kind::NotReady,
            ),
            ("MASTERDOWN Link with MASTER is down", Kind::NotReady),
            ("NOAUTH Authentication required.", Kind::NotReady),
            (
                "READONLY You can't write against a read only replica.",
                Kind::ReadOnly,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Kind::Full,
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                Kind::Refused,
            ),
            ("NOPERM this user has no permissions", Kind::Refused),
            ("ERR syntax error", Kind::Refused),
        ];
        for (answer, kind) in kinds {
            assert_eq!(kind_of(answer), Some(kind), "{answer}");
        }
    }

    #[test]
    fn a_key_of_another_type_says_nothing_of_the_server() {
        assert_eq!(kind_of("WRONGTYPE Operation against a key"), None);
    }
}
