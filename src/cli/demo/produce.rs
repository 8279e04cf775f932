//! What was planned, as records.

use std::sync::Arc;

use super::plan::{Plan, event_id};
use crate::cli::produce::Record;

/// The plan's records, in order.
pub(super) fn records(plan: Arc<Plan>) -> impl Iterator<Item = Record> + Send + 'static {
    let mut next = 0;
    std::iter::from_fn(move || {
        let planned = plan.records.get(next)?;
        next += 1;
        let (key, value) = plan.body(planned.event);
        Some(Record {
            partition: planned.partition.into(),
            id: event_id(planned.event),
            key,
            value,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::{Duration, Instant};

    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::{Headers as _, Message as _};
    use rdkafka::mocking::MockCluster;
    use rdkafka::{Offset, TopicPartitionList};

    use super::super::partitions;
    use super::*;
    use crate::cli::produce::{ID_HEADER, Producing};

    /// Reads a topic to its end: how many records each partition has, and how often each id is there.
    fn read(brokers: &str, topic: &str, plan: &Plan) -> (Vec<i64>, HashMap<String, u32>) {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "demo-test")
            .set("fetch.wait.max.ms", "10")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        for partition in 0..plan.partitions {
            assignment
                .add_partition_offset(topic, partition.into(), Offset::Beginning)
                .unwrap();
        }
        consumer.assign(&assignment).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let (mut counts, mut times) = (vec![0; plan.partitions.into()], HashMap::new());
        let mut rest = plan.records.len();
        while rest > 0 {
            assert!(Instant::now() < deadline, "nothing more after {counts:?}");
            let Some(message) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            let message = message.unwrap();
            rest -= 1;
            let partition = message.partition() as usize;
            assert_eq!(message.offset(), counts[partition], "a record was dropped");
            counts[partition] += 1;
            let header = message.headers().unwrap().get(0);
            assert_eq!(header.key, ID_HEADER);
            let id = String::from_utf8(header.value.unwrap().to_vec()).unwrap();
            *times.entry(id).or_default() += 1;
        }
        (counts, times)
    }

    async fn everything_produced_can_be_consumed(records: u32) {
        let plan = Arc::new(Plan::new(records, partitions(records, true), 1));
        let cluster = MockCluster::new(1).unwrap();
        cluster
            .create_topic("demo", plan.partitions.into(), 1)
            .unwrap();
        let brokers = cluster.bootstrap_servers();
        let mut producing = Producing::start(
            &brokers,
            "demo",
            plan.produced(),
            super::records(Arc::clone(&plan)),
        )
        .unwrap();
        producing.finish().await.unwrap();
        assert_eq!(producing.delivered(), u64::from(records));

        let (counts, times) = read(&brokers, "demo", &plan);
        assert_eq!(counts, plan.ends());
        let mut planned = HashMap::new();
        for record in &plan.records {
            *planned.entry(event_id(record.event)).or_default() += 1;
        }
        assert!(times == planned, "an id was not there as often as planned");
    }

    #[tokio::test]
    async fn the_embedded_kafka_keeps_everything_that_the_demo_produces() {
        everything_produced_can_be_consumed(100_000).await;
    }
}
