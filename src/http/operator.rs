//! The operator's port: whether the process lives, whether it does its work, and its metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use super::{ListenError, Server};
use crate::telemetry::{Exporter, Heartbeats, ProcessState, Sampler};

/// How often gauges are written.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples of histograms are folded every so many samples of gauges.
const SAMPLES_PER_UPKEEP: u32 = 5;

/// The routes, for a person who opens the port.
const INDEX: &str = "\
onceonly

/live     200 while the process's loops turn, 503 with their names when one stands still
/ready    200 while events are read and applied, 503 with what is missing; JSON
/metrics  metrics in the text format of Prometheus
";

/// What the operator's port shows.
#[derive(Clone)]
pub struct Operator {
    /// How the process fares. Called once per second and per request: it must do no I/O.
    pub state: Arc<dyn Fn() -> ProcessState + Send + Sync>,
    /// The loops that must not stand still.
    pub heartbeats: Heartbeats,
    /// The metrics.
    pub exporter: Exporter,
}

impl Operator {
    /// Serves on `http.listen`, and writes the gauges, until the server is closed.
    pub fn start(self, listen: SocketAddr) -> Result<Server, ListenError> {
        let beside = watch(self.clone());
        let router = Router::new()
            .route("/", get(index))
            .route("/live", get(live))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self);
        let server = Server::start("http.listen", listen, router, beside)?;
        info!(address = %server.address(), "serving /live, /ready and /metrics");
        Ok(server)
    }
}

/// Writes gauges and keeps histograms small.
async fn watch(operator: Operator) {
    let mut sampler = Sampler::default();
    let mut tick = interval(SAMPLE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in (0..SAMPLES_PER_UPKEEP).cycle() {
        tick.tick().await;
        sampler.sample(&(operator.state)(), Instant::now());
        if turn == 0 {
            operator.exporter.upkeep();
        }
    }
}

/// What is true now is not to be kept.
const FRESH: [(HeaderName, &str); 1] = [(CACHE_CONTROL, "no-store")];

async fn index() -> impl IntoResponse {
    INDEX
}

fn status(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

#[derive(Serialize)]
struct Liveness {
    live: bool,
    stalled: Vec<StalledLoop>,
}

#[derive(Serialize)]
struct StalledLoop {
    name: String,
    silent_seconds: f64,
}

/// Reads memory only: a database that is away must not have the process restarted.
async fn live(State(operator): State<Operator>) -> impl IntoResponse {
    let stalled = operator.heartbeats.stalled().into_iter();
    let stalled: Vec<_> = stalled
        .map(|stalled| StalledLoop {
            name: stalled.name,
            silent_seconds: stalled.silent_for.as_secs_f64(),
        })
        .collect();
    let live = stalled.is_empty();
    (status(live), FRESH, Json(Liveness { live, stalled }))
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    missing: Vec<String>,
    postgres: Service,
    kafka: Service,
    redis: Redis,
    partitions: Partitions,
}

#[derive(Serialize)]
struct Service {
    up: bool,
}

#[derive(Serialize)]
struct Redis {
    configured: bool,
    degraded: Option<String>,
}

#[derive(Serialize)]
struct Partitions {
    owned: usize,
    stopped: Vec<StoppedPartition>,
}

#[derive(Serialize)]
struct StoppedPartition {
    topic: String,
    partition: i32,
    reason: String,
}

impl Readiness {
    fn of(state: ProcessState) -> Self {
        let missing = state.missing();
        let stopped = state.stopped().map(|(at, reason)| StoppedPartition {
            topic: at.topic.to_string(),
            partition: at.partition,
            reason: reason.to_owned(),
        });
        Self {
            ready: missing.is_empty(),
            postgres: Service {
                up: state.postgres_up,
            },
            kafka: Service {
                up: state.source.connected,
            },
            partitions: Partitions {
                owned: state.partitions.len(),
                stopped: stopped.collect(),
            },
            redis: Redis {
                configured: state.filter.is_some(),
                degraded: state.filter.and_then(|filter| filter.trouble),
            },
            missing,
        }
    }
}

async fn ready(State(operator): State<Operator>) -> impl IntoResponse {
    let readiness = Readiness::of((operator.state)());
    (status(readiness.ready), FRESH, Json(readiness))
}

async fn metrics(State(operator): State<Operator>) -> impl IntoResponse {
    let format = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    ([format], operator.exporter.render())
}
