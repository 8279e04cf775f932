//! A thousand rotations under writers.

mod support;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_rotations_under_writers_apply_no_id_twice() {
    support::rotation::rotate_under_writers(1000).await;
}
