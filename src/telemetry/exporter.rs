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
        let recorder = builder(IDLE_TIMEOUT)?.build_recorder();
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

/// Counters and histograms never fall idle: their handles are kept, and would write to nowhere.
fn builder(idle_timeout: Duration) -> Result<PrometheusBuilder, Error> {
    let mut builder =
        PrometheusBuilder::new().idle_timeout(MetricKindMask::GAUGE, Some(idle_timeout));
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::event::TopicPartition;
    use crate::telemetry::{LineMetrics, PartitionState, ProcessState, Sampler};

    fn owning(partitions: &[i32]) -> ProcessState {
        let partition = |number: &i32| PartitionState {
            at: TopicPartition::new("orders", *number),
            position: Some(5),
            lag: Some(1),
            stopped: None,
        };
        ProcessState {
            partitions: partitions.iter().map(partition).collect(),
            ..ProcessState::default()
        }
    }

    #[test]
    fn gauges_of_a_partition_that_went_elsewhere_vanish_and_nothing_else_does() {
        let recorder = builder(Duration::from_millis(20)).unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let (mut sampler, line) = (Sampler::default(), LineMetrics::default());
            line.fenced();
            sampler.sample(&owning(&[0, 1]), Instant::now());
            let lag = |partition: i32| {
                format!("onceonly_lag_records{{topic=\"orders\",partition=\"{partition}\"}} 1")
            };
            assert!(handle.render().contains(&lag(1)));
            let deadline = Instant::now() + Duration::from_secs(30);
            while handle.render().contains("partition=\"1\"") {
                assert!(Instant::now() < deadline, "it stays");
                sampler.sample(&owning(&[0]), Instant::now());
            }
            line.fenced();
            sampler.sample(&owning(&[0]), Instant::now());
            let text = handle.render();
            for line in [
                &lag(0),
                "onceonly_partitions_owned 1",
                "onceonly_fenced_total 2",
            ] {
                assert!(text.contains(line), "{line} in\n{text}");
            }
        });
    }
}
