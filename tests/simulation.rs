//! The production pipeline over a simulated log, filter and ledger, under a seeded plan of faults.
//!
//! `ONCEONLY_SIM_RUNS=100000 cargo test --release --test simulation` runs more,
//! `ONCEONLY_SIM_SEED=…` one. A run that breaks an invariant prints its seed.

#[path = "simulation/plan.rs"]
mod plan;
#[path = "simulation/world.rs"]
mod world;

use std::collections::BTreeMap;

use world::World;

/// Runs of the fixed set; each takes about a millisecond.
const RUNS: u64 = 200;

fn simulate(seed: u64) -> BTreeMap<&'static str, u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| panic!("no runtime: {error}"));
    runtime.block_on(async {
        let mut world = World::new(seed);
        world.live().await;
        world.heal().await;
        world.check();
        world.struck()
    })
}

#[test]
fn every_event_has_one_effect_whatever_strikes() {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>());
    let seeds = match number("ONCEONLY_SIM_SEED") {
        Some(Ok(seed)) => seed..seed + 1,
        Some(Err(error)) => panic!("ONCEONLY_SIM_SEED: {error}"),
        None => {
            0..number("ONCEONLY_SIM_RUNS")
                .and_then(Result::ok)
                .unwrap_or(RUNS)
        }
    };
    let mut struck = BTreeMap::new();
    for seed in seeds.clone() {
        let run = std::panic::catch_unwind(|| simulate(seed));
        let Ok(faults) = run else {
            panic!(
                "seed {seed} breaks an invariant: ONCEONLY_SIM_SEED={seed} cargo test --test simulation"
            );
        };
        for (fault, count) in faults {
            *struck.entry(fault).or_insert(0) += count;
        }
    }
    println!("{} runs, faults: {struck:?}", seeds.end - seeds.start);
    if seeds.end - seeds.start >= RUNS {
        for kind in plan::KINDS {
            assert!(
                struck.get(kind).is_some_and(|count| *count > 0),
                "{kind} never struck"
            );
        }
    }
}
