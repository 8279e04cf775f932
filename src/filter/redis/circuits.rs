//! Whether Redis answers, and whether it takes what is written: what is tried, logged and counted.

use tokio::time::Instant;

use super::breaker::{Breaker, Change};
use super::failure::{Failure, Kind};
use crate::telemetry::{FilterState, REDIS_ERRORS};

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Look,
    Claim,
    Mark,
    Unclaim,
}

/// Two breakers, since a Redis that is full or a replica still knows what it knew.
#[derive(Debug)]
pub(super) struct Circuits {
    answers: Breaker,
    writes: Breaker,
    /// Why each was last failing.
    silence: Option<Failure>,
    refusal: Option<Failure>,
    sessions: u64,
}

impl Circuits {
    pub(super) fn new() -> Self {
        Self {
            answers: Breaker::new(),
            writes: Breaker::new(),
            silence: None,
            refusal: None,
            sessions: 0,
        }
    }

    /// A number for a connection that was not used before.
    pub(super) fn next_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Whether requests may pass. Only probes try whether a silent server answers again.
    pub(super) fn admit(&mut self, purpose: Purpose, now: Instant) -> bool {
        match purpose {
            Purpose::Look => self.answers.admits(now),
            Purpose::Claim => self.writes.admits(now) && self.answers.admits(now),
            Purpose::Mark => !self.answers.is_open() && self.writes.admits(now),
            Purpose::Unclaim => !self.answers.is_open(),
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.answers.is_open()
    }

    /// Notes that requests got no answer.
    pub(super) fn silent(&mut self, failure: &Failure, now: Instant, jitter: f64) {
        count(failure);
        self.silence = Some(failure.clone());
        report_answers(self.answers.failed(now, jitter), Some(failure));
    }

    /// Notes that requests were answered, and the first refusal among the answers.
    pub(super) fn answered(
        &mut self,
        purpose: Purpose,
        refusal: Option<&Failure>,
        now: Instant,
        jitter: f64,
    ) {
        if let Some(failure) = refusal {
            let useless = failure.kind == Kind::NotReady || purpose == Purpose::Look;
            if useless {
                return self.silent(failure, now, jitter);
            }
            count(failure);
        }
        report_answers(self.answers.succeeded(), None);
        let writes = matches!(purpose, Purpose::Claim | Purpose::Mark);
        match refusal {
            Some(failure) if writes => {
                self.refusal = Some(failure.clone());
                report_writes(self.writes.failed(now, jitter), Some(failure));
            }
            None if writes => report_writes(self.writes.succeeded(), None),
            _ => {}
        }
    }

    /// How Redis fares.
    pub(super) fn state(&self) -> FilterState {
        FilterState {
            trouble: self.trouble(),
            answers_open: self.answers.is_open(),
            writes_open: self.writes.is_open(),
        }
    }

    /// What is wrong, in a sentence.
    pub(super) fn trouble(&self) -> Option<String> {
        let said = |failure: &Option<Failure>| match failure {
            Some(failure) => failure.to_string(),
            None => String::new(),
        };
        if self.answers.is_open() {
            let why = said(&self.silence);
            Some(format!(
                "Redis does not answer, every id goes to Postgres: {why}"
            ))
        } else if self.writes.is_open() {
            let why = said(&self.refusal);
            Some(format!(
                "Redis takes no marks, new ids will cost Postgres a look each: {why}"
            ))
        } else {
            None
        }
    }
}

fn count(failure: &Failure) {
    metrics::counter!(REDIS_ERRORS, "kind" => failure.kind.label()).increment(1);
    tracing::debug!(kind = failure.kind.label(), %failure, "Redis failed");
}

fn report_answers(change: Option<Change>, failure: Option<&Failure>) {
    match (change, failure) {
        (Some(Change::Opened), Some(failure)) => {
            tracing::warn!(%failure, "Redis does not answer: every id goes to Postgres until it does");
        }
        (Some(Change::Closed), _) => tracing::info!("Redis answers again"),
        _ => {}
    }
}

fn report_writes(change: Option<Change>, failure: Option<&Failure>) {
    match (change, failure) {
        (Some(Change::Opened), Some(failure)) => {
            tracing::warn!(%failure, "Redis takes no marks: new ones are dropped until it does");
        }
        (Some(Change::Closed), _) => tracing::info!("Redis takes marks again"),
        _ => {}
    }
}
