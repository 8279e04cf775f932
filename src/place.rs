//! Places in a log, written one way everywhere.
//!
//! `earliest`, `latest`, an offset, an RFC 3339 time, or `-24h` for a time ago; per partition
//! `0:100,1:250`. As the end of a range a place is exclusive.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

use crate::span;

/// A place in a partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// The first record that the log still holds.
    Earliest,
    /// Behind the last record.
    Latest,
    /// An offset; never negative.
    Offset(i64),
    /// The first record at or after a time.
    Time(Timestamp),
    /// The first record at or after a time that lies this long ago.
    Ago(Duration),
}

impl LogPlace {
    /// The time that a place stands for, if it is one. A span that reaches beyond all time is the
    /// earliest time there is.
    pub fn time(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Time(time) => Some(time),
            Self::Ago(ago) => Some(now.checked_sub(ago).unwrap_or(Timestamp::MIN)),
            Self::Earliest | Self::Latest | Self::Offset(_) => None,
        }
    }
}

impl FromStr for LogPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => return Ok(Self::Earliest),
            "latest" => return Ok(Self::Latest),
            _ => {}
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text
                .parse()
                .map(Self::Offset)
                .map_err(|_| format!("`{text}` is beyond any offset"));
        }
        if let Some(ago) = text.strip_prefix('-') {
            return humantime::parse_duration(ago)
                .map(Self::Ago)
                .map_err(|error| match ago.parse::<i64>() {
                    Ok(_) => format!(
                        "`{text}`: no offset is negative; a time ago needs a unit, such as -24h"
                    ),
                    Err(_) => format!("`{text}` is no time ago, such as -24h: {error}"),
                });
        }
        text.parse().map(Self::Time).map_err(|_| {
            format!(
                "`{text}` is no place in a log: write earliest, latest, an offset, an RFC 3339 time \
                 such as 2026-01-31T09:00:00Z, or a time ago such as -24h"
            )
        })
    }
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Offset(offset) => offset.fmt(f),
            Self::Time(time) => time.fmt(f),
            Self::Ago(ago) => write!(f, "-{}", span::text(*ago)),
        }
    }
}

/// A place for each partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPlaces {
    /// The same for all.
    All(LogPlace),
    /// One for each partition named, at least one; the others have none.
    Each(BTreeMap<i32, LogPlace>),
}

impl LogPlaces {
    /// The place in a partition.
    pub fn of(&self, partition: i32) -> Option<LogPlace> {
        match self {
            Self::All(place) => Some(*place),
            Self::Each(places) => places.get(&partition).copied(),
        }
    }
}

impl FromStr for LogPlaces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A time has colons too, but no bare number before the first one.
        let is_each = text
            .split_once(':')
            .is_some_and(|(first, _)| first.trim().parse::<i32>().is_ok());
        if !is_each {
            return text.parse().map(Self::All);
        }
        let mut places = BTreeMap::new();
        for part in text.split(',') {
            let (partition, place) = part
                .trim()
                .split_once(':')
                .and_then(|(partition, place)| Some((partition.parse().ok()?, place)))
                .filter(|(partition, _)| *partition >= 0)
                .ok_or_else(|| format!("`{part}` is no partition with a place, such as 0:100"))?;
            if places.insert(partition, place.parse()?).is_some() {
                return Err(format!("`{text}` names partition {partition} twice"));
            }
        }
        Ok(Self::Each(places))
    }
}

impl fmt::Display for LogPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(place) => place.fmt(f),
            Self::Each(places) => {
                for (i, (partition, place)) in places.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{partition}:{place}")?;
                }
                Ok(())
            }
        }
    }
}

/// Where the reading of a topic begins that the pipeline does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the offsets that the group committed; an error where there is none.
    Committed,
    /// At a place.
    Place(LogPlace),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "committed" => Ok(Self::Committed),
            _ => text.parse().map(Self::Place),
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Committed => f.write_str("committed"),
            Self::Place(place) => place.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = LogPlace> {
        // RFC 3339 knows the years 0 to 9999.
        let range = -62_167_219_200_000..=Timestamp::MAX.as_millisecond();
        prop_oneof![
            Just(LogPlace::Earliest),
            Just(LogPlace::Latest),
            (0..=i64::MAX).prop_map(LogPlace::Offset),
            range.prop_map(|ms| LogPlace::Time(Timestamp::from_millisecond(ms).unwrap())),
            (0..=u64::MAX / 2).prop_map(|ms| LogPlace::Ago(Duration::from_millis(ms))),
        ]
    }

    proptest! {
        #[test]
        fn a_place_reads_back_as_it_is_written(place in place()) {
            prop_assert_eq!(place.to_string().parse(), Ok(place));
            prop_assert_eq!(place.to_string().parse(), Ok(Start::Place(place)));
            prop_assert_eq!(place.to_string().parse(), Ok(LogPlaces::All(place)));
        }

        #[test]
        fn places_read_back_as_they_are_written(
            places in prop::collection::btree_map(0..=i32::MAX, place(), 1..5),
        ) {
            let places = LogPlaces::Each(places);
            prop_assert_eq!(places.to_string().parse(), Ok(places));
        }

        #[test]
        fn no_text_is_too_strange(text in ".*") {
            let _ = text.parse::<LogPlaces>();
        }
    }

    #[test]
    fn every_form_is_read() {
        let time = "2026-01-31T08:00:00Z".parse().unwrap();
        for (text, place) in [
            ("earliest", LogPlace::Earliest),
            ("latest", LogPlace::Latest),
            ("0", LogPlace::Offset(0)),
            ("9223372036854775807", LogPlace::Offset(i64::MAX)),
            ("2026-01-31T08:00:00Z", LogPlace::Time(time)),
            ("2026-01-31T09:00:00+01:00", LogPlace::Time(time)),
            ("-24h", LogPlace::Ago(Duration::from_secs(86_400))),
            ("-1h30m", LogPlace::Ago(Duration::from_secs(5_400))),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        let places: LogPlaces = "0:100, 1:earliest,7:2026-01-31T08:00:00Z".parse().unwrap();
        assert_eq!(places.of(0), Some(LogPlace::Offset(100)));
        assert_eq!(places.of(1), Some(LogPlace::Earliest));
        assert_eq!(places.of(7), Some(LogPlace::Time(time)));
        assert_eq!(places.of(2), None);
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "",
            " ",
            "-1",
            "-",
            "-24",
            "+5",
            "1.5",
            "24h",
            "Earliest",
            "yesterday",
            "9223372036854775808",
            "0:",
            "0:100,",
            "0:1,0:2",
            "-1:5",
            "0:1,x:2",
            "2026-01-31",
        ] {
            assert!(text.parse::<LogPlaces>().is_err(), "{text}");
        }
        let error = "-24".parse::<LogPlace>().unwrap_err();
        assert!(error.contains("needs a unit"), "{error}");
    }

    #[test]
    fn a_time_ago_is_counted_from_now() {
        let now: Timestamp = "2026-01-31T08:00:00Z".parse().unwrap();
        let ago = LogPlace::Ago(Duration::from_secs(86_400)).time(now);
        assert_eq!(ago, "2026-01-30T08:00:00Z".parse().ok());
        let beyond = LogPlace::Ago(Duration::MAX).time(now);
        assert_eq!(beyond, Some(Timestamp::MIN));
        assert_eq!(LogPlace::Offset(5).time(now), None);
    }
}
