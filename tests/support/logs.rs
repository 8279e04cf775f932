//! What the code under test logs and counts, on the thread of the test.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString,
    Unit,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};

/// Keeps log lines from `INFO` up, such as `WARN Redis does not answer failure=…`, of this thread:
/// a test on a runtime of one thread.
pub struct Logs {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Logs {
    /// Keeps lines from now on.
    pub fn keep() -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let keeper = Keeper(lines.clone());
        Self {
            lines,
            _guard: tracing::subscriber::set_default(keeper),
        }
    }

    /// The lines so far that contain a text.
    pub fn with(&self, text: &str) -> Vec<String> {
        let lines = self.lines.lock().expect("lines");
        lines.iter().filter(|l| l.contains(text)).cloned().collect()
    }
}

struct Keeper(Arc<Mutex<Vec<String>>>);

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("onceonly")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().expect("lines").push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let name = field.name();
        match name {
            "message" => write!(self.0, " {value:?}"),
            _ => write!(self.0, " {name}={value:?}"),
        }
        .expect("a line");
    }
}

/// Keeps counters of this thread, by name and value of the label.
pub struct Metrics {
    values: Values,
    _guard: LocalRecorderGuard<'static>,
}

type Values = Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>;

impl Metrics {
    /// Keeps values from now on.
    pub fn keep() -> Self {
        let values = Values::default();
        // A guard borrows its recorder; that of a test may live as long as the process.
        let recorder = Box::leak(Box::new(Kept(values.clone())));
        Self {
            values,
            _guard: metrics::set_default_local_recorder(recorder),
        }
    }

    /// A counter, such as `requests_total timeout`; 0 if it was never raised.
    pub fn counter(&self, name: &str) -> u64 {
        let values = self.values.lock().expect("values");
        values.get(name).map_or(0, |v| v.load(Ordering::SeqCst))
    }
}

struct Kept(Values);

impl Kept {
    fn value(&self, key: &Key) -> Arc<AtomicU64> {
        let labels = key.labels().map(|label| format!(" {}", label.value()));
        let name = format!("{}{}", key.name(), labels.collect::<String>());
        let mut values = self.0.lock().expect("values");
        values.entry(name).or_default().clone()
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
