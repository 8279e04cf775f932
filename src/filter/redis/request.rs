//! What is asked of Redis: many ids per request, in requests of a bounded size.

use std::sync::Arc;

use ::redis::{Pipeline, Value};

/// The most ids of one request: Redis serves nobody else meanwhile, and an answer must come within
/// the timeout.
pub(super) const IDS_MAX: usize = 1000;

/// Commands sent together, whose answers come together.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) replies: usize,
    /// How many ids it is about.
    pub(super) ids: usize,
    atomic: bool,
}

impl Request {
    /// Commands each of which is done or refused by itself.
    pub(super) fn new(commands: Pipeline, ids: usize) -> Self {
        Self {
            replies: commands.len(),
            pipeline: Arc::new(commands),
            ids,
            atomic: false,
        }
    }

    /// Commands from `MULTI` to `EXEC`: the last reply tells what became of them.
    pub(super) fn atomic(commands: Pipeline, ids: usize) -> Self {
        Self {
            atomic: true,
            ..Self::new(commands, ids)
        }
    }

    /// How many of its ids were not written, at most, by the replies.
    pub(super) fn dropped(&self, replies: Option<&[Value]>) -> usize {
        let refused = |value: &&Value| matches!(value, Value::ServerError(_));
        match replies {
            None => self.ids,
            Some(replies) if !self.atomic => replies.iter().filter(refused).count(),
            Some(replies) => match replies.last() {
                Some(Value::Array(done)) if !done.iter().any(|value| refused(&value)) => 0,
                _ => self.ids,
            },
        }
    }
}
