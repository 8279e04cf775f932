//! How a process ends: told once it finishes what it has in hand, told twice it ends at once, and
//! it never takes longer than it may.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::error::Error;

/// A process's way out. Clones share it.
#[derive(Clone, Debug)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    begun: CancellationToken,
    finished: CancellationToken,
    next_id: AtomicU64,
    unfinished: Mutex<BTreeMap<u64, String>>,
}

/// Something that has to finish before the process may end; dropped when it has.
#[derive(Debug)]
pub struct Unfinished {
    id: u64,
    shared: Arc<Shared>,
}

/// Why a process ends although it has not finished.
#[derive(Debug, PartialEq, Eq)]
enum Cut {
    /// It was told twice.
    Signal(&'static str, Vec<String>),
    /// It took too long.
    Timeout(Duration, Vec<String>),
}

impl Shutdown {
    /// Takes SIGTERM and SIGINT for the rest of the process's life, on a thread of its own that no
    /// busy runtime delays. `timeout` is `shutdown.timeout`, counted from the beginning of the end,
    /// however it came.
    ///
    /// A second signal, or the timeout, ends the process with exit code 1 and a sentence that says
    /// what did not finish. Every event in hand then is read again by whoever comes next.
    pub fn watch(timeout: Duration) -> Result<Self, Error> {
        let failed = |error: std::io::Error| {
            Error::fatal(format!("cannot listen for SIGTERM and SIGINT: {error}")).caused_by(error)
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (terminate, interrupt) = {
            let _context = runtime.enter();
            let listen = |kind: SignalKind| signal(kind).map_err(failed);
            (
                listen(SignalKind::terminate())?,
                listen(SignalKind::interrupt())?,
            )
        };
        let shutdown = Self::unwatched();
        let watched = shutdown.clone();
        let watch = move || {
            let (names, signals) = unbounded_channel();
            runtime.spawn(name_signals(terminate, interrupt, names));
            let cut = runtime.block_on(watched.cut(signals, timeout));
            eprintln!("error: {cut}");
            // Without the exit handlers of C libraries, which may hang beside running threads.
            signal_hook::low_level::exit(1);
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map_err(failed)?;
        Ok(shutdown)
    }

    /// One that no signal reaches and no time limits.
    pub fn unwatched() -> Self {
        Self {
            shared: Arc::default(),
        }
    }

    /// Cancelled once the process is to end.
    pub fn token(&self) -> CancellationToken {
        self.shared.begun.clone()
    }

    /// Begins the end without a signal.
    pub fn begin(&self) {
        self.shared.begun.cancel();
    }

    /// Notes something that has to finish, under the name by which it is missed if it does not.
    pub fn unfinished(&self, name: impl Into<String>) -> Unfinished {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        self.shared.names().insert(id, name.into());
        Unfinished {
            id,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Says that everything is finished: time no longer limits the process, and the next signal
    /// ends it at once.
    pub fn finish(&self) {
        self.shared.finished.cancel();
    }

    /// Waits until the process has to end although it has not finished.
    async fn cut(self, mut signals: UnboundedReceiver<&'static str>, timeout: Duration) -> Cut {
        let Shared {
            begun, finished, ..
        } = &*self.shared;
        tokio::select! {
            () = begun.cancelled() => {}
            () = finished.cancelled() => {}
            Some(name) = signals.recv() => {
                info!("{name}: finishing what is in hand, within {timeout:?}; a second signal ends at once");
                begun.cancel();
            }
        }
        let late = async {
            tokio::time::sleep(timeout).await;
            if finished.is_cancelled() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            Some(name) = signals.recv() => Cut::Signal(name, self.shared.missing()),
            () = late => Cut::Timeout(timeout, self.shared.missing()),
        }
    }
}

async fn name_signals(
    mut terminate: Signal,
    mut interrupt: Signal,
    names: UnboundedSender<&'static str>,
) {
    loop {
        let name = tokio::select! {
            Some(()) = terminate.recv() => "SIGTERM",
            Some(()) = interrupt.recv() => "SIGINT",
            else => return,
        };
        if names.send(name).is_err() {
            return;
        }
    }
}

impl Shared {
    fn names(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self) -> Vec<String> {
        self.names().values().cloned().collect()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.shared.names().remove(&self.id);
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = match self {
            Self::Signal(name, missing) => {
                write!(f, "a second signal ({name}) ends the process at once")?;
                missing
            }
            Self::Timeout(timeout, missing) => {
                write!(f, "not finished within shutdown.timeout = {timeout:?}")?;
                missing
            }
        };
        if !missing.is_empty() {
            write!(f, "; unfinished: {}", missing.join(", "))?;
        }
        f.write_str(". What was not committed will be read again; nothing is lost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinHandle;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn watched(shutdown: &Shutdown) -> (UnboundedSender<&'static str>, JoinHandle<Cut>) {
        let (names, signals) = unbounded_channel();
        (names, tokio::spawn(shutdown.clone().cut(signals, TIMEOUT)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_signal_begins_the_end_and_the_second_cuts_it() {
        let shutdown = Shutdown::unwatched();
        let (signals, cut) = watched(&shutdown);
        let _worker = shutdown.unfinished("worker 0");
        drop(shutdown.unfinished("worker 1"));
        signals.send("SIGTERM").unwrap();
        shutdown.token().cancelled().await;
        signals.send("SIGINT").unwrap();
        let cut = cut.await.unwrap();
        assert_eq!(cut, Cut::Signal("SIGINT", vec!["worker 0".into()]));
        assert_eq!(
            cut.to_string(),
            "a second signal (SIGINT) ends the process at once; unfinished: worker 0. What was not \
             committed will be read again; nothing is lost"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_timeout_counts_from_the_beginning_of_the_end_however_it_came() {
        let shutdown = Shutdown::unwatched();
        let (_signals, cut) = watched(&shutdown);
        tokio::time::sleep(10 * TIMEOUT).await;
        assert!(!cut.is_finished() && !shutdown.token().is_cancelled());
        let _worker = shutdown.unfinished("worker 0");
        shutdown.begin();
        let begin = tokio::time::Instant::now();
        let cut = cut.await.unwrap();
        assert_eq!(begin.elapsed(), TIMEOUT);
        assert_eq!(cut, Cut::Timeout(TIMEOUT, vec!["worker 0".into()]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_finished_is_not_cut_by_time_but_ends_at_a_signal() {
        let shutdown = Shutdown::unwatched();
        let (signals, cut) = watched(&shutdown);
        shutdown.begin();
        shutdown.finish();
        tokio::time::sleep(10 * TIMEOUT).await;
        assert!(!cut.is_finished());
        signals.send("SIGTERM").unwrap();
        assert_eq!(cut.await.unwrap(), Cut::Signal("SIGTERM", Vec::new()));
    }
}
