//! Redis, Postgres and Kafka fail in every way there is under members that are real processes:
//! every event has one effect, and the flow goes on by itself.

mod support;

#[path = "outages/events.rs"]
mod events;
#[path = "outages/failover.rs"]
mod failover;
#[path = "outages/kafka.rs"]
mod kafka;
#[path = "outages/members.rs"]
mod members;
#[path = "outages/memory.rs"]
mod memory;
#[path = "outages/postgres.rs"]
mod postgres;
#[path = "outages/process.rs"]
mod process;
#[path = "outages/redis.rs"]
mod redis;
#[path = "outages/redis_faults.rs"]
mod redis_faults;
#[path = "outages/scene.rs"]
mod scene;
