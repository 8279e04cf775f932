//! Writes marks behind the line's back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::circuits::Purpose;
use super::link::Link;
use super::request::Request;
use crate::telemetry::MARKS_DROPPED;

/// Requests that may wait, of up to a thousand marks each, which take some 320 bytes: 10 MB.
const REQUESTS_WAITING: usize = 32;
/// Requests sent in one go.
const REQUESTS_SENT: usize = 8;

enum Job {
    Write(Request),
    Flush(oneshot::Sender<()>),
}

/// Hands marks to a task of their own; what it cannot take in time is dropped and counted.
#[derive(Clone)]
pub(super) struct Marker {
    jobs: mpsc::Sender<Job>,
}

impl Marker {
    /// Starts the task; it ends with the last handle, when it has written what it was given.
    pub(super) fn start(link: Arc<Link>) -> Self {
        let (jobs, waiting) = mpsc::channel(REQUESTS_WAITING);
        tokio::spawn(run(link, waiting));
        Self { jobs }
    }

    pub(super) fn write(&self, requests: Vec<Request>) {
        for request in requests {
            let ids = request.ids;
            if request.replies > 0 && self.jobs.try_send(Job::Write(request)).is_err() {
                count_dropped(ids);
            }
        }
    }

    pub(super) async fn flush(&self, limit: Duration) {
        let flushed = async {
            let (done, wait) = oneshot::channel();
            if self.jobs.send(Job::Flush(done)).await.is_ok() {
                // An error means that the task is gone: nothing is left to wait for.
                _ = wait.await;
            }
        };
        // What is not written by then is given up.
        _ = tokio::time::timeout(limit, flushed).await;
    }
}

async fn run(link: Arc<Link>, mut waiting: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(REQUESTS_SENT);
    while waiting.recv_many(&mut jobs, REQUESTS_SENT).await > 0 {
        let mut requests = Vec::with_capacity(jobs.len());
        let mut flushes = Vec::new();
        for job in jobs.drain(..) {
            match job {
                Job::Write(request) => requests.push(request),
                Job::Flush(done) => flushes.push(done),
            }
        }
        let answers = link.exchange(Purpose::Mark, &requests).await;
        let asked = requests.iter().zip(&answers);
        count_dropped(asked.map(|(r, answer)| r.dropped(answer.as_deref())).sum());
        for done in flushes {
            // Whoever waited may have given up.
            _ = done.send(());
        }
    }
}

pub(super) fn count_dropped(marks: usize) {
    if marks > 0 {
        metrics::counter!(MARKS_DROPPED).increment(marks as u64);
    }
}
