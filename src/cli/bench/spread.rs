//! Several measurements of one thing.

/// Median and range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// The middle one; of an even number the mean of the two in the middle.
    pub(super) median: f64,
    /// The least.
    pub(super) least: f64,
    /// The greatest.
    pub(super) greatest: f64,
}

impl Spread {
    /// None of nothing.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = match values.len() % 2 {
            0 => (values.get(middle.checked_sub(1)?)? + upper) / 2.0,
            _ => upper,
        };
        Some(Self {
            median,
            least: *values.first()?,
            greatest: *values.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_whatever_the_order() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        let of = |median, least, greatest| {
            Some(Spread {
                median,
                least,
                greatest,
            })
        };
        assert_eq!(spread(&[3.0, 1.0, 8.0]), of(3.0, 1.0, 8.0));
        assert_eq!(spread(&[4.0, 1.0]), of(2.5, 1.0, 4.0));
        assert_eq!(spread(&[7.0]), of(7.0, 7.0, 7.0));
        assert_eq!(spread(&[]), None);
    }
}
