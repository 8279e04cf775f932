//! Filters: one suite for all of them, and what a real Redis can do to one.

// Topics and records of the other tests.
#![cfg(feature = "kafka")]

mod support;

#[path = "filter/commands.rs"]
mod commands;
#[path = "filter/faults.rs"]
mod faults;
#[path = "filter/memory.rs"]
mod memory;
#[path = "filter/network.rs"]
mod network;

use std::time::Duration;

use onceonly::filter::MarkOrder;
use onceonly::filter::memory::MemoryFilter;
use onceonly::filter::redis::{RedisFilter, RedisSettings};

use support::filter_suite::Store;
use support::redis_server::{admin, run};
use support::{PATIENCE, filter_suite, service};

/// A filter whose answers are waited for, however busy the machine is.
fn open(url: &str, pipeline: &str, mark: MarkOrder, timeout: Duration) -> RedisFilter {
    RedisFilter::open(RedisSettings {
        url: url.to_owned(),
        timeout,
        ttl: Duration::from_secs(3600),
        pipeline: pipeline.to_owned(),
        mark,
    })
    .expect("a URL of a Redis")
}

struct InMemory(MemoryFilter);

impl Store for InMemory {
    type Filter = MemoryFilter;

    fn worker(&self, pipeline: &str, order: MarkOrder) -> MemoryFilter {
        self.0.for_pipeline(pipeline, order)
    }

    async fn get(&self, key: &str) -> Option<String> {
        let value = self.0.get(key.as_bytes());
        value.map(|value| String::from_utf8(value).expect("text"))
    }

    async fn put(&self, key: &str, value: &str) {
        self.0.put(key.as_bytes(), value.as_bytes());
    }
}

struct InRedis(String);

impl Store for InRedis {
    type Filter = RedisFilter;

    fn worker(&self, pipeline: &str, order: MarkOrder) -> RedisFilter {
        open(&self.0, pipeline, order, PATIENCE)
    }

    async fn get(&self, key: &str) -> Option<String> {
        run(&mut admin(&self.0).await, &["GET", key]).await
    }

    async fn put(&self, key: &str, value: &str) {
        run(&mut admin(&self.0).await, &["SET", key, value, "EX", "600"]).await
    }
}

macro_rules! suite {
    ($($claim:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $claim() {
                let store = super::MemoryFilter::new("p", super::MarkOrder::After);
                super::filter_suite::$claim(super::InMemory(store)).await;
            })*
        }

        mod in_redis {
            $(#[tokio::test]
            async fn $claim() {
                let store = super::InRedis(super::service("REDIS_URL"));
                super::filter_suite::$claim(store).await;
            })*
        }
    };
}

suite! {
    an_id_is_proven_only_once_its_position_is_reached,
    a_mark_names_the_place_and_position_of_its_record,
    a_mark_of_a_place_never_read_proves_nothing,
    a_value_that_cannot_be_read_proves_nothing_and_is_mended,
    a_mark_is_written_over_another_only_where_told,
    a_claim_is_elsewhere_for_every_other_attempt,
    of_an_id_twice_in_a_batch_one_record_has_the_claim,
    an_attempt_gives_back_its_own_claims_only,
    a_claim_given_back_can_be_claimed_again,
    an_older_attempt_cannot_give_back_the_claim_of_a_newer_one,
    a_worker_that_only_reads_claims_nothing,
    pipelines_namespaces_and_topics_share_no_ids,
    an_id_that_reads_like_a_place_is_another_event,
    ids_of_any_length_and_bytes_are_told_apart,
    a_batch_of_thousands_is_answered_in_order,
    nothing_asked_is_nothing_answered,
    a_place_out_of_range_marks_and_proves_nothing,
}
