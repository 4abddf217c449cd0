// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest did: the event format ([`event`]), its file ([`mod@file`]) and
//! built-in streams ([`generate`]).
#![forbid(unsafe_code)]

pub mod bounded;
mod clock;
#[doc(hidden)]
pub mod codec;
pub mod event;
mod exit;
pub mod file;
pub mod generate;
mod thin;

pub use clock::Clock;
pub use event::{DecodeError, Event, Stats, decode};
pub use exit::CommandExit;
pub use file::{FileError, Header, Reader, Source, Trailer, Writer};
pub use generate::{GenerateError, Generator};
pub use thin::{Thin, Windows};
