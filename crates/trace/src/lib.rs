// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest did: the event format ([`event`]).
#![forbid(unsafe_code)]

pub mod event;

pub use event::{DecodeError, Event, Stats, decode};
