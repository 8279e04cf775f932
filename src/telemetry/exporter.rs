//! The metrics in the text format of Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;

use super::{Kind, METRICS, describe};
use crate::error::Error;

/// How long a gauge that is written no more stays in the text: those of partitions that went to
/// another member. Every other one is written each second.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Renders what the process has counted.
#[derive(Clone, Debug)]
pub struct Exporter {
    handle: PrometheusHandle,
}

impl Exporter {
    /// Makes this the process's recorder of metrics, once; handles made before count nothing.
    ///
    /// [`Exporter::upkeep`] must be called every few seconds, or samples of histograms pile up.
    pub fn install() -> Result<Self, Error> {
        let recorder = builder()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| {
            Error::fatal("this process has a recorder of metrics already; it takes only one")
        })?;
        describe();
        Ok(Self { handle })
    }

    /// The text.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds samples into their buckets.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn builder() -> Result<PrometheusBuilder, Error> {
    let mut builder =
        PrometheusBuilder::new().idle_timeout(MetricKindMask::GAUGE, Some(IDLE_TIMEOUT));
    for metric in METRICS {
        if let Kind::Histogram(bounds) = metric.kind {
            let name = Matcher::Full(metric.name.to_owned());
            let refused = |error| {
                Error::fatal(format!("the buckets of {} are unusable", metric.name))
                    .caused_by(error)
            };
            builder = builder
                .set_buckets_for_metric(name, bounds)
                .map_err(refused)?;
        }
    }
    Ok(builder)
}
