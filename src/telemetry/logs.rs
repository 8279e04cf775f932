//! Logs on standard error, as text or JSON, at a rate that does not grow with events.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Lines of one place in the code that may come at once; then one per second.
const BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();

/// How long lines are counted before it is said how many were left out.
const REPORT_AFTER: Duration = Duration::from_secs(10);

/// The variables that choose what is written, the first that is set and not empty.
const VARIABLES: [&str; 2] = ["ONCEONLY_LOG", "RUST_LOG"];

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Why there are no logs.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A fault of the environment: exit code 2.
    #[error("{variable} is `{filter}`, which is no filter such as `debug`: {source}")]
    Filter {
        /// The variable.
        variable: &'static str,
        /// Its value.
        filter: String,
        /// Why it cannot be used.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process writes logs already.
    #[error("logs are written already: {0}")]
    Started(#[from] tracing_subscriber::util::TryInitError),
}

/// Starts to write logs. What is written is chosen by `ONCEONLY_LOG`, or else `RUST_LOG`, such as
/// `debug` or `info,onceonly::source=debug`; without either, `info` and above.
///
/// Of each place in the code at most 20 lines come at once and then one per second; how many were
/// left out is said every 10 seconds. Who asks for `debug` or `trace` gets all lines of these levels.
pub fn start_logs(format: LogFormat) -> Result<(), LogError> {
    let is_colored = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    subscriber(format, filter()?, is_colored, io::stderr).try_init()?;
    Ok(())
}

fn filter() -> Result<EnvFilter, LogError> {
    let set = VARIABLES.into_iter().find_map(|variable| {
        Some((
            variable,
            std::env::var(variable).ok().filter(|f| !f.is_empty())?,
        ))
    });
    match set {
        None => Ok(EnvFilter::new("info")),
        Some((variable, filter)) => {
            EnvFilter::try_new(&filter).map_err(|source| LogError::Filter {
                variable,
                filter,
                source,
            })
        }
    }
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    is_colored: bool,
    writer: W,
) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(is_colored).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines.with_filter(Allowance::default()))
}

/// Leaves out lines of a place in the code that writes too many.
struct Allowance {
    limiter: DefaultKeyedRateLimiter<Identifier>,
    left_out: Arc<LeftOut>,
}

/// Lines left out since that was last said, by the module and line that would have written them.
#[derive(Default)]
struct LeftOut {
    counts: Mutex<BTreeMap<(&'static str, u32), u64>>,
}

impl Default for Allowance {
    fn default() -> Self {
        let quota = Quota::per_second(NonZeroU32::MIN).allow_burst(BURST);
        Self {
            limiter: RateLimiter::keyed(quota),
            left_out: Arc::default(),
        }
    }
}

impl<S> Filter<S> for Allowance {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let is_allowed = self.limiter.check_key(&metadata.callsite()).is_ok();
        if !is_allowed {
            self.left_out.count(metadata);
        }
        is_allowed
    }
}

impl LeftOut {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<(&'static str, u32), u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a line; the first one has a thread say the sum in a while.
    fn count(self: &Arc<Self>, metadata: &'static Metadata<'static>) {
        let place = (
            metadata.module_path().unwrap_or_default(),
            metadata.line().unwrap_or_default(),
        );
        let mut counts = self.counts();
        let is_first = counts.is_empty();
        *counts.entry(place).or_default() += 1;
        drop(counts);
        if is_first {
            let left_out = Arc::clone(self);
            let report = move || {
                thread::sleep(REPORT_AFTER);
                left_out.report();
            };
            // Without a thread the lines stay counted, and the next report tells of them.
            _ = thread::Builder::new().name("logs".into()).spawn(report);
        }
    }

    fn report(&self) {
        let counts = std::mem::take(&mut *self.counts());
        let sum: u64 = counts.values().sum();
        let most = counts.iter().max_by_key(|(_, count)| **count);
        if let Some(((module, line), _)) = most {
            tracing::warn!(
                "{sum} log lines of the last seconds were left out, most of them like those of {module}, line {line}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that a piece of code logs.
    fn lines(format: LogFormat, filter: &str, log: impl FnOnce()) -> Vec<String> {
        let paper = Paper::default();
        let written = paper.clone();
        let subscriber = subscriber(format, EnvFilter::new(filter), false, move || paper.clone());
        tracing::subscriber::with_default(subscriber, log);
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn count(lines: &[String], what: &str) -> usize {
        lines.iter().filter(|line| line.contains(what)).count()
    }

    #[test]
    fn lines_do_not_grow_with_events_and_other_places_go_on() {
        let lines = lines(LogFormat::Text, "info", || {
            for event in 0..10_000 {
                tracing::warn!(event, "dead letter");
            }
            tracing::warn!("partition stopped");
        });
        let dead_letters = count(&lines, "dead letter");
        assert!((20..30).contains(&dead_letters), "{dead_letters}");
        assert_eq!(count(&lines, "partition stopped"), 1);
    }

    #[test]
    fn who_asks_for_debug_gets_all_of_it() {
        let log = || (0..100).for_each(|step| tracing::debug!(step, "detail"));
        assert_eq!(count(&lines(LogFormat::Text, "debug", log), "detail"), 100);
        let log = || (0..100).for_each(|step| tracing::debug!(step, "detail"));
        assert_eq!(count(&lines(LogFormat::Text, "info", log), "detail"), 0);
    }

    #[test]
    fn json_has_one_object_a_line_with_the_fields_on_top() {
        let lines = lines(LogFormat::Json, "info", || {
            tracing::info!(partition = "orders/3", "claimed\nand more");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        let object: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(object["partition"], "orders/3");
        assert_eq!(object["message"], "claimed\nand more");
        assert_eq!(object["level"], "INFO");
    }

    #[test]
    fn what_was_left_out_is_said_once_in_sum_with_the_worst_place() {
        let left_out = Arc::<LeftOut>::default();
        left_out.counts().insert(("onceonly::retry", 7), 30);
        left_out.counts().insert(("onceonly::source", 9), 12);
        let said = Arc::clone(&left_out);
        let lines = lines(LogFormat::Text, "info", move || {
            said.report();
            said.report();
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("42 log lines"), "{lines:?}");
        assert!(lines[0].contains("onceonly::retry, line 7"), "{lines:?}");
    }
}
