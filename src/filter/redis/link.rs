//! The connection that all workers share: made anew when it fails, left alone while it keeps failing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::{Client, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::circuits::{Circuits, Purpose};
use super::failure::{Failure, Kind};
use super::keys::ClaimStyle;
use super::request::Request;
use super::session::{self, Server};

/// A connection by its number.
#[derive(Clone)]
struct Session {
    number: u64,
    connection: MultiplexedConnection,
}

enum State {
    /// None, and why.
    Idle(Option<Failure>),
    Connecting,
    Ready(Session),
}

/// The answers to each request, in order; `None` where none came in time.
pub(super) type Answers = Vec<Option<Vec<Value>>>;

pub(super) struct Link {
    client: Client,
    timeout: Duration,
    state: watch::Sender<State>,
    circuits: Mutex<Circuits>,
    /// The server is older than 7.0.
    claims_in_two_steps: AtomicBool,
    said_evicting: AtomicBool,
}

impl Link {
    /// Connects to nothing yet.
    pub(super) fn new(client: Client, timeout: Duration) -> Self {
        Self {
            client,
            timeout,
            state: watch::Sender::new(State::Idle(None)),
            circuits: Mutex::new(Circuits::new()),
            claims_in_two_steps: AtomicBool::new(false),
            said_evicting: AtomicBool::new(false),
        }
    }

    pub(super) fn circuits(&self) -> MutexGuard<'_, Circuits> {
        // Every method of the circuits leaves them consistent.
        self.circuits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn claim_style(&self) -> ClaimStyle {
        if self.claims_in_two_steps.load(Ordering::Relaxed) {
            ClaimStyle::SetThenGet
        } else {
            ClaimStyle::SetGet
        }
    }

    /// Sends requests in one go, if the breakers let them pass, and waits for the answers: for the
    /// first one no longer than the timeout, and no longer than that from one to the next.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        purpose: Purpose,
        requests: &[Request],
    ) -> Answers {
        let mut answers: Answers = vec![None; requests.len()];
        if requests.is_empty() || !self.circuits().admit(purpose, Instant::now()) {
            return answers;
        }
        let mut deadline = Instant::now() + self.timeout;
        let mut sent = self.send(requests, &mut answers, &mut deadline).await;
        // Servers close idle connections. Sending again is safe: a mark is the same mark, and a
        // claim whose answer was lost is recognised by its value.
        if matches!(&sent, Err(failure) if failure.kind == Kind::Disconnected) {
            sent = self.send(requests, &mut answers, &mut deadline).await;
        }
        match sent {
            Ok(session) => self.note_answers(purpose, &answers, session),
            Err(failure) => self.note_silence(&failure),
        }
        answers
    }

    /// Sends what has no answer yet, and returns the number of the connection used.
    async fn send(
        self: &Arc<Self>,
        requests: &[Request],
        answers: &mut Answers,
        deadline: &mut Instant,
    ) -> Result<u64, Failure> {
        let late = |_| {
            let timeout = self.timeout;
            Failure::new(Kind::Timeout, format!("no answer within {timeout:?}"))
        };
        let session = timeout_at(*deadline, self.session())
            .await
            .map_err(late)??;
        let mut waiting = JoinSet::new();
        for (index, request) in requests.iter().enumerate() {
            if matches!(answers.get(index), Some(None)) {
                let (mut connection, request) = (session.connection.clone(), request.clone());
                waiting.spawn(async move {
                    let Request {
                        pipeline, replies, ..
                    } = request;
                    (
                        index,
                        connection.req_packed_commands(&pipeline, 0, replies).await,
                    )
                });
            }
        }
        while let Some(done) = timeout_at(*deadline, waiting.join_next())
            .await
            .map_err(late)?
        {
            let ended =
                |error: tokio::task::JoinError| Failure::new(Kind::Disconnected, error.to_string());
            let (index, answer) = done.map_err(ended)?;
            let answer = answer.map_err(|error| {
                self.discard(session.number);
                Failure::request(&error)
            })?;
            if let Some(slot) = answers.get_mut(index) {
                *slot = Some(answer);
            }
            *deadline = Instant::now() + self.timeout;
        }
        Ok(session.number)
    }

    /// The connection, or the one being made now.
    async fn session(self: &Arc<Self>) -> Result<Session, Failure> {
        let mut states = self.state.subscribe();
        let begun = self.state.send_if_modified(|state| {
            let idle = matches!(state, State::Idle(_));
            if idle {
                *state = State::Connecting;
            }
            idle
        });
        if begun {
            tokio::spawn(self.clone().connect());
        }
        let settled = states
            .wait_for(|state| !matches!(state, State::Connecting))
            .await;
        match settled.as_deref() {
            Ok(State::Ready(session)) => Ok(session.clone()),
            Ok(State::Idle(Some(failure))) => Err(failure.clone()),
            _ => Err(Failure::new(Kind::Connect, "the connection was lost again")),
        }
    }

    async fn connect(self: Arc<Self>) {
        let state = match session::connect(&self.client, self.timeout).await {
            Ok((connection, server)) => {
                self.meet(&server);
                let number = self.circuits().next_session();
                State::Ready(Session { number, connection })
            }
            Err(failure) => State::Idle(Some(failure)),
        };
        self.state.send_replace(state);
    }

    fn meet(&self, server: &Server) {
        let in_two_steps = server.claim_style() == ClaimStyle::SetThenGet;
        self.claims_in_two_steps
            .store(in_two_steps, Ordering::Relaxed);
        tracing::debug!(version = %server.version, "connected to Redis");
        let Some(policy) = &server.evicts_by else {
            return;
        };
        if !self.said_evicting.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                maxmemory_policy = %policy,
                "Redis may evict marks before they expire: nothing is lost, but duplicates of \
                 evicted ids cost a trip to Postgres; maxmemory-policy noeviction keeps them"
            );
        }
    }

    /// Gives up a connection, if it is still the one in use: the next request makes another, and a
    /// late answer over the old one finds nobody.
    fn discard(&self, number: u64) {
        self.state.send_if_modified(|state| {
            let in_use = matches!(state, State::Ready(session) if session.number == number);
            if in_use {
                *state = State::Idle(None);
            }
            in_use
        });
    }

    fn discard_any(&self) {
        self.state.send_if_modified(|state| {
            let ready = matches!(state, State::Ready(_));
            if ready {
                *state = State::Idle(None);
            }
            ready
        });
    }

    fn note_silence(&self, failure: &Failure) {
        let mut circuits = self.circuits();
        circuits.silent(failure, Instant::now(), rand::random());
        // Silence that goes on may be this connection's alone: one that a failover left behind
        // swallows requests until the kernel gives it up.
        if circuits.is_silent() {
            drop(circuits);
            self.discard_any();
        }
    }

    fn note_answers(&self, purpose: Purpose, answers: &Answers, session: u64) {
        let refusal = answers
            .iter()
            .flatten()
            .flatten()
            .find_map(|value| match value {
                Value::ServerError(error) => Failure::answer(error),
                _ => None,
            });
        self.circuits()
            .answered(purpose, refusal.as_ref(), Instant::now(), rand::random());
        if refusal.is_some_and(|failure| failure.kind == Kind::ReadOnly) {
            // The name may lead to another primary by now.
            self.discard(session);
        }
    }
}
