//! `[coordination]`, `[http]` and `[gateway]`.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use super::values::{address, names};

/// Locks, fences, queues and schedules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Coordination {
    /// A Redis that does not evict; [`super::Config::coordination_url`] knows the default.
    pub redis_url: Option<Secret>,
}

/// The operator's port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address and port; port 0: a free one.
    #[serde(with = "address")]
    pub listen: SocketAddr,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)),
        }
    }
}

/// The front door for HTTP clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Address and port; port 0: a free one.
    #[serde(with = "address", default = "gateway_listen")]
    pub listen: SocketAddr,
    /// The topics that clients may send to.
    #[serde(deserialize_with = "names")]
    pub topics: Vec<String>,
}

fn gateway_listen() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))
}

impl Gateway {
    pub(super) fn complete() -> Self {
        Self {
            listen: gateway_listen(),
            topics: vec!["orders".into()],
        }
    }
}
