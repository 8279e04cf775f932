//! Filters: one suite for all of them, and what a real Redis can do to one.

// Topics and records of the other tests.
#![cfg(feature = "kafka")]

mod support;

#[path = "filter/buckets.rs"]
mod buckets;
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
use onceonly::filter::redis::{Layout, RedisFilter, RedisSettings};

use support::filter_suite::Store;
use support::redis_server::{admin, run};
use support::{PATIENCE, filter_suite, service};

/// How a filter keeps and makes marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way(Layout, MarkOrder);

fn after() -> Way {
    Way(Layout::Keys, MarkOrder::After)
}

fn before() -> Way {
    Way(Layout::Keys, MarkOrder::Before)
}

fn in_buckets() -> Way {
    Way(Layout::Buckets, MarkOrder::After)
}

/// A filter whose answers are waited for, however busy the machine is.
fn open(url: &str, pipeline: &str, Way(layout, mark): Way, timeout: Duration) -> RedisFilter {
    RedisFilter::open(RedisSettings {
        url: url.to_owned(),
        timeout,
        ttl: Duration::from_secs(3600),
        pipeline: pipeline.to_owned(),
        mark,
        layout,
    })
    .expect("a URL of a Redis")
}

/// Runs each test in each of its ways.
macro_rules! in_ways {
    ($($test:ident: $($way:ident),+;)*) => {
        $(mod $test {
            $(#[tokio::test]
            async fn $way() {
                super::$test(crate::$way()).await;
            })+
        })*
    };
}
use in_ways;

struct InMemory(MemoryFilter);

impl Store for InMemory {
    type Filter = MemoryFilter;

    fn worker(&self, pipeline: &str, order: MarkOrder) -> MemoryFilter {
        self.0.for_pipeline(pipeline, order)
    }

    async fn get(&self, pipeline: &str, id: &str) -> Option<String> {
        let value = self.0.get(format!("event:{pipeline}:{id}").as_bytes());
        value.map(|value| String::from_utf8(value).expect("text"))
    }

    async fn put(&self, pipeline: &str, id: &str, value: &str) {
        let key = format!("event:{pipeline}:{id}");
        self.0.put(key.as_bytes(), value.as_bytes());
    }
}

struct InRedis(String);

impl Store for InRedis {
    type Filter = RedisFilter;

    fn worker(&self, pipeline: &str, order: MarkOrder) -> RedisFilter {
        open(&self.0, pipeline, Way(Layout::Keys, order), PATIENCE)
    }

    async fn get(&self, pipeline: &str, id: &str) -> Option<String> {
        let key = format!("event:{pipeline}:{id}");
        run(&mut admin(&self.0).await, &["GET", &key]).await
    }

    async fn put(&self, pipeline: &str, id: &str, value: &str) {
        let key = format!("event:{pipeline}:{id}");
        let set = ["SET", &key, value, "EX", "600"];
        run(&mut admin(&self.0).await, &set).await
    }
}

macro_rules! suite {
    ($store:expr; $($claim:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $claim() {
            crate::filter_suite::$claim($store).await;
        })*
    };
}

macro_rules! marks {
    ($store:expr) => {
        suite! {
            $store;
            an_id_is_proven_only_once_its_position_is_reached,
            a_mark_names_the_place_and_position_of_its_record,
            a_mark_of_a_place_never_read_proves_nothing,
            a_value_that_cannot_be_read_proves_nothing_and_is_mended,
            a_mark_is_written_over_another_where_told,
            a_worker_that_only_reads_claims_nothing,
            pipelines_namespaces_and_topics_share_no_ids,
            an_id_that_reads_like_a_place_is_another_event,
            ids_of_any_length_and_bytes_are_told_apart,
            a_batch_of_thousands_is_answered_in_order,
            nothing_asked_is_nothing_answered,
            a_place_out_of_range_marks_and_proves_nothing,
        }
    };
}

macro_rules! keys {
    ($store:expr) => {
        suite! {
            $store;
            a_mark_stays_where_no_other_is_told_to_replace_it,
            a_claim_is_elsewhere_for_every_other_attempt,
            of_an_id_twice_in_a_batch_one_record_has_the_claim,
            an_attempt_gives_back_its_own_claims_only,
            a_claim_given_back_can_be_claimed_again,
            an_older_attempt_cannot_give_back_the_claim_of_a_newer_one,
        }
    };
}

mod in_memory {
    use super::*;

    fn store() -> InMemory {
        InMemory(MemoryFilter::new("p", MarkOrder::After))
    }

    marks!(store());
    keys!(store());
}

mod in_redis {
    use super::*;

    fn store() -> InRedis {
        InRedis(service("REDIS_URL"))
    }

    marks!(store());
    keys!(store());
}

mod in_buckets_of_redis {
    use super::buckets::InBuckets;

    marks!(InBuckets::open());
}
